"""Numbers of transactions that stay in order across Postgres clusters, and the few statements that only Citus has.

A database that is dumped and restored comes to a cluster with its own transaction counter, perhaps below the ids under which its rows were
stored. A transaction's number is therefore its id plus an offset of its cluster, which `migrate` registers once. With these numbers,
"stored before" stays true after a restore.
"""

from api.store.database import DatabaseUnavailableError, Transaction, is_distributed, load
from api.store.query import Call, statements

_SQL = load("citus")
_CALLS = statements("citus")


async def register_cluster(tx: Transaction) -> None:
    """Begin a new series of numbers if the database has come to another cluster. Then, and only then, this reads all events."""
    await tx.execute(_SQL["register_cluster"])


async def transaction_offset(tx: Transaction) -> int:
    """Return the offset that this cluster adds to transaction ids. Asked once per connection.

    Raises DatabaseUnavailableError if the database has come to another cluster that is not registered yet.
    """
    if tx.transaction_offset is None:
        row = await (await tx.execute(_SQL["transaction_offset"])).fetchone()
        if row is None:
            raise DatabaseUnavailableError("the database moved to another Postgres cluster; run: workbench migrate")
        tx.transaction_offset = row[0]
    return tx.transaction_offset


def transaction_number(offset: int) -> Call[int]:
    """Ask for the number of this transaction. `offset`: see `transaction_offset`."""
    return Call(_CALLS["transaction_number"], lambda rows: int(rows[0][0]), added=offset)


async def run_on_workers(tx: Transaction, script: str) -> None:
    """Run a script as superuser on every worker of a Citus cluster. Raises DatabaseUnavailableError if it fails on one."""
    rows = await (await tx.execute(_SQL["run_on_workers"], {"script": script})).fetchall()
    for host, port, answer in rows:
        raise DatabaseUnavailableError(f"the script failed on the worker {host}:{port}: {answer}")


async def is_coordinator(tx: Transaction) -> bool:
    """Return whether this is the node of a Citus cluster that distributes tables."""
    if not await is_distributed(tx):
        return False
    row = await (await tx.execute(_SQL["is_coordinator"])).fetchone()
    return row is not None and row[0] is True
