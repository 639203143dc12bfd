"""`/api/v1/contacts`: finding a contact, its history, opt-outs and tags, merging, explaining, export and erasure.

Live secret keys may find contacts and change their tags and opt-outs. Workbench keys need contacts:read to read,
automations:write to change (automations change contacts, too), contacts:erase to erase. History, explain, merge,
export and erasure are for workbench keys only. Email addresses are masked without pii:read.
"""

import logging
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sanic import Blueprint, Request

from api.automations.automations import Refusal
from api.clock import from_us
from api.contacts import contacts, export, preferences
from api.contacts import erase as contacts_erase
from api.contacts.contacts import ContactWithCounts, HistoryView, TimelineView, read_contact_with_counts, timeline
from api.contacts.erase import ErasedView
from api.contacts.explain import ExplainBody, ExplainedView, ExplainReader
from api.contacts.explain import explain as explain_contact
from api.contacts.merge import Pair, UndoneView, preview, undo
from api.contacts.merge import merge as merge_contacts
from api.routes.request import (
    PRIVATE,
    Access,
    Operation,
    author_of,
    cancel_when_key_ends,
    email_display,
    path_id,
    principal_of,
    require_scope,
    services,
    unwrap,
)
from api.routes.responses import RequestRefusedError
from api.store.changes import NEWEST_CHANGE, ChangeCursor
from api.store.contacts import LAST_CURSOR, TIMELINE_KINDS, ContactKey, PageCursor
from workbench.language.actions import MAX_TAG
from workbench.language.body import Body, Id, is_id
from workbench.language.channel import CHANNELS
from workbench.language.event import ContactBody, Email, ExternalId, WalletAddress, parse_timestamp, read_identifiers
from workbench.language.problem import Problem
from workbench.language.responses import (
    ContactChangeView,
    ContactView,
    MergeView,
    PreferencesView,
    PropertiesView,
    TimelineKind,
)

blueprint = Blueprint("contacts", url_prefix="/api/v1/contacts")

_FIND = Access(("live", "workbench"), ("ingest", "contacts:read"))
_CHANGE = Access(("live", "workbench"), ("ingest", "automations:write"))
_READ = Access(("workbench",), ("contacts:read",))
_PROPERTIES = Access(("workbench",), ("sql:read",))  # analysts read all attributes in SQL
_MERGE = Access(("workbench",), ("contacts:read", "automations:write"))
_UNDO = Access(("workbench",), ("automations:write",))
_ERASE = Access(("workbench",), ("contacts:erase",))
_FIRST_ID = "00000000-0000-0000-0000-000000000000"  # sorts before every row of the same moment

_log = logging.getLogger("workbench.contacts")


class FindContactBody(Body, frozen=True):
    """The identifiers of the contact."""

    contact: ContactBody


class ContactQuery(Body, frozen=True, rename="camel"):
    id: str | None = None
    email: Email | None = None
    wallet_address: WalletAddress | None = None
    external_id: ExternalId | None = None

    def conflicts(self) -> Iterator[Problem]:
        if [self.id, self.email, self.wallet_address, self.external_id].count(None) != 3:
            yield Problem("", "pass exactly one of id, email, walletAddress, externalId")


class TimelineQuery(Body, frozen=True):
    kind: TimelineKind | None = None
    before: Annotated[str, Meta(description="A moment, or `next` of the previous page.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class HistoryQuery(Body, frozen=True):
    before: Annotated[str, Meta(description="A moment, or `next` of the previous page.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class ChannelsBody(Body, frozen=True):
    """Channels that the contact wants (true) or not (false)."""

    inapp: bool | None = None
    email: bool | None = None
    webhook: bool | None = None
    connection: bool | None = None

    @property
    def chosen(self) -> dict[str, bool]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


assert set(ChannelsBody.__struct_fields__) == CHANNELS.keys(), "of every channel"


class OptOutsBody(ChannelsBody, frozen=True):
    """Channels to opt out of (true) or in again (false); at least one."""

    def conflicts(self) -> Iterator[Problem]:
        if not self.chosen:
            yield Problem("", f"the body must name a channel: {', '.join(CHANNELS)}")


class PreferencesBody(Body, frozen=True):
    """Topics and channels that the contact wants (true) or not (false); at least one."""

    topics: dict[str, bool] | None = None
    channels: ChannelsBody | None = None

    def conflicts(self) -> Iterator[Problem]:
        if not self.topics and (self.channels is None or not self.channels.chosen):
            yield Problem("", "the body must name a topic or a channel")


Tags = Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_TAG)]], Meta(max_length=100)]


