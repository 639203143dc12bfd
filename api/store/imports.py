"""Imports of history: progress of files, and statements that differ from live ingest (`store.events`, `store.copy`)."""

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Self

import msgspec
from psycopg import errors

from api.crypto import INDEX
from api.store.database import Transaction, load
from api.store.events import ContactRows, Owner, contact_columns
from api.store.migrate import add_months
from api.store.query import Call, Rows, nothing, plain, quoted, records, statements, uuids

_SQL = load("imports")
_CALLS = statements("imports")

# --- Progress of files


class ImportProgress(msgspec.Struct, frozen=True):
    """The results of the first `lines` lines of a file; `finished_at` is set once the whole file is done."""

    lines: int
    stored: int
    duplicates: int
    rejected: int
    finished_at: datetime | None = None


async def begin_import(tx: Transaction, org_id: int, digest: str, name: str, at: datetime) -> ImportProgress:
    """Record that a file is being imported; return how far earlier runs came."""
    values = {"org_id": org_id, "digest": digest, "name": name, "at": at}
    (progress,) = await tx.fetch_all(ImportProgress, _SQL["begin_import"], values)
    return progress


def advance_import(org_id: int, digest: str, progress: ImportProgress, at: datetime) -> Call[None]:
    """Record that a file is done up to `progress.lines`, and add the other numbers of `progress` to its totals."""
    return Call(
        _CALLS["advance_import"],
        nothing,
        org_id=org_id,
        digest=digest,
        lines=progress.lines,
        stored=progress.stored,
        duplicates=progress.duplicates,
        rejected=progress.rejected,
        at=at,
    )


async def finish_import(tx: Transaction, org_id: int, digest: str, at: datetime) -> None:
    await tx.execute(_SQL["finish_import"], {"org_id": org_id, "digest": digest, "at": at})


async def forget_import(tx: Transaction, org_id: int, digest: str) -> None:
    """Forget the progress of a file, so that its import starts over."""
    await tx.execute(_SQL["forget_import"], {"org_id": org_id, "digest": digest})


# --- Partitions for past months


async def add_month(tx: Transaction, month: datetime) -> bool:
    """Make sure that `events` has a partition for the month; False: its events are in `events_other` and stay there.

    Waits only briefly for locks of other transactions (LockedError).
    """
    await tx.execute(_SQL["wait_briefly"])
    try:
        async with tx.transaction():
            await add_months(tx, month, month)
    except errors.CheckViolation:
        return False
    except (errors.DuplicateTable, errors.UniqueViolation):  # another process created it at the same time
        return True
    return True


async def new_partition_ids(tx: Transaction, month: datetime) -> set[int]:
    """Return the ids under which this transaction has just created the month's partition; empty if unsure."""
    rows = await tx.execute(_SQL["new_partition_ids"], {"name": f"workbench.events_{month:%Y_%m}"})
    return {int(row[0]) async for row in rows}


# --- Statements that live ingest does not need


class ImportSnapshot(msgspec.Struct, frozen=True):
    """The transactions that had ended: all with numbers below `next`, except those in `running`."""

    next: int
    running: frozenset[int]

    def only(self, own: Container[int], since: Self) -> bool:
        """Return whether all transactions that ended since an earlier snapshot are among `own`."""
        others = chain(range(since.next, self.next), since.running)
        return all(number in own or number in self.running for number in others)


class ExistingOwner(msgspec.Struct, gc=False):
    """The owner of an identifier, and when its contact was last written, in microseconds."""

    owner: Owner
    updated_us: int


async def max_locks(tx: Transaction) -> int:
    """Return how many locks a transaction may take without starving others."""
    return int(await tx.fetch_value(_SQL["max_locks"]))


def take_snapshot() -> Call[ImportSnapshot | None]:
    """Ask which transactions have ended; None on Citus, where that does not show what others wrote."""

    def read(rows: Rows) -> ImportSnapshot | None:
        if not rows:
            return None
        _, upper, running = rows[0][0].split(":")  # of pg_snapshot's text form, `xmin:xmax:xip,xip`
        return ImportSnapshot(int(upper), frozenset(map(int, filter(None, running.split(",")))))

    return Call(_CALLS["take_snapshot"], read)


def transaction_number(offset: int) -> Call[int]:
    """Read the number of this transaction. `offset`: `database.transaction_offset`."""
    return Call(_CALLS["transaction_number"], lambda rows: int(rows[0][0]), added=offset)


def find_claimed_keys(org_id: int, digests: Sequence[str]) -> Call[set[int]]:
    """Find the positions (from 0) of idempotency keys that are already claimed."""
    return Call(
        _CALLS["find_claimed_keys"],
        lambda rows: {int(position) for (position,) in rows},
        org_ids=_repeated(org_id, len(digests)),
        key_digests=uuids(digests),
    )


def find_changed_contacts(org_id: int, ids: Sequence[str], updated_us: Iterable[int]) -> Call[set[int]]:
    """Find the positions (from 0) of contacts that were merged, or written since the given times, in microseconds."""
    return Call(
        _CALLS["find_changed_contacts"],
        lambda rows: {int(position) for (position,) in rows},
        org_ids=_repeated(org_id, len(ids)),
        ids=uuids(ids),
        updated_us=plain(updated_us),
    )


def find_existing_owners(
    org_id: int, kinds: Iterable[int], digests: Sequence[str], attributes: Iterable[str]
) -> Call[list[ExistingOwner]]:
    """Find the owners of identifiers, as `events.find_owners` does; identifiers without an owner are left out."""
    return Call(
        _CALLS["find_existing_owners"],
        lambda rows: [ExistingOwner(Owner(*row[:-1]), row[-1]) for row in rows],
        org_ids=_repeated(org_id, len(digests)),
        kinds=plain(kinds),
        digests=uuids([digest[:INDEX] for digest in digests]),
        attributes=records(attributes),
    )


def add_past_contacts(rows: ContactRows, first_us: Mapping[str, int], at: datetime) -> Call[None]:
    """Store new contacts, created at the times given by their ids, in microseconds."""
    return Call(
        _CALLS["add_past_contacts"],
        nothing,
        **contact_columns(rows),
        attributes=quoted(rows.attributes),
        created_us=plain([first_us[contact_id] for contact_id in rows.ids]),
        updated_at=at,
    )


def _repeated(org_id: int, count: int) -> str:
    return "{" + ",".join([str(org_id)] * count) + "}"
