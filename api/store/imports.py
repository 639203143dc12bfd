"""Imports of history: the progress of files, and the partitions of past months (events: `store.events`)."""

from contextlib import suppress
from datetime import datetime

import msgspec
from psycopg import errors

from api.store.database import Transaction
from api.store.migrate import MONTHLY, add_months
from api.store.query import Uuid, call, query

# --- Progress of files


class ImportProgress(msgspec.Struct, frozen=True):
    """The results of the first `lines` lines of a file; `finished_at` is set once the whole file is done."""

    lines: int
    stored: int
    duplicates: int
    rejected: int
    finished_at: datetime | None = None


@query
async def begin_import(tx: Transaction, org_id: int, digest: Uuid, name: str, at: datetime) -> ImportProgress:
    """Record that a file is being imported; return how far earlier runs came."""


@call
def advance_import(org_id: int, digest: Uuid, after: int, progress: ImportProgress, at: datetime) -> None:
    """Record that a file is done up to `progress.lines`, and add the other numbers of `progress` to its totals.

    Fails with BATCHES_LOST if it was not done up to line `after`.
    """


BATCHES_LOST = "NotNullViolation imports lines"
"""The text of the RefusedDataError after a crash of Postgres that lost batches of this import."""


@call
def commit_without_flush() -> None:
    """Let this transaction commit before it is on disk. A crash of Postgres may lose the last half second of such."""


@query
async def finish_import(tx: Transaction, org_id: int, digest: Uuid, after: int, at: datetime) -> None:
    """Record that a file is imported up to its last line, `after`. Fails with BATCHES_LOST like `advance_import`."""


@query
async def forget_import(tx: Transaction, org_id: int, digest: Uuid) -> None:
    """Forget the progress of a file, so that its import starts over."""


# --- Partitions and locks


async def add_month(tx: Transaction, month: datetime) -> None:
    """Create the partitions for a month; a table whose default partition has rows of that month gets none.

    Waits only briefly for locks of other transactions (LockedError).
    """
    await wait_briefly(tx)
    for table in MONTHLY:
        # The default partition violates the bounds of the new one, or another process created it at the same time.
        with suppress(errors.CheckViolation, errors.DuplicateTable, errors.UniqueViolation):
            async with tx.transaction():
                await add_months(tx, table, month, month)


@query
async def wait_briefly(tx: Transaction) -> None: ...


@query
async def max_locks(tx: Transaction) -> int:
    """Return how many locks a transaction may take without starving others."""