class TagsBody(Body, frozen=True):
    """Tags to add and to remove."""

    add: Tags | None = None
    remove: Tags | None = None


class MergeBody(Body, frozen=True):
    """The contact to keep, and the one to merge into it."""

    keep: Id
    absorb: Id
    preview: bool = False

    def conflicts(self) -> Iterator[Problem]:
        if self.keep == self.absorb:
            yield Problem("absorb", "must be a different contact from keep")


class ContactExport(msgspec.Struct, frozen=True, rename="camel"):
    """Everything stored about a contact. `absorbed`: the contacts that were merged into it, as they were.

    `history`: the changes of their values.
    """

    contact: dict[str, Any]
    absorbed: list[dict[str, Any]]
    events: list[dict[str, Any]]
    entries: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    onchain_events: list[dict[str, Any]]
    consents: list[dict[str, Any]]
    history: list[ContactChangeView]


@blueprint.post("/find")  # POST, so that email addresses stay out of URLs and thus out of proxies' logs
@Operation(_FIND, private=True)
async def find(request: Request, body: FindContactBody) -> ContactView | Refusal:
    """Find the contact that an event with this `contact` would belong to."""
    return await _find(request, body.contact)


@blueprint.get("")
@Operation(_FIND, private=True)
async def find_with_counts(request: Request, query: ContactQuery) -> ContactWithCounts | Refusal:
    """Find a contact by its `id`, `email`, `walletAddress` or `externalId`, with `counts`."""
    if query.id is not None:
        contact_id = path_id(query.id, "contact")
    else:
        identifiers = ContactBody(query.email, query.wallet_address, query.external_id)
        contact_id = unwrap(await _find(request, identifiers)).id
    subject = ContactKey(principal_of(request).org_id, contact_id)
    return await read_contact_with_counts(services(request).database, subject, email_display(request))


@blueprint.get("/properties")
@Operation(_PROPERTIES)
async def properties(request: Request) -> PropertiesView:
    """Describe the attributes and tags of a sample of contacts. Types are evidence, never a schema."""
    database, now = services(request).database, services(request).clock.now()
    return await contacts.describe_properties(database, principal_of(request).org_id, now)


@blueprint.get("/<contact_id:str>")
@Operation(_FIND, private=True)
async def read(request: Request, contact_id: str) -> ContactView | Refusal:
    """Return one contact."""
    org_id = principal_of(request).org_id
    return await contacts.read(services(request).database, org_id, contact_id, email_display(request))


@blueprint.get("/<contact_id:str>/timeline")
@Operation(_READ, private=True)
async def list_timeline(request: Request, contact_id: str, query: TimelineQuery) -> TimelineView | Refusal:
    """List the history of a contact, newest first: events, entries, messages and changes, or one `kind` of them."""
    subject = ContactKey(principal_of(request).org_id, contact_id)
    kinds = list(TIMELINE_KINDS) if query.kind is None else [query.kind]
    before = LAST_CURSOR
    if query.before is not None:
        # An unquoted + in a URL arrives as a blank.
        moment, _, row_id = query.before.replace(" ", "+").partition(",")
        at_us = parse_timestamp(moment)
        if at_us is None or (row_id and not is_id(row_id)):
            reason = "must be a moment like 2026-11-20T10:00:00Z, or `next` of the previous page"
            raise RequestRefusedError(400, Problem("before", reason))
        before = PageCursor(from_us(at_us), row_id or _FIRST_ID)
    return await timeline(services(request).database, subject, kinds, before, query.limit, email_display(request))


@blueprint.get("/<contact_id:str>/history")
@Operation(_READ, private=True)
async def list_history(request: Request, contact_id: str, query: HistoryQuery) -> HistoryView | Refusal:
    """List the changes of a contact's values, newest first: the field, its old and new value, and the cause."""
    subject = ContactKey(principal_of(request).org_id, contact_id)
    before = NEWEST_CHANGE
    if query.before is not None:
        moment, _, row = query.before.replace(" ", "+", 1).partition(",")
        row_contact, _, field = row.partition(",")
        at_us = parse_timestamp(moment)
        if at_us is None or (row and not is_id(row_contact)):
            reason = "must be a moment like 2026-11-20T10:00:00Z, or `next` of the previous page"
            raise RequestRefusedError(400, Problem("before", reason))
        before = ChangeCursor(from_us(at_us), row_contact or _FIRST_ID, field)
    return await contacts.history(services(request).database, subject, before, query.limit, email_display(request))


