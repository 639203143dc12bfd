"""Analysts' queries: run read-only under an organization's role, and read with bounded memory.

**One query.** Its text is only ever sent as `DECLARE gw NO SCROLL CURSOR FOR <text>` through the extended protocol,
which accepts exactly one statement, so Postgres itself refuses everything but a single SELECT. The transaction is READ
ONLY, on its own connection that is closed afterwards. Rows are fetched in batches; two FETCHes are requested ahead, and
each is read whole before it is passed on, so that a slow client does not run into the timeout. Postgres buffers the
rows of a FETCH before it sends them, so `temp_file_limit` stops rows of 500 MB there; libpq hands them over in small
chunks, so `fetch_bytes` stops larger batches here. After each chunk the event loop gets a turn. Time is limited in
three ways: by the server's statement_timeout, by a cancel request, and by ending the backend through the application's
own connection. Postgres does not limit the memory of a backend (an aggregate collected 5 GB within 10 seconds), so the
backend's memory is read from /proc, if Postgres runs on the same machine, and the query is cancelled above
`memory_bytes`.

**Rows.** One Python call per cell would dominate the cost. psycopg builds tuples of whole rows and Arrow takes them
apart, both in C, a few hundred rows at a time while they are in the processor's cache. Cells are in Postgres's text or
binary form.

**Snapshots.** A query sees the snapshot of a transaction of the application, taken over before it begins, because
readers may not list the current transactions. With a snapshot of the past (`as_of`), table names resolve to the views
of `analyst_past`.

**Some contacts.** A function (`ChooseContacts`) decides in the transaction that shares the snapshot whether the query
reads only the rows of some contacts. Then table names resolve to the views of `analyst_changed`.

**Standby.** Queries run on the primary, or on a standby once it has replayed everything that was committed when the
query arrived. A result is therefore never older than its query, and a login role that was just created exists. If
the standby takes too long, the query is refused; it never falls back to the primary, which the standby is there to
protect.
"""

import asyncio
import contextlib
import logging
import resource
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from select import POLLIN, poll
from typing import TypeAlias

import msgspec
import pyarrow as pa
from psycopg import AsyncConnection, errors, generators, postgres
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.conninfo import make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow
from psycopg.types.string import ByteaBinaryLoader
from psycopg.waiting import WAIT_R

from api.clock import monotonic_ns
from api.store.database import Database, DatabaseUnavailableError, Transaction, WatchedConnection, is_distributed, load
from api.store.sql_roles import ReaderError, ReaderRole, stop_backend

_log = logging.getLogger("workbench.reading")
_SQL = load("analyst")

_CITUS = load("citus")


# --- Snapshots

_ATTEMPTS, _ATTEMPT_PAUSE_S = 20, 0.002  # on a standby: until no transaction is open


class Snapshot(msgspec.Struct, frozen=True):
    """The transactions with numbers below `end`, except those in `open`, of one cluster and the clusters before it."""

    system_identifier: int
    first_number: int
    end: int
    open: tuple[int, ...]
    at: datetime


async def export_snapshot(tx: Transaction) -> tuple[str, Snapshot] | None:
    """Return the name by which other sessions take over this snapshot while the transaction lasts, and the snapshot.

    None where the snapshot cannot be expressed in transaction numbers: on Citus, in a cluster that `migrate` has not
    registered, and on a standby that always has open transactions, because it does not know which ones.
    """
    if await is_distributed(tx):
        return None
    for _ in range(_ATTEMPTS):
        row = await (await tx.execute(_CITUS["export_snapshot"])).fetchone()
        if row is None:
            return None
        name, system_identifier, first_number, end, open_numbers, at, complete = row
        if complete:
            return name, Snapshot(system_identifier, first_number, end, tuple(open_numbers), at)
        await asyncio.sleep(_ATTEMPT_PAUSE_S)
    return None


