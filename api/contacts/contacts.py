"""Contacts as API callers see them, their timelines, and changes to their tags and opt-outs.

Every change is one transaction under the lock of the contact, with its audit row. A timeline lists events, entries,
messages, identity conflicts, merges and logs, newest first. Each kind is read by its index up to the size of the page,
and the lists are merged. Each item has a sentence that describes it.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from api.automations.automations import Author, Refusal, record, retry_conflicts, unknown
from api.automations.views import visible_messages
from api.clock import from_us, uuid7
from api.crypto import EmailDisplay
from api.store import contacts as store
from api.store.chain import LogRow
from api.store.changes import ChangeCursor, ChangeRow, note_tags, read_changes
from api.store.consents import ConsentRow, ConsentSource, add_consents
from api.store.contacts import ConflictRow, ContactEntryRow, ContactKey, PageCursor, TimelineRow, find_contact_state
from api.store.database import Database, Transaction, transaction_offset
from api.store.entries import TagChange, change_tags
from api.store.events import EventRow
from api.store.locks import hold_contacts
from api.store.merges import MergeRow, find_kept_contact
from api.store.messages import MessageRow
from api.store.query import run
from workbench.language.channel import CHANNELS
from workbench.language.codec import decode, encode
from workbench.language.contact import IdentifierKind
from workbench.language.event import Identifiers
from workbench.language.payload_schema import summarise_paths
from workbench.language.responses import (
    ContactChangeView,
    ContactCounts,
    ContactView,
    PropertiesView,
    TimelineItemView,
    TimelineKind,
)

IDENTIFIER_FIELDS = {
    IdentifierKind.WALLET: "walletAddress",
    IdentifierKind.EMAIL: "email",
    IdentifierKind.EXTERNAL_ID: "externalId",
}
_SAMPLED_TIME = timedelta(days=30)
_SAMPLED_CONTACTS = 300  # of the newest contacts, and of the newest events
_SAMPLED_BYTES = 2_000_000  # of JSON


Row = TypeVar("Row", ContactView, EventRow)


def with_address(row: Row, show: EmailDisplay) -> Row:
    """Return a row with its email as the caller may see it."""
    return row if row.email is None else msgspec.structs.replace(row, email=show(row.email))


def message_with_address(row: MessageRow, show: EmailDisplay) -> MessageRow:
    if row.recipient is None or not CHANNELS[row.channel].is_sealed:
        return row
    return msgspec.structs.replace(row, recipient=show(row.recipient))


async def describe_properties(database: Database, org_id: int, now: datetime) -> PropertiesView:
    """Describe the attributes and tags of a sample of contacts."""
    async with database.transaction() as tx:
        rows = await store.sample_properties(tx, org_id, now - _SAMPLED_TIME, _SAMPLED_CONTACTS)
    sizes = accumulate(len(row.attributes) for row in rows)
    sampled = rows[: sum(size <= _SAMPLED_BYTES for size in sizes)]
    # Runs in a thread, because decoding may take a second.
    paths = await asyncio.to_thread(lambda: summarise_paths([decode(row.attributes) for row in sampled]))
    return PropertiesView(len(sampled), paths, tuple(sorted({tag for row in sampled for tag in row.tags})))


async def read(database: Database, org_id: int, contact_id: str, show: EmailDisplay) -> ContactView | Refusal:
    """Return a contact, or the one it was merged into. An erased contact is not found."""
    async with database.transaction() as tx:
        return await _view(tx, org_id, await find_kept_contact(tx, org_id, contact_id), show)


async def find(database: Database, org_id: int, identifiers: Identifiers, show: EmailDisplay) -> ContactView | Refusal:
    """Return the contact to which an event with these identifiers would belong."""
    async with database.transaction() as tx:
        contact = await find_contact_state(tx, org_id, show.keys, identifiers)
        return unknown("contact") if contact is None else await _view(tx, org_id, contact.id, show)


@retry_conflicts
async def opt_out(
    database: Database, author: Author, contact_id: str, opt_outs: Mapping[str, bool], show: EmailDisplay
) -> ContactView | Refusal:
    """Opt a contact out of channels (True), or in again (False).

    Email addresses are suppressed as well, so that the choice outlives the contact. Opting in again removes that.
    """
    async with database.transaction() as tx:
        await run(tx, hold_contacts([contact_id]))
        contact = await store.find_contact(tx, author.org_id, contact_id)
        if contact is None:
            return unknown("contact")
        await set_opt_outs(tx, author.org_id, contact, opt_outs, author.key_id, author.now)
        choices = {channel: not is_out for channel, is_out in opt_outs.items()}
        await add_consents(tx, author.org_id, channel_consents(contact, choices, "api", author.now_us))
        await record(tx, author, "contact.opt_out", contact_id, dict(opt_outs))
        return await _view(tx, author.org_id, contact_id, show)


async def set_opt_outs(
    tx: Transaction, org_id: int, contact: ContactView, opt_outs: Mapping[str, bool], key_id: str | None, at: datetime
) -> None:
    """Opt a contact out of channels or in again. The caller holds its lock. `key_id`: the API key, None for pages."""
    # Its own choices only: a bounce that suppressed its address must not become one.
    (own,) = await store.find_contacts(tx, org_id, [contact.id])
    by_channel = {**dict.fromkeys(own.opted_out, True), **opt_outs}  # other channels do not change
    opted_out = [channel for channel, is_out in by_channel.items() if is_out]
    await store.set_opted_out(tx, org_id, contact.id, opted_out, key_id, at)
    if opt_outs.get("email") is False:
        await store.lift_suppressions_of(tx, org_id, contact.id)


def channel_consents(
    contact: ContactView,
    choices: Mapping[str, bool],
    source: ConsentSource,
    now_us: int,
    text_sha256: str | None = None,
) -> list[ConsentRow]:
    """Return the rows of choices of channels (True: it wants the messages) that differ from those of the contact."""
    return [
        ConsentRow(uuid7(now_us), contact.id, granted, source, from_us(now_us), None, channel, text_sha256)
        for channel, granted in choices.items()
        if granted is (channel in contact.opted_out)
    ]


@retry_conflicts
async def tag(
    database: Database,
    author: Author,
    contact_id: str,
    added: Sequence[str],
    removed: Sequence[str],
    show: EmailDisplay,
) -> ContactView | Refusal:
    """Remove tags from a contact, then add others."""
    async with database.transaction() as tx:
        await run(tx, hold_contacts([contact_id]))
        if await store.find_contact(tx, author.org_id, contact_id) is None:
            return unknown("contact")
        change = TagChange(contact_id, encode(removed).decode(), encode(added).decode())
        note = note_tags("person", author.now, await transaction_offset(tx), author.org_id, [change], [author.key_id])
        await run(tx, note, change_tags(author.org_id, [change], author.now))
        detail = {"added": len(added), "removed": len(removed)}  # a tag may describe a person, so only the number
        await record(tx, author, "contact.tag", contact_id, detail)
        return await _view(tx, author.org_id, contact_id, show)


async def _view(tx: Transaction, org_id: int, contact_id: str, show: EmailDisplay) -> ContactView | Refusal:
    row = await store.find_contact(tx, org_id, contact_id)
    return unknown("contact") if row is None else with_address(row, show)


# --- Timeline


class ContactWithCounts(ContactView, frozen=True, rename="camel", kw_only=True):
    """A contact with the numbers of its events, entries, messages and conflicts."""

    counts: ContactCounts


class TimelineView(msgspec.Struct, frozen=True):
    """A page, newest first. `next`: the `before` parameter of the next page, None on the last one."""

    timeline: list[TimelineItemView]
    next: str | None


async def read_contact_with_counts(
    database: Database, contact: ContactKey, show: EmailDisplay
) -> ContactWithCounts | Refusal:
    """Return a contact, or the one it was merged into, with its counts."""
    async with database.transaction() as tx:
        contact = await _kept_contact(tx, contact)
        row = await store.find_contact(tx, contact.org_id, contact.contact_id)
        if row is None:
            return unknown("contact")
        counts = await store.count_contact_rows(tx, contact)
    return ContactWithCounts(**msgspec.structs.asdict(with_address(row, show)), counts=counts)


async def timeline(
    database: Database,
    contact: ContactKey,
    kinds: Collection[TimelineKind],
    before: PageCursor,
    limit: int,
    show: EmailDisplay,
) -> TimelineView | Refusal:
    """Return a page of the timeline of a contact, or of the one it was merged into."""
    async with database.transaction() as tx:
        contact = await _kept_contact(tx, contact)
        if await store.find_contact(tx, contact.org_id, contact.contact_id) is None:
            return unknown("contact")
        rows = await store.read_timeline(tx, contact, kinds, before, limit)
        messages = [row for row in rows if isinstance(row, MessageRow)]
        visible = iter(await visible_messages(tx, contact.org_id, messages, show, lambda row: row.entry_id))
        rows = [next(visible) if isinstance(row, MessageRow) else row for row in rows]
    next_page = f"{rows[-1].created_at.isoformat()},{rows[-1].id}" if len(rows) == limit else None
    return TimelineView([_item_view(row, contact.contact_id) for row in rows], next_page)


class HistoryView(msgspec.Struct, frozen=True):
    """A page, newest first. `next`: the `before` parameter of the next page, None on the last one."""

    history: list[ContactChangeView]
    next: str | None


async def history(
    database: Database, contact: ContactKey, cursor: ChangeCursor, limit: int, show: EmailDisplay
) -> HistoryView | Refusal:
    """Return a page of the changes of a contact, or of the one it was merged into."""
    async with database.transaction() as tx:
        contact = await _kept_contact(tx, contact)
        if await store.find_contact(tx, contact.org_id, contact.contact_id) is None:
            return unknown("contact")
        rows = await read_changes(tx, contact.org_id, contact.contact_id, cursor, limit)
    last = rows[-1] if len(rows) == limit else None
    next_page = None if last is None else f"{last.changed_at.isoformat()},{last.contact_id},{last.field}"
    return HistoryView([change_view(row, show) for row in rows], next_page)


def change_view(row: ChangeRow, show: EmailDisplay) -> ContactChangeView:
    """Return a change as the caller may see it."""
    old, new = (None if value is None else decode(bytes(value)) for value in (row.old, row.new))
    if row.field == "email":
        old, new = (None if email is None else show(email) for email in (old, new))
    return ContactChangeView(row.changed_at, row.field, old, new, row.cause, row.cause_id, row.contact_id)


async def _kept_contact(tx: Transaction, contact: ContactKey) -> ContactKey:
    return ContactKey(contact.org_id, await find_kept_contact(tx, contact.org_id, contact.contact_id))


def _item_view(row: TimelineRow, contact_id: str) -> TimelineItemView:
    match row:
        case EventRow():
            return _item("event", row, f"sent {row.event}")
        case ContactEntryRow():
            version = "" if row.automation_version is None else f", version {row.automation_version}"
            outcome = "" if row.outcome in (None, row.state) else f" ({_words(row.outcome)})"
            return _item("entry", row, f"entered the automation “{row.automation}”{version}: {row.state}{outcome}")
        case MessageRow():
            text = f" “{row.subject}”" if row.subject else ""
            has_reason = row.status in ("failed", "skipped", "unknown", "queued") and row.reason
            status = f"{row.status} ({_words(row.reason)})" if has_reason else row.status
            return _item("message", row, f"{CHANNELS[row.channel].noun}{text} of “{row.automation}”: {status}")
        case ConflictRow():
            resolved = "" if row.resolved_by is None else "; the two contacts have been merged since"
            return _item(
                "conflict", row, _conflict_outcome(row, contact_id) + resolved, kind=IDENTIFIER_FIELDS[row.kind]
            )
        case MergeRow():
            since = "" if row.undone_at is None else f", until {row.undone_at:%Y-%m-%d %H:%M} UTC"
            return _item("merge", row, f"absorbed contact {row.absorbed_id}{since}")
        case LogRow():
            dropped = "; its block was dropped" if row.removed else ""
            sentence = f"{row.event} of {row.contract} on chain {row.chain_id}{dropped}"
            return _item("log", row, sentence)


_WORDS = {"walletAddress": "wallet", "email": "email address", "externalId": "external id"}


_DETAILS: Mapping[TimelineKind, tuple[str, ...]] = {
    "event": ("event", "occurred_at", "payload", "idempotency_key"),
    "entry": ("automation_id", "automation", "automation_version", "event_id", "event", "state", "outcome"),
    "message": (
        *("automation_id", "automation", "entry_id", "node_id", "channel", "status", "subject", "body"),
        *("sent_at", "delivered_at", "reason"),
    ),
    "conflict": ("event_id", "contact_id", "other_contact_id", "kind", "outcome", "resolved_by"),
    "merge": ("absorbed_id", "undone_at"),
    "log": (
        *("chain_id", "contract", "event", "signature", "tx_hash", "log_index", "block_number", "block_time"),
        *("removed", "contact_id", "args", "type"),
    ),
}
"""The fields of a row that its item shows."""


def _item(kind: TimelineKind, row: TimelineRow, sentence: str, /, **replaced: Any) -> TimelineItemView:
    fields: dict[str, Any] = {}
    for name in _DETAILS[kind]:
        first, *others = name.split("_")
        fields[first + "".join(map(str.capitalize, others))] = replaced.get(name, getattr(row, name))
    return TimelineItemView(kind, row.id, row.created_at, sentence, fields)


def _conflict_outcome(row: ConflictRow, contact_id: str) -> str:
    identifier, other = _WORDS[IDENTIFIER_FIELDS[row.kind]], row.other_contact_id
    if contact_id == other:
        if row.outcome == "moved":
            return f"its {identifier} was moved to contact {row.contact_id}"
        return f"an event of contact {row.contact_id} contained its {identifier}, which was not moved"
    match row.outcome:
        case "moved":
            return f"took the {identifier} of contact {other}"
        case "left":
            return f"an event contained the {identifier} of contact {other}, which was not moved"
        case "replaced":
            return f"its {identifier} was replaced by a new one"
        case _:
            return f"an event contained another {identifier}; its own was kept"


def _words(word: str | None) -> str:
    return (word or "").replace("_", " ")
