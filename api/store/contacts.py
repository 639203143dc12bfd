"""One contact at a time: find it, opt it out, erase it, explain its events, export it, and list its timeline.

Emails are stored sealed; `identifiers_of` opens them for the language. Every write to a contact
happens under its lock (`store.locks`). Export, timeline and erasure go page by page: a `PageCursor` is the time and id
of a page's last row. Rows that are returned to callers unchanged (`rename`) have JSON columns as `msgspec.Raw`.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET

from api.crypto import INDEX, OrgKeys
from api.store.chain import LogRow
from api.store.changes import NEWEST_CHANGE, ChangeCursor, note_opt_outs, read_changes
from api.store.consents import read_topic_changes
from api.store.database import Transaction, TransactionConflictError, transaction_offset
from api.store.events import EventRow
from api.store.locks import hold_contacts, share_members
from api.store.merges import MergeRow, find_identifier_owners
from api.store.messages import MessageRow
from api.store.query import Json, Uuid, call, query, run
from workbench.language.codec import decode
from workbench.language.contact import ContactState, IdentifierKey, IdentifierKind, ValueChange, identifier_values
from workbench.language.event import Identifiers
from workbench.language.explain import StartedEntry
from workbench.language.live import ActivationChange
from workbench.language.responses import ContactCounts, ContactView, EntryView, TimelineKind

_CHANGES_PAGE = 1_000


class PageCursor(msgspec.Struct, frozen=True):
    """The time and id of the last row of a page."""

    at: datetime
    id: Uuid


FIRST_CURSOR = PageCursor(datetime(1, 1, 1, tzinfo=UTC), "00000000-0000-0000-0000-000000000000")
LAST_CURSOR = PageCursor(datetime(9999, 1, 1, tzinfo=UTC), "ffffffff-ffff-ffff-ffff-ffffffffffff")


class ContactKey(msgspec.Struct, frozen=True):
    org_id: int
    contact_id: Uuid


# --- Finding a contact


def identifiers_of(row: EventRow | ContactView, open_email: Callable[[str], str]) -> Identifiers:
    """Return the identifiers of an event or contact, with the email opened."""
    email = None if row.email is None else open_email(row.email)
    wallet_raw = row.wallet_raw if isinstance(row, ContactView) else None
    return Identifiers(row.wallet_address, email, row.external_id, wallet_raw)


def contact_state(row: ContactView, open_email: Callable[[str], str]) -> ContactState:
    """Return the contact as the language sees it, with its email opened."""
    identifiers = identifiers_of(row, open_email)
    return ContactState(row.id, identifiers, row.attributes, row.tags, row.segments, row.opted_out, row.declined)


@query
async def find_contact(tx: Transaction, org_id: int, contact_id: Uuid) -> ContactView | None:
    """Return a contact, or None if it does not exist, was erased, or was merged into another."""


async def find_contact_state(
    tx: Transaction, org_id: int, keys: OrgKeys, identifiers: Identifiers
) -> ContactState | None:
    """Return the contact that an event with these identifiers belongs to, with its email opened, or None."""
    digests = [(kind, keys.digest(kind.name.lower(), value)) for kind, value in identifier_values(identifiers)]
    row = await find_owner(tx, org_id, [kind for kind, _ in digests], [digest for _, digest in digests])
    return None if row is None else contact_state(row, keys.open_email)


async def list_changes_since(
    tx: Transaction, org_id: int, keys: OrgKeys, contact_id: str, since: datetime
) -> list[ValueChange]:
    """Return the changes of a contact after a moment, in order, with emails opened; those by events name the event."""
    changes: list[ValueChange] = []
    cursor, is_done = NEWEST_CHANGE, False
    while not is_done and (rows := await read_changes(tx, org_id, contact_id, cursor, _CHANGES_PAGE)):
        for row in rows:
            if is_done := row.changed_at <= since:
                break
            if row.contact_id == contact_id:
                old, new = (UNSET if value is None else decode(value) for value in (row.old, row.new))
                if row.field == "email":
                    old, new = (keys.open_email(value) if isinstance(value, str) else value for value in (old, new))
                event_id = row.cause_id if row.cause == "event" else None
                changes.append(ValueChange(row.changed_at, row.field, old, new, event_id or ""))
        last = rows[-1]
        cursor = ChangeCursor(last.changed_at, last.contact_id, last.field)
    topics = [
        ValueChange(change.at, f"topics.{change.topic}", change.before, change.granted)
        for change in await read_topic_changes(tx, org_id, contact_id, since)
    ]
    return [*reversed(changes), *topics]


async def find_owners(
    tx: Transaction, org_id: int, keys: OrgKeys, sent: Iterable[Identifiers]
) -> dict[IdentifierKey, str]:
    """Return the owners of the identifiers of some events, by kind and value in clear."""
    values = {
        (kind, keys.digest(kind.name.lower(), value)): (kind, value)
        for identifiers in sent
        for kind, value in identifier_values(identifiers)
    }
    owners = await find_identifier_owners(tx, org_id, list(values))
    return {values[key]: owner for key, owner in owners.items()}


@query
async def find_owner(
    tx: Transaction, org_id: int, kinds: list[IdentifierKind], digests: list[Uuid]
) -> ContactView | None: ...


async def find_contact_states(
    tx: Transaction, org_id: int, keys: OrgKeys, ids: Collection[str]
) -> dict[str, ContactState]:
    """Return contacts by id, their emails opened; erased contacts are left out."""
    return {row.id: contact_state(row, keys.open_email) for row in await find_contacts(tx, org_id, ids)}


@query
async def find_contacts(tx: Transaction, org_id: int, ids: Collection[Uuid]) -> list[ContactView]: ...


class PropertiesRow(msgspec.Struct, frozen=True):
    attributes: Json
    tags: tuple[str, ...]


@query
async def sample_properties(tx: Transaction, org_id: int, since: datetime, limit: int) -> list[PropertiesRow]:
    """Return attributes (JSON texts) and tags of the newest contacts, and of those of the newest events."""


# --- Opting out


async def set_opted_out(
    tx: Transaction, org_id: int, contact_id: str, channels: Collection[str], key_id: str | None, at: datetime
) -> None:
    """Set the channels that a contact opted out of. If email is one of them, its addresses are suppressed."""
    await note_opt_outs(tx, org_id, contact_id, sorted(channels), key_id, at, await transaction_offset(tx))
    await _set_opted_out(tx, org_id, contact_id, sorted(channels), at)
    if "email" in channels:
        await suppress_emails_of(tx, org_id, contact_id, at)


@query
async def _set_opted_out(tx: Transaction, org_id: int, contact_id: Uuid, channels: list[str], at: datetime) -> None: ...


@query
async def suppress_emails_of(tx: Transaction, org_id: int, contact_id: Uuid, at: datetime) -> None: ...


@query
async def lift_suppressions_of(tx: Transaction, org_id: int, contact_id: Uuid) -> None: ...


async def opt_out_of_emails(tx: Transaction, org_id: int, address_digest: str, at: datetime) -> str | None:
    """Opt the owner of an email address out of emails; return its id, or None if nothing changed.

    Raises TransactionConflictError if the address got another owner while this waited for the lock.
    """
    contact_id = await find_email_owner(tx, org_id, address_digest[:INDEX])  # lookups use the first index
    if contact_id is None:
        return None
    await run(tx, hold_contacts([contact_id]))
    if await find_email_owner(tx, org_id, address_digest[:INDEX]) != contact_id:
        raise TransactionConflictError(f"contact {contact_id} lost the address")
    opted_out = await read_opted_out(tx, org_id, contact_id)
    if "email" in opted_out:
        return None
    channels = sorted({*opted_out, "email"})
    await note_opt_outs(tx, org_id, contact_id, channels, None, at, await transaction_offset(tx))
    await _set_opted_out(tx, org_id, contact_id, channels, at)
    return contact_id


@query
async def find_email_owner(tx: Transaction, org_id: int, address_digest: Uuid) -> str | None: ...


@query
async def read_opted_out(tx: Transaction, org_id: int, contact_id: Uuid) -> list[str]: ...


# --- Erasure

ERASURE_PAGE = 1_000
ErasurePart: TypeAlias = Literal["events", "messages", "entries", "changes"]


class ErasureState(msgspec.Struct, frozen=True):
    """The erasure of a contact: its time (None: not erased), and the contact that this one was merged into.

    `unsettled`: a merge into it was undone, and some of its rows may still belong to the other contact.
    """

    at: datetime | None
    merged_into: str | None
    unsettled: bool


@query
async def find_erasure(tx: Transaction, contact: ContactKey) -> ErasureState | None:
    """Return whether a contact was erased, or None if it does not exist."""


async def erase_contact(tx: Transaction, contact: ContactKey, at: datetime) -> int:
    """Remove a contact's identifiers and attributes, and cancel its entries; return how many. Its lock is held."""
    await run(
        tx,
        _keep_wallet_digests(contact, at),
        _delete_sign_in(contact),
        _clear_contact(contact, at),
        # The segments of a contact change only under this lock: a refresh keeps it while it repairs the members.
        share_members(contact.org_id),
        *(clear(contact) for clear in _CLEARINGS),
    )
    return await cancel_entries_of_contact(tx, contact, at)


