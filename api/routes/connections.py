"""`/api/v1/connections`: requests to providers that messages are sent by. No answer contains a secret.

Requires a workbench key. Reading needs one of the scopes that read automations; a change needs automations:publish,
because it concerns what is published.
"""

import asyncio

import msgspec
from sanic import Blueprint, Request

from api.automations import connections
from api.automations.automations import Refusal, unknown
from api.routes.request import PUBLISH, READ, Operation, author_of, principal_of, services
from api.routes.responses import RequestRefusedError
from api.store import connections as store
from workbench.language.body import SLUG, SLUG_CHARACTERS
from workbench.language.connections import ConnectionBody
from workbench.language.responses import ConnectionDetail, SavedConnectionView

blueprint = Blueprint("connections", url_prefix="/api/v1/connections")


@blueprint.get("")
@Operation(READ, field="connections")
async def list_all(request: Request) -> list[SavedConnectionView]:
    """List the connections by name."""
    async with services(request).database.transaction() as tx:
        rows = await store.list_connections(tx, principal_of(request).org_id)
    return await asyncio.to_thread(lambda: [*map(connections.view, rows)])


@blueprint.get("/<name:str>")
@Operation(READ)
async def read(request: Request, name: str) -> ConnectionDetail | Refusal:
    """Return a connection, and the automations that send by it."""
    org_id, database = principal_of(request).org_id, services(request).database
    async with database.transaction() as tx:
        row = next(iter(await store.list_connections(tx, org_id, [name])), None)
    if row is None:
        return unknown("connection")
    view = await asyncio.to_thread(connections.view, row)
    used_by = await connections.find_uses(database, org_id, name)
    return ConnectionDetail(**msgspec.structs.asdict(view), used_by=tuple(used_by))


@blueprint.put("/<name:str>")
@Operation(PUBLISH)
async def save(request: Request, name: str, body: ConnectionBody) -> SavedConnectionView | Refusal:
    """Create or replace a connection. Messages that leave from now on are sent as it says.

    409 if a live version of an automation does not fit the change.
    """
    if not SLUG.fullmatch(name):
        raise RequestRefusedError(400, f"the name of a connection must have {SLUG_CHARACTERS}")
    context = services(request)
    return await connections.save(context.database, context.keyring, author_of(request), name, body)


@blueprint.delete("/<name:str>")
@Operation(PUBLISH)
async def delete(request: Request, name: str) -> SavedConnectionView | Refusal:
    """Delete a connection. 409 if the live version of an automation sends by it."""
    return await connections.delete(services(request).database, author_of(request), name)
