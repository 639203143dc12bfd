"""One contact at a time: find it, opt it out, erase it, explain its events, export it, and list its timeline.

Emails are stored sealed; only `find_contact_state` and `find_contact_states` open them. Every write to a contact
happens under its lock (`store.locks`). Export, timeline and erasure go page by page: a `Cursor` is the time and id of a
page's last row.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from api.crypto import INDEX, OrgKeys
from api.store.database import Transaction, load
from api.store.locks import lock_contacts, share_members
from api.store.query import Call, Rows, Value, nothing, run, statements
from workbench.language.codec import decode
from workbench.language.contact import ContactState, IdentifierKind
from workbench.language.event import Identifiers
from workbench.language.explain import ActivationChange, StartedEntry

_SQL = load("contacts")

_CALLS = statements("contacts")

_T = TypeVar("_T")
Cursor: TypeAlias = tuple[datetime, str]  # time and id of the last row of a page

FIRST_CURSOR: Cursor = (datetime(1, 1, 1, tzinfo=UTC), "00000000-0000-0000-0000-000000000000")
LAST_CURSOR: Cursor = (datetime(9999, 1, 1, tzinfo=UTC), "ffffffff-ffff-ffff-ffff-ffffffffffff")


class ContactKey(msgspec.Struct, frozen=True):
    org_id: int
    contact_id: str


# --- Finding a contact


class ContactRow(msgspec.Struct, frozen=True):
    """A contact as stored: `email` is sealed, `attributes` JSON text, `wallet_raw` the wallet as it was first sent."""

    id: str
    wallet_address: str | None
    wallet_raw: str | None
    email: str | None
    external_id: str | None
    attributes: bytes
    tags: list[str]
    segments: list[str]
    opted_out: list[str]
    created_at: datetime
    updated_at: datetime


async def find_contact(tx: Transaction, org_id: int, contact_id: str) -> ContactRow | None:
    """Return a contact, or None if it does not exist, was erased, or was merged into another."""
    return await tx.fetch_one(ContactRow, _SQL["find_contact"], {"org_id": org_id, "id": contact_id})


async def find_contact_state(
    tx: Transaction, org_id: int, keys: OrgKeys, identifiers: Identifiers
) -> ContactState | None:
    """Return the contact that an event with these identifiers belongs to, with its email opened, or None."""
    sent = [
        (IdentifierKind.WALLET, identifiers.wallet),
        (IdentifierKind.EMAIL, identifiers.email),
        (IdentifierKind.EXTERNAL_ID, identifiers.external_id),
    ]
    digests = [(kind, keys.digest(kind.name.lower(), value)) for kind, value in sent if value is not None]
    values = {
        "org_id": org_id,
        "kinds": [int(kind) for kind, _ in digests],
        "digests": [digest for _, digest in digests],
    }
    row = await (await tx.execute(_SQL["find_contact_state"], values)).fetchone()
    return None if row is None else _contact(keys, *row)


async def find_contact_states(
    tx: Transaction, org_id: int, keys: OrgKeys, ids: Collection[str]
) -> dict[str, ContactState]:
    """Return contacts by id, their emails opened; erased contacts are left out."""
    cursor = await tx.execute(_SQL["find_contact_states"], {"org_id": org_id, "ids": list(ids)})
    return {row[0]: _contact(keys, *row) async for row in cursor}


def _contact(keys: OrgKeys, contact_id: str, *columns: Any) -> ContactState:
    wallet, sealed, external_id, wallet_raw, attributes, tags, segments, opted_out = columns
    email = None if sealed is None else keys.open_email(sealed)
    identifiers = Identifiers(wallet, email, external_id, wallet_raw)
    return ContactState(contact_id, identifiers, decode(attributes), tuple(tags), tuple(segments), tuple(opted_out))


# --- Opting out


async def set_opted_out(tx: Transaction, org_id: int, contact_id: str, channels: Collection[str], at: datetime) -> None:
    """Set the channels that a contact opted out of.

    If email is among them, its addresses are suppressed, otherwise released.
    """
    values = {"org_id": org_id, "id": contact_id, "at": at}
    await tx.execute(_SQL["set_opted_out"], values | {"channels": sorted(channels)})
    name = "suppress_emails_of" if "email" in channels else "lift_suppressions_of"
    await tx.execute(_SQL[name], values)


async def opt_out_of_emails(tx: Transaction, org_id: int, address_digest: str, at: datetime) -> None:
    """Opt the owner of an email address out of emails, if the address has an owner."""
    values = {"org_id": org_id, "address_digest": address_digest[:INDEX]}  # lookups use the first index
    owner = await (await tx.execute(_SQL["find_email_owner"], values)).fetchone()
    if owner is not None:
        await lock_contacts(tx, owner)
        await tx.execute(_SQL["opt_out_of_emails"], {"org_id": org_id, "id": owner[0], "at": at})


# --- Erasure

ERASURE_PAGE = 1_000
ErasurePart: TypeAlias = Literal["events", "messages", "entries"]


class ErasureState(msgspec.Struct, frozen=True):
    """When a contact was erased (None: it was not), and the contact it was merged into.

    `unsettled`: a merge into it was undone, and some of its rows may still belong to the other contact.
    """

    at: datetime | None
    merged_into: str | None
    unsettled: bool


async def find_erasure(tx: Transaction, contact: ContactKey) -> ErasureState | None:
    """Return whether a contact was erased, or None if it does not exist."""
    (erasure,) = await run(tx, _about(contact, "find_erasure", lambda rows: ErasureState(*rows[0]) if rows else None))
    return erasure


async def erase_contact(tx: Transaction, contact: ContactKey, at: datetime) -> int:
    """Remove a contact's identifiers and attributes, and cancel its entries; return how many. Its lock is held."""
    await run(
        tx,
        _about(contact, "keep_wallet_digests", nothing, at=at),
        _about(contact, "delete_sign_in", nothing),
        _about(contact, "clear_contact", nothing, at=at),
        _about(contact, "delete_identities", nothing),
        _about(contact, "delete_conflicts", nothing),
        _about(contact, "clear_merges", nothing),
        # The segments of a contact change only under this lock: a refresh keeps it while it repairs the members.
        share_members(contact.org_id),
        _about(contact, "leave_all_segments", nothing),
        _about(contact, "unlink_logs", nothing),
        _about(contact, "erase_dry_runs", nothing),
    )
    (cancelled,) = await run(tx, _about(contact, "cancel_entries", lambda rows: int(rows[0][0]), at=at))
    return cancelled


