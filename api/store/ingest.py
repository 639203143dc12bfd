"""Statements of the ingest transaction (`sql/queries/ingest.sql`), as calls: each takes a whole micro-batch.

Locks are taken in one order everywhere (`store.locks`). Columns arrive as lists.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.keyring import INDEX
from api.store.arrays import joined, plain, quoted, records, uuids
from api.store.calls import Call, Rows, Value, nothing, statements

_SQL = statements("ingest")

OVERFULL = "NotNullViolation contacts attributes"
"""What a RefusedDataError says of attributes that would pass the bounds of a contact (see `merge_attributes`)."""

Ints = Sequence[int]
Ids = Sequence[str]
Texts = Sequence[str | None]


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The contact that owns the identifier at `position` (from 0); `email` is sealed.

    `knows`: it has the attributes already that came with the question.
    """

    position: int
    contact_id: str
    wallet: str | None
    email: str | None
    external_id: str | None
    knows: bool


class Holder(msgspec.Struct, frozen=True):
    """The event that holds an idempotency key, and the digest of the body it came with."""

    event_id: str
    body_digest: str


class EventRows(msgspec.Struct):
    """Columns of events to store."""

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
    """Columns of entries to create."""

    org_ids: list[int] = []
    ids: list[str] = []
    automation_ids: list[str] = []
    versions: list[int | None] = []
    stints: list[int] = []
    event_ids: list[str] = []
    contact_ids: list[str] = []
    request_ids: list[str | None] = []


class DryRunRows(msgspec.Struct):
    """Columns of dry runs to keep."""

    org_ids: list[int] = []
    key_digests: list[str] = []
    ids: list[str] = []
    events: list[str] = []
    contact_ids: list[str] = []
    occurred_us: list[int] = []
    payloads: list[str] = []
    idempotency_keys: list[str] = []
    matched: list[int] = []


class ContactRows(msgspec.Struct):
    """Columns of new contacts, or of what existing contacts gained (`attributes` unused then)."""

    org_ids: list[int] = []
    ids: list[str] = []
    emails: list[str | None] = []
    email_domains: list[str | None] = []
    wallets: list[str | None] = []
    raw_wallets: list[str | None] = []
    external_ids: list[str | None] = []
    attributes: list[str] = []


class IdentifierRows(msgspec.Struct):
    """Columns of identifiers and who owns them from now on."""

    org_ids: list[int] = []
    kinds: list[int] = []
    digests: list[str] = []
    contact_ids: list[str] = []


class ConflictRows(msgspec.Struct):
    """Columns of identity conflicts."""

    org_ids: list[int] = []
    ids: list[str] = []
    event_ids: list[str] = []
    contact_ids: list[str] = []
    other_contact_ids: list[str | None] = []
    kinds: list[int] = []
    digests: list[str] = []
    outcomes: list[str] = []


def remember_keys(org_ids: Ints, digests: Ids, event_ids: Ids, bodies: Ids, at: datetime) -> Call[int]:
    """Claim idempotency keys; how many of them were new."""
    return Call(
        _SQL["remember_keys"],
        lambda rows: int(rows[0][0]),
        org_ids=plain(org_ids),
        key_digests=uuids(digests),
        event_ids=uuids(event_ids),
        body_digests=uuids(bodies),
        created_at=at,
    )


def find_holders(org_ids: Ints, digests: Ids) -> Call[dict[int, Holder]]:
    """Ask who holds idempotency keys, by their position from 0."""
    return Call(
        _SQL["find_holders"],
        lambda rows: {position: Holder(event_id, body.replace("-", "")) for position, event_id, body in rows},
        org_ids=plain(org_ids),
        key_digests=joined(digests),
    )


def add_mismatches(org_ids: Ints, ids: Ids, event_ids: Ids, at: datetime) -> Call[None]:
    """Keep keys that came back with another body."""
    return Call(
        _SQL["add_mismatches"],
        nothing,
        org_ids=plain(org_ids),
        ids=plain(ids),
        event_ids=joined(event_ids),
        created_at=at,
    )


def find_owners(org_ids: Ints, kinds: Ints, digests: Ids, attributes: Sequence[str]) -> Call[list[Owner]]:
    """Ask who owns these identifiers; those nobody owns are left out. `attributes`: JSON objects, empty text for none."""
    return Call(
        _SQL["find_owners"],
        lambda rows: [Owner(*row) for row in rows],
        org_ids=plain(org_ids),
        kinds=plain(kinds),
        digests=uuids([each[:INDEX] for each in digests]),
        attributes=records(attributes),
    )


