"""What a transaction sees: the transactions that had ended before it. Two that share a snapshot see the same."""

from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("readers")


class Snapshot(msgspec.Struct, frozen=True):
    """Postgres's `pg_snapshot` as text, and the moment at which it was taken."""

    text: str
    at: datetime


async def share_snapshot(tx: Transaction) -> tuple[str, Snapshot]:
    """Return the name under which others may take over this transaction's snapshot while it lasts, and the snapshot."""
    row = await (await tx.execute(_SQL["share_snapshot"])).fetchone()
    assert row is not None
    name, text, at = row
    return name, Snapshot(text, at)
