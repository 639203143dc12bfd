"""Events: the statements of ingest, the hourly counts, the catalog, the live tail, and the upkeep of their tables.

Ingest works on micro-batches. Each of its statements takes a whole batch, as a call with columns for parameters
(`store.query`), and locks are taken in one order everywhere (`store.locks`). Rows are collected in the `...Rows`
structs below: one list per column, which costs less than an object per row.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from psycopg import sql

from api.clock import from_us, to_us, uuid7_from
from api.crypto import INDEX
from api.store.database import Transaction, load
from api.store.locks import COUNTING, try_turn
from api.store.migrate import add_months
from api.store.query import Call, Rows, Value, joined, moments, nothing, plain, quoted, records, run, statements, uuids

_SQL = load("events")
_CALLS = statements("events")

Ints = Sequence[int]
Ids = Sequence[str]
Texts = Sequence[str | None]


# --- Ingest: what it must know of automations


class ActiveAutomation(msgspec.Struct, frozen=True):
    """An automation that takes entries. `published_version` None: its entries complete at once and send nothing.

    `activation`: how often it was activated. `trigger_spec`: JSON text (`codec.decode`, then `trigger.read_trigger`).
    """

    id: str
    published_version: int | None
    activation: int
    trigger_spec: bytes


class OrgEpochs(msgspec.Struct, frozen=True):
    """By organization: the epoch of its automations (0: it had none), and the time before which events are late."""

    epochs: dict[int, int]
    closed_until: dict[int, datetime]


def read_epochs(org_ids: Sequence[int]) -> Call[OrgEpochs]:
    def read(rows: Rows) -> OrgEpochs:
        epochs = {org_id: epoch for org_id, epoch, _ in rows if epoch is not None}
        closed = {org_id: moment for org_id, _, moment in rows if moment is not None}
        return OrgEpochs(dict.fromkeys(org_ids, 0) | epochs, closed)

    return Call(_CALLS["read_epochs"], read, org_ids=plain(org_ids))


async def list_active_automations(tx: Transaction, org_id: int) -> list[ActiveAutomation]:
    """Return the automations of an organization that take entries, oldest first."""
    (rows,) = await run(tx, Call(_CALLS["list_active_automations"], list, org_id=org_id))
    return [ActiveAutomation(*row) for row in rows]


async def find_awaited_events(tx: Transaction, org_id: int) -> frozenset[str]:
    """Return the names of events that entries of an organization, of any version, can wait for or have as goal."""
    (rows,) = await run(tx, Call(_CALLS["find_awaited_events"], list, org_id=org_id))
    return frozenset(row[0] for row in rows)


# --- Ingest: idempotency keys


class KeyHolder(msgspec.Struct, frozen=True):
    """The event that holds an idempotency key, and the digest of the body it was sent with."""

    event_id: str
    body_digest: str


def claim_keys(org_ids: Ints, digests: Ids, event_ids: Ids, bodies: Ids, at: datetime) -> Call[int]:
    """Claim idempotency keys; returns how many were new."""
    return Call(
        _CALLS["claim_keys"],
        lambda rows: int(rows[0][0]),
        org_ids=plain(org_ids),
        key_digests=uuids(digests),
        event_ids=uuids(event_ids),
        body_digests=uuids(bodies),
        created_at=at,
    )


def find_key_holders(org_ids: Ints, digests: Ids) -> Call[dict[int, KeyHolder]]:
    """Find the events that hold idempotency keys, by the position of the key (from 0)."""
    return Call(
        _CALLS["find_key_holders"],
        lambda rows: {position: KeyHolder(event_id, body.replace("-", "")) for position, event_id, body in rows},
        org_ids=plain(org_ids),
        key_digests=joined(digests),
    )


def add_mismatches(org_ids: Ints, ids: Ids, event_ids: Ids, at: datetime) -> Call[None]:
    """Record keys that were sent again with another body."""
    return Call(
        _CALLS["add_mismatches"],
        nothing,
        org_ids=plain(org_ids),
        ids=plain(ids),
        event_ids=joined(event_ids),
        created_at=at,
    )


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


class ContactRows(msgspec.Struct):
    """Columns of new contacts, or of identifiers that existing contacts gained (then without `attributes`)."""

    org_ids: list[int] = []
    ids: list[str] = []
    emails: list[str | None] = []
    email_domains: list[str | None] = []
    wallets: list[str | None] = []
    raw_wallets: list[str | None] = []
    external_ids: list[str | None] = []
    attributes: list[str] = []


class IdentifierRows(msgspec.Struct):
    """Columns of identifiers and their new owners."""

    org_ids: list[int] = []
    kinds: list[int] = []
    digests: list[str] = []
    contact_ids: list[str] = []


class ConflictRows(msgspec.Struct):
    org_ids: list[int] = []
    ids: list[str] = []
    event_ids: list[str] = []
    contact_ids: list[str] = []
    other_contact_ids: list[str | None] = []
    kinds: list[int] = []
    digests: list[str] = []
    outcomes: list[str] = []


def find_owners(org_ids: Ints, kinds: Ints, digests: Ids, attributes: Sequence[str]) -> Call[list[Owner]]:
    """Find the owners of identifiers; identifiers without an owner are left out.

    `attributes`: a JSON object for each identifier, or an empty text.
    """
    return Call(
        _CALLS["find_owners"],
        lambda rows: [Owner(*row) for row in rows],
        org_ids=plain(org_ids),
        kinds=plain(kinds),
        # Lookups use the first index; while the secret is rotated, rows have a second one.
        digests=uuids([digest[:INDEX] for digest in digests]),
        attributes=records(attributes),
    )


def add_contacts(rows: ContactRows, at: datetime) -> Call[None]:
    return Call(
        _CALLS["add_contacts"], nothing, **contact_columns(rows), attributes=quoted(rows.attributes), created_at=at
    )


def add_contact_identifiers(rows: ContactRows, at: datetime) -> Call[None]:
    return Call(_CALLS["add_contact_identifiers"], nothing, **contact_columns(rows), updated_at=at)


def remove_emails(org_ids: Ints, ids: Ids, at: datetime) -> Call[None]:
    """Remove the email of contacts after the address moved to other contacts; their locks are held."""
    return Call(_CALLS["remove_emails"], nothing, org_ids=plain(org_ids), ids=plain(ids), updated_at=at)


def merge_attributes(org_ids: Ints, ids: Ids, attributes: Texts, at: datetime) -> Call[None]:
    """Merge JSON objects into contacts' attributes. Fails with ATTRIBUTES_TOO_LARGE beyond the limits of a contact."""
    return Call(
        _CALLS["merge_attributes"],
        nothing,
        org_ids=plain(org_ids),
        ids=plain(ids),
        attributes=quoted(attributes),
        updated_at=at,
    )


