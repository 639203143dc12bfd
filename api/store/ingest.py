"""Statements of the ingest transaction (`sql/queries/ingest.sql`): each takes a whole micro-batch.

Locks are taken in one order everywhere (`store.locks`). Columns arrive as lists.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.arrays import plain, quoted
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("ingest")

OVERFULL = "NotNullViolation contacts attributes"
"""What a RefusedDataError says of attributes that would pass the bounds of a contact (see `merge_attributes`)."""

Ints = Sequence[int]
Ids = Sequence[str]
Texts = Sequence[str | None]


class Owner(msgspec.Struct, frozen=True):
    """The contact that owns the identifier at `position` (from 0); `email` is sealed."""

    position: int
    contact_id: str
    wallet: str | None
    email: str | None
    external_id: str | None


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
    event_ids: list[str] = []
    contact_ids: list[str] = []


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


async def remember_keys(
    tx: Transaction, org_ids: Ints, digests: Ids, event_ids: Ids, bodies: Ids, at: datetime
) -> set[str]:
    """Claim idempotency keys; return the ids of the events whose key was new."""
    cursor = await tx.execute(
        _SQL["remember_keys"],
        {
            "org_ids": plain(org_ids),
            "key_digests": plain(digests),
            "event_ids": plain(event_ids),
            "body_digests": plain(bodies),
            "created_at": at,
        },
    )
    return {row[0] for row in await cursor.fetchall()}


async def find_remembered(tx: Transaction, org_ids: Ints, digests: Ids) -> list[tuple[int, str, str]]:
    """Return (position from 0, event id, body digest) of the keys that are taken."""
    cursor = await tx.execute(_SQL["find_remembered"], {"org_ids": plain(org_ids), "key_digests": plain(digests)})
    return [(position - 1, event_id, body) for position, event_id, body in await cursor.fetchall()]


async def add_mismatches(tx: Transaction, org_ids: Ints, ids: Ids, event_ids: Ids, at: datetime) -> None:
    """Keep keys that came back with another body."""
    await tx.execute(
        _SQL["add_mismatches"],
        {"org_ids": plain(org_ids), "ids": plain(ids), "event_ids": plain(event_ids), "created_at": at},
    )


async def find_owners(tx: Transaction, org_ids: Ints, kinds: Ints, digests: Ids) -> list[Owner]:
    """Return who owns these identifiers; those nobody owns are left out."""
    cursor = await tx.execute(
        _SQL["find_owners"], {"org_ids": plain(org_ids), "kinds": plain(kinds), "digests": plain(digests)}
    )
    return [Owner(row[0] - 1, *row[1:]) for row in await cursor.fetchall()]


async def add_contacts(tx: Transaction, rows: ContactRows, at: datetime) -> None:
    """Store new contacts."""
    await tx.execute(
        _SQL["add_contacts"], {**_contact_columns(rows), "attributes": quoted(rows.attributes), "created_at": at}
    )


async def fill_contacts(tx: Transaction, rows: ContactRows, at: datetime) -> None:
    """Give contacts the identifiers they gained."""
    await tx.execute(_SQL["fill_contacts"], {**_contact_columns(rows), "updated_at": at})


async def lose_emails(tx: Transaction, org_ids: Ints, ids: Ids, at: datetime) -> None:
    """Take the email from contacts it moved away from; their locks are held."""
    await tx.execute(_SQL["lose_emails"], {"org_ids": plain(org_ids), "ids": plain(ids), "updated_at": at})


async def merge_attributes(tx: Transaction, org_ids: Ints, ids: Ids, attributes: Texts, at: datetime) -> None:
    """Merge JSON objects into the contacts' attributes; raise RefusedDataError(OVERFULL) rather than pass their bounds."""
    await tx.execute(
        _SQL["merge_attributes"],
        {"org_ids": plain(org_ids), "ids": plain(ids), "attributes": quoted(attributes), "updated_at": at},
    )


async def own_identifiers(tx: Transaction, rows: IdentifierRows, at: datetime) -> None:
    """Record owners of identifiers; each identifier at most once per call."""
    await tx.execute(
        _SQL["own_identifiers"],
        {
            "org_ids": plain(rows.org_ids),
            "kinds": plain(rows.kinds),
            "digests": plain(rows.digests),
            "contact_ids": plain(rows.contact_ids),
            "created_at": at,
        },
    )


async def add_conflicts(tx: Transaction, rows: ConflictRows, at: datetime) -> None:
    """Keep identity conflicts."""
    columns = {name: plain(getattr(rows, name)) for name in rows.__struct_fields__}
    await tx.execute(_SQL["add_conflicts"], {**columns, "created_at": at})


async def add_events(tx: Transaction, rows: EventRows, at: datetime) -> None:
    """Store events received at `at`."""
    await tx.execute(
        _SQL["add_events"],
        {
            "org_ids": plain(rows.org_ids),
            "ids": plain(rows.ids),
            "contact_ids": plain(rows.contact_ids),
            "events": quoted(rows.events),
            "occurred_us": plain(rows.occurred_us),
            "payloads": quoted(rows.payloads),
            "idempotency_keys": quoted(rows.idempotency_keys),
            "wallets": quoted(rows.wallets),
            "emails": plain(rows.emails),
            "external_ids": quoted(rows.external_ids),
            "created_at": at,
        },
    )


async def add_entries(tx: Transaction, rows: EntryRows, at: datetime) -> None:
    """Create pending entries."""
    columns = {name: plain(getattr(rows, name)) for name in rows.__struct_fields__}
    await tx.execute(_SQL["add_entries"], {**columns, "created_at": at})


async def add_dry_runs(tx: Transaction, rows: DryRunRows, at: datetime) -> set[str]:
    """Keep dry runs; return the ids of those whose key was new among dry runs."""
    columns = {name: plain(getattr(rows, name)) for name in rows.__struct_fields__}
    columns |= {name: quoted(getattr(rows, name)) for name in ("events", "payloads", "idempotency_keys")}
    cursor = await tx.execute(_SQL["add_dry_runs"], {**columns, "created_at": at})
    return {row[0] for row in await cursor.fetchall()}


def _contact_columns(rows: ContactRows) -> dict[str, str]:
    return {
        "org_ids": plain(rows.org_ids),
        "ids": plain(rows.ids),
        "emails": plain(rows.emails),
        "email_domains": quoted(rows.email_domains),
        "wallets": quoted(rows.wallets),
        "raw_wallets": quoted(rows.raw_wallets),
        "external_ids": quoted(rows.external_ids),
    }
