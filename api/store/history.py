"""Statements of the import (`sql/queries/history.sql`), and the months that old events need."""

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Self

import msgspec
from psycopg import errors

from api.keyring import INDEX
from api.store.arrays import plain, quoted, records, uuids
from api.store.calls import Call, Rows, nothing, statements
from api.store.database import Transaction
from api.store.ingest import ContactRows, Owner, contact_columns
from api.store.migrate import add_months
from api.store.statements import load

_SQL = load("history")
_CALLS = statements("history")


class Snapshot(msgspec.Struct, frozen=True):
    """Which transactions had ended: all that were numbered below `next`, but for those `running`."""

    next: int
    running: frozenset[int]

    def only(self, own: Container[int], since: Self) -> bool:
        """Return whether none but one's `own` transactions have ended since an earlier snapshot."""
        others = chain(range(since.next, self.next), since.running)
        return all(number in own or number in self.running for number in others)


class Returning(msgspec.Struct, gc=False):
    """The owner of an identifier, and when its row was last written, in microseconds."""

    owner: Owner
    updated_us: int


async def add_month(tx: Transaction, month: datetime) -> bool:
    """Make sure that `events` has a partition for the month; False: its events sit in `events_other`, and go on to do so.

    Whoever is in the way is waited for only briefly (LockedError).
    """
    await tx.execute(_SQL["wait_briefly"])
    try:
        async with tx.transaction():
            await add_months(tx, month, month)
    except errors.CheckViolation:
        return False
    except (errors.DuplicateTable, errors.UniqueViolation):  # another process was making it at the same time
        return True
    return True


async def month_ids(tx: Transaction, month: datetime) -> set[int]:
    """Return the ids under which the transaction has just added the month, none if it did not or they are not known for sure."""
    rows = await tx.execute(_SQL["month_ids"], {"name": f"workbench.events_{month:%Y_%m}"})
    return {int(row[0]) async for row in rows}


async def most_locks(tx: Transaction) -> int:
    """Return how many locks a transaction may take without anybody else going short."""
    row = await (await tx.execute(_SQL["most_locks"])).fetchone()
    assert row is not None
    return int(row[0])


def snapshot() -> Call[Snapshot | None]:
    """Ask which transactions have ended; None where that does not tell what others wrote (see `snapshot` in the SQL)."""
    return Call(_CALLS["snapshot"], _snapshot)


def _snapshot(rows: Rows) -> Snapshot | None:
    if not rows:
        return None
    _, upper, running = rows[0][0].split(":")
    return Snapshot(int(upper), frozenset(map(int, filter(None, running.split(",")))))


def find_held_keys(org_id: int, digests: Sequence[str]) -> Call[set[int]]:
    """Ask for the positions (from 0) of the idempotency keys that somebody holds."""
    return Call(
        _CALLS["find_held_keys"],
        lambda rows: {int(position) for (position,) in rows},
        org_ids=_alike(org_id, len(digests)),
        key_digests=uuids(digests),
    )


def find_changed_contacts(org_id: int, ids: Sequence[str], updated_us: Iterable[int]) -> Call[set[int]]:
    """Ask for the positions (from 0) of contacts that have been written since the moments given, in microseconds, or merged."""
    return Call(
        _CALLS["find_changed_contacts"],
        lambda rows: {int(position) for (position,) in rows},
        org_ids=_alike(org_id, len(ids)),
        ids=uuids(ids),
        updated_us=plain(updated_us),
    )


def find_returning(
    org_id: int, kinds: Iterable[int], digests: Sequence[str], attributes: Iterable[str]
) -> Call[list[Returning]]:
    """Ask who owns identifiers, as `find_owners` does; those nobody owns are left out."""
    return Call(
        _CALLS["find_returning"],
        lambda rows: [Returning(Owner(*row[:-1]), row[-1]) for row in rows],
        org_ids=_alike(org_id, len(digests)),
        kinds=plain(kinds),
        digests=uuids([each[:INDEX] for each in digests]),
        attributes=records(attributes),
    )


def add_past_contacts(rows: ContactRows, first_us: Mapping[str, int], at: datetime) -> Call[None]:
    """Store new contacts, created at the moments given, in microseconds."""
    return Call(
        _CALLS["add_past_contacts"],
        nothing,
        **contact_columns(rows),
        attributes=quoted(rows.attributes),
        created_us=plain([first_us[contact_id] for contact_id in rows.ids]),
        updated_at=at,
    )


def _alike(org_id: int, count: int) -> str:
    return "{" + ",".join([str(org_id)] * count) + "}"
