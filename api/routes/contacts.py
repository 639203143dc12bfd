"""`/api/v1/contacts`: finding one, what it wants no messages through, its tags, what is kept of it, and forgetting it.

Live secret keys, whose holder knows the people, and workbench keys with the scope: contacts:read to look, automations:write for
tags and opt-outs (an automation can change contacts, too), contacts:erase to forget. Export and erasure are for workbench keys only.
Emails are masked without pii:read.
"""

import logging

from sanic import Blueprint, HTTPResponse, Request

from api.authoring.fields import Fields
from api.contacts import care, erasure, export
from api.language.action import MAX_TAG
from api.language.contact import Contact
from api.language.described import read_contact
from api.language.event import Identifiers
from api.language.problem import Problem
from api.language.retry import CHANNELS
from api.routes.answers import RefusedError, answer
from api.routes.authors import body_fields, known_form, refuse_problems, settled
from api.routes.entrance import parts
from api.routes.people import PRIVATE, author_of, require_person, shown_to
from api.routes.watched import while_allowed
from api.store.erasure import Subject

blueprint = Blueprint("contacts", url_prefix="/api/v1/contacts")

_READ, _CHANGE = ("ingest", "contacts:read"), ("ingest", "automations:write")
_MOST_TAGS = 100

_log = logging.getLogger("workbench.contacts")


@blueprint.post("/find")
async def find(request: Request) -> HTTPResponse:
    """Answer the contact that an event with this `contact` would belong to."""
    who, own = await require_person(request, _READ), parts(request)
    identifiers = _identifiers(body_fields(request))
    keys = own.keyring.of(who.org_id)
    found = await care.find(own.database, who.org_id, keys, identifiers, shown_to(request, who))
    return answer(settled(found), headers=PRIVATE)


@blueprint.get("/<contact_id:str>")
async def show(request: Request, contact_id: str) -> HTTPResponse:
    """Answer a contact."""
    who = await require_person(request, _READ)
    known = known_form(contact_id, "contact")
    found = await care.show(parts(request).database, who.org_id, known, shown_to(request, who))
    return answer(settled(found), headers=PRIVATE)


@blueprint.put("/<contact_id:str>/opt-outs")
async def opt_out(request: Request, contact_id: str) -> HTTPResponse:
    """Let a contact opt out of channels, `{"email": true}`, or in again; those that are not named stay as they are."""
    who = await require_person(request, _CHANGE)
    known, fields = known_form(contact_id, "contact"), body_fields(request)
    named = [(channel, fields.flag(channel)) for channel in CHANNELS]
    outs: dict[str, bool] = {channel: is_out for channel, is_out in named if is_out is not None}
    if not outs and not fields.problems:
        fields.refuse("", f"the body must name a channel: {', '.join(CHANNELS)}")
    refuse_problems(fields)
    author, shown = author_of(request, who), shown_to(request, who)
    return answer(settled(await care.opt_out(parts(request).database, author, known, outs, shown)), headers=PRIVATE)


@blueprint.post("/<contact_id:str>/tags")
async def tag(request: Request, contact_id: str) -> HTTPResponse:
    """Take the tags in `remove` from a contact, then give it those in `add`."""
    who = await require_person(request, _CHANGE)
    known, fields = known_form(contact_id, "contact"), body_fields(request)
    added, removed = _tags(fields, "add"), _tags(fields, "remove")
    refuse_problems(fields)
    author, shown = author_of(request, who), shown_to(request, who)
    changed = await care.tag(parts(request).database, author, known, added, removed, shown)
    return answer(settled(changed), headers=PRIVATE)


@blueprint.delete("/<contact_id:str>")
async def erase(request: Request, contact_id: str) -> HTTPResponse:
    """Forget a contact for good; its rows stay and count, and say nothing about it."""
    who = await require_person(request, ("contacts:erase",))
    known = known_form(contact_id, "contact")
    return answer(settled(await erasure.erase(parts(request).database, author_of(request, who), known)))


@blueprint.get("/<contact_id:str>/export")
async def export_all(request: Request, contact_id: str) -> None:
    """Answer what is kept of a contact: itself, its events, entries with their steps, and messages."""
    who, database = await require_person(request, ("contacts:read",)), parts(request).database
    known, shown, clear = known_form(contact_id, "contact"), shown_to(request, who), "pii:read" in who.scopes
    contact = settled(await care.show(database, who.org_id, known, shown))
    response = await request.respond(content_type="application/json", headers=PRIVATE)
    try:
        async with while_allowed(request, "contacts:read"):
            async for piece in export.pieces(database, Subject(who.org_id, contact.id), contact, shown, clear=clear):
                await response.send(piece)
            await response.eof()
    except Exception as error:  # noqa: BLE001  the edge: an answer that has begun can only break, so that no half looks whole
        _log.warning("export_broken", extra={"request_id": str(request.id), "reason": type(error).__name__})
        request.transport.abort()  # type: ignore[attr-defined]


def _identifiers(fields: Fields) -> Identifiers:
    found = read_contact(fields.value("contact"))
    if not isinstance(found, Contact):
        raise RefusedError(400, found)
    refuse_problems(fields)
    if found.identifiers == Identifiers():
        raise RefusedError(400, Problem("contact", "must have a walletAddress, an email or an externalId"))
    return found.identifiers


def _tags(fields: Fields, name: str) -> list[str]:
    tags = fields.value(name)
    if tags is None:
        return []
    if not isinstance(tags, list) or len(tags) > _MOST_TAGS:
        fields.refuse(name, f"must be an array of at most {_MOST_TAGS} tags")
        return []
    if not all(isinstance(each, str) and 0 < len(each) <= MAX_TAG for each in tags):
        fields.refuse(name, f"must hold tags of 1 to {MAX_TAG} characters")
    return list(dict.fromkeys(map(str, tags)))
