"""`/api/v1/entries` and `/api/v1/dead-letters`: finding entries, reading one with its history, replaying dead ones.

Workbench keys only. Reading needs one of automations:write, automations:publish, events:read; replaying needs
automations:write.
"""

from typing import Annotated, Literal

from msgspec import Meta
from sanic import Blueprint, Request

from api.automations import entries
from api.automations.automations import Refusal
from api.automations.entries import FindEntriesQuery
from api.routes.request import READ, WRITE, Operation, author_of, email_display, path_id, principal_of, services, unwrap
from workbench.language.body import Body, Id, Phrase, ShortName
from workbench.language.responses import DeadLetterView, EntryHistoryView, EntryView

blueprint = Blueprint("entries", url_prefix="/api/v1")


class DeadLettersQuery(Body, frozen=True, rename="camel"):
    automation_id: Id | None = None


_ONLY_DEAD = Meta(extra={"reason": "must be dead: only dead entries can be replayed"})


class CauseBody(Body, frozen=True):
    """`cause`: only entries that failed with this cause. `state`: only dead entries can be replayed."""

    cause: Phrase | None = None
    state: Annotated[Literal["dead"], _ONLY_DEAD] | None = None


class ReplayBody(CauseBody, frozen=True, rename="camel"):
    """The dead entries to replay, of one automation or cause; without fields all of them."""

    automation_id: ShortName | None = None


@blueprint.get("/entries")
@Operation(READ, field="entries")
async def find(request: Request, query: FindEntriesQuery) -> list[EntryView]:
    """List entries, newest first: all, or those of an `event` name, `eventId` or `idempotencyKey`."""
    org_id = principal_of(request).org_id
    keys = services(request).keyring.of(org_id)
    return await entries.find_entries(services(request).database, org_id, keys, query)


@blueprint.get("/entries/<entry_id:str>")
@Operation(READ)
async def read(request: Request, entry_id: str) -> EntryHistoryView | Refusal:
    """Return one entry with its steps, messages and transitions."""
    org_id = principal_of(request).org_id
    return await entries.read_history(services(request).database, org_id, entry_id, email_display(request))


@blueprint.get("/dead-letters")
@Operation(READ, field="deadLetters")
async def dead_letters(request: Request, query: DeadLettersQuery) -> list[DeadLetterView] | Refusal:
    """Count the dead entries by automation, cause and node; of one automation with `automationId`."""
    org_id = principal_of(request).org_id
    return await entries.count_dead_letters(services(request).database, org_id, query.automation_id)


@blueprint.post("/entries/replay")
@Operation(WRITE, field="replayed")
async def replay_many(request: Request, body: ReplayBody) -> int:
    """Replay every dead entry, or those of one automation or cause; automations that are not active are skipped."""
    database, author = services(request).database, author_of(request)
    if body.automation_id is None:
        return await entries.replay_everywhere(database, author, body.cause)
    return unwrap(await entries.replay_all(database, author, path_id(body.automation_id, "automation"), body.cause))


@blueprint.post("/entries/<entry_id:str>/replay")
@Operation(WRITE)
async def replay(request: Request, entry_id: str) -> EntryHistoryView | Refusal:
    """Replay a dead entry from the step where it failed; 409 for an entry in any other state."""
    return await entries.replay(services(request).database, author_of(request), entry_id, email_display(request))