def _clear(contact: ContactKey) -> None: ...
def _clear_at(contact: ContactKey, at: datetime) -> None: ...


_delete_sign_in = call(_clear, "delete_sign_in")
_keep_wallet_digests = call(_clear_at, "keep_wallet_digests")
_clear_contact = call(_clear_at, "clear_contact")
_CLEARINGS = [
    call(_clear, name)
    for name in (
        "delete_identities",
        "delete_conflicts",
        "clear_merges",
        "delete_merge_changes",
        "leave_all_segments",
        "unlink_logs",
        "clear_starts",
        "erase_dry_runs",
        "delete_consents",
        "forget_pages",
    )
]


@query
async def cancel_entries_of_contact(tx: Transaction, contact: ContactKey, at: datetime) -> int: ...


async def _erase(tx: Transaction, contact: ContactKey, after: PageCursor, limit: int) -> PageCursor | None: ...


_ERASE = {part: query(_erase, f"erase_{part}") for part in get_args(ErasurePart)}


async def erase_page(tx: Transaction, part: ErasurePart, contact: ContactKey, after: PageCursor) -> PageCursor | None:
    """Remove personal data from the next rows of a contact; return where the page ends, None if there were no rows."""
    return await _ERASE[part](tx, contact, after, ERASURE_PAGE)


