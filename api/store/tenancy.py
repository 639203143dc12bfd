"""The second wall behind the `org_id` of every statement: what a request asks of the database sees its own organization alone.

Row-level security holds for the application, too (sql/wall.sql). A pool for requests sees no tenant's row until the task that uses it
acts for an organization: the one whose key was verified, whatever a statement or its parameters say. What serves all
organizations at once (the writer of events, the engine, upkeep, the look-up of keys) uses a `Database` that sees them all.
"""

from contextvars import ContextVar

from api.store.calls import Call, nothing, run, statements
from api.store.database import NOBODY, Database, Transaction

_acting: ContextVar[str] = ContextVar("acting", default=NOBODY)
_ACT_FOR = statements("tenancy")["act_for"]


def act_for(org_id: int) -> None:
    """Let the transactions that this task and its children begin on a `TenantDatabase` see an organization's rows."""
    _acting.set(str(org_id))


def act_for_nobody() -> None:
    """Let them see no tenant's rows: before anybody is known."""
    _acting.set(NOBODY)


class TenantDatabase(Database):
    """A pool whose transactions see the rows of the organization that is acted for, and none when nobody is."""

    def __init__(self, dsn: str, size: int = 8, statement_ms: int = 10_000) -> None:
        super().__init__(dsn, size, statement_ms, org=NOBODY)

    def _sees(self) -> str:
        return _acting.get()

    async def _begin(self, tx: Transaction) -> None:
        """Say whose rows are seen, in the same round trip as BEGIN where this is one Postgres."""
        await super()._begin(tx)
        if not tx.distributed:
            await run(tx, Call(_ACT_FOR, nothing, org=self._sees()))