def assign_identifiers(rows: IdentifierRows, at: datetime) -> Call[None]:
    """Record the owners of identifiers, under all their indexes. Each identifier may occur once."""
    indexed = sorted(  # by primary key, so that two transactions never wait for each other
        (kind, digest[at : at + INDEX], org_id, contact_id)
        for org_id, kind, digest, contact_id in zip(
            rows.org_ids, rows.kinds, rows.digests, rows.contact_ids, strict=True
        )
        for at in range(0, len(digest), INDEX)
    )
    kinds, digests, org_ids, contact_ids = zip(*indexed, strict=True)
    one_per_index = IdentifierRows(list(org_ids), list(kinds), list(digests), list(contact_ids))
    return Call(_CALLS["assign_identifiers"], nothing, **_columns(one_per_index), created_at=at)


def add_conflicts(rows: ConflictRows, at: datetime) -> Call[None]:
    rows.digests = [digest[:INDEX] for digest in rows.digests]
    return Call(_CALLS["add_conflicts"], nothing, **_columns(rows), created_at=at)


def contact_columns(rows: ContactRows) -> dict[str, Value]:
    """Return the columns of contacts as parameters, without their attributes."""
    return {
        "org_ids": plain(rows.org_ids),
        "ids": plain(rows.ids),
        "emails": plain(rows.emails),
        "email_domains": quoted(rows.email_domains),
        "wallets": quoted(rows.wallets),
        "raw_wallets": quoted(rows.raw_wallets),
        "external_ids": quoted(rows.external_ids),
    }


