"""Events: the statements of ingest, the hourly counts, the catalog, the live tail, and the upkeep of their tables.

Ingest works on micro-batches. Each of its statements takes a whole batch, as a call with columns for parameters
(`store.query`), and locks are taken in one order everywhere (`store.locks`). A column is a list or a tuple, which costs
less than an object per row.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from psycopg import sql

from api.clock import from_us, to_us, uuid7_from
from api.crypto import INDEX
from api.store.database import Transaction
from api.store.locks import COUNTING, try_turn
from api.store.migrate import MONTHLY, add_months
from api.store.query import Call, Json, JsonTexts, RowCount, Rows, Uuid, call, query
from workbench.language.contact import MAX_CONTACT_ATTRIBUTES, MAX_CONTACT_ATTRIBUTES_BYTES, IdentifierKey
from workbench.language.responses import RecentEvent

# --- Ingest: the automations that it matches


class ActiveAutomation(msgspec.Struct, frozen=True):
    """An automation that takes entries. `published_version` None: its entries complete at once and send nothing.

    `activation`: how often it was activated. `trigger_spec`: JSON text (`codec.decode`, then `trigger.read_trigger`).

    `live_since`: logs of earlier blocks do not start it. `earlier_confirmations`: the number that an earlier version
    required, if it is larger. `paused`: its logs are kept and start nothing.
    """

    org_id: int
    id: str
    published_version: int | None
    activation: int
    trigger_spec: Json
    live_since: datetime
    earlier_confirmations: int | None = None
    paused: bool = False


class CountedUntil(msgspec.Struct, frozen=True):
    """The moments up to which an organization's events are counted and closed."""

    counted_until: datetime
    closed_until: datetime


class OrgEpochs(msgspec.Struct, frozen=True):
    """By organization: the epoch of its automations (0: it had none), and the time up to which events are counted."""

    epochs: dict[int, int]
    counting: dict[int, CountedUntil]


def read_epochs(org_ids: Sequence[int]) -> Call[OrgEpochs]:
    def read(rows: Rows, result: object) -> OrgEpochs:
        epochs = {org_id: epoch for org_id, epoch, _, _ in rows if epoch is not None}
        counting = {org_id: CountedUntil(*until) for org_id, epoch, *until in rows if epoch is None}
        return OrgEpochs(dict.fromkeys(org_ids, 0) | epochs, counting)

    rows = _read_epochs(org_ids)
    return Call(rows.statement, read, rows.values, rows.formats)


@call
def _read_epochs(org_ids: Sequence[int]) -> list[tuple[int, int | None, datetime | None, datetime | None]]: ...


@query
async def list_active_automations(
    tx: Transaction, org_id: int, start_type: str | None = None, segment: str | None = None
) -> list[ActiveAutomation]:
    """Return the automations that take entries from events, or from one type of change of a segment, oldest first."""


@query
async def find_awaited_events(tx: Transaction, org_id: int) -> frozenset[str]:
    """Return the names of events that entries of an organization, of any version, can wait for or have as goal."""


# --- Ingest: idempotency keys


@call
def claim_keys(
    org_ids: Sequence[int],
    key_digests: Sequence[Uuid],
    event_ids: Sequence[Uuid],
    body_digests: Sequence[Uuid],
    created_at: datetime,
) -> RowCount:
    """Claim idempotency keys; return how many were new."""


@call
def find_key_holders(org_ids: Sequence[int], key_digests: Sequence[Uuid]) -> dict[int, tuple[str, str]]:
    """Find the event that holds each key and the digest of its body, by the position of the key (from 0)."""


@call
def add_mismatches(
    org_ids: Sequence[int], ids: Sequence[Uuid], event_ids: Sequence[Uuid], created_at: datetime
) -> None:
    """Record keys that were sent again with another body."""


# --- Ingest: contacts

