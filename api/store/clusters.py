"""Transactions numbered across Postgres clusters (`sql/queries/clusters.sql`), so that "stored before" outlives a restore elsewhere.

A database that is dumped and restored comes to a cluster that counts its transactions anew, perhaps below the ids its rows
were stored under. So a transaction's number is its id plus what its cluster adds, which `migrate` finds out once.
"""

from api.store.calls import Call, statements
from api.store.database import Transaction, UnavailableError, is_distributed
from api.store.statements import load

_SQL = load("clusters")
_CALLS = statements("clusters")


async def note_cluster(tx: Transaction) -> None:
    """Begin a new series of numbers if the database has come to another cluster; reads all events then, once."""
    await tx.execute(_SQL["note_cluster"])


async def number_added(tx: Transaction) -> int:
    """Return what this cluster adds to the ids of its transactions, asked once per connection; raise UnavailableError."""
    if tx.number_added is None:
        row = await (await tx.execute(_SQL["number_added"])).fetchone()
        if row is None:
            raise UnavailableError("the database has come to another Postgres cluster: run workbench migrate")
        tx.number_added = row[0]
    return tx.number_added


def own_number(added: int) -> Call[int]:
    """Ask for the number of the transaction; `added`: `number_added`."""
    return Call(_CALLS["own_number"], lambda rows: int(rows[0][0]), added=added)


async def run_on_workers(tx: Transaction, script: str) -> None:
    """Run a script on every worker of a Citus cluster, as a superuser; raise UnavailableError where one did not do it."""
    rows = await (await tx.execute(_SQL["run_on_workers"], {"script": script})).fetchall()
    for host, port, answer in rows:
        raise UnavailableError(f"the worker {host}:{port} did not follow: {answer}")


async def is_coordinator(tx: Transaction) -> bool:
    """Return whether this is the node of a Citus cluster that distributes tables."""
    if not await is_distributed(tx):
        return False
    row = await (await tx.execute(_SQL["is_coordinator"])).fetchone()
    return row is not None and row[0] is True