async def resolve_snapshot(tx: Transaction, snapshot: Snapshot) -> Snapshot | None:
    """Return the part of a snapshot that this database has; None if the snapshot is of a database that diverged.

    Of a snapshot of an earlier cluster, this database has the transactions with numbers below the first number of the
    next cluster. If the snapshot was taken after the next cluster was registered, the two databases have diverged.
    """
    cluster = {"system_identifier": snapshot.system_identifier, "first_number": snapshot.first_number}
    row = await (await tx.execute(_CITUS["find_cluster"], cluster)).fetchone()
    if row is None:
        return None
    next_number, since = row
    if next_number is None:
        return snapshot
    return msgspec.structs.replace(snapshot, end=min(snapshot.end, next_number)) if snapshot.at <= since else None


# --- Results

Cells: TypeAlias = pa.BinaryArray
_ANY_TYPE = 0
_UNKNOWN_OID = 705
_AS_SENT = AdaptersMap()
_AS_SENT.register_loader(_ANY_TYPE, ByteaBinaryLoader)


class ResultColumn(msgspec.Struct, frozen=True):
    """A column of a result: `type` is the name of its Postgres type, `modifier` the declared size (-1: none).

    `binary`: its cells are in Postgres's binary form.
    """

    name: str
    type: str
    oid: int
    modifier: int
    binary: bool = False


class RowBatch:
    """Rows collected block by block; `nbytes` is their size."""

    def __init__(self, empty: pa.StructArray) -> None:
        self.rows = self.nbytes = 0
        self._blocks = [empty]

    def add(self, block: pa.StructArray) -> None:
        self._blocks.append(block)
        self.rows += len(block)
        self.nbytes += block.nbytes

    def columns(self) -> list[Cells]:
        columns: list[Cells] = pa.concat_arrays(self._blocks).flatten()
        return columns


class BlockReader:
    """Converts results of one query to blocks of rows."""

    def __init__(self, columns: tuple[ResultColumn, ...]) -> None:
        self.columns = columns
        self._type = pa.struct([(str(position), pa.binary()) for position in range(len(columns))])
        self._rows = Transformer(_AS_SENT)
        self._rows.set_loader_types([column.oid for column in columns], Format.BINARY)

    def batch(self) -> RowBatch:
        return RowBatch(pa.array([], self._type))

    def block(self, result: PGresult) -> pa.StructArray:
        self._rows.set_pgresult(result, set_loaders=False)
        return pa.array(self._rows.load_rows(0, result.ntuples, tuple), self._type)


def read_columns(result: PGresult) -> tuple[ResultColumn, ...]:
    return tuple(
        ResultColumn(
            (result.fname(index) or b"").decode(),
            _type_name(result.ftype(index)),
            result.ftype(index),
            result.fmod(index),
        )
        for index in range(result.nfields)
    )


def _type_name(oid: int) -> str:
    info = postgres.types.get(oid)
    if info is None:
        return "text" if oid == _UNKNOWN_OID else f"oid {oid}"
    return info.name if info.oid == oid else f"{info.name}[]"


# --- Limits and errors


class QueryLimits(msgspec.Struct, frozen=True):
    """Limits of one query: seconds per step (planning, and each fetch) and per answer, bytes per fetch and of memory.

    The server ends a step after `step_seconds`; if it does not, this process does after `watch_seconds`.
    """

    step_seconds: float = 10.0
    watch_seconds: float = 11.0
    answer_seconds: float = 300.0
    idle_seconds: float = 60.0
    connect_seconds: float = 3.0
    fetch_bytes: int = 128 * 1024 * 1024
    memory_bytes: int = 1_000_000_000


class BoundParameter(msgspec.Struct, frozen=True):
    """A bound value in Postgres's text form; type 0 lets Postgres infer the type."""

    oid: int
    text: str | None


class QueryError(Exception):
    """A query failed, perhaps after it returned some of its rows."""


class StatementError(QueryError):
    """Postgres refuses the statement; `position` counts its characters from 1."""

    def __init__(self, reason: str, sqlstate: str, position: int | None, hint: str | None) -> None:
        self.reason = reason
        self.sqlstate = sqlstate
        self.position = position
        self.hint = hint
        super().__init__(reason)


class QueryTimeoutError(QueryError):
    """The query exceeded its time limit."""


class ResultTooLargeError(QueryError):
    """A batch of rows exceeds the size limit."""


class QueryMemoryError(QueryError):
    """The query needs more memory than its limit."""


