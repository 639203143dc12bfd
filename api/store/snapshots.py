"""What a query sees: the transactions that had ended before it. Two that share a snapshot see the same."""

import asyncio
from datetime import datetime

import msgspec

from api.store.database import Transaction, is_distributed
from api.store.statements import load

_SQL = load("clusters")
_LOOKS, _LOOK_PAUSE_SECONDS = 20, 0.002  # for a moment in which no transaction is open


class Snapshot(msgspec.Struct, frozen=True):
    """The transactions with numbers below `end`, except those that were `open`, of one cluster and those before it."""

    system_identifier: int
    first_number: int
    end: int
    open: tuple[int, ...]
    at: datetime


async def share_snapshot(tx: Transaction) -> tuple[str, Snapshot] | None:
    """Return the name under which others may take over this transaction's snapshot while it lasts, and the snapshot.

    None where numbers do not tell what was seen: on Citus, in a cluster that `migrate` has not noted, and on a standby that is never
    without open transactions: it does not know which those are.
    """
    if await is_distributed(tx):
        return None
    for _ in range(_LOOKS):
        row = await (await tx.execute(_SQL["share_snapshot"])).fetchone()
        if row is None:
            return None
        name, system_identifier, first_number, end, open_, at, told = row
        if told:
            return name, Snapshot(system_identifier, first_number, end, tuple(open_), at)
        await asyncio.sleep(_LOOK_PAUSE_SECONDS)
    return None


async def as_kept(tx: Transaction, snapshot: Snapshot) -> Snapshot | None:
    """Return what this database has of a snapshot; None when it does not know.

    A snapshot of a former cluster ends where the next one began. One that was taken there later is of a database that went
    on without this one.
    """
    cluster = {"system_identifier": snapshot.system_identifier, "first_number": snapshot.first_number}
    row = await (await tx.execute(_SQL["find_cluster"], cluster)).fetchone()
    if row is None:
        return None
    next_number, since = row
    if next_number is None:
        return snapshot
    return msgspec.structs.replace(snapshot, end=min(snapshot.end, next_number)) if snapshot.at <= since else None
