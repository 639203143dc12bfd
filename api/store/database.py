"""Connections and transactions. Everything else in the store takes a transaction as its first argument.

What a caller may expect: `UnavailableError` when Postgres cannot be reached or the outcome of a commit is not known,
`ConflictError` and `RefusedDataError` after a rollback, any other psycopg error for a bug.
"""

import re
import select
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec
import psycopg
from psycopg import AsyncTransaction, errors, sql
from psycopg.adapt import Loader, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from sqlalchemy.engine import make_url

from api.clock import Clock, monotonic_ns
from api.store.migrations import newest
from api.store.statements import load

_SESSION = (
    "-c statement_timeout={statement_ms} -c lock_timeout={lock_ms} -c idle_in_transaction_session_timeout=5000 "
    "-c search_path=workbench -c timezone=UTC -c client_min_messages=warning -c plan_cache_mode=auto -c workbench.org={org} "
    "-c citus.propagate_set_commands=local"
)
_BY_KEY = " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c join_collapse_limit=1 -c from_collapse_limit=1"
_SILENCE = {"tcp_user_timeout": 5_000, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 2}
_IS_DISTRIBUTED = load("clusters")["is_distributed"]
EVERYBODY, NOBODY = "*", ""  # values of workbench.org beside the number of an organization (sql/wall.sql)
_SLOW_NS = 1_000_000_000
_LOST = (errors.SerializationFailure, errors.DeadlockDetected)
# So Citus ends the youngest of the transactions that wait for each other on several nodes, where errors are not logged.
_CHOSEN = "canceling statement due to user request"
# 54000 and its kin (a row too large for an index, too many columns) count as operational for psycopg; a value causes them.
_REFUSED = (errors.DataError, errors.IntegrityError, errors.ProgramLimitExceeded, errors.StatementTooComplex)
_VIOLATIONS = {
    "unique": "UniqueViolation",
    "check": "CheckViolation",
    "not-null": "NotNullViolation",
    "foreign key": "ForeignKeyViolation",
}
_VIOLATION = re.compile(f"violates ({'|'.join(_VIOLATIONS)}) constraint")
_WHERE = re.compile(r'(table|relation|column|constraint) "(\w+?)(?:_\d{6,})?"')
_NOTIFICATIONS = "async.c"  # of Postgres: its queue of notifications is full, for which no value is to blame
# A server that has become a standby refuses to write, and the session of a process that was frozen is ended: that passes, too.
_AWAY = (
    errors.OperationalError,
    PoolTimeout,
    errors.InterfaceError,
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
)


NAME = "event-workbench "
"""How connections of ours are called, before the newest migration that their code knows."""


class UnavailableError(Exception):
    """Postgres cannot be reached, refuses work, or broke off: whether a commit happened is not known."""


class TooSlowError(UnavailableError):
    """A statement took longer than the connection allows, and was rolled back."""


class ConflictError(Exception):
    """The transaction lost against another one and was rolled back; it may be tried again."""


class LockedError(ConflictError):
    """The transaction waited too long for a lock that somebody else holds."""


class RefusedDataError(Exception):
    """Postgres refuses a value; the transaction was rolled back and would fail again."""