@query
async def schedule_erasure(tx: Transaction, contact: ContactKey, due_at: datetime) -> None:
    """Check an erased contact once more at `due_at`, for rows that were being written during the erasure."""


@query
async def find_due_erasures(tx: Transaction, now: datetime, limit: int) -> list[ContactKey]:
    """Return erased contacts that are due to be checked once more."""


@query
async def finish_erasure(tx: Transaction, contact: ContactKey, now: datetime) -> None:
    """Record that the check is done, unless the contact has been erased again."""


# --- Explaining a contact's events

MAX_EVENTS = 100


@query
async def list_recent_events(tx: Transaction, contact: ContactKey, automation_id: Uuid, limit: int) -> list[EventRow]:
    """Return the newest events of a contact that may concern an automation, newest first."""


@query
async def find_event_of_contact(tx: Transaction, contact: ContactKey, event_id: Uuid) -> list[EventRow]:
    """Return the event with this id in a list, which is empty if the contact has none."""


@query
async def find_entries_of_events(
    tx: Transaction, org_id: int, automation_id: Uuid, event_ids: Sequence[Uuid]
) -> dict[str, StartedEntry]:
    """Return the entries that events started in an automation, by event id."""


@query
async def list_activation_changes(tx: Transaction, org_id: int, automation_id: Uuid) -> list[ActivationChange]:
    """Return when an automation was activated and deactivated, in order."""


