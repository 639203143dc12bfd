"""`GET /api/v1/contacts` and `/contacts/{id}/timeline`: one contact with its counts, and what happened to it.

Live secret keys may find a contact; what happened to it is for workbench keys with contacts:read. Emails are masked without pii:read.
"""

from collections.abc import Collection

from sanic import Blueprint, HTTPResponse, Request

from api.access.verify import Principal
from api.clock import from_us
from api.contacts import care
from api.contacts.timeline import known, timeline
from api.language.contact import Contact
from api.language.described import read_contact
from api.language.moment import read_moment
from api.language.problem import Problem
from api.routes.answers import RefusedError, answer
from api.routes.authors import is_id, known_form, settled, text_argument
from api.routes.catalog import whole_number
from api.routes.entrance import parts
from api.routes.people import PRIVATE, require_person, shown_to
from api.store.erasure import Cursor, Subject
from api.store.timeline import END, HAPPENINGS, Happening

blueprint = Blueprint("timeline", url_prefix="/api/v1/contacts")

_IDENTIFIERS = ("email", "walletAddress", "externalId")
_MOST = 500


@blueprint.get("/")
async def show(request: Request) -> HTTPResponse:
    """Answer the contact named by `id`, or by what identifies it: `email`, `walletAddress`, `externalId`."""
    who = await require_person(request, ("ingest", "contacts:read"))
    contact_id = await _named(request, who)
    found = await known(parts(request).database, Subject(who.org_id, contact_id), shown_to(request, who))
    return answer(settled(found), headers=PRIVATE)


@blueprint.get("/<contact_id:str>/timeline")
async def happenings(request: Request, contact_id: str) -> HTTPResponse:
    """Answer what happened to a contact, newest first: of all kinds, or of one `kind`.

    `before` is a moment, or `next` of the page before.
    """
    who = await require_person(request, ("contacts:read",))
    subject = Subject(who.org_id, known_form(contact_id, "contact"))
    before, most = _before(request), whole_number(request, "limit", 100, _MOST)
    found = await timeline(
        parts(request).database, subject, _kinds(request), before, most, clear="pii:read" in who.scopes
    )
    return answer(settled(found), headers=PRIVATE)


async def _named(request: Request, who: Principal) -> str:
    given = {name: text for name in ("id", *_IDENTIFIERS) if (text := text_argument(request, name)) is not None}
    if len(given) != 1:
        raise RefusedError(400, f"name a contact by one of id, {', '.join(_IDENTIFIERS)}")
    if "id" in given:
        return known_form(given["id"], "contact")
    described = read_contact(given)
    if not isinstance(described, Contact):
        raise RefusedError(400, described)
    own = parts(request)
    keys = own.keyring.of(who.org_id)
    found = await care.find(own.database, who.org_id, keys, described.identifiers, shown_to(request, who))
    return settled(found).id


def _kinds(request: Request) -> Collection[Happening]:
    wanted = text_argument(request, "kind")
    kinds = [each for each in HAPPENINGS if wanted in (None, each)]
    if not kinds:
        raise RefusedError(400, Problem("kind", f"must be one of {', '.join(HAPPENINGS)}"))
    return kinds


def _before(request: Request) -> Cursor:
    text = text_argument(request, "before")
    if text is None:
        return END
    moment, _, row_id = text.replace(" ", "+").partition(",")  # a plus sign that nobody quoted
    at_us = read_moment(moment)
    if at_us is None or (row_id and not is_id(row_id)):
        raise RefusedError(
            400, Problem("before", "must be a moment like 2026-11-20T10:00:00Z, or `next` of the page before")
        )
    return from_us(at_us), row_id or "00000000-0000-0000-0000-000000000000"
