"""`/api/v1/broadcasts`: starting an automation for many contacts at once.

Workbench keys only. Reading and previewing needs one of automations:write, automations:publish, events:read; sending
automations:publish; stopping automations:write or automations:publish.
"""

from typing import Annotated

from msgspec import Meta
from sanic import Blueprint, Request

from api.automations.automations import Refusal, unknown
from api.routes.request import PUBLISH, READ, SWITCH, Operation, author_of, principal_of, services, unwrap
from api.segments import broadcasts
from api.segments.broadcasts import BroadcastBody, PreviewBody, broadcast_view
from api.segments.results import read_results
from api.store import broadcasts as store
from workbench.language.body import Body, LastId
from workbench.language.channel import RetryPolicy
from workbench.language.responses import BroadcastPreview, BroadcastResults, BroadcastView

blueprint = Blueprint("broadcasts", url_prefix="/api/v1")


class BroadcastsQuery(Body, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    before: LastId | None = None


@blueprint.post("/automations/<automation_id:str>/broadcasts")
@Operation(PUBLISH, status=201)
async def create(request: Request, automation_id: str, body: BroadcastBody) -> BroadcastView:
    """Start the automation for all contacts of a segment or of the organization, now or `at` a time."""
    row = await broadcasts.create(services(request).database, author_of(request), automation_id, body)
    return broadcast_view(unwrap(row))


@blueprint.post("/automations/<automation_id:str>/broadcasts/preview")
@Operation(READ)
async def preview(request: Request, automation_id: str, body: PreviewBody) -> BroadcastPreview | Refusal:
    """Count the contacts that a broadcast would start now, and list some of them."""
    context, author = services(request), author_of(request)
    return await broadcasts.preview(context.database, context.keyring, author, automation_id, body)


@blueprint.get("/broadcasts")
@Operation(READ, field="broadcasts")
async def list_all(request: Request, query: BroadcastsQuery) -> list[BroadcastView]:
    """List broadcasts, newest first."""
    async with services(request).database.transaction() as tx:
        rows = await store.list_broadcasts(tx, principal_of(request).org_id, query.before, query.limit)
    return [broadcast_view(row) for row in rows]


@blueprint.get("/broadcasts/<broadcast_id:str>")
@Operation(READ)
async def read(request: Request, broadcast_id: str) -> BroadcastView:
    """Return one broadcast."""
    async with services(request).database.transaction() as tx:
        row = await store.find_broadcast(tx, principal_of(request).org_id, broadcast_id)
    return broadcast_view(unwrap(row or unknown("broadcast")))


@blueprint.get("/broadcasts/<broadcast_id:str>/results")
@Operation(READ)
async def results(request: Request, broadcast_id: str) -> BroadcastResults | Refusal:
    """Count what became of the entries and messages of a broadcast, and the contacts that reached the goal."""
    context, org_id = services(request), principal_of(request).org_id
    keys, retries = context.keyring.of(org_id), RetryPolicy(context.settings.retry_delays)
    return await read_results(context.database, org_id, keys, broadcast_id, retries)


@blueprint.post("/broadcasts/<broadcast_id:str>/stop")
@Operation(SWITCH)
async def stop(request: Request, broadcast_id: str) -> BroadcastView:
    """Stop a broadcast: it makes no further entries; those that were made continue."""
    return broadcast_view(unwrap(await broadcasts.stop(services(request).database, author_of(request), broadcast_id)))