# --- Ingest: events and entries


class EventRows(msgspec.Struct):
    org_ids: list[int] = []
    ids: list[str] = []
    contact_ids: list[str] = []
    events: list[str] = []
    occurred_us: list[int] = []
    payloads: list[str] = []
    idempotency_keys: list[str] = []
    wallets: list[str | None] = []
    emails: list[str | None] = []
    external_ids: list[str | None] = []


class EntryRows(msgspec.Struct):
    org_ids: list[int] = []
    ids: list[str] = []
    automation_ids: list[str] = []
    versions: list[int | None] = []
    activations: list[int] = []
    event_ids: list[str] = []
    contact_ids: list[str] = []
    request_ids: list[str | None] = []


class DryRunRows(msgspec.Struct):
    org_ids: list[int] = []
    key_digests: list[str] = []
    ids: list[str] = []
    events: list[str] = []
    contact_ids: list[str] = []
    occurred_us: list[int] = []
    payloads: list[str] = []
    idempotency_keys: list[str] = []
    matched: list[int] = []


class NoticeRows(msgspec.Struct):
    """Columns of rejected events and duplicates to keep."""

    org_ids: list[int] = []
    ids: list[str] = []
    outcomes: list[str] = []
    events: list[str | None] = []
    idempotency_keys: list[str | None] = []
    fields: list[str | None] = []
    reasons: list[str | None] = []
    bodies: list[str | None] = []
    received_us: list[int] = []


def add_events(rows: EventRows, at: datetime, offset: int) -> Call[None]:
    """Store events received at `at`. `offset`: `database.transaction_offset`."""
    return Call(
        _CALLS["add_events"],
        nothing,
        org_ids=plain(rows.org_ids),
        ids=uuids(rows.ids),
        contact_ids=uuids(rows.contact_ids),
        events=quoted(rows.events),
        occurred_us=plain(rows.occurred_us),
        payloads=records(rows.payloads),
        idempotency_keys=quoted(rows.idempotency_keys),
        wallets=quoted(rows.wallets),
        emails=plain(rows.emails),
        external_ids=quoted(rows.external_ids),
        created_at=at,
        added=offset,
    )


def add_entries(rows: EntryRows, at: datetime) -> Call[None]:
    return Call(_CALLS["add_entries"], nothing, **_columns(rows), created_at=at)


# Postgres sends the notification when the transaction commits; a rollback sends nothing.
WAKE_ENGINE = Call(_CALLS["wake_engine"], nothing)


async def wake_engine(tx: Transaction) -> None:
    """`WAKE_ENGINE` as a coroutine."""
    await run(tx, WAKE_ENGINE)


def wake_waiting_entries(rows: Sequence[tuple[int, str, str]], at: datetime) -> Call[None]:
    """Make entries due that wait for these (organization, contact, event) triples; the contacts' locks are held."""
    org_ids, contact_ids, events = zip(*rows, strict=True)
    return Call(
        _CALLS["wake_waiting_entries"],
        nothing,
        org_ids=plain(org_ids),
        contact_ids=joined(contact_ids),
        events=quoted(events),
        at=at,
    )


def add_dry_runs(rows: DryRunRows, at: datetime) -> Call[set[str]]:
    """Keep dry runs; returns the ids of those with a key that no earlier dry run used."""
    texts = {"events": quoted(rows.events), "idempotency_keys": quoted(rows.idempotency_keys)}
    values = {**_columns(rows), **texts, "payloads": records(rows.payloads)}
    return Call(_CALLS["add_dry_runs"], lambda ids: {row[0] for row in ids}, **values, created_at=at)