ATTRIBUTES_TOO_LARGE = "NotNullViolation contacts attributes"
"""The text of the RefusedDataError for attributes beyond the limits of a contact (see `merge_attributes`)."""


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The contact that owns the identifier at `position` (from 0); `email` is sealed.

    `has_attributes`: it already has the attributes that were sent with the identifier.
    """

    position: int
    contact_id: str
    wallet: str | None
    email: str | None
    external_id: str | None
    has_attributes: bool


def find_owners(
    org_ids: Sequence[int], kinds: Sequence[int], digests: Sequence[str], attributes: Sequence[str]
) -> Call[list[Owner]]:
    """Find the owners of identifiers; identifiers without an owner are left out.

    `attributes`: a JSON object for each identifier, or an empty text.
    """
    # Lookups use the first index; while the secret is rotated, rows have a second one.
    return _find_owners(org_ids, kinds, [digest[:INDEX] for digest in digests], attributes)


@call
def _find_owners(
    org_ids: Sequence[int], kinds: Sequence[int], digests: Sequence[Uuid], attributes: JsonTexts
) -> list[Owner]: ...


@call
def add_contacts(
    updated_at: datetime,
    attributes: Sequence[str],
    created_us: Sequence[int],
    updated_us: Sequence[int],
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    emails: Sequence[str | None],
    email_domains: Sequence[str | None],
    wallets: Sequence[str | None],
    raw_wallets: Sequence[str | None],
    external_ids: Sequence[str | None],
) -> None:
    """Store new contacts, written at `updated_at`; `created_us` may be earlier, and `updated_us` if it is not empty."""


@call
def add_contact_identifiers(
    updated_at: datetime,
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    emails: Sequence[str | None],
    email_domains: Sequence[str | None],
    wallets: Sequence[str | None],
    raw_wallets: Sequence[str | None],
    external_ids: Sequence[str | None],
    steps: Sequence[int],
    updated_us: Sequence[int | None],
) -> None:
    """Write the identifiers that contacts gained. `steps`, `updated_us`: of their last change."""


@call
def remove_emails(
    updated_at: datetime,
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    steps: Sequence[int],
    updated_us: Sequence[int | None],
) -> None:
    """Remove the email of contacts after the address moved to other contacts; their locks are held."""


@call
def read_updated(org_ids: Sequence[int], ids: Sequence[Uuid]) -> dict[str, int]:
    """Return when contacts changed last, in microseconds, by contact id."""


@call
def read_attributes(org_ids: Sequence[int], ids: Sequence[Uuid]) -> dict[str, str]:
    """Return the JSON text of the attributes of contacts, by contact id."""


@call
def merge_attributes(
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    attributes: Sequence[str | None],
    updated_at: datetime,
    steps: Sequence[int] = (),
    updated_us: Sequence[int | None] = (),
    max_attributes: int = MAX_CONTACT_ATTRIBUTES,
    max_bytes: int = MAX_CONTACT_ATTRIBUTES_BYTES,
) -> None:
    """Merge JSON objects into contacts' attributes. Fails with ATTRIBUTES_TOO_LARGE beyond the limits of a contact."""


def assign_identifiers(owners: Mapping[tuple[int, IdentifierKey], str], at: datetime) -> Call[None]:
    """Record the owners of identifiers, given by organization and identifier, under all their indexes."""
    rows = sorted(  # by primary key, so that two transactions never wait for each other
        (kind, digest[start : start + INDEX], org_id, contact_id)
        for (org_id, (kind, digest)), contact_id in owners.items()
        for start in range(0, len(digest), INDEX)
    )
    return _assign_identifiers(at, *zip(*rows, strict=True))


@call
def _assign_identifiers(
    created_at: datetime,
    kinds: Sequence[int],
    digests: Sequence[Uuid],
    org_ids: Sequence[int],
    contact_ids: Sequence[Uuid],
) -> None: ...


@call
def add_conflicts(
    created_at: datetime,
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    event_ids: Sequence[Uuid],
    contact_ids: Sequence[Uuid],
    other_contact_ids: Sequence[Uuid | None],
    kinds: Sequence[int],
    digests: Sequence[Uuid],
    outcomes: Sequence[str],
) -> None: ...


# --- Ingest: events and entries


@call
def add_events(
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    contact_ids: Sequence[Uuid],
    events: Sequence[str],
    occurred_us: Sequence[int],
    payloads: JsonTexts,
    idempotency_keys: Sequence[str],
    wallets: Sequence[str | None],
    emails: Sequence[str | None],
    external_ids: Sequence[str | None],
    created_at: datetime | None,
    added: int,
) -> None:
    """Store events received at `created_at`, or if None, at the time when each occurred.

    `added`: `database.transaction_offset`.
    """


@call
def _add_changing_events(
    attributes: JsonTexts = (),
    org_ids: Sequence[int] = (),
    ids: Sequence[Uuid] = (),
    contact_ids: Sequence[Uuid] = (),
    events: Sequence[str] = (),
    occurred_us: Sequence[int] = (),
    payloads: JsonTexts = (),
    idempotency_keys: Sequence[str] = (),
    wallets: Sequence[str | None] = (),
    emails: Sequence[str | None] = (),
    external_ids: Sequence[str | None] = (),
    created_at: datetime | None = None,
    added: int = 0,
    max_attributes: int = MAX_CONTACT_ATTRIBUTES,
    max_bytes: int = MAX_CONTACT_ATTRIBUTES_BYTES,
) -> None: ...


