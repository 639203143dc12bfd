"""`/api/v1/contacts`: finding a contact, its history, opt-outs and tags, merging, explaining, export and erasure.

Live secret keys may find contacts and change their tags and opt-outs. Workbench keys need contacts:read to read,
automations:write to change (automations change contacts, too), contacts:erase to erase. History, explain, merge,
export and erasure are for workbench keys only. Email addresses are masked without pii:read.
"""

import logging

from sanic import Blueprint, HTTPResponse, Request

from api.auth.verify import Principal
from api.automations.automations import Refusal
from api.automations.body import Fields
from api.clock import from_us
from api.contacts import contacts, export
from api.contacts import erase as contacts_erase
from api.contacts.contacts import ContactView
from api.contacts.explain import ExplainReader, ExplainRequest
from api.contacts.explain import explain as explain_contact
from api.contacts.merge import Pair, preview, undo
from api.contacts.merge import merge as merge_contacts
from api.contacts.timeline import read_contact_with_counts, timeline
from api.routes.parameters import body_fields, is_id, path_id, query_number, query_text, refuse_problems, unwrap
from api.routes.request import (
    PRIVATE,
    author_of,
    cancel_when_key_ends,
    email_display,
    require_contact_access,
    services,
)
from api.routes.responses import RequestRefusedError, answer
from api.store.contacts import LAST_CURSOR, MAX_EVENTS, TIMELINE_KINDS, ContactKey, Cursor, TimelineKind
from workbench.language.actions import MAX_TAG
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers, parse_timestamp
from workbench.language.problem import Problem
from workbench.language.run import CHANNELS
from workbench.language.simulate import read_contact

blueprint = Blueprint("contacts", url_prefix="/api/v1/contacts")

_FIND, _CHANGE, _READ = ("ingest", "contacts:read"), ("ingest", "automations:write"), ("contacts:read",)
_PREVIEW_MERGE, _MERGE = "contacts:read", "automations:write"
_IDENTIFIERS = ("email", "walletAddress", "externalId")
_MAX_TAGS = 100
_MAX_HISTORY = 500
_FIRST_ID = "00000000-0000-0000-0000-000000000000"  # sorts before every row of the same moment

_log = logging.getLogger("workbench.contacts")


@blueprint.post("/find")  # POST, so that email addresses stay out of URLs and thus out of proxies' logs
async def find(request: Request) -> HTTPResponse:
    """Find the contact that an event with this `contact` would belong to."""
    principal = await require_contact_access(request, _FIND)
    fields = body_fields(request)
    contact = read_contact(fields.value("contact"))
    if not isinstance(contact, ContactState):
        raise RequestRefusedError(400, contact)
    refuse_problems(fields)
    if contact.identifiers == Identifiers():
        raise RequestRefusedError(400, Problem("contact", "must have a walletAddress, an email or an externalId"))
    return answer(unwrap(await _find(request, principal, contact.identifiers)), headers=PRIVATE)


@blueprint.get("")
async def find_with_counts(request: Request) -> HTTPResponse:
    """Find a contact by its `id`, `email`, `walletAddress` or `externalId`, with counts of its rows."""
    principal = await require_contact_access(request, _FIND)
    identifiers = {name: text for name in ("id", *_IDENTIFIERS) if (text := query_text(request, name)) is not None}
    if len(identifiers) != 1:
        raise RequestRefusedError(400, f"pass exactly one of id, {', '.join(_IDENTIFIERS)}")
    if "id" in identifiers:
        contact_id = path_id(identifiers["id"], "contact")
    else:
        described = read_contact(identifiers)
        if not isinstance(described, ContactState):
            raise RequestRefusedError(400, described)
        contact_id = unwrap(await _find(request, principal, described.identifiers)).id
    subject = ContactKey(principal.org_id, contact_id)
    contact = await read_contact_with_counts(services(request).database, subject, email_display(request, principal))
    return answer(unwrap(contact), headers=PRIVATE)


@blueprint.get("/<contact_id:str>")
async def read(request: Request, contact_id: str) -> HTTPResponse:
    """Return one contact."""
    principal = await require_contact_access(request, _FIND)
    valid_id = path_id(contact_id, "contact")
    database, shown = services(request).database, email_display(request, principal)
    return answer(unwrap(await contacts.show(database, principal.org_id, valid_id, shown)), headers=PRIVATE)


