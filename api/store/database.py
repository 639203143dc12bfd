"""Connections, transactions, named SQL and the list of migrations, for all other modules of the store.

**Named SQL.** `sql/queries/<subject>.sql` holds statements under `-- name --` lines, with `:name` parameters. The
module `store/<subject>.py` has one function per statement. The name of a statement is the same verb in SQL, in Python
and in the log.

**Migrations.** Every migration expands the schema: it only adds, so code of the previous version keeps working on it
(`tests/store/test_migrations.py` checks each file). A migration that removes something begins with the line

    -- contract: needs 0007_name

Code that includes 0007_name does not use what is removed. Such a migration is applied only on request. The line `--
outside a transaction` is for indexes that are built during traffic: the statements of such a file run one by one.

**Transactions.** All other functions of the store take a `Transaction` as their first argument. Callers of
`Database.transaction()` handle `DatabaseUnavailableError` (Postgres cannot be reached, or the outcome of a commit is
unknown) and, after a rollback, `TransactionConflictError` and `RefusedDataError`. Any other psycopg error is a bug.

**A server that does not respond.** A frozen server ends no statement, whatever its timeouts, while its kernel still
acknowledges data. So a round trip of more than a second makes `ResponseWatch` open another connection; if that gets no
answer either, all connections that wait are shut down. A server that answers may take as long as its timeouts allow.

**Numbers of transactions.** The Postgres cluster into which a dump is restored has a transaction counter of its own,
which may be below the ids of the restored rows. The number of a transaction is therefore its id plus an offset of its
cluster, which `migrate` registers once. These numbers keep the order of transactions after a restore.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import select
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import psycopg
from psycopg import AsyncTransaction, errors, sql
from psycopg.abc import PQGen
from psycopg.adapt import Loader, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from api.clock import Clock, monotonic_ns

# --- Named SQL


@cache
def sql_folder() -> Path:
    """Return the folder `sql/`: inside the installed package, or at the top of the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "_sql"
    return installed if installed.is_dir() else package.parent / "sql"


@cache
def load(subject: str) -> dict[str, str]:
    """Return the statements of `sql/queries/<subject>.sql` by name, with psycopg's `%(name)s` parameters."""
    return {name: _PARAMETER.sub(r"%(\1)s", body.replace("%", "%%")) for name, body in _named_statements(subject)}


@cache
def load_numbered(subject: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the same statements with the protocol's `$1` parameters, and the names of these parameters in order."""
    statements = {}
    for name, body in _named_statements(subject):
        numbers: dict[str, int] = {}
        numbered = _PARAMETER.sub(lambda match: f"${numbers.setdefault(match[1], len(numbers) + 1)}", body)  # noqa: B023
        statements[name] = numbered, tuple(numbers)
    return statements


# The pattern of SQLAlchemy's `text()`, whose import would delay short commands. `::type` is a cast, not a parameter.
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")
_STATEMENT_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)


def _named_statements(subject: str) -> Iterator[tuple[str, str]]:
    source = (sql_folder() / "queries" / f"{subject}.sql").read_text("utf-8")
    parts = _STATEMENT_NAME.split(source)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
        yield name, "\n".join(lines).strip().removesuffix(";")


# --- Migrations

