"""`/api/v1/topics`: what messages are about. Contacts want or decline each.

Requires a workbench key. Reading needs one of the scopes that read automations; a change needs automations:write.
"""

from sanic import Blueprint, Request

from api.automations import topics
from api.automations.automations import Refusal
from api.automations.topics import TopicBody
from api.routes.request import READ, WRITE, Operation, author_of, principal_of, services
from api.routes.responses import RequestRefusedError
from api.store.consents import list_topics
from workbench.language.body import SLUG, SLUG_CHARACTERS
from workbench.language.responses import TopicView, TopicWithUses

blueprint = Blueprint("topics", url_prefix="/api/v1/topics")


@blueprint.get("")
@Operation(READ, field="topics")
async def list_all(request: Request) -> list[TopicView]:
    """List the topics by name."""
    async with services(request).database.transaction() as tx:
        return await list_topics(tx, principal_of(request).org_id)


@blueprint.get("/<name:str>")
@Operation(READ)
async def read(request: Request, name: str) -> TopicWithUses | Refusal:
    """Return a topic, and the automations whose messages name it."""
    return await topics.read(services(request).database, principal_of(request).org_id, name)


@blueprint.put("/<name:str>")
@Operation(WRITE)
async def save(request: Request, name: str, body: TopicBody) -> TopicView | Refusal:
    """Create a topic, or change it: `label`, `labels` by locale, and `optIn`."""
    if not SLUG.fullmatch(name):
        raise RequestRefusedError(400, f"a topic's name has {SLUG_CHARACTERS}")
    return await topics.save(services(request).database, author_of(request), name, body)


@blueprint.delete("/<name:str>")
@Operation(WRITE)
async def delete(request: Request, name: str) -> TopicWithUses | Refusal:
    """Delete a topic; 409 with their names while automations use it."""
    return await topics.delete(services(request).database, author_of(request), name)