class TooManyQueriesError(QueryError):
    """Too many queries are running."""


class ReplicaConflictError(TooManyQueriesError):
    """The standby had to apply changes that conflict with the query; it may be tried again."""


# --- A query under way

Evaluate: TypeAlias = Callable[[str, Sequence[BoundParameter]], Awaitable[list[str | None]]]


class ContactChoice(msgspec.Struct, frozen=True):
    """The contacts whose rows a query reads. `contact_ids` None: those of all contacts; `reason` says why.

    `watermark`: JSON text with which the next choice finds what changed since this query; None if it cannot.
    """

    contact_ids: frozenset[str] | None
    watermark: bytes | None
    reason: str | None


ShareSnapshot: TypeAlias = Callable[[], Awaitable[Snapshot | None]]
ChooseContacts: TypeAlias = Callable[[Transaction, ShareSnapshot, Evaluate], Awaitable[ContactChoice]]
"""Chooses the contacts that a query reads.

It calls the second argument once: the query then sees the snapshot of the transaction, which is returned, or None if it
cannot be told. What must not be newer than the snapshot is read before. `Evaluate` returns the first row of a SELECT,
in the session and at the moment of the query.
"""

_PREFIX = "DECLARE gw NO SCROLL CURSOR FOR "
_FIRST_ROWS = 16
_MAX_ROWS = 4096
_TARGET_BYTES = 2_000_000
_CHUNKS_PER_FETCH = 8
_FETCHES_AHEAD = 2  # Postgres prepares one while the other is on its way
_CONNECT_PAUSE_S = 0.05
_MEMORY_CHECK_INTERVAL_S = 0.1
_SESSION = (
    "-c statement_timeout={statement_ms} -c idle_in_transaction_session_timeout={idle_ms} -c lock_timeout=2000 "
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex "
    "-c extra_float_digits=1 -c standard_conforming_strings=on -c client_min_messages=error -c work_mem=16MB "
    # A cursor never has parallel workers. JIT, which is on by default, would compile the expressions of each partition.
    "-c max_parallel_workers_per_gather=0 -c jit=off -c client_connection_check_interval=1000 "
    # Postgres cannot look up the rows of an analyst's view for each row of another one: a nested loop reads the whole
    # inner table for each. Without statistics (a new segment, an import) the planner believes that it has one row.
    "-c enable_nestloop=off "
    # Indexes begin with org_id, which is the same in most rows, so the planner takes them for correlated with the table
    # and their scans for cheap (docs/decisions/0060).
    "-c random_page_cost=4"
)