@blueprint.get("/<contact_id:str>/timeline")
async def list_timeline(request: Request, contact_id: str) -> HTTPResponse:
    """List the history of a contact, newest first: events, entries, messages and changes, or one `kind` of them.

    `before` is a moment, or `next` of the previous page.
    """
    principal = await require_contact_access(request, _READ)
    subject = ContactKey(principal.org_id, path_id(contact_id, "contact"))
    before, limit = _read_before(request), query_number(request, "limit", 100, _MAX_HISTORY)
    only_kind = query_text(request, "kind")
    kinds: list[TimelineKind] = [kind for kind in TIMELINE_KINDS if only_kind in (None, kind)]
    if not kinds:
        raise RequestRefusedError(400, Problem("kind", f"must be one of {', '.join(TIMELINE_KINDS)}"))
    database, clear = services(request).database, "pii:read" in principal.scopes
    return answer(unwrap(await timeline(database, subject, kinds, before, limit, clear=clear)), headers=PRIVATE)


@blueprint.put("/<contact_id:str>/opt-outs")
async def opt_out(request: Request, contact_id: str) -> HTTPResponse:
    """Opt a contact out of channels, `{"email": true}`, or in again; channels that are not named stay as they are."""
    principal = await require_contact_access(request, _CHANGE)
    valid_id, fields = path_id(contact_id, "contact"), body_fields(request)
    flags = [(channel, fields.flag(channel)) for channel in CHANNELS]
    opt_outs: dict[str, bool] = {channel: flag for channel, flag in flags if flag is not None}
    if not opt_outs and not fields.problems:
        fields.refuse("", f"the body must name a channel: {', '.join(CHANNELS)}")
    refuse_problems(fields)
    author, shown = author_of(request, principal), email_display(request, principal)
    contact = await contacts.opt_out(services(request).database, author, valid_id, opt_outs, shown)
    return answer(unwrap(contact), headers=PRIVATE)


@blueprint.post("/<contact_id:str>/tags")
async def tag(request: Request, contact_id: str) -> HTTPResponse:
    """Remove the tags in `remove` from a contact, then add those in `add`."""
    principal = await require_contact_access(request, _CHANGE)
    valid_id, fields = path_id(contact_id, "contact"), body_fields(request)
    added, removed = _tags(fields, "add"), _tags(fields, "remove")
    refuse_problems(fields)
    author, shown = author_of(request, principal), email_display(request, principal)
    contact = await contacts.tag(services(request).database, author, valid_id, added, removed, shown)
    return answer(unwrap(contact), headers=PRIVATE)


@blueprint.post("/<contact_id:str>/explain")
async def explain(request: Request, contact_id: str) -> HTTPResponse:
    """Explain why an automation did or did not start for the newest events, one `eventId` or a hypothetical `event`."""
    principal = await require_contact_access(request, _READ)
    valid_id, fields = path_id(contact_id, "contact"), body_fields(request)
    fields.require("automationId")
    automation_id, event_id = fields.text("automationId", 100), fields.text("eventId", 100)
    event, limit = fields.value("event"), fields.number("limit")
    if event is not None and not isinstance(event, dict):
        fields.refuse("event", "must be an event")
    if event is not None and event_id is not None:
        fields.refuse("event", "cannot be combined with eventId: pass one of them")
    if limit is not None and limit > MAX_EVENTS:
        fields.refuse("limit", f"must be from 1 to {MAX_EVENTS}")
    if event_id is not None and not is_id(event_id):
        fields.refuse("eventId", "must be an id")
    refuse_problems(fields)
    assert automation_id is not None
    explain_request = ExplainRequest(path_id(automation_id, "automation"), event_id, event, limit or 20)
    keys = services(request).keyring.of(principal.org_id)
    reader = ExplainReader(author_of(request, principal), keys, "pii:read" in principal.scopes)
    explanation = await explain_contact(services(request).database, reader, valid_id, explain_request)
    return answer(unwrap(explanation), headers=PRIVATE)


