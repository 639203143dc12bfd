"""`/api/v1/entries` and `/dead-letters`: finding entries, reading one with its history, replaying dead ones.

Reading needs one of automations:write, automations:publish, events:read; replay automations:write. Workbench keys only.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.access.verify import Principal
from api.authoring import entries
from api.authoring.entries import Wanted
from api.authoring.views import Shown
from api.language.email import mask_email
from api.routes.answers import answer
from api.routes.authors import (
    READ,
    WRITE,
    author,
    body_fields,
    cause_in,
    id_argument,
    known_form,
    page,
    refuse_problems,
    require_notebook,
    settled,
    text_argument,
)
from api.routes.entrance import parts

blueprint = Blueprint("entries", url_prefix="/api/v1")

_THING = "entry"
_MOST = 500


@blueprint.get("/entries")
async def find(request: Request) -> HTTPResponse:
    """Answer entries, newest first: of all events, or of those with an `event` name, `eventId` or `idempotencyKey`."""
    who = await require_notebook(request, READ)
    event = text_argument(request, "event")
    wanted = Wanted(
        page(request, 50, _MOST),
        None if event is None else event.lower(),
        id_argument(request, "eventId"),
        text_argument(request, "idempotencyKey"),
    )
    own = parts(request)
    return answer({"entries": await entries.find_entries(own.database, who.org_id, own.keyring.of(who.org_id), wanted)})


@blueprint.get("/entries/<entry_id:str>")
async def read(request: Request, entry_id: str) -> HTTPResponse:
    """Answer one entry with its steps, messages and moves."""
    who = await require_notebook(request, READ)
    shown = _shown(request, who)
    known, clear = known_form(entry_id, _THING), "pii:read" in who.scopes
    return answer(settled(await entries.history(parts(request).database, who.org_id, known, shown, clear=clear)))


@blueprint.get("/dead-letters")
async def dead_letters(request: Request) -> HTTPResponse:
    """Answer the dead entries by automation, cause and node; of one automation with `automationId`."""
    who = await require_notebook(request, READ)
    wanted = id_argument(request, "automationId")
    return answer({"deadLetters": settled(await entries.dead_letters(parts(request).database, who.org_id, wanted))})


@blueprint.post("/entries/replay")
async def replay_many(request: Request) -> HTTPResponse:
    """Replay every dead entry, or those of one automation or cause; automations that are switched off are passed over."""
    who = await author(request, WRITE)
    fields = body_fields(request)
    cause, automation_id = cause_in(fields), fields.text("automationId", 100)
    refuse_problems(fields)
    database = parts(request).database
    if automation_id is None:
        return answer({"replayed": await entries.replay_everywhere(database, who, cause)})
    known = known_form(automation_id, "automation")
    return answer({"replayed": settled(await entries.replay_all(database, who, known, cause))})


@blueprint.post("/entries/<entry_id:str>/replay")
async def replay(request: Request, entry_id: str) -> HTTPResponse:
    """Give a dead entry a new cycle of attempts; 409 for any other."""
    who, reader = await author(request, WRITE), await require_notebook(request, WRITE)
    known, shown, clear = known_form(entry_id, _THING), _shown(request, reader), "pii:read" in reader.scopes
    return answer(settled(await entries.replay(parts(request).database, who, known, shown, clear=clear)))


def _shown(request: Request, who: Principal) -> Shown:
    """Return how the caller sees the address of an email: in clear only with pii:read."""
    keys = parts(request).keyring.of(who.org_id)
    if "pii:read" in who.scopes:
        return keys.open_email
    return lambda sealed: mask_email(keys.open_email(sealed))