async def erase_page(tx: Transaction, part: ErasurePart, contact: ContactKey, after: Cursor) -> Cursor | None:
    """Remove personal data from the next rows of a contact; return where the page ends, None if there were no rows."""
    page: dict[str, Value] = {"after_at": after[0], "after_id": after[1], "limit": ERASURE_PAGE}
    (rows,) = await run(tx, _about(contact, f"erase_{part}", list, **page))
    return (rows[0][0], rows[0][1]) if rows else None


async def schedule_erasure(tx: Transaction, contact: ContactKey, due_at: datetime) -> None:
    """Check an erased contact once more at `due_at`, for rows that were being written during the erasure."""
    await run(tx, _about(contact, "schedule_erasure", nothing, due_at=due_at))


async def find_due_erasures(tx: Transaction, now: datetime, limit: int) -> list[ContactKey]:
    """Return erased contacts that are due for that check."""
    due = Call(_CALLS["find_due_erasures"], lambda rows: [ContactKey(*row) for row in rows], now=now, limit=limit)
    (contacts,) = await run(tx, due)
    return contacts


async def finish_erasure(tx: Transaction, contact: ContactKey, now: datetime) -> None:
    """Record that the check is done, unless the contact has been erased again."""
    await run(tx, _about(contact, "finish_erasure", nothing, now=now))


def _about(contact: ContactKey, name: str, read: Callable[[Rows], _T], **values: Value) -> Call[_T]:
    return Call(_CALLS[name], read, org_id=contact.org_id, contact_id=contact.contact_id, **values)


# --- Explaining a contact's events

MAX_EVENTS = 100


class ExplainedLogRow(msgspec.Struct, frozen=True):
    """The details of a log, without its parameters; `place` identifies it (`language.onchain.LOCATION_FIELDS`)."""

    signature: str
    removed: bool
    block_time: datetime
    place: tuple[int, str, str, int, int]