class AnalystCursor:
    """A running query: its columns, then its rows.

    `snapshot`: what it sees; None if that is unknown, or given by `as_of`. `choice`: which contacts it reads.
    """

    def __init__(
        self, connection: AsyncConnection[TupleRow], database: Database, limits: QueryLimits, as_of: Snapshot | None
    ) -> None:
        self.snapshot: Snapshot | None = None
        self.choice: ContactChoice | None = None
        self._blocks = BlockReader(())
        self._binary = False
        self._connection = connection
        self._database = database
        self._limits = limits
        self._as_of = as_of
        self._started_ns = monotonic_ns()
        self._stopped: QueryError | None = None  # why this process stopped the query
        self._turn = asyncio.Lock()

    async def begin(
        self,
        statement: str,
        parameters: Sequence[BoundParameter],
        binary: Collection[int] = (),
        choose: ChooseContacts | None = None,
    ) -> None:
        """Let Postgres check and plan the statement.

        Cells are in binary form if all columns have one of the types `binary`. Raises QueryError or
        DatabaseUnavailableError.
        """
        await self._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())
        if self._as_of is None:
            async with self._database.transaction() as tx:
                if choose is None:
                    await self._share_snapshot(tx)
                else:
                    self.choice = await choose(tx, partial(self._share_snapshot, tx), self._evaluate)
                    if self.choice.contact_ids is not None:
                        ids = ",".join(self.choice.contact_ids)
                        await self._execute(f"SET LOCAL workbench.changed_contacts = '{{{ids}}}'", ())
                        await self._execute("SET LOCAL search_path = analyst_changed", ())
        await self._execute(_PREFIX + statement, parameters)
        with self._step():
            columns = await self._connection.wait(_describe(self._connection.pgconn))
        self._binary = all(column.oid in binary for column in columns)
        self._blocks = BlockReader(tuple(msgspec.structs.replace(column, binary=self._binary) for column in columns))

    async def _share_snapshot(self, tx: Transaction) -> Snapshot | None:
        if (shared := await export_snapshot(tx)) is not None:
            name, self.snapshot = shared
            await self._execute(f"SET TRANSACTION SNAPSHOT '{name}'", ())
        return self.snapshot

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        return self._blocks.columns

    async def batches(self) -> AsyncGenerator[RowBatch, None]:
        """Yield the rows in batches: at least one, which may be empty. The next two are requested in advance."""
        with self._step():
            self._connection.pgconn.enter_pipeline_mode()
        under_way = deque([self._fetch(_FIRST_ROWS)])
        try:
            while True:
                fetched = await under_way.popleft()
                while not fetched.ended and len(under_way) < _FETCHES_AHEAD:
                    under_way.append(self._fetch(fetched.next_size()))
                yield fetched.batch
                if fetched.ended:
                    await asyncio.gather(*under_way)  # they have no rows
                    return
                if monotonic_ns() - self._started_ns > self._limits.answer_seconds * 1e9:
                    raise QueryTimeoutError(f"the answer took longer than {self._limits.answer_seconds:g} s")
        finally:
            for fetching in under_way:
                fetching.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _fetch(self, requested: int) -> "asyncio.Task[_Fetched]":
        """Send a FETCH, and read its rows in a task, in the order in which FETCHes were sent."""
        pgconn = self._connection.pgconn
        with self._step():
            pgconn.send_query_params(b"FETCH FORWARD %d FROM gw" % requested, (), result_format=self._binary)
            pgconn.pipeline_sync()
        return asyncio.create_task(self._read(requested))

    async def _read(self, requested: int) -> "_Fetched":
        pgconn, batch = self._connection.pgconn, self._blocks.batch()
        async with self._turn:
            with self._step():
                pgconn.set_chunked_rows_mode(max(1, requested // _CHUNKS_PER_FETCH))
                arrived = poll()
                arrived.register(pgconn.socket, POLLIN)
                while (result := await self._connection.wait(_next(pgconn, arrived))) is not None:
                    batch.add(self._blocks.block(_checked(result)))
                    if batch.nbytes > self._limits.fetch_bytes:
                        raise ResultTooLargeError(
                            f"{batch.rows} rows are larger than {self._limits.fetch_bytes} bytes in total"
                        )
                    await asyncio.sleep(0)
                await self._connection.wait(_next(pgconn, arrived))  # the result of the sync
        return _Fetched(requested, batch)

    async def _execute(self, statement: str, parameters: Sequence[BoundParameter]) -> None:
        with self._step():
            await self._connection.wait(_execute(self._connection.pgconn, statement, parameters))

    async def _evaluate(self, statement: str, parameters: Sequence[BoundParameter]) -> list[str | None]:
        with self._step():
            return await self._connection.wait(_fetch_row(self._connection.pgconn, statement, parameters))

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """Limit the time of a step, and translate its errors."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        except StatementError as error:
            raise self._stopped or _classified(error, self._limits) from error
        except errors.Error as error:
            raise self._stopped or DatabaseUnavailableError("the connection to the database was lost") from error
        else:
            if self._stopped is not None:  # the step was quicker than its cancel request, which may stop the next one
                raise self._stopped
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        """Cancel the step, then end its backend, if its memory or its time exceeds the limit."""
        limits, pid, user = self._limits, self._connection.info.backend_pid, self._connection.info.user
        due_ns, memory = monotonic_ns() + limits.watch_seconds * 1e9, 0
        while memory <= limits.memory_bytes and monotonic_ns() < due_ns:
            await asyncio.sleep(_MEMORY_CHECK_INTERVAL_S)
            memory = private_bytes(pid, user)
        self._stopped = _timeout(limits)
        if memory > limits.memory_bytes:
            self._stopped = QueryMemoryError(
                f"the query needs more than {limits.memory_bytes / 1e9:g} GB of memory; "
                "aggregate fewer rows, or read them with stream=True"
            )
        _log.warning("reader_cancelled", extra={"pid": pid, "memory_bytes": memory})
        with contextlib.suppress(errors.Error):
            await self._connection.cancel_safe(timeout=2.0)
        await asyncio.sleep(1.0)
        with contextlib.suppress(DatabaseUnavailableError, errors.Error):
            async with self._database.transaction() as tx:
                await stop_backend(tx, pid)


@contextlib.asynccontextmanager
async def open_cursor(
    database: Database, reader: ReaderRole, limits: QueryLimits, as_of: Snapshot | None = None
) -> AsyncIterator[AnalystCursor]:
    """Open a connection for one query, and close it afterwards.

    Raises TooManyQueriesError or DatabaseUnavailableError.
    """
    connection = await _connect(database, reader, limits, as_of)
    try:
        yield AnalystCursor(connection, database, limits, as_of)
    finally:
        await connection.close()


class _Fetched(msgspec.Struct, frozen=True):
    """The rows of one FETCH."""

    requested: int
    batch: RowBatch

    @property
    def ended(self) -> bool:
        return self.batch.rows < self.requested

    def next_size(self) -> int:
        """Return the size of the next FETCH: rows of about two megabytes, at most sixteen times as many as this one."""
        fitting = self.requested * _TARGET_BYTES // max(self.batch.nbytes, 1)
        return max(1, min(fitting, self.requested * 16, _MAX_ROWS))


async def _connect(
    database: Database, reader: ReaderRole, limits: QueryLimits, as_of: Snapshot | None
) -> AsyncConnection[TupleRow]:
    options = _SESSION.format(statement_ms=int(limits.step_seconds * 1000), idle_ms=int(limits.idle_seconds * 1000))
    if as_of is None:
        options += " -c search_path=analyst"
    else:
        still_open = ",".join(map(str, as_of.open))
        options += f" -c search_path=analyst_past -c workbench.past_end={as_of.end}"
        options += f" -c workbench.past_open={{{still_open}}}"
    conninfo = make_conninfo(
        database.dsn,
        user=reader.role,
        password=reader.password,
        options=options,
        client_encoding="UTF8",
        connect_timeout=4,  # every request has an answer within five seconds
        application_name="workbench sql",
    )
    started_ns = monotonic_ns()
    while True:
        try:
            connection = await WatchedConnection.connect(conninfo, autocommit=True)
        except errors.OperationalError as error:
            # A refused connection has no SQLSTATE. A connection that was just closed still counts for a moment, hence
            # the retries.
            if "too many connections" not in str(error):
                raise DatabaseUnavailableError("the database refused the reader's connection") from error
            if monotonic_ns() - started_ns > limits.connect_seconds * 1e9:
                raise TooManyQueriesError("too many queries of this organization are running") from error
        else:
            connection.watch = database.watch
            return connection
        await asyncio.sleep(_CONNECT_PAUSE_S)


def _execute(pgconn: PGconn, statement: str, parameters: Sequence[BoundParameter]) -> PQGen[PGresult]:
    """Run one statement through the extended protocol. Raises StatementError."""
    pgconn.send_query_params(
        statement.encode(),
        [None if parameter.text is None else parameter.text.encode() for parameter in parameters],
        param_types=[parameter.oid for parameter in parameters],
    )
    (result,) = yield from generators.execute(pgconn)
    return _checked(result)


def _fetch_row(pgconn: PGconn, statement: str, parameters: Sequence[BoundParameter]) -> PQGen[list[str | None]]:
    result = yield from _execute(pgconn, statement, parameters)
    cells = [result.get_value(0, column) for column in range(result.nfields)]
    return [None if cell is None else cell.decode() for cell in cells]


def _describe(pgconn: PGconn) -> PQGen[tuple[ResultColumn, ...]]:
    pgconn.send_describe_portal(b"gw")
    (result,) = yield from generators.execute(pgconn)
    return read_columns(_checked(result))


def _next(pgconn: PGconn, arrived: poll) -> PQGen[PGresult | None]:
    """Return the next rows of a FETCH, None at its end."""
    while pgconn.is_busy():
        # Postgres sends 8 KB at a time; waiting for each in the event loop cost more than reading it.
        if not arrived.poll(0):
            yield WAIT_R
        pgconn.consume_input()
    return pgconn.get_result()


def _checked(result: PGresult) -> PGresult:
    if result.status not in (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE, ExecStatus.NONFATAL_ERROR):
        return result
    position = _field(result, DiagnosticField.STATEMENT_POSITION)
    inside = int(position) - len(_PREFIX) if position else 0
    raise StatementError(
        _field(result, DiagnosticField.MESSAGE_PRIMARY) or "the query failed",
        _field(result, DiagnosticField.SQLSTATE) or "XX000",
        inside if inside > 0 else None,
        _field(result, DiagnosticField.MESSAGE_HINT),
    )


def _field(result: PGresult, field: DiagnosticField) -> str | None:
    raw = result.error_field(field)
    return raw.decode("utf-8", "replace") if raw else None


def private_bytes(pid: int, role: str) -> int:
    """Return the memory that a backend does not share with others; 0 if it does not run on this machine."""
    folder = Path(f"/proc/{pid}")
    try:
        if role.encode() not in (folder / "cmdline").read_bytes():  # a process of this machine with the same number
            return 0
        _, resident, shared, *_ = map(int, (folder / "statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * resource.getpagesize()


def _timeout(limits: QueryLimits) -> QueryTimeoutError:
    return QueryTimeoutError(f"the query took longer than {min(limits.step_seconds, limits.watch_seconds):g} s")


def _classified(error: StatementError, limits: QueryLimits) -> Exception:
    match error.sqlstate:
        case "57P01":  # admin_shutdown that `_watch` did not cause
            return DatabaseUnavailableError("the database ended the connection")
        case "57014" | "25P03":  # query_canceled, idle_in_transaction_session_timeout
            return _timeout(limits)
        case "55P03" | "53300":  # lock_not_available, too_many_connections
            return TooManyQueriesError("the tables are busy; try again")
        case "40001" | "40P01":  # a standby ended the query, because it conflicts with replayed changes
            return ReplicaConflictError("the read replica had to apply changes that conflict with the query; try again")
        case "57P02" | "57P03" | "57P05":  # crash_shutdown, cannot_connect_now, idle_session_timeout
            return DatabaseUnavailableError("the database is stopping")
        case _:
            return error


# --- Primary or standby

_CATCH_UP_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1


class ReplicaError(ReaderError):
    """The standby cannot be reached, is too far behind, or has another primary. The message is for the caller."""


class QuerySource:
    """The database that queries are read from; `standby` None: the primary itself."""

    def __init__(self, primary: Database, standby: Database | None = None) -> None:
        self._primary = primary
        self._standby = standby

    async def current(self) -> Database:
        """Return the database to query, once it has everything that is committed now.

        Raises ReplicaError or DatabaseUnavailableError.
        """
        if self._standby is None:
            return self._primary
        async with self._primary.transaction() as tx:
            row = await (await tx.execute(_SQL["written_up_to"])).fetchone()
        assert row is not None
        try:
            await _catch_up(self._standby, *row)
        except DatabaseUnavailableError as error:
            raise ReplicaError("the read replica cannot be reached; try again") from error
        return self._standby


async def _catch_up(standby: Database, lsn: str, system_identifier: int) -> None:
    started_ns, pause = monotonic_ns(), _FIRST_PAUSE_S
    while True:
        async with standby.transaction() as tx:
            row = await (await tx.execute(_SQL["replayed_up_to"], {"lsn": lsn})).fetchone()
        assert row is not None
        caught_up, behind_seconds, cluster = row
        if (behind_seconds is None and caught_up is None) or cluster != system_identifier:
            raise ReplicaError("WORKBENCH_READ_URL is not a standby of the server in DATABASE_URL")
        if caught_up:
            return
        if monotonic_ns() - started_ns > _CATCH_UP_S * 1e9:
            behind = "" if behind_seconds is None else f"; its newest transaction is {behind_seconds:.0f} s old"
            raise ReplicaError(f"the read replica is more than {_CATCH_UP_S:g} s behind{behind}; try again")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