# --- Rows of the export and the timeline


class ContactEntryRow(EntryView, frozen=True, rename="camel", omit_defaults=True):
    """An entry of a contact; the export has `steps`, the timeline the name of the automation."""

    steps: msgspec.Raw | None = None
    automation: str | None = None


class ConflictRow(msgspec.Struct, frozen=True):
    """An identifier of an event of `contact_id` that belonged to another contact."""

    created_at: datetime
    id: str
    event_id: str
    contact_id: str
    other_contact_id: str | None
    kind: IdentifierKind
    outcome: str
    resolved_by: str | None


class EventExport(EventRow, frozen=True, rename="camel", omit_defaults=True):
    """An event with the attributes that were stored with it. Its other changes of attributes are in the history."""

    attributes: msgspec.Raw | None = None


class ConsentExport(msgspec.Struct, frozen=True, rename="camel"):
    """A choice of a contact, of a topic or of a channel."""

    created_at: datetime
    id: str
    topic: str | None
    channel: str | None
    granted: bool
    source: str
    text_sha256: str | None


# --- Export and timeline: the same rows, forward and backward

EXPORT_PAGE = 500
TimelineRow = EventRow | ContactEntryRow | MessageRow | ConflictRow | MergeRow | LogRow


async def _entries(tx: Transaction, contact: ContactKey, cursor: PageCursor, limit: int) -> list[ContactEntryRow]: ...
async def _messages(tx: Transaction, contact: ContactKey, cursor: PageCursor, limit: int) -> list[MessageRow]: ...
async def _logs(tx: Transaction, contact: ContactKey, cursor: PageCursor, limit: int) -> list[LogRow]: ...


export_entries = query(_entries, "export_entries")
export_messages = query(_messages, "export_messages")
export_logs = query(_logs, "export_logs")


@query
async def export_events(tx: Transaction, contact: ContactKey, cursor: PageCursor, limit: int) -> list[EventExport]: ...


@query
async def export_consents(
    tx: Transaction, contact: ContactKey, cursor: PageCursor, limit: int
) -> list[ConsentExport]: ...


@query
async def export_absorbed(tx: Transaction, contact: ContactKey, after: PageCursor, limit: int) -> list[ContactView]:
    """Return the next contacts that were merged into this one."""


@query
async def timeline_events(tx: Transaction, contact: ContactKey, before: PageCursor, limit: int) -> list[EventRow]: ...


@query
async def timeline_conflicts(
    tx: Transaction, contact: ContactKey, before: PageCursor, limit: int
) -> list[ConflictRow]: ...


@query
async def timeline_merges(tx: Transaction, contact: ContactKey, before: PageCursor, limit: int) -> list[MergeRow]: ...


@query
async def count_contact_rows(tx: Transaction, contact: ContactKey) -> ContactCounts: ...


_READ: dict[TimelineKind, Callable[[Transaction, ContactKey, PageCursor, int], Awaitable[Sequence[TimelineRow]]]] = {
    "event": timeline_events,
    "entry": query(_entries, "timeline_entries"),
    "message": query(_messages, "timeline_messages"),
    "conflict": timeline_conflicts,
    "merge": timeline_merges,
    "log": query(_logs, "timeline_logs"),
}
TIMELINE_KINDS = tuple(_READ)


async def read_timeline(
    tx: Transaction, contact: ContactKey, kinds: Collection[TimelineKind], before: PageCursor, limit: int
) -> Sequence[TimelineRow]:
    """Return the newest rows of some kinds about a contact before a moment, newest first."""
    rows: list[TimelineRow] = []
    for kind in kinds:
        rows += await _READ[kind](tx, contact, before, limit)
    return sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)[:limit]