@blueprint.post("/merge")
async def merge(request: Request) -> HTTPResponse:
    """Merge the contact `absorb` into the contact `keep`; with `preview`, only return the result."""
    # Either scope is accepted until the body says which one is needed.
    principal = await require_contact_access(request, (_PREVIEW_MERGE, _MERGE))
    fields = body_fields(request)
    ids = []
    for name in ("keep", "absorb"):
        fields.require(name)
        contact_id = fields.text(name, 100)
        if contact_id is not None and not is_id(contact_id):
            fields.refuse(name, "must be the id of a contact")
        ids.append((contact_id or "").lower())
    if ids[0] and ids[0] == ids[1]:
        fields.refuse("absorb", "must be a different contact from keep")
    is_preview = fields.flag("preview")
    refuse_problems(fields)
    scope = _PREVIEW_MERGE if is_preview else _MERGE
    if scope not in principal.scopes:
        raise RequestRefusedError(403, f"this key lacks the scope {scope}")
    database, shown, pair = services(request).database, email_display(request, principal), Pair(*ids)
    if is_preview:
        return answer(unwrap(await preview(database, principal.org_id, pair, shown)), headers=PRIVATE)
    return answer(unwrap(await merge_contacts(database, author_of(request, principal), pair, shown)), headers=PRIVATE)


@blueprint.post("/merges/<merge_id:str>/undo")
async def undo_merge(request: Request, merge_id: str) -> HTTPResponse:
    """Undo a merge; 409 gives the reason if that is not possible any more."""
    principal = await require_contact_access(request, (_MERGE,))
    valid_id = path_id(merge_id, "merge")
    result = await undo(services(request).database, author_of(request, principal), valid_id)
    return answer(unwrap(result), headers=PRIVATE)


@blueprint.get("/<contact_id:str>/export")
async def export_all(request: Request, contact_id: str) -> None:
    """Export everything stored about a contact: the contact, its events, entries with their steps, and messages."""
    principal = await require_contact_access(request, _READ)
    database, shown = services(request).database, email_display(request, principal)
    clear = "pii:read" in principal.scopes
    # Read before the response begins, so that an unknown contact still gets a 404.
    contact = unwrap(await contacts.show(database, principal.org_id, path_id(contact_id, "contact"), shown))
    subject = ContactKey(principal.org_id, contact.id)
    response = await request.respond(content_type="application/json", headers=PRIVATE)
    try:
        async with cancel_when_key_ends(request, *_READ):
            async for piece in export.export_chunks(database, subject, contact, shown, clear=clear):
                await response.send(piece)
            await response.eof()
    except Exception as error:  # noqa: BLE001 - the answer has begun: closing the connection shows that it is incomplete
        _log.warning("export_broken", extra={"request_id": str(request.id), "reason": type(error).__name__})
        request.transport.abort()  # type: ignore[attr-defined]


@blueprint.delete("/<contact_id:str>")
async def erase(request: Request, contact_id: str) -> HTTPResponse:
    """Erase a contact permanently; its rows still count, without any personal data."""
    principal = await require_contact_access(request, ("contacts:erase",))
    valid_id = path_id(contact_id, "contact")
    erased = await contacts_erase.erase(services(request).database, author_of(request, principal), valid_id)
    return answer(unwrap(erased))


async def _find(request: Request, principal: Principal, identifiers: Identifiers) -> ContactView | Refusal:
    keys = services(request).keyring.of(principal.org_id)
    shown = email_display(request, principal)
    return await contacts.find(services(request).database, principal.org_id, keys, identifiers, shown)


def _tags(fields: Fields, name: str) -> list[str]:
    tags = fields.value(name)
    if tags is None:
        return []
    if not isinstance(tags, list) or len(tags) > _MAX_TAGS:
        fields.refuse(name, f"must be an array of at most {_MAX_TAGS} tags")
        return []
    if not all(isinstance(tag, str) and 0 < len(tag) <= MAX_TAG for tag in tags):
        fields.refuse(name, f"must contain tags of 1 to {MAX_TAG} characters")
    return list(dict.fromkeys(map(str, tags)))  # without repetitions, in the order of the request


def _read_before(request: Request) -> Cursor:
    text = query_text(request, "before")
    if text is None:
        return LAST_CURSOR
    moment, _, row_id = text.replace(" ", "+").partition(",")  # an unquoted + in a URL arrives as a blank
    at_us = parse_timestamp(moment)
    if at_us is None or (row_id and not is_id(row_id)):
        reason = "must be a moment like 2026-11-20T10:00:00Z, or `next` of the previous page"
        raise RequestRefusedError(400, Problem("before", reason))
    return from_us(at_us), row_id or _FIRST_ID