_CHANGING_EVENTS = _add_changing_events()


def with_attributes(add: Call[None], attributes: JsonTexts) -> Call[None]:
    """Return the call that adds the events of `add`, merges attributes into their contacts, and notes the changes.

    `attributes`: the JSON text of each event, empty where the contact stays as it is; at most one of each contact.
    Needs the locks of these contacts. Fails as `merge_attributes`.
    """
    return _CHANGING_EVENTS.with_values_of(add).replace(attributes=attributes)


@call
def add_entries(
    created_at: datetime,
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    automation_ids: Sequence[Uuid],
    versions: Sequence[int | None],
    activations: Sequence[int],
    event_ids: Sequence[Uuid],
    contact_ids: Sequence[Uuid],
    request_ids: Sequence[str | None],
) -> None: ...


# Postgres sends the notification when the transaction commits; a rollback sends nothing.
@call
def wake_engine() -> None: ...


def wake_waiting_entries(rows: Sequence[tuple[int, str, str, datetime]], at: datetime) -> Call[None]:
    """Make entries due. Needs the contacts' locks.

    Each row: the organization, the contact, the event or attribute that they wait for, and the moment of the change.
    """
    return _wake_waiting_entries(at, *zip(*rows, strict=True))


@call
def _wake_waiting_entries(
    at: datetime,
    org_ids: Sequence[int],
    contact_ids: Sequence[Uuid],
    events: Sequence[str],
    moments: Sequence[datetime],
) -> None: ...


@call
def add_dry_runs(
    org_ids: Sequence[int],
    key_digests: Sequence[Uuid],
    ids: Sequence[Uuid],
    events: Sequence[str],
    contact_ids: Sequence[Uuid],
    occurred_us: Sequence[int],
    payloads: JsonTexts,
    idempotency_keys: Sequence[str],
    matched: Sequence[int],
    created_at: datetime,
) -> set[str]:
    """Keep dry runs; returns the ids of those with a key that no earlier dry run used."""


@query
async def add_notices(
    tx: Transaction,
    org_ids: Sequence[int],
    ids: Sequence[Uuid],
    outcomes: Sequence[str],
    events: Sequence[str | None],
    idempotency_keys: Sequence[str | None],
    fields: Sequence[str | None],
    reasons: Sequence[str | None],
    bodies: Sequence[str | None],
    received_us: Sequence[int],
) -> None:
    """Store rejected events and duplicates."""


@query
async def count_misspelt(
    tx: Transaction,
    at: datetime,
    org_ids: Sequence[int],
    key_ids: Sequence[Uuid],
    fields: Sequence[str],
    counts: Sequence[int],
) -> None:
    """Add to the counts of misspelt fields by key; each pair of key and field once."""


class MisspeltField(msgspec.Struct, frozen=True):
    field: str
    key_id: Uuid
    key: str
    key_name: str
    count: int
    last_at: datetime


@query
async def list_misspelt(tx: Transaction, org_id: int, since: datetime, limit: int) -> list[MisspeltField]:
    """Return the misspelt fields of accepted events, the most frequent first."""


# --- Counting (api/catalog/counts.py has the protocol)

NEVER = datetime(9000, 1, 1, tzinfo=UTC)  # the `closed_until` of an idle organization
SLOT_US = 300_000_000  # five minutes: the past is closed in these slots, and late live events are noted by them

LateKey = tuple[int, str, int]
"""Organization, event name, and the start of the hour (or of the slot) of the event's date, in microseconds."""


@query
async def close_hours(tx: Transaction, first: datetime, until: datetime) -> None:
    """From now on, treat events dated before `until` as late. A new organization is counted from `first`."""


@query
async def wake_counting(tx: Transaction, until: datetime, resting: datetime = NEVER) -> None:
    """Make idle organizations for which late events were noted active again, closed up to `until`."""


@query
async def rest_counting(tx: Transaction, org_id: int, resting: datetime = NEVER) -> None:
    """Make an organization idle if everything is counted and nothing is noted."""


@query
async def list_uncounted(tx: Transaction, resting: datetime = NEVER) -> dict[int, CountedUntil]:
    """Return the active organizations that have closed hours which are not counted yet."""


@query
async def list_writers(tx: Transaction) -> set[str]:
    """Return the transactions that may be storing events now."""


