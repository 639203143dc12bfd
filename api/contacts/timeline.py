"""The timeline of a contact: its events, entries, messages, identity conflicts, merges and logs, newest first.

Each kind is read by its index up to the size of the page, and the lists are merged. Each item has a sentence for
people.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec

from api.automations.automations import Refusal, unknown
from api.automations.views import Shown, without_addresses
from api.contacts.contacts import IDENTIFIER_FIELDS, ContactView, contact_view
from api.store import contacts
from api.store.contacts import (
    AbsorbedContactRow,
    ConflictRow,
    ContactCounts,
    ContactKey,
    Cursor,
    TimelineEntryRow,
    TimelineEventRow,
    TimelineKind,
    TimelineLogRow,
    TimelineMessageRow,
    TimelineRow,
)
from api.store.database import Database, Transaction
from api.store.merges import find_survivor
from workbench.language.contact import IdentifierKind


class ContactWithCounts(ContactView, frozen=True, rename="camel", kw_only=True):
    """A contact, with the numbers of its rows."""

    counts: ContactCounts


class TimelineItemView(msgspec.Struct, frozen=True):
    """One item: its time, a sentence for people, and the row's fields."""

    kind: TimelineKind
    id: str
    at: datetime
    sentence: str
    detail: dict[str, Any]


class TimelineView(msgspec.Struct, frozen=True):
    """A page, newest first. `next`: the `before` parameter of the next page, None on the last one."""

    timeline: list[TimelineItemView]
    next: str | None


async def read_contact_with_counts(
    database: Database, contact: ContactKey, shown: Shown
) -> ContactWithCounts | Refusal:
    """Return a contact, or the one it was merged into, with its counts."""
    async with database.transaction() as tx:
        contact = await _survivor(tx, contact)
        row = await contacts.find_contact(tx, contact.org_id, contact.contact_id)
        if row is None:
            return unknown("contact")
        counts = await contacts.count_contact_rows(tx, contact)
    return ContactWithCounts(**msgspec.structs.asdict(contact_view(row, shown)), counts=counts)


async def timeline(
    database: Database, contact: ContactKey, kinds: Collection[TimelineKind], before: Cursor, limit: int, *, clear: bool
) -> TimelineView | Refusal:
    """Return a page of the timeline of a contact, or of the one it was merged into.

    Without `clear`, a message text that may contain an email address is shown as its template.
    """
    async with database.transaction() as tx:
        contact = await _survivor(tx, contact)
        if await contacts.find_contact(tx, contact.org_id, contact.contact_id) is None:
            return unknown("contact")
        rows = await contacts.read_timeline(tx, contact, kinds, before, limit)
        if not clear:
            messages = [row for row in rows if isinstance(row, TimelineMessageRow)]
            masked = await without_addresses(tx, contact.org_id, messages, lambda row: row.entry_id)
            masked_by_id = {row.id: row for row in masked}
            rows = [masked_by_id[row.id] if isinstance(row, TimelineMessageRow) else row for row in rows]
    next_page = f"{rows[-1].created_at.isoformat()},{rows[-1].id}" if len(rows) == limit else None
    return TimelineView([_view(row, contact.contact_id) for row in rows], next_page)


async def _survivor(tx: Transaction, contact: ContactKey) -> ContactKey:
    return ContactKey(contact.org_id, await find_survivor(tx, contact.org_id, contact.contact_id))


def _view(row: TimelineRow, contact_id: str) -> TimelineItemView:
    match row:
        case TimelineEventRow():
            return _item("event", row, f"sent {row.event}", {"payload": msgspec.Raw(row.payload)})
        case TimelineEntryRow():
            version = "" if row.automation_version is None else f", version {row.automation_version}"
            outcome = "" if row.outcome in (None, row.state) else f" ({_words(row.outcome)})"
            return _item("entry", row, f"entered the automation “{row.automation}”{version}: {row.state}{outcome}")
        case TimelineMessageRow():
            text = f" “{row.subject}”" if row.subject else ""
            has_reason = row.status in ("failed", "skipped", "unknown", "queued") and row.reason
            status = f"{row.status} ({_words(row.reason)})" if has_reason else row.status
            return _item("message", row, f"{_CHANNELS[row.channel]}{text} of “{row.automation}”: {status}")
        case ConflictRow():
            resolved = "" if row.resolved_by is None else "; the two contacts have been merged since"
            identifier = IDENTIFIER_FIELDS[IdentifierKind(row.kind)]
            return _item("conflict", row, _conflict_outcome(row, contact_id) + resolved, {"kind": identifier})
        case AbsorbedContactRow():
            since = "" if row.undone_at is None else f", until {row.undone_at:%Y-%m-%d %H:%M} UTC"
            return _item("merge", row, f"absorbed contact {row.absorbed_id}{since}")
        case TimelineLogRow():
            dropped = "; its block was dropped" if row.removed else ""
            sentence = f"{row.event} of {row.contract} on chain {row.chain_id}{dropped}"
            return _item("log", row, sentence, {"args": msgspec.Raw(row.args)})


_WORDS = {"walletAddress": "wallet", "email": "email address", "externalId": "external id"}
_CHANNELS = {"inapp": "in-app message", "email": "email", "webhook": "webhook"}


def _item(kind: TimelineKind, row: TimelineRow, sentence: str, more: dict[str, Any] | None = None) -> TimelineItemView:
    fields: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(row).items():
        if name not in ("id", "created_at"):
            first, *others = name.split("_")
            fields[first + "".join(map(str.capitalize, others))] = value
    return TimelineItemView(kind, row.id, row.created_at, sentence, {**fields, **(more or {})})


def _conflict_outcome(row: ConflictRow, contact_id: str) -> str:
    identifier, other = _WORDS[IDENTIFIER_FIELDS[IdentifierKind(row.kind)]], row.other_contact_id
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
