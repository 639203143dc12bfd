"""`/api/v1/entries` and `/api/v1/dead-letters`: finding entries, reading one with its history, replaying dead ones.

Workbench keys only. Reading needs one of automations:write, automations:publish, events:read; replay automations:write.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.automations import entries
from api.automations.entries import EventEntriesQuery
from api.routes.parameters import (
    body_fields,
    path_id,
    query_id,
    query_page,
    query_text,
    refuse_problems,
    replay_cause,
    unwrap,
)
from api.routes.request import READ, WRITE, author_of, email_display, require_author, require_workbench_key, services
from api.routes.responses import answer

blueprint = Blueprint("entries", url_prefix="/api/v1")

_SUBJECT = "entry"
_MAX_LISTED = 500


@blueprint.get("/entries")
async def find(request: Request) -> HTTPResponse:
    """List entries, newest first: all, or those of an `event` name, `eventId` or `idempotencyKey`."""
    principal = await require_workbench_key(request, READ)
    event = query_text(request, "event")
    query = EventEntriesQuery(
        query_page(request, 50, _MAX_LISTED),
        None if event is None else event.lower(),
        query_id(request, "eventId"),
        query_text(request, "idempotencyKey"),
    )
    keys = services(request).keyring.of(principal.org_id)
    return answer({"entries": await entries.find_entries(services(request).database, principal.org_id, keys, query)})


@blueprint.get("/entries/<entry_id:str>")
async def read(request: Request, entry_id: str) -> HTTPResponse:
    """Return one entry with its steps, messages and transitions."""
    principal = await require_workbench_key(request, READ)
    shown, clear = email_display(request, principal), "pii:read" in principal.scopes
    valid_id = path_id(entry_id, _SUBJECT)
    database = services(request).database
    return answer(unwrap(await entries.read_history(database, principal.org_id, valid_id, shown, clear=clear)))


@blueprint.get("/dead-letters")
async def dead_letters(request: Request) -> HTTPResponse:
    """Count the dead entries by automation, cause and node; of one automation with `automationId`."""
    principal = await require_workbench_key(request, READ)
    automation_id = query_id(request, "automationId")
    counts = await entries.count_dead_letters(services(request).database, principal.org_id, automation_id)
    return answer({"deadLetters": unwrap(counts)})


@blueprint.post("/entries/replay")
async def replay_many(request: Request) -> HTTPResponse:
    """Replay every dead entry, or those of one automation or cause; automations that are not active are skipped."""
    author = await require_author(request, WRITE)
    fields = body_fields(request)
    cause, automation_id = replay_cause(fields), fields.text("automationId", 100)
    refuse_problems(fields)
    database = services(request).database
    if automation_id is None:
        return answer({"replayed": await entries.replay_everywhere(database, author, cause)})
    valid_id = path_id(automation_id, "automation")
    return answer({"replayed": unwrap(await entries.replay_all(database, author, valid_id, cause))})


@blueprint.post("/entries/<entry_id:str>/replay")
async def replay(request: Request, entry_id: str) -> HTTPResponse:
    """Replay a dead entry from the step where it failed; 409 for an entry in any other state."""
    principal = await require_workbench_key(request, WRITE)
    author, valid_id = author_of(request, principal), path_id(entry_id, _SUBJECT)
    shown, clear = email_display(request, principal), "pii:read" in principal.scopes
    return answer(unwrap(await entries.replay(services(request).database, author, valid_id, shown, clear=clear)))