async def count_closed(tx: Transaction, org_id: int, since: datetime, until: datetime) -> int | None:
    """Count the events dated between two moments; return the number of (event, hour) pairs that had any.

    Return None if another process is counting this organization, or has just counted it.
    """
    if not await try_turn(tx, COUNTING, org_id) or not await advance(tx, org_id, since, until):
        return None
    await hold_notes(tx, org_id, until)
    rows = await _count_closed(tx, org_id, since, until)
    if rows:
        await add_counts(tx, org_id, *map(list, zip(*rows, strict=True)))
    return len(rows)


@query
async def advance(tx: Transaction, org_id: int, since: datetime, until: datetime) -> RowCount: ...


@query
async def hold_notes(tx: Transaction, org_id: int, until: datetime) -> None: ...


@query
async def _count_closed(
    tx: Transaction, org_id: int, since: datetime, until: datetime
) -> list[tuple[str, datetime, int]]: ...


@query
async def add_counts(
    tx: Transaction, org_id: int, events: list[str], hours: list[datetime], counts: list[int]
) -> None: ...


def note_late(counts: Mapping[LateKey, int], source: str | None = None) -> Call[None]:
    """Note how many events were late.

    An import passes its id as `source` and sorted counts: it adds to its own notes.
    """
    org_ids, events, ats = [key[0] for key in counts], [key[1] for key in counts], [from_us(key[2]) for key in counts]
    return _note_late(source, org_ids, events, ats, counts.values())


@call
def _note_late(
    source: Uuid | None, org_ids: list[int], events: list[str], ats: list[datetime], counts: Collection[int]
) -> None: ...


def note_late_events(
    events: Iterable[tuple[int, str]], at: datetime, counting: Mapping[int, CountedUntil]
) -> list[Call[None]]:
    """Return the calls that note which of the events, given as (organization, name) and dated `at`, are late.

    `counting` has to be read after the batch claimed its keys: the claim is what the counting job waits for.
    """
    late_org_ids = {org_id for org_id, until in counting.items() if at < until.closed_until}
    if not late_org_ids:
        return []
    slot_us = to_us(at) // SLOT_US * SLOT_US
    counts = Counter((org_id, name, slot_us) for org_id, name in events if org_id in late_org_ids)
    return [note_late(counts)] if counts else []


@query
async def delete_old_counts(tx: Transaction, org_id: int, before: datetime) -> None:
    """Delete the counts of hours and days that began before a moment."""


# --- Catalog

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


class EventSpan(msgspec.Struct, frozen=True):
    since: datetime
    until: datetime


class WindowEdges(msgspec.Struct, frozen=True):
    """A moment, the day and hour that contain it, and the first whole day and hour after it."""

    since: datetime
    edge_day: datetime
    edge_hour: datetime
    first_day: datetime
    first_hour: datetime


class CountedEvent(msgspec.Struct, frozen=True):
    """The number of times that an event was received, in total and by day (UTC); days without any are left out."""

    event: str
    count: int
    days: dict[datetime, int]


class EventRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event with the identifiers that it was sent with; `email` is sealed.

    A statement that also reads logs and starts sets `source`: that of a log or a start, None for others. `removed`: a
    reorganization dropped the log. `dry`: a dry run. `signature`: of the log that started an entry, in the version that
    the entry runs; None if it runs none.
    """

    id: str
    event: str
    occurred_at: datetime
    created_at: datetime
    payload: msgspec.Raw
    idempotency_key: str
    wallet_address: str | None
    email: str | None
    external_id: str | None
    source: str | None = None
    removed: bool = False
    dry: bool = False
    signature: str | None = None


async def count_events(tx: Transaction, org_id: int, since: datetime, prefix: str, limit: int) -> list[CountedEvent]:
    """Count the events received since a moment of the last 30 days: up to `limit` names, most frequent first."""
    rows = await _count_events(tx, org_id, prefix, limit, _edges(since))
    return [CountedEvent(event, total, dict(zip(days, counts, strict=True))) for event, total, days, counts in rows]


@query
async def _count_events(
    tx: Transaction, org_id: int, prefix: str, limit: int, edges: WindowEdges
) -> list[tuple[str, int, list[datetime], list[int]]]: ...


async def count_event(tx: Transaction, org_id: int, event: str, since: datetime) -> CountedEvent:
    """Count the events of one name since a time in the last 30 days."""
    days = await _count_event(tx, org_id, event, _edges(since))
    return CountedEvent(event, sum(days.values()), days)


@query
async def _count_event(tx: Transaction, org_id: int, event: str, edges: WindowEdges) -> dict[datetime, int]: ...


@query
async def find_first_and_last(
    tx: Transaction, org_id: int, events: Sequence[str], since: datetime
) -> list[tuple[datetime | None, datetime | None]]:
    """Return when each event was received first ever, and last since a moment."""


@query
async def list_newest_events(tx: Transaction, org_id: int, event: str, since: datetime, limit: int) -> list[EventRow]:
    """Return the newest events of one name, newest first."""


@call
def list_newest_wallets(org_id: int, event: str, since: datetime, limit: int) -> list[str]:
    """Return the wallets of the newest events of one name; empty for an event without one."""


@call
def list_newest_wallets_of_all(org_id: int, first_id: Uuid, since: datetime, limit: int) -> list[str]:
    """Return the wallets of the newest events; empty for one without. `first_id`: the lowest id since that moment."""


@query
async def sample_payloads(
    tx: Transaction, org_id: int, event: str, span: EventSpan, parts: int, per_part: int
) -> list[Json]:
    """Return payloads (JSON texts) from between two moments: the newest `per_part` of each of `parts` equal parts."""


def _edges(since: datetime) -> WindowEdges:
    hour = since.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    return WindowEdges(since, day, hour, day if day == since else day + _DAY, hour if hour == since else hour + _HOUR)


# --- Live tail


class RecentSelection(msgspec.Struct, frozen=True):
    """Events of an organization with one of these outcomes, received at `since` or later."""

    org_id: int
    outcomes: tuple[str, ...]
    since: datetime


@query
async def list_ids_after(
    tx: Transaction, selection: RecentSelection, after: Uuid, exclude: Collection[Uuid], limit: int
) -> list[str]:
    """Return up to `limit` ids beyond `after` that are not in `exclude`, oldest first."""


@query
async def list_newest_ids(tx: Transaction, selection: RecentSelection, after: Uuid, limit: int) -> list[str]:
    """Return up to `limit` ids beyond `after`, newest first."""


@query
async def read_recent(tx: Transaction, selection: RecentSelection, ids: Collection[Uuid]) -> list[RecentEvent]:
    """Return the events with these ids, oldest first."""


async def count_entries(tx: Transaction, org_id: int, received_at: Collection[datetime]) -> dict[str, int]:
    """Count the entries of the events received at these moments, by event id; events without entries are left out."""
    moments_us = [to_us(at) for at in received_at]
    first_ids = [uuid7_from(at_us, bytes(8)) for at_us in moments_us]
    return await _count_entries(tx, org_id, first_ids, [uuid7_from(at_us, b"\xff" * 8) for at_us in moments_us])


@query
async def _count_entries(
    tx: Transaction, org_id: int, first_ids: list[Uuid], last_ids: list[Uuid]
) -> dict[str, int]: ...


# --- Upkeep, done by any API process

RETENTION = timedelta(days=7)  # of dry runs, rejected events and duplicates
_MONTHS_AHEAD = timedelta(days=93)


async def analyze_new_tables(tx: Transaction) -> list[str]:
    """Run ANALYZE on tables with rows and without statistics; return their names."""
    # Autovacuum reaches them only later, and until then the planner guesses.
    names = await unknown_tables(tx)
    for name in names:
        await tx.execute(sql.SQL("ANALYZE {}").format(sql.Identifier("workbench", name)))
    return names


@query
async def unknown_tables(tx: Transaction) -> list[str]: ...


async def add_coming_months(tx: Transaction, now: datetime) -> None:
    """Create the partitions for this month and the next three."""
    for table in MONTHLY:
        await add_months(tx, table, now, now + _MONTHS_AHEAD)


async def delete_old_dry_runs(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    return await _delete_old_dry_runs(tx, org_id, _first_kept_id(now), limit)


async def delete_old_misspelt(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    return await _delete_old_misspelt(tx, org_id, now - RETENTION, limit)


@query
async def _delete_old_misspelt(tx: Transaction, org_id: int, before: datetime, limit: int) -> RowCount: ...


async def delete_old_notices(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    return await _delete_old_notices(tx, org_id, _first_kept_id(now), limit)


def _first_kept_id(now: datetime) -> str:
    return uuid7_from(to_us(now - RETENTION), bytes(8))  # ids begin with their time, so the key finds the oldest rows


async def _delete_before(tx: Transaction, org_id: int, before: Uuid, limit: int) -> RowCount: ...


_delete_old_dry_runs = query(_delete_before, "delete_old_dry_runs")
_delete_old_notices = query(_delete_before, "delete_old_notices")