_NEEDS = re.compile(r"^-- contract: needs (\w+)$", re.MULTILINE)
_OUTSIDE_TRANSACTION = re.compile(r"^-- outside a transaction$", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    """One file of `sql/migrations`.

    `needs`: the migration that all running code must include before this one may be applied; only a migration that
    removes something has it.
    """

    name: str
    text: str
    needs: str | None
    in_transaction: bool

    @property
    def digest(self) -> str:
        """SHA-256 of the text; shows whether the file was edited after it was applied."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """The statements without comments, split at `;`: no literal in such a file may contain a semicolon."""
        lines = [line for line in self.text.splitlines() if not line.lstrip().startswith("--")]
        return [statement for statement in map(str.strip, "\n".join(lines).split(";")) if statement]


class MigrationStatus(msgspec.Struct, frozen=True):
    """The migrations of this code compared with those of a database, as lists of names.

    `missing`: the code needs them and the database lacks them. `contracts`: migrations that may be applied only when
    no older code runs. `beyond`: applied migrations that removed something this code still uses.
    """

    missing: list[str]
    contracts: list[str]
    beyond: list[str]


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this code in the order in which they apply."""
    return tuple(
        read_migration(path.stem, path.read_text("utf-8"))
        for path in sorted((sql_folder() / "migrations").glob("[0-9]*.sql"))
    )


def read_migration(name: str, text: str) -> Migration:
    needs = _NEEDS.search(text)
    return Migration(name, text, None if needs is None else needs[1], _OUTSIDE_TRANSACTION.search(text) is None)


def newest_migration() -> str:
    """Return the name of the newest migration of this code.

    Connections carry it, so a database can distinguish older code from newer.
    """
    return migrations()[-1].name


def migration_status(applied: Mapping[str, str | None]) -> MigrationStatus:
    """Compare this code with a database. `applied`: the names of its migrations, each with what it needs."""
    ours = {migration.name for migration in migrations()}
    waiting = [migration for migration in migrations() if migration.name not in applied]
    return MigrationStatus(
        [migration.name for migration in waiting if migration.needs is None],
        [migration.name for migration in waiting if migration.needs is not None],
        sorted(name for name, needs in applied.items() if name not in ours and needs is not None and needs not in ours),
    )


# --- Errors


class DatabaseUnavailableError(Exception):
    """Postgres cannot be reached, refuses work, or broke the connection; whether a commit happened is unknown."""


class TooSlowError(DatabaseUnavailableError):
    """A statement exceeded the connection's statement timeout and was rolled back."""


class TransactionConflictError(Exception):
    """The transaction conflicted with another one and was rolled back; it may be tried again."""


class LockedError(TransactionConflictError):
    """The transaction waited too long for a lock of another transaction."""


class RefusedDataError(Exception):
    """Postgres refuses a value; the transaction was rolled back and would fail again."""


# --- Connections and transactions

APPLICATION_NAME = "event-workbench "
"""The `application_name` of our connections begins with this, followed by the newest migration of their code."""

ALL_ORGANIZATIONS, NO_ORGANIZATION = "*", ""
"""Values of the setting `workbench.org`, which otherwise is the id of an organization (`sql/row_security.sql`)."""

_SESSION_OPTIONS = (
    "-c statement_timeout={statement_ms} -c lock_timeout={lock_ms} -c idle_in_transaction_session_timeout=5000 "
    "-c search_path=workbench -c timezone=UTC -c client_min_messages=warning -c plan_cache_mode=auto "
    "-c workbench.org={org} -c citus.propagate_set_commands=local"
)
_INDEX_ONLY_OPTIONS = (
    " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c join_collapse_limit=1 -c from_collapse_limit=1"
)
# A dead host is noticed after 5 s of unacknowledged data, or 9 s without any traffic.
_TCP_OPTIONS = {"tcp_user_timeout": 5_000, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 2}

_CITUS = load("citus")
_WORKER_TIMEOUT = "500ms"  # to connect to a worker; Citus itself waits 30 s for a frozen one
_WORKERS_TIMEOUT_S = 1.6  # for all of them: the coordinator waits for several frozen ones one after another
_WORKERS_CACHE_NS = 1_000_000_000  # the coordinator opens a connection to every worker to learn its status
_SLOW_CALIBRATION_NS = 1_000_000_000  # a slower response would move the clock by up to half of its round trip


# Together less than the five seconds within which every request has an answer. A network with a latency of 200 ms needs
# more than a second to connect.
_PROBE_AFTER_S, _PROBE_TIMEOUT_S = 1.0, 2.5

_Received = TypeVar("_Received")


class WatchedConnection(psycopg.AsyncConnection[TupleRow]):
    """A connection that is shut down when its server does not respond any more.

    `answer_s`: a round trip that takes longer is ended at once, whether or not the server responds to others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watch: ResponseWatch | None = None
        self.answer_s: float | None = None

    async def wait(self, gen: PQGen[_Received], interval: float = 0.1, timeout: float | None = None) -> _Received:  # noqa: ASYNC109  psycopg's signature
        """Run a generator that sends and receives."""
        if self.watch is None:
            return await super().wait(gen, interval, timeout)
        loop, watch = asyncio.get_running_loop(), self.watch
        if self.answer_s is None:
            timer = loop.call_later(_PROBE_AFTER_S, watch.add, self)
        else:
            timer = loop.call_later(self.answer_s, self.shut_down)
        try:
            return await super().wait(gen, interval, timeout)
        finally:
            timer.cancel()
            watch.remove(self)

    def shut_down(self) -> None:
        """Let the generator that waits fail as if the server had closed the connection."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)


class ResponseWatch:
    """Shuts down connections that wait for a server which does not respond."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._waiting: set[WatchedConnection] = set()
        self._probing: asyncio.Task[None] | None = None

    def add(self, connection: WatchedConnection) -> None:
        """Probe the server until this connection has its answer."""
        self._waiting.add(connection)
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    def remove(self, connection: WatchedConnection) -> None:
        self._waiting.discard(connection)

    async def _probe(self) -> None:
        while self._waiting:
            if await self._responds():
                await asyncio.sleep(_PROBE_AFTER_S)
                continue
            for connection in self._waiting:
                connection.shut_down()
            self._waiting.clear()

    async def _responds(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                connection = await psycopg.AsyncConnection.connect(self._dsn, application_name="workbench probe")
        except (TimeoutError, errors.ConnectionTimeout):
            return False
        except psycopg.Error:  # a response, too: "too many clients", or "the database system is starting up"
            return True
        await connection.close()
        return True


class Transaction(WatchedConnection):
    """A connection, in most places inside an open transaction.

    It caches facts of its connection: `prepared` and `prepared_until_ns` for `store.query`, `transaction_offset` and
    `distributed` for the functions of these names below.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters.register_loader("uuid", TextLoader)  # ids are text: they come from our own clock and go into JSON
        self.adapters.register_loader("jsonb", _RawJson)
        self.prepared: set[bytes] = set()
        self.prepared_until_ns = 0
        self.transaction_offset: int | None = None
        self.distributed: bool | None = None
        # Citus passes settings on to its workers only inside a transaction, so every transaction begins with these
        # statements.
        self.opening: tuple[bytes, ...] = ()
        self.reader = Transformer(self)

    async def execute(self, *args: Any, **kwargs: Any) -> psycopg.AsyncCursor[TupleRow]:
        """Execute a statement, in the open transaction or a new one."""
        await self.begin()
        return await super().execute(*args, **kwargs)

    async def fetch_value(self, query: str, values: Mapping[str, Any] | None = None) -> Any:
        """Execute a statement; return the first column of its first row, or None without rows."""
        row = await (await self.execute(query, values)).fetchone()
        return None if row is None else row[0]

    async def begin(self) -> None:
        """Run the `opening` statements if no transaction is open. psycopg itself sends BEGIN before the first one."""
        if self.opening and self.pgconn.transaction_status == TransactionStatus.IDLE:
            async with self.pipeline():
                for statement in self.opening:
                    await super().execute(statement)

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[AsyncTransaction]:
        """Open a savepoint that is rolled back alone when its block fails."""
        await self.begin()
        async with super().transaction(*args, **kwargs) as savepoint:
            yield savepoint


class _RawJson(Loader):
    """jsonb arrives as the bytes of its text; `language.codec` decodes it and keeps every number exact."""

    def load(self, data: Any) -> bytes:
        return bytes(data)


class PoolLoad(msgspec.Struct, frozen=True):
    """Open connections of a pool, those in use, and the number of tasks that wait for one."""

    connections: int
    busy: int
    waiting: int


class Database:
    """A pool of connections to one database.

    `hot`: for statements that read every table by key. The planner then uses only indexes, and joins tables in the
    order in which they are written, so a table without statistics, or one that has grown since the plan was made, never
    turns a lookup into a scan (measured on a fresh database: 5 ms per event instead of 0.1 ms). `org`: the value of
    `workbench.org`, which decides which organization's rows sessions see. `store.query.TenantDatabase` sets it per
    transaction.
    """

    def __init__(
        self,
        dsn: str,
        size: int = 8,
        statement_ms: int = 10_000,
        *,
        lock_ms: int = 2_000,
        hot: bool = False,
        org: str = ALL_ORGANIZATIONS,
    ) -> None:
        self.dsn = libpq_dsn(dsn)
        self._lock_ms, self._org = lock_ms, org
        self.watch = ResponseWatch(self.dsn)
        options = _SESSION_OPTIONS.format(statement_ms=statement_ms, lock_ms=lock_ms, org=org)
        mark = conninfo_to_dict(self.dsn).get("application_name") or ""
        self._pool: AsyncConnectionPool[Transaction] = AsyncConnectionPool(
            self.dsn,
            min_size=1,
            max_size=size,
            timeout=1.0,
            reconnect_timeout=1.0,  # the pool's own backoff would grow; this way the next request connects at once
            open=False,
            connection_class=Transaction,
            check=self._check,
            kwargs={
                "options": options + (_INDEX_ONLY_OPTIONS if hot else ""),
                # Once psycopg has prepared a statement, it sends DEALLOCATE ALL after each rollback, which would drop
                # those of `store.query`, too.
                "prepare_threshold": None,
                "connect_timeout": 5,
                "application_name": f"{APPLICATION_NAME}{newest_migration()} {mark}".strip(),
                **_TCP_OPTIONS,
            },
        )

    async def open(self) -> None:
        """Start connecting in the background. Work requested before that succeeds raises DatabaseUnavailableError."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=5.0)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def load(self) -> PoolLoad:
        stats = self._pool.get_stats()
        size = stats["pool_size"]
        return PoolLoad(size, size - stats["pool_available"], stats["requests_waiting"])

    async def _check(self, connection: Transaction) -> None:
        # The socket of a connection that ended while idle is readable. Polling it costs no round trip.
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if poll.poll(0):
            await connection.close()
            await self._pool.check()  # the other idle connections have most likely ended, too
            raise errors.OperationalError("the connection ended while it was idle")

    @asynccontextmanager
    async def transaction(self, answer_s: float | None = None) -> AsyncIterator[Transaction]:
        """Lend a connection in a transaction, which commits when the block ends without an exception.

        `answer_s`: a round trip that takes longer is a DatabaseUnavailableError, even if the server responds to others.

        Raises DatabaseUnavailableError (TooSlowError), TransactionConflictError (LockedError) or RefusedDataError.
        """
        distributed = False
        try:
            async with self._pool.connection() as connection:
                connection.watch, connection.answer_s = self.watch, answer_s
                await self._begin(connection)
                distributed = connection.distributed is True
                yield connection
        except errors.LockNotAvailable as error:
            raise LockedError(_first_line(error)) from error
        except (errors.SerializationFailure, errors.DeadlockDetected) as error:
            raise TransactionConflictError(_first_line(error)) from error
        except _REFUSED as error:
            if error.diag.source_file == _NOTIFICATION_SOURCE:
                raise DatabaseUnavailableError(_first_line(error)) from error
            raise RefusedDataError(
                _broken_rule(error)
            ) from None  # the error's text carries values, which logs must not
        except errors.QueryCanceled as error:
            if distributed and error.diag.message_primary == _CITUS_DEADLOCK:
                raise TransactionConflictError("a deadlock of several nodes") from error
            raise TooSlowError(_first_line(error)) from error
        except errors.InternalError_ as error:
            if not is_violation(error):
                raise
            raise RefusedDataError(_broken_rule(error)) from None
        except _UNAVAILABLE as error:
            raise DatabaseUnavailableError(_first_line(error)) from error

    def _visible_org(self) -> str:
        return self._org

    async def _begin(self, tx: Transaction) -> None:
        if tx.distributed is None:
            await is_distributed(tx)
            await tx.rollback()  # so that the caller's first statement is the first of its transaction
        if tx.distributed:
            tx.opening = local_settings({"lock_timeout": str(self._lock_ms), "workbench.org": self._visible_org()})
            await tx.begin()

    async def calibrate(self, clock: Clock) -> datetime:
        """Set `clock` by the database's clock, unless the response took over a second. Return the database's time."""
        async with self.transaction() as tx:
            await tx.execute("SELECT 1")  # so that connecting is not part of the measured round trip
            sent = monotonic_ns()
            row = await (await tx.execute("SELECT clock_timestamp()")).fetchone()
            received = monotonic_ns()
        assert row is not None
        if received - sent < _SLOW_CALIBRATION_NS:  # the error is up to half of the round trip
            clock.calibrate(row[0], sent, received)
        return row[0]  # type: ignore[no-any-return]


# --- Citus, and numbers of transactions


async def register_cluster(tx: Transaction) -> None:
    """Begin a new series of numbers if the database has moved to another cluster; only then are all events read."""
    await tx.execute(_CITUS["register_cluster"])


async def transaction_offset(tx: Transaction) -> int:
    """Return the offset that this cluster adds to transaction ids. Read once per connection.

    Raises DatabaseUnavailableError if the database has moved to another cluster that is not registered yet.
    """
    if tx.transaction_offset is None:
        row = await (await tx.execute(_CITUS["transaction_offset"])).fetchone()
        if row is None:
            raise DatabaseUnavailableError("the database moved to another Postgres cluster; run: workbench migrate")
        tx.transaction_offset = row[0]
    return tx.transaction_offset


async def is_distributed(tx: Transaction) -> bool:
    """Return whether the server is Citus. Read once per connection."""
    if tx.distributed is None:
        tx.distributed = await tx.fetch_value(_CITUS["is_distributed"]) is True
    return tx.distributed


async def is_coordinator(tx: Transaction) -> bool:
    """Return whether this is the node of a Citus cluster that distributes tables."""
    if not await is_distributed(tx):
        return False
    return await tx.fetch_value(_CITUS["is_coordinator"]) is True


async def list_workers(tx: Transaction) -> list[tuple[int, bool]]:
    """Return the node id of each worker of a Citus cluster, and whether it answers; nothing for another server.

    Raises TooSlowError if the workers do not answer in time.
    """
    if not await is_distributed(tx):
        return []
    timeouts = {
        "citus.node_connection_timeout": _WORKER_TIMEOUT,
        "statement_timeout": f"{int(_WORKERS_TIMEOUT_S * 1000)}",
    }
    for statement in local_settings(timeouts):
        await tx.execute(statement)
    return [(node, answers) async for node, answers in await tx.execute(_CITUS["list_workers"])]


class CitusWorkers:
    """The workers of a Citus cluster. Their status is read at most once a second, for all requests."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading: asyncio.Task[list[tuple[int, bool]]] | None = None
        self._expires_ns = 0

    async def statuses(self) -> list[tuple[int, bool]]:
        """Return what `list_workers` returned within the last second.

        Raises TooSlowError if the workers do not answer in time, or another DatabaseUnavailableError.
        """
        if self._reading is None or (self._reading.done() and monotonic_ns() > self._expires_ns):
            self._expires_ns = monotonic_ns() + _WORKERS_CACHE_NS
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)  # other requests may wait for the same answer

    async def _read(self) -> list[tuple[int, bool]]:
        # Postgres itself ends the statement sooner, unless it hangs.
        async with self._database.transaction(answer_s=_WORKERS_TIMEOUT_S + 0.2) as tx:
            return await list_workers(tx)