def add_contacts(rows: ContactRows, at: datetime) -> Call[None]:
    """Store new contacts."""
    return Call(
        _SQL["add_contacts"], nothing, **contact_columns(rows), attributes=quoted(rows.attributes), created_at=at
    )


def fill_contacts(rows: ContactRows, at: datetime) -> Call[None]:
    """Give contacts the identifiers they gained."""
    return Call(_SQL["fill_contacts"], nothing, **contact_columns(rows), updated_at=at)


def lose_emails(org_ids: Ints, ids: Ids, at: datetime) -> Call[None]:
    """Take the email from contacts it moved away from; their locks are held."""
    return Call(_SQL["lose_emails"], nothing, org_ids=plain(org_ids), ids=plain(ids), updated_at=at)


def merge_attributes(org_ids: Ints, ids: Ids, attributes: Texts, at: datetime) -> Call[None]:
    """Merge JSON objects into the contacts' attributes; refused (OVERFULL) rather than past their bounds."""
    return Call(
        _SQL["merge_attributes"],
        nothing,
        org_ids=plain(org_ids),
        ids=plain(ids),
        attributes=quoted(attributes),
        updated_at=at,
    )


def own_identifiers(rows: IdentifierRows, at: datetime) -> Call[None]:
    """Record owners of identifiers, under all their indexes; each identifier at most once per call."""
    indexed = sorted(
        (kind, digest[at : at + INDEX], org_id, contact_id)
        for org_id, kind, digest, contact_id in zip(
            rows.org_ids, rows.kinds, rows.digests, rows.contact_ids, strict=True
        )
        for at in range(0, len(digest), INDEX)
    )
    kinds, digests, org_ids, contact_ids = zip(*indexed, strict=True)
    apart = IdentifierRows(list(org_ids), list(kinds), list(digests), list(contact_ids))
    return Call(_SQL["own_identifiers"], nothing, **_columns(apart), created_at=at)


def add_conflicts(rows: ConflictRows, at: datetime) -> Call[None]:
    """Keep identity conflicts."""
    rows.digests = [each[:INDEX] for each in rows.digests]
    return Call(_SQL["add_conflicts"], nothing, **_columns(rows), created_at=at)


def add_events(rows: EventRows, at: datetime, added: int) -> Call[None]:
    """Store events received at `at`; `added`: `clusters.number_added`."""
    return Call(
        _SQL["add_events"],
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
        added=added,
    )


def add_entries(rows: EntryRows, at: datetime) -> Call[None]:
    """Create pending entries."""
    return Call(_SQL["add_entries"], nothing, **_columns(rows), created_at=at)


def wake_waiting(rows: Sequence[tuple[int, str, str]], at: datetime) -> Call[None]:
    """Let the entries look that wait for these (organization, contact, event)s; the contacts' locks are held."""
    org_ids, contact_ids, events = zip(*rows, strict=True)
    return Call(
        _SQL["wake_waiting"],
        nothing,
        org_ids=plain(org_ids),
        contact_ids=joined(contact_ids),
        events=quoted(events),
        at=at,
    )


def add_dry_runs(rows: DryRunRows, at: datetime) -> Call[set[str]]:
    """Keep dry runs; the ids of those whose key was new among dry runs."""
    texts = {"events": quoted(rows.events), "idempotency_keys": quoted(rows.idempotency_keys)}
    values = {**_columns(rows), **texts, "payloads": records(rows.payloads)}
    return Call(_SQL["add_dry_runs"], _ids, **values, created_at=at)


def _ids(rows: Rows) -> set[str]:
    return {row[0] for row in rows}


def _columns(rows: msgspec.Struct) -> dict[str, Value]:
    return {name: plain(getattr(rows, name)) for name in rows.__struct_fields__}


def contact_columns(rows: ContactRows) -> dict[str, Value]:
    """Return the columns of contacts, without their attributes."""
    return {
        "org_ids": plain(rows.org_ids),
        "ids": plain(rows.ids),
        "emails": plain(rows.emails),
        "email_domains": quoted(rows.email_domains),
        "wallets": quoted(rows.wallets),
        "raw_wallets": quoted(rows.raw_wallets),
        "external_ids": quoted(rows.external_ids),
    }