class Transaction(psycopg.AsyncConnection[TupleRow]):
    """A connection, mostly inside a transaction.

    `store.calls` notes here what it prepared, and until when that serves; `store.clusters` what its cluster adds to ids,
    `is_distributed` whether this is Citus. `opening` is what each transaction begins with, whoever begins it: on Citus, what the
    workers have to be told, as they hear what is set in a transaction alone.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters.register_loader("uuid", _TextUuid)
        self.adapters.register_loader("jsonb", _RawJson)
        self.prepared: set[bytes] = set()
        self.prepared_until_ns = 0
        self.number_added: int | None = None
        self.distributed: bool | None = None
        self.opening: tuple[bytes, ...] = ()
        self.reader = Transformer(self)

    async def execute(self, *args: Any, **kwargs: Any) -> psycopg.AsyncCursor[TupleRow]:
        """Execute a statement, in the open transaction or a new one."""
        await self.begin()
        return await super().execute(*args, **kwargs)

    async def begin(self) -> None:
        """Begin a transaction by what it has to begin with, if there is such and none is open."""
        if self.opening and self.pgconn.transaction_status == TransactionStatus.IDLE:
            async with self.pipeline():
                for each in self.opening:
                    await super().execute(each)

    async def rollback(self) -> None:
        """Roll back; psycopg then drops every statement of the session if it has prepared one itself, ours too."""
        await super().rollback()
        self.prepared.clear()

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[AsyncTransaction]:
        """Give a part that is rolled back alone when it fails, which drops the statements, too."""
        await self.begin()
        try:
            async with super().transaction(*args, **kwargs) as part:
                yield part
        finally:
            self.prepared.clear()


class _TextUuid(Loader):
    """Ids are text in Python: they come from our own clock and go into JSON."""

    def load(self, data: Any) -> str:
        return bytes(data).decode()


class _RawJson(Loader):
    """jsonb arrives as the bytes of its text; the language decodes it, keeping every number exact."""

    def load(self, data: Any) -> bytes:
        return bytes(data)


class Load(msgspec.Struct, frozen=True):
    """Connections of a pool, those of them in use, and who waits for one."""

    connections: int
    busy: int
    waiting: int


class Database:
    """A pool of connections to one database.

    `hot`: for statements whose every table access is by key. There the planner may only use indexes, in the order
    in which the joins are written, so that neither a table without statistics nor one that has grown since the plan was
    made turns a lookup into a scan (seen on a fresh database: 5 ms per event instead of 0.1).
    `org`: whose rows its sessions see; `store.tenancy` has the pool that lets each transaction say.
    """

    def __init__(
        self,
        dsn: str,
        size: int = 8,
        statement_ms: int = 10_000,
        *,
        lock_ms: int = 2_000,
        hot: bool = False,
        org: str = EVERYBODY,
    ) -> None:
        self.dsn = libpq_dsn(dsn)
        self._lock_ms, self._org = lock_ms, org
        mark = conninfo_to_dict(self.dsn).get("application_name") or ""
        self._pool: AsyncConnectionPool[Transaction] = AsyncConnectionPool(
            self.dsn,
            min_size=1,
            max_size=size,
            timeout=1.0,
            reconnect_timeout=1.0,  # then whoever needs a connection tries at once: the pool's own pauses would grow
            open=False,
            connection_class=Transaction,
            check=self._check,
            kwargs={
                "options": _SESSION.format(statement_ms=statement_ms, lock_ms=lock_ms, org=org)
                + (_BY_KEY if hot else ""),
                "prepare_threshold": 2,
                "connect_timeout": 5,
                "application_name": f"{NAME}{newest()} {mark}".strip(),
                **_SILENCE,
            },
        )

    async def open(self) -> None:
        """Start connecting in the background; work asked for before that succeeds raises `UnavailableError`."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        """Return every connection to Postgres."""
        await self._pool.close(timeout=5.0)

    def load(self) -> Load:
        """Return how busy the pool is."""
        stats = self._pool.get_stats()
        size = stats["pool_size"]
        return Load(size, size - stats["pool_available"], stats["requests_waiting"])

    async def _check(self, connection: Transaction) -> None:
        """Refuse a connection that ended while it lay idle: then there is something to read. Costs no round trip."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if poll.poll(0):
            await connection.close()
            await self._pool.check()  # those that lay beside it have most likely ended too
            raise errors.OperationalError("the connection ended while it was idle")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Give a connection in a transaction, committed at a clean exit; broken connections raise `UnavailableError`."""
        distributed = False
        try:
            async with self._pool.connection() as connection:
                await self._begin(connection)
                distributed = connection.distributed is True
                yield connection
        except errors.LockNotAvailable as error:
            raise LockedError(_reason(error)) from error
        except _LOST as error:
            raise ConflictError(_reason(error)) from error
        except _REFUSED as error:
            if error.diag.source_file == _NOTIFICATIONS:
                raise UnavailableError(_reason(error)) from error
            raise RefusedDataError(_rule(error)) from None  # their texts carry values: nothing for logs
        except errors.QueryCanceled as error:
            if distributed and error.diag.message_primary == _CHOSEN:
                raise ConflictError("a deadlock of several nodes") from error
            raise TooSlowError(_reason(error)) from error
        except errors.InternalError_ as error:
            if not is_violation(error):
                raise
            raise RefusedDataError(_rule(error)) from None
        except _AWAY as error:
            raise UnavailableError(_reason(error)) from error

    def _sees(self) -> str:
        return self._org

    async def _begin(self, tx: Transaction) -> None:
        if tx.distributed is None:
            await is_distributed(tx)
            await tx.rollback()  # what the caller begins has its own first statement
        if tx.distributed:
            tx.opening = telling({"lock_timeout": str(self._lock_ms), "workbench.org": self._sees()})
            await tx.begin()

    async def calibrate(self, clock: Clock) -> datetime:
        """Set `clock` by the database's, unless the answer took long, and return the database's moment."""
        async with self.transaction() as tx:
            await tx.execute("SELECT 1")
            sent = monotonic_ns()
            row = await (await tx.execute("SELECT clock_timestamp()")).fetchone()
            received = monotonic_ns()
        assert row is not None
        if received - sent < _SLOW_NS:  # the error is up to half of it
            clock.calibrate(row[0], sent, received)
        return row[0]  # type: ignore[no-any-return]


async def is_distributed(tx: Transaction) -> bool:
    """Return whether this is Citus, asked once per connection."""
    if tx.distributed is None:
        row = await (await tx.execute(_IS_DISTRIBUTED)).fetchone()
        tx.distributed = row is not None and row[0] is True
    return tx.distributed


def telling(settings: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the statements that set something on all nodes of Citus until the transaction ends."""
    return tuple(
        sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(*name.split(".")), sql.Literal(value)).as_bytes()
        for name, value in settings.items()
    )