async def run_on_workers(tx: Transaction, script: str) -> None:
    """Run a script as superuser on every worker of a Citus cluster.

    Raises DatabaseUnavailableError if it fails on one.
    """
    rows = await (await tx.execute(_CITUS["run_on_workers"], {"script": script})).fetchall()
    for host, port, answer in rows:
        raise DatabaseUnavailableError(f"the script failed on the worker {host}:{port}: {answer}")


def local_settings(settings: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the statements that set values on all nodes of Citus until the transaction ends."""
    return tuple(
        sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(*name.split(".")), sql.Literal(value)).as_bytes()
        for name, value in settings.items()
    )


@asynccontextmanager
async def seeing_all_organizations(tx: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """Open a transaction that sees the rows of all organizations, also on the workers of Citus.

    For connections outside a pool.
    """
    async with tx.transaction():
        for statement in local_settings({"citus.propagate_set_commands": "local", "workbench.org": ALL_ORGANIZATIONS}):
            await tx.execute(statement)
        yield


# --- Connection strings


def libpq_dsn(url: str) -> str:
    """Return a DSN that libpq understands from any usual form: `postgres://`, `postgresql+psycopg://`, or key=value."""
    if "://" not in url:
        return url
    from sqlalchemy.engine import make_url  # here, because it takes as long to import as a short command takes

    parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    return parsed.set(drivername="postgresql").render_as_string(hide_password=False)


def key_value_dsn(url: str) -> str:
    """Return the DSN as key=value pairs; a child process parses them without importing SQLAlchemy."""
    return make_conninfo("", **conninfo_to_dict(libpq_dsn(url)))


def describe_database(url: str) -> str:
    """Return the name and the place of a database, without its password."""
    parameters = conninfo_to_dict(libpq_dsn(url))
    host, port = parameters.get("host", "localhost"), parameters.get("port", 5432)
    return f"the database {parameters.get('dbname') or parameters.get('user')} on {host}:{port}"


def with_application_name(url: str, name: str) -> str:
    """Return the URL with an application name, which `Database` adds to the name of its connections."""
    if "://" not in url:
        return make_conninfo(url, application_name=name)
    from sqlalchemy.engine import make_url

    return make_url(url).update_query_dict({"application_name": name}).render_as_string(hide_password=False)


# --- Postgres errors, classified

# psycopg counts 54000 and similar errors (a row too large for an index, too many columns) as operational, but a value
# causes them.
_REFUSED = (errors.DataError, errors.IntegrityError, errors.ProgramLimitExceeded, errors.StatementTooComplex)
# Postgres's queue of notifications is full: reported as 54000 from this source file, and not caused by a value.
_NOTIFICATION_SOURCE = "async.c"
# A server that became a standby refuses to write, and the session of a process that was frozen is ended. Both pass.
_UNAVAILABLE = (
    errors.OperationalError,
    PoolTimeout,
    errors.InterfaceError,
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
)
# Citus ends the youngest transaction of a deadlock across nodes by cancelling it; the message is the same as for a
# user's cancel request.
_CITUS_DEADLOCK = "canceling statement due to user request"

_VIOLATIONS = {
    "unique": "UniqueViolation",
    "check": "CheckViolation",
    "not-null": "NotNullViolation",
    "foreign key": "ForeignKeyViolation",
}
_VIOLATION = re.compile(f"violates ({'|'.join(_VIOLATIONS)}) constraint")
_PLACE = re.compile(r'(table|relation|column|constraint) "(\w+?)(?:_\d{6,})?"')  # without the number of a Citus shard


def is_violation(error: psycopg.Error) -> bool:
    """Return whether rows broke a constraint.

    When a Citus worker refuses them, the coordinator may pass on only the text of the error.
    """
    return isinstance(error, errors.IntegrityError) or _violation(error) is not None


def _violation(error: psycopg.Error) -> str | None:
    match = _VIOLATION.search(error.diag.message_primary or "")
    return _VIOLATIONS[match[1]] if match else None


def _broken_rule(error: psycopg.Error) -> str:
    """Name the rule that a value broke, without the value: `CheckViolation contacts contacts_opted_out_check`."""
    named = dict(_PLACE.findall(error.diag.message_primary or ""))
    place = (
        error.diag.table_name or named.get("relation") or named.get("table"),
        error.diag.column_name or named.get("column"),
        error.diag.constraint_name or named.get("constraint"),
    )
    return " ".join([_violation(error) or type(error).__name__, *(name for name in place if name)])


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