async def add_notices(tx: Transaction, rows: NoticeRows) -> None:
    columns = {
        name: quoted(getattr(rows, name)) for name in ("events", "idempotency_keys", "fields", "reasons", "bodies")
    }
    columns |= {name: plain(getattr(rows, name)) for name in ("org_ids", "ids", "outcomes", "received_us")}
    await tx.execute(_SQL["add_notices"], columns)


def _columns(rows: msgspec.Struct) -> dict[str, Value]:
    return {name: plain(getattr(rows, name)) for name in rows.__struct_fields__}


# --- Counting (api/catalog/counts.py has the protocol)

NEVER = datetime(9000, 1, 1, tzinfo=UTC)  # the `closed_until` of an idle organization
SLOT_US = 300_000_000  # five minutes: the past is closed in these slots, and late live events are noted by them

LateKey = tuple[int, str, int]
"""Organization, event name, and the start of the hour (or of the slot) of the event's date, in microseconds."""


class CountedUntil(msgspec.Struct, frozen=True):
    """The moments up to which an organization's events are counted and closed."""

    counted_until: datetime
    closed_until: datetime


async def close_hours(tx: Transaction, first: datetime, until: datetime) -> None:
    """From now on, treat events dated before `until` as late. A new organization is counted from `first`."""
    await tx.execute(_SQL["close_hours"], {"first": first, "until": until})


async def wake_counting(tx: Transaction, until: datetime) -> None:
    """Close idle organizations up to `until` if late events were noted for them."""
    await tx.execute(_SQL["wake_counting"], {"until": until, "resting": NEVER})


async def rest_counting(tx: Transaction, org_id: int) -> None:
    """Make an organization idle if everything is counted and nothing is noted."""
    await tx.execute(_SQL["rest_counting"], {"org_id": org_id, "resting": NEVER})


def read_counting(org_id: int) -> Call[CountedUntil | None]:
    """Read up to which moments an organization is counted and closed; None for one that was never closed."""
    return Call(_CALLS["read_counting"], lambda rows: CountedUntil(*rows[0]) if rows else None, org_id=org_id)


async def list_uncounted(tx: Transaction) -> list[tuple[int, CountedUntil]]:
    """Return the active organizations with closed time that is not counted yet."""
    rows = await (await tx.execute(_SQL["list_uncounted"], {"resting": NEVER})).fetchall()
    return [(org_id, CountedUntil(counted, closed)) for org_id, counted, closed in rows]


async def list_writers(tx: Transaction) -> set[str]:
    """Return the transactions that may be storing events now."""
    return {row[0] for row in await (await tx.execute(_SQL["list_writers"])).fetchall()}


async def count_closed(tx: Transaction, org_id: int, since: datetime, until: datetime) -> int | None:
    """Count the events dated between two moments; return the number of (event, hour) pairs that had any.

    None: another process counts this organization or already did.
    """
    span = {"org_id": org_id, "since": since, "until": until}
    if not await try_turn(tx, COUNTING, org_id) or not (await tx.execute(_SQL["advance"], span)).rowcount:
        return None
    await tx.execute(_SQL["hold_notes"], span)
    rows = await (await tx.execute(_SQL["count_closed"], span)).fetchall()
    if rows:
        events, hours, counts = map(list, zip(*rows, strict=True))
        await tx.execute(_SQL["add_counts"], {"org_id": org_id, "events": events, "hours": hours, "counts": counts})
    return len(rows)