class ExplainedEventRow(msgspec.Struct, frozen=True):
    """An event with the identifiers that it carried; dry runs have none.

    `email` is sealed, `payload` JSON text. `log`: for a log, with its parameters in `payload`; None for custom events.
    """

    id: str
    event: str
    created_at: datetime
    payload: bytes
    wallet: str | None
    email: str | None
    external_id: str | None
    dry: bool
    log: ExplainedLogRow | None = None


async def list_recent_events(tx: Transaction, contact: ContactKey, limit: int) -> list[ExplainedEventRow]:
    """Return the newest events of a contact, newest first."""
    values = {**msgspec.structs.asdict(contact), "limit": limit}
    return [_event(row) async for row in await tx.execute(_SQL["list_recent_events"], values)]


async def find_event_of_contact(tx: Transaction, contact: ContactKey, event_id: str) -> list[ExplainedEventRow]:
    """Return the event with this id in a list, which is empty if the contact has none."""
    values = {**msgspec.structs.asdict(contact), "event_id": event_id}
    return [_event(row) async for row in await tx.execute(_SQL["find_event_of_contact"], values)]


async def find_entries_of_events(
    tx: Transaction, org_id: int, automation_id: str, event_ids: Sequence[str]
) -> dict[str, StartedEntry]:
    """Return the entries that events started in an automation, by event id."""
    values = {"org_id": org_id, "automation_id": automation_id, "event_ids": list(event_ids)}
    return {row[0]: StartedEntry(*row[1:]) async for row in await tx.execute(_SQL["find_entries_of_events"], values)}


async def list_activation_changes(tx: Transaction, org_id: int, automation_id: str) -> list[ActivationChange]:
    """Return when an automation was activated and deactivated, in order."""
    values = {"org_id": org_id, "automation_id": automation_id}
    return await tx.fetch_all(ActivationChange, _SQL["list_activation_changes"], values)


def _event(row: tuple[Any, ...]) -> ExplainedEventRow:
    event = ExplainedEventRow(*row[:8])
    signature, removed, block_time, *place = row[8:]
    log = None if signature is None else ExplainedLogRow(signature, removed, block_time, (*place,))
    return event if log is None else msgspec.structs.replace(event, log=log)


# --- Export

EXPORT_PAGE = 500


class ExportedEventRow(msgspec.Struct, frozen=True):
    """An event; `payload` is JSON text, `email` is sealed."""

    created_at: datetime
    id: str
    event: str
    occurred_at: datetime
    payload: bytes
    idempotency_key: str
    wallet_address: str | None
    email: str | None
    external_id: str | None


class ExportedEntryRow(msgspec.Struct, frozen=True):
    """An entry; `steps` is the JSON text of an array."""

    created_at: datetime
    id: str
    automation_id: str
    automation_version: int | None
    event_id: str
    state: str
    outcome: str | None
    node_id: str | None
    attempts: int
    last_error: str | None
    updated_at: datetime
    steps: bytes


class ExportedMessageRow(msgspec.Struct, frozen=True):
    """A message; `recipient` of an email is sealed, `extra` is JSON text."""

    created_at: datetime
    id: str
    automation_id: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    wallet_address: str | None
    recipient: str | None
    subject: str | None
    body: str | None
    extra: bytes | None
    sent_at: datetime | None
    delivered_at: datetime | None


class AbsorbedRow(msgspec.Struct, frozen=True):
    """A contact that was merged into another, as it was; `email` is sealed, `attributes` JSON text."""

    created_at: datetime
    id: str
    wallet_address: str | None
    email: str | None
    external_id: str | None
    attributes: bytes
    tags: list[str]


class ExportedLogRow(msgspec.Struct, frozen=True):
    """A log of a chain; `args` is JSON text."""

    created_at: datetime
    id: str
    chain_id: int
    contract: str
    event: str
    tx_hash: str
    log_index: int
    block_number: int
    block_time: datetime
    args: bytes
    removed: bool


async def export_absorbed(tx: Transaction, contact: ContactKey, after: Cursor) -> list[AbsorbedRow]:
    """Return the next contacts that were merged into this one."""
    return await tx.fetch_all(AbsorbedRow, _SQL["export_absorbed"], _values(contact, after))


async def export_events(tx: Transaction, contact: ContactKey, after: Cursor) -> list[ExportedEventRow]:
    return await tx.fetch_all(ExportedEventRow, _SQL["export_events"], _values(contact, after))