@asynccontextmanager
async def seeing_everybody(tx: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """Make a transaction that sees the rows of all organizations, on all nodes of Citus too, for a connection that is of no pool."""
    async with tx.transaction():
        for each in telling({"citus.propagate_set_commands": "local", "workbench.org": EVERYBODY}):
            await tx.execute(each)
        yield


def marked(url: str, mark: str) -> str:
    """Return the address of the same database, with a mark by which our connections are told apart."""
    if "://" not in url:
        return make_conninfo(url, application_name=mark)
    return make_url(url).update_query_dict({"application_name": mark}).render_as_string(hide_password=False)


def is_violation(error: psycopg.Error) -> bool:
    """Tell whether rows broke a rule of their table. Of some that a worker of Citus refused, the coordinator passes on only the text."""
    return isinstance(error, errors.IntegrityError) or _violation(error) is not None


def _violation(error: psycopg.Error) -> str | None:
    found = _VIOLATION.search(error.diag.message_primary or "")
    return _VIOLATIONS[found[1]] if found else None


def libpq_dsn(url: str) -> str:
    """Return a DSN libpq understands from any usual form: `postgres://`, `postgresql+psycopg://`, or key=value."""
    if "://" not in url:
        return url
    parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    return parsed.set(drivername="postgresql").render_as_string(hide_password=False)


def _rule(error: psycopg.Error) -> str:
    """Name what a value broke, without the value. Citus names it, with the number of a shard, in the text alone."""
    said = dict(_WHERE.findall(error.diag.message_primary or ""))
    where = (
        error.diag.table_name or said.get("relation") or said.get("table"),
        error.diag.column_name or said.get("column"),
        error.diag.constraint_name or said.get("constraint"),
    )
    return " ".join([_violation(error) or type(error).__name__, *(name for name in where if name)])


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