def note_late(counts: Mapping[LateKey, int], source: str | None = None) -> Call[None]:
    """Note how many events were late.

    An import passes its id as `source` and sorted counts: it adds to its own notes.
    """
    return Call(
        _CALLS["note_late"],
        nothing,
        source=source,
        org_ids=plain(org_id for org_id, _, _ in counts),
        events=quoted([event for _, event, _ in counts]),
        ats=moments(from_us(at_us) for _, _, at_us in counts),
        counts=plain(counts.values()),
    )


def note_late_events(
    events: Iterable[tuple[int, str]], at: datetime, closed_until: Mapping[int, datetime]
) -> list[Call[None]]:
    """Return the calls that note the late ones among events given as (organization, name) and dated `at`.

    `closed_until` has to be read after the batch claimed its keys: the claim is what the counting job waits for.
    """
    late_org_ids = {org_id for org_id, until in closed_until.items() if at < until}
    if not late_org_ids:
        return []
    slot_us = to_us(at) // SLOT_US * SLOT_US
    counts = Counter((org_id, name, slot_us) for org_id, name in events if org_id in late_org_ids)
    return [note_late(counts)] if counts else []


async def delete_old_counts(tx: Transaction, org_id: int, before: datetime) -> None:
    """Delete the counts of hours and days that began before a moment."""
    await tx.execute(_SQL["delete_old_counts"], {"org_id": org_id, "before": before})


# --- Catalog

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


class CountedEvent(msgspec.Struct, frozen=True):
    """How often an event was received, in total and by day (UTC); days without any are left out."""

    event: str
    count: int
    days: dict[datetime, int]


class StoredEvent(msgspec.Struct, frozen=True):
    """An event; `payload` is JSON text."""

    id: str
    created_at: datetime
    occurred_at: datetime
    payload: bytes


async def count_events(tx: Transaction, org_id: int, since: datetime, prefix: str, limit: int) -> list[CountedEvent]:
    """Count the events received since a moment of the last 30 days: up to `limit` names, most frequent first."""
    values = {"org_id": org_id, "prefix": prefix, "limit": limit, **_edges(since)}
    rows = await (await tx.execute(_SQL["count_events"], values)).fetchall()
    return [CountedEvent(event, total, dict(zip(days, counts, strict=True))) for event, total, days, counts in rows]


async def count_event(tx: Transaction, org_id: int, event: str, since: datetime) -> CountedEvent:
    """Count one event since a moment of the last 30 days."""
    values = {"org_id": org_id, "event": event, **_edges(since)}
    days: dict[datetime, int] = dict(await (await tx.execute(_SQL["count_event"], values)).fetchall())
    return CountedEvent(event, sum(days.values()), days)


async def find_first_and_last(
    tx: Transaction, org_id: int, events: Sequence[str], since: datetime
) -> list[tuple[datetime | None, datetime | None]]:
    """Return when each event was received first and last since a moment."""
    values = {"org_id": org_id, "events": list(events), "since": since}
    return [(first, last) async for first, last in await tx.execute(_SQL["find_first_and_last"], values)]


async def list_newest_events(
    tx: Transaction, org_id: int, event: str, since: datetime, limit: int
) -> list[StoredEvent]:
    """Return the newest events of one name, newest first."""
    values = {"org_id": org_id, "event": event, "since": since, "limit": limit}
    return await tx.fetch_all(StoredEvent, _SQL["list_newest_events"], values)


async def sample_payloads(
    tx: Transaction, org_id: int, event: str, span: tuple[datetime, datetime], parts: int, per_part: int
) -> list[bytes]:
    """Return payloads (JSON texts) from between two moments: the newest `per_part` of each of `parts` equal parts."""
    since, until = span
    values = {"org_id": org_id, "event": event, "since": since, "until": until, "parts": parts, "per_part": per_part}
    return [row[0] async for row in await tx.execute(_SQL["sample_payloads"], values)]


def _edges(since: datetime) -> dict[str, datetime]:
    """Return the day and hour that a moment cuts, and the first whole ones after it."""
    hour = since.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    return {
        "since": since,
        "edge_day": day,
        "edge_hour": hour,
        "first_day": day if day == since else day + _DAY,
        "first_hour": hour if hour == since else hour + _HOUR,
    }