async def export_entries(tx: Transaction, contact: ContactKey, after: Cursor) -> list[ExportedEntryRow]:
    return await tx.fetch_all(ExportedEntryRow, _SQL["export_entries"], _values(contact, after))


async def export_messages(tx: Transaction, contact: ContactKey, after: Cursor) -> list[ExportedMessageRow]:
    return await tx.fetch_all(ExportedMessageRow, _SQL["export_messages"], _values(contact, after))


async def export_logs(tx: Transaction, contact: ContactKey, after: Cursor) -> list[ExportedLogRow]:
    return await tx.fetch_all(ExportedLogRow, _SQL["export_logs"], _values(contact, after))


def _values(contact: ContactKey, after: Cursor) -> dict[str, object]:
    after_at, after_id = after
    return {**msgspec.structs.asdict(contact), "after_at": after_at, "after_id": after_id, "limit": EXPORT_PAGE}


# --- Timeline


class ContactCounts(msgspec.Struct, frozen=True):
    events: int
    entries: int
    messages: int
    conflicts: int


class TimelineEventRow(msgspec.Struct, frozen=True):
    """An event; `payload` is JSON text."""

    created_at: datetime
    id: str
    event: str
    occurred_at: datetime
    payload: bytes
    idempotency_key: str


class TimelineEntryRow(msgspec.Struct, frozen=True):
    created_at: datetime
    id: str
    automation_id: str
    automation: str
    automation_version: int | None
    event_id: str
    event: str | None
    state: str
    outcome: str | None


class TimelineMessageRow(msgspec.Struct, frozen=True):
    """A message; `reason` says why it was not sent or delivered."""

    created_at: datetime
    id: str
    automation_id: str
    automation: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    subject: str | None
    body: str | None
    sent_at: datetime | None
    delivered_at: datetime | None
    reason: str | None


class ConflictRow(msgspec.Struct, frozen=True):
    """An identifier of an event of `contact_id` that belonged to another contact."""

    created_at: datetime
    id: str
    event_id: str
    contact_id: str
    other_contact_id: str | None
    kind: int
    outcome: str
    resolved_by: str | None


class AbsorbedContactRow(msgspec.Struct, frozen=True):
    """A merge into this contact; `undone_at` if it was undone."""

    created_at: datetime
    id: str
    absorbed_id: str
    undone_at: datetime | None


class TimelineLogRow(msgspec.Struct, frozen=True):
    """A log of a chain; `args` is JSON text."""

    created_at: datetime
    id: str
    chain_id: int
    contract: str
    event: str
    tx_hash: str
    log_index: int
    block_number: int
    args: bytes
    removed: bool


TimelineRow = (
    TimelineEventRow | TimelineEntryRow | TimelineMessageRow | ConflictRow | AbsorbedContactRow | TimelineLogRow
)
TimelineKind: TypeAlias = Literal["event", "entry", "message", "conflict", "merge", "log"]
_READ: Mapping[TimelineKind, tuple[str, type[TimelineRow]]] = {
    "event": ("timeline_events", TimelineEventRow),
    "entry": ("timeline_entries", TimelineEntryRow),
    "message": ("timeline_messages", TimelineMessageRow),
    "conflict": ("timeline_conflicts", ConflictRow),
    "merge": ("timeline_merges", AbsorbedContactRow),
    "log": ("timeline_logs", TimelineLogRow),
}
TIMELINE_KINDS = tuple(_READ)


async def count_contact_rows(tx: Transaction, contact: ContactKey) -> ContactCounts:
    (counts,) = await tx.fetch_all(ContactCounts, _SQL["count_contact_rows"], msgspec.structs.asdict(contact))
    return counts


async def read_timeline(
    tx: Transaction, contact: ContactKey, kinds: Collection[TimelineKind], before: Cursor, limit: int
) -> Sequence[TimelineRow]:
    """Return the newest rows of some kinds about a contact before a moment, newest first."""
    at, row_id = before
    values = {**msgspec.structs.asdict(contact), "before_at": at, "before_id": row_id, "limit": limit}
    rows: list[TimelineRow] = []
    for name, row_type in [_READ[kind] for kind in kinds]:
        rows += [row_type(*row) async for row in await tx.execute(_SQL[name], values)]
    return sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)[:limit]
