"""What happened to a contact, newest first: its events, entries, messages, identity conflicts and logs, each with a plain sentence."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.authoring.refusal import Refusal, unknown
from api.authoring.texts import without_addresses
from api.contacts.views import ContactView, Shown, contact_view
from api.language.identity import Kind
from api.store import care
from api.store import timeline as store
from api.store.database import Database, Transaction
from api.store.erasure import Cursor, Subject
from api.store.merging import survivor
from api.store.timeline import ConflictRow, EntryRow, EventRow, Happening, LogRow, MergeRow, MessageRow, Row, Traces


class KnownView(ContactView, frozen=True, rename="camel", kw_only=True):
    """A contact, and how many rows there are about it."""

    counts: Traces


class HappeningView(msgspec.Struct, frozen=True):
    """One thing that happened: when, in a sentence, and in detail."""

    kind: Happening
    id: str
    at: datetime
    sentence: str
    detail: dict[str, Any]


class TimelineView(msgspec.Struct, frozen=True):
    """A page of what happened, newest first. `next`: what to ask `before` for the page after it, None when this is the last."""

    timeline: list[HappeningView]
    next: str | None


async def known(database: Database, who: Subject, shown: Shown) -> KnownView | Refusal:
    """Return a contact (or the one it was merged into) with its counts."""
    async with database.transaction() as tx:
        who = await _survivor(tx, who)
        row = await care.find_contact(tx, who.org_id, who.contact_id)
        if row is None:
            return unknown("contact")
        counts = await store.count_traces(tx, who)
    return KnownView(**msgspec.structs.asdict(contact_view(row, shown)), counts=counts)


async def timeline(
    database: Database, who: Subject, kinds: Collection[Happening], before: Cursor, most: int, *, clear: bool
) -> TimelineView | Refusal:
    """Return a page of what happened to a contact, or to the one it was merged into.

    Not `clear`: texts of messages that an address may stand in are told as they were written.
    """
    async with database.transaction() as tx:
        who = await _survivor(tx, who)
        if await care.find_contact(tx, who.org_id, who.contact_id) is None:
            return unknown("contact")
        rows = await store.happened(tx, who, kinds, before, most)
        if not clear:
            rows = await _without_addresses(tx, who.org_id, rows)
    following = f"{rows[-1].created_at.isoformat()},{rows[-1].id}" if len(rows) == most else None
    return TimelineView([_view(row, who.contact_id) for row in rows], following)


async def _without_addresses(tx: Transaction, org_id: int, rows: Sequence[Row]) -> list[Row]:
    messages = [row for row in rows if isinstance(row, MessageRow)]
    told = {row.id: row for row in await without_addresses(tx, org_id, messages, lambda row: row.entry_id)}
    return [told[row.id] if isinstance(row, MessageRow) else row for row in rows]


async def _survivor(tx: Transaction, who: Subject) -> Subject:
    return Subject(who.org_id, await survivor(tx, who.org_id, who.contact_id))


def _view(row: Row, contact_id: str) -> HappeningView:
    match row:
        case EventRow():
            return _happening("event", row, f"sent {row.event}", {"payload": msgspec.Raw(row.payload)})
        case EntryRow():
            return _happening("entry", row, _entry_sentence(row))
        case MessageRow():
            return _happening("message", row, _message_sentence(row))
        case ConflictRow():
            identifier = _IDENTIFIERS[Kind(row.kind)]
            return _happening("conflict", row, _conflict_sentence(row, contact_id), {"kind": identifier})
        case MergeRow():
            since = "" if row.undone_at is None else f", until {row.undone_at:%Y-%m-%d %H:%M} UTC"
            return _happening("merge", row, f"absorbed contact {row.absorbed_id}{since}")
        case LogRow():
            gone = "; its block was dropped" if row.removed else ""
            sentence = f"{row.event} of {row.contract} on chain {row.chain_id}{gone}"
            return _happening("log", row, sentence, {"args": msgspec.Raw(row.args)})


_IDENTIFIERS = {Kind.WALLET: "walletAddress", Kind.EMAIL: "email", Kind.EXTERNAL_ID: "externalId"}
_WORDS = {"walletAddress": "wallet", "email": "email address", "externalId": "external id"}
_CHANNELS = {"inapp": "in-app message", "email": "email", "webhook": "webhook"}


def _happening(kind: Happening, row: Row, sentence: str, more: dict[str, Any] | None = None) -> HappeningView:
    known = {
        _camel(name): value for name, value in msgspec.structs.asdict(row).items() if name not in ("id", "created_at")
    }
    return HappeningView(kind, row.id, row.created_at, sentence, {**known, **(more or {})})


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _entry_sentence(row: EntryRow) -> str:
    version = "" if row.automation_version is None else f", version {row.automation_version}"
    outcome = "" if row.outcome in (None, row.state) else f" ({_words(row.outcome)})"
    return f"entered the automation “{row.automation}”{version}: {row.state}{outcome}"


def _message_sentence(row: MessageRow) -> str:
    text = f" “{row.subject}”" if row.subject else ""
    withheld = row.status in ("failed", "skipped", "unknown", "queued") and row.reason
    return f"{_CHANNELS[row.channel]}{text} of “{row.automation}”: {row.status}{f' ({_words(row.reason)})' if withheld else ''}"


def _conflict_sentence(row: ConflictRow, contact_id: str) -> str:
    """Say what became of an identifier, from the side of the contact that is looked at."""
    resolved = "" if row.resolved_by is None else "; the two are one contact now"
    return f"{_conflict(row, contact_id)}{resolved}"


def _conflict(row: ConflictRow, contact_id: str) -> str:
    what, other = _WORDS[_IDENTIFIERS[Kind(row.kind)]], row.other_contact_id
    if contact_id == other:
        if row.outcome == "moved":
            return f"its {what} went to contact {row.contact_id}"
        return f"an event of contact {row.contact_id} brought its {what}; it stayed here"
    match row.outcome:
        case "moved":
            return f"took the {what} of contact {other}"
        case "left":
            return f"an event brought the {what} of contact {other}; it stayed there"
        case "replaced":
            return f"a new {what} took the place of the one it had"
        case _:
            return f"an event brought another {what}; it kept its own"


def _words(word: str | None) -> str:
    return (word or "").replace("_", " ")