# --- Live tail


class RecentSelection(msgspec.Struct, frozen=True):
    """Events of an organization with one of these outcomes, received at `since` or later."""

    org_id: int
    outcomes: tuple[str, ...]
    since: datetime


class RecentRow(msgspec.Struct, frozen=True):
    """One event of any outcome; `payload` and `body` are JSON texts, `body` has types in place of values."""

    id: str
    at: datetime
    outcome: str
    event: str | None
    contact_id: str | None
    idempotency_key: str | None
    payload: bytes | None
    field: str | None
    reason: str | None
    body: bytes | None
    matched: int | None


async def list_ids_after(
    tx: Transaction, selection: RecentSelection, after: str, exclude: Collection[str], limit: int
) -> list[str]:
    """Return up to `limit` ids beyond `after` that are not in `exclude`, oldest first."""
    values = {**_selection(selection), "after": after, "exclude": plain(exclude), "limit": limit}
    return [row[0] for row in await (await tx.execute(_SQL["list_ids_after"], values)).fetchall()]


async def list_newest_ids(tx: Transaction, selection: RecentSelection, after: str, limit: int) -> list[str]:
    """Return up to `limit` ids beyond `after`, newest first."""
    values = {**_selection(selection), "after": after, "limit": limit}
    return [row[0] for row in await (await tx.execute(_SQL["list_newest_ids"], values)).fetchall()]


def _selection(selection: RecentSelection) -> dict[str, object]:
    return {"org_id": selection.org_id, "outcomes": plain(selection.outcomes), "since": selection.since}


async def read_recent(tx: Transaction, selection: RecentSelection, ids: Collection[str]) -> list[RecentRow]:
    """Return the events with these ids, oldest first."""
    values = {"org_id": selection.org_id, "since": selection.since, "ids": plain(ids)}
    return await tx.fetch_all(RecentRow, _SQL["read_recent"], values)


async def count_entries(tx: Transaction, org_id: int, received_at: Collection[datetime]) -> dict[str, int]:
    """Count the entries of the events received at these moments, by event id; events without entries are left out."""
    values = {
        "org_id": org_id,
        "first_ids": plain(uuid7_from(to_us(at), bytes(8)) for at in received_at),
        "last_ids": plain(uuid7_from(to_us(at), b"\xff" * 8) for at in received_at),
    }
    return {event_id: count async for event_id, count in await tx.execute(_SQL["count_entries"], values)}


# --- Upkeep, done by any API process

RETENTION = timedelta(days=7)  # of dry runs, rejected events and duplicates
_MONTHS_AHEAD = timedelta(days=93)


async def analyze_new_tables(tx: Transaction) -> list[str]:
    """Run ANALYZE on tables with rows and without statistics; return their names."""
    # Autovacuum reaches them only later, and until then the planner guesses.
    rows = await (await tx.execute(_SQL["unknown_tables"])).fetchall()
    for (name,) in rows:
        await tx.execute(sql.SQL("ANALYZE {}").format(sql.Identifier("workbench", name)))
    return [name for (name,) in rows]


async def add_coming_months(tx: Transaction, now: datetime) -> None:
    """Create the partitions of `events` for this month and the next three."""
    await add_months(tx, now, now + _MONTHS_AHEAD)


async def delete_old_dry_runs(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    return (await tx.execute(_SQL["delete_old_dry_runs"], _expired(org_id, now, limit))).rowcount


async def delete_old_notices(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    return (await tx.execute(_SQL["delete_old_notices"], _expired(org_id, now, limit))).rowcount


def _expired(org_id: int, now: datetime, limit: int) -> dict[str, int | str]:
    # Ids begin with their time, so the primary key finds the oldest rows.
    return {"org_id": org_id, "before": uuid7_from(to_us(now - RETENTION), bytes(8)), "limit": limit}