@blueprint.put("/<contact_id:str>/opt-outs")
@Operation(_CHANGE, private=True)
async def opt_out(request: Request, contact_id: str, body: OptOutsBody) -> ContactView | Refusal:
    """Opt a contact out of channels, `{"email": true}`, or in again; channels that are not named stay as they are."""
    author, show = author_of(request), email_display(request)
    return await contacts.opt_out(services(request).database, author, contact_id, body.chosen, show)


@blueprint.get("/<contact_id:str>/preferences")
@Operation(_FIND, private=True)
async def read_preferences(request: Request, contact_id: str) -> PreferencesView | Refusal:
    """Return what a contact wants, by topic and by channel."""
    return await preferences.read(services(request).database, principal_of(request).org_id, contact_id)


@blueprint.put("/<contact_id:str>/preferences")
@Operation(_CHANGE, private=True)
async def set_preferences(request: Request, contact_id: str, body: PreferencesBody) -> PreferencesView | Refusal:
    """Set topics and channels to wanted or declined, `{"topics": {"news": false}}`; the others stay as they are."""
    channels = {} if body.channels is None else body.channels.chosen
    author, topics = author_of(request), body.topics or {}
    return await preferences.change(services(request).database, author, contact_id, topics, channels)


@blueprint.post("/<contact_id:str>/tags")
@Operation(_CHANGE, private=True)
async def tag(request: Request, contact_id: str, body: TagsBody) -> ContactView | Refusal:
    """Remove the tags in `remove` from a contact, then add those in `add`."""
    added, removed = (list(dict.fromkeys(tags or ())) for tags in (body.add, body.remove))  # without repetitions
    author, show = author_of(request), email_display(request)
    return await contacts.tag(services(request).database, author, contact_id, added, removed, show)


@blueprint.post("/<contact_id:str>/explain")
@Operation(_READ, private=True)
async def explain(request: Request, contact_id: str, body: ExplainBody) -> ExplainedView | Refusal:
    """Explain why an automation did or did not start for the newest events, one `eventId` or a hypothetical `event`."""
    automation_id = path_id(body.automation_id, "automation")
    reader = ExplainReader(author_of(request), email_display(request))
    return await explain_contact(services(request).database, reader, contact_id, automation_id, body)


@blueprint.post("/merge")
@Operation(_MERGE, private=True)  # either scope, until the body says which one is needed
async def merge(request: Request, body: MergeBody) -> MergeView | Refusal:
    """Merge the contact `absorb` into the contact `keep`; with `preview`, only return the result."""
    require_scope(request, "contacts:read" if body.preview else "automations:write")
    database, show, pair = services(request).database, email_display(request), Pair(body.keep, body.absorb)
    if body.preview:
        return await preview(database, principal_of(request).org_id, pair, show)
    return await merge_contacts(database, author_of(request), pair, show)


@blueprint.post("/merges/<merge_id:str>/undo")
@Operation(_UNDO, private=True)
async def undo_merge(request: Request, merge_id: str) -> UndoneView | Refusal:
    """Undo a merge; 409 gives the reason if that is no longer possible."""
    return await undo(services(request).database, author_of(request), merge_id)


@blueprint.get("/<contact_id:str>/export")
@Operation(_READ, answer=ContactExport)
async def export_all(request: Request, contact_id: str) -> None:
    """Export everything stored about a contact, with its events, entries and their steps, messages and logs."""
    org_id, database, show = principal_of(request).org_id, services(request).database, email_display(request)
    # Read before the response begins, so that an unknown contact still gets a 404.
    contact = unwrap(await contacts.read(database, org_id, contact_id, show))
    subject = ContactKey(org_id, contact.id)
    response = await request.respond(content_type="application/json", headers=PRIVATE)
    try:
        async with cancel_when_key_ends(request, _READ):
            async for piece in export.export_chunks(database, subject, contact, show):
                await response.send(piece)
            await response.eof()
    except Exception as error:  # noqa: BLE001 - the response has begun: closing the connection shows that it is incomplete
        _log.warning("export_broken", extra={"request_id": str(request.id), "reason": type(error).__name__})
        request.transport.abort()  # type: ignore[attr-defined]


@blueprint.delete("/<contact_id:str>")
@Operation(_ERASE)
async def erase(request: Request, contact_id: str) -> ErasedView | Refusal:
    """Erase a contact permanently; its rows still count, without any personal data."""
    return await contacts_erase.erase(services(request).database, author_of(request), contact_id)


async def _find(request: Request, sent: ContactBody) -> ContactView | Refusal:
    problems: list[Problem] = []
    identifiers = read_identifiers(sent, problems)
    if problems:
        raise RequestRefusedError(400, tuple(problems))
    org_id, show = principal_of(request).org_id, email_display(request)
    return await contacts.find(services(request).database, org_id, identifiers, show)
