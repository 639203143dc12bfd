"""One query of an analyst, run where it can do no harm, and read without ever holding more than a bounded part of it.

Theory of operation. The text is only ever sent as `DECLARE gw NO SCROLL CURSOR FOR <text>` through the extended protocol,
which takes exactly one statement, so Postgres itself refuses everything but one SELECT; the transaction is READ ONLY, on a
connection of its own that is closed afterwards. Rows come by FETCH, two asked for ahead, each read whole before it is passed on (a slow
client must not run into the timeout). Postgres sets the rows of a FETCH aside before it sends them, so `temp_file_limit`
stops rows of 500 MB there; libpq hands them over in small chunks, so `fetch_bytes` stops what passes it here. After each
chunk whatever else the process does has its turn. Time is limited three times over: by the server's statement_timeout, by a
cancel request, and by ending the backend through the application's own connection.

The snapshot is the application's, taken over before the query begins: readers may not ask which transactions there are. With
a snapshot of the past (`as_of`) the names of tables mean the views of `analyst_past`.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from select import POLLIN, poll

import msgspec
from psycopg import AsyncConnection, errors, generators
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow
from psycopg.waiting import WAIT_R

from api.clock import monotonic_ns
from api.store.database import Database, UnavailableError
from api.store.readers import Reader, stop_backend
from api.store.rows import Batch, Blocks, Column, described
from api.store.snapshots import Snapshot, share_snapshot

_log = logging.getLogger("workbench.reading")

_PREFIX = "DECLARE gw NO SCROLL CURSOR FOR "
_FIRST_ROWS = 16
_MOST_ROWS = 4096
_TARGET_BYTES = 2_000_000
_CHUNKS = 8  # of a FETCH
_AHEAD = 2  # FETCHes, so that Postgres makes one while the other is on its way
_CONNECT_PAUSE_SECONDS = 0.05
_SESSION = (
    "-c statement_timeout={statement_ms} -c idle_in_transaction_session_timeout={idle_ms} -c lock_timeout=2000 "
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex "
    "-c extra_float_digits=1 -c standard_conforming_strings=on -c client_min_messages=error -c work_mem=16MB "
    "-c max_parallel_workers_per_gather=0 -c client_connection_check_interval=1000"
)


class Limits(msgspec.Struct, frozen=True):
    """What one query may use: seconds per step (planning, and each fetch), per answer, and bytes per fetch.

    The server ends a step after `step_seconds`; should it not, we do after `watch_seconds`.
    """

    step_seconds: float = 10.0
    watch_seconds: float = 11.0
    answer_seconds: float = 300.0
    idle_seconds: float = 60.0
    connect_seconds: float = 3.0
    fetch_bytes: int = 128 * 1024 * 1024


class Parameter(msgspec.Struct, frozen=True):
    """A bound value in Postgres's text form; type 0 lets Postgres infer it."""

    oid: int
    text: str | None


class ReadError(Exception):
    """A query has no (further) rows: StatementError, TooLongError, TooLargeError or BusyError."""


class StatementError(ReadError):
    """Postgres refuses the statement; `position` counts the characters of the statement from 1."""

    def __init__(self, reason: str, sqlstate: str, position: int | None, hint: str | None) -> None:
        self.reason = reason
        self.sqlstate = sqlstate
        self.position = position
        self.hint = hint
        super().__init__(reason)


class TooLongError(ReadError):
    """The query used up its time."""


class TooLargeError(ReadError):
    """The rows are too large to be passed on."""


class BusyError(ReadError):
    """Too many queries at once."""


class OvertakenError(BusyError):
    """A standby had to take in changes that the query was in the way of; it may be asked again."""


class Reading:
    """A query under way: its columns, then its rows."""

    def __init__(
        self, connection: AsyncConnection[TupleRow], database: Database, limits: Limits, as_of: Snapshot | None
    ) -> None:
        self._blocks = Blocks(())
        self._binary = False
        self._connection = connection
        self._database = database
        self._limits = limits
        self._as_of = as_of
        self._started_ns = monotonic_ns()
        self._stopped = False  # by us
        self._turn = asyncio.Lock()

    async def begin(
        self, statement: str, parameters: Sequence[Parameter], binary: Collection[int] = ()
    ) -> Snapshot | None:
        """Have Postgres check and plan the statement; return what it sees of the present, if that can be told.

        Cells come in binary form if all columns are of the types `binary`. Raises ReadError or UnavailableError.
        """
        await self._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())
        seen = await self._take_over() if self._as_of is None else None
        await self._execute(_PREFIX + statement, parameters)
        with self._step():
            columns = await self._connection.wait(_describe(self._connection.pgconn))
        self._binary = all(column.oid in binary for column in columns)
        self._blocks = Blocks(tuple(msgspec.structs.replace(column, binary=self._binary) for column in columns))
        return seen

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the query, once it has begun."""
        return self._blocks.columns

    async def _take_over(self) -> Snapshot | None:
        """Look with the snapshot of a transaction of the application's, and return it."""
        async with self._database.transaction() as tx:
            shared = await share_snapshot(tx)
            if shared is None:
                return None
            name, snapshot = shared
            await self._execute(f"SET TRANSACTION SNAPSHOT '{name}'", ())
        return snapshot

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Give the rows in batches, at least one, which may be empty. While one is looked at, Postgres makes the next two."""
        with self._step():
            self._connection.pgconn.enter_pipeline_mode()
        under_way = deque([self._fetch(_FIRST_ROWS)])
        try:
            while True:
                fetched = await under_way.popleft()
                while not fetched.ended and len(under_way) < _AHEAD:
                    under_way.append(self._fetch(fetched.next_size()))
                yield fetched.batch
                if fetched.ended:
                    await asyncio.gather(*under_way)  # they find no rows
                    return
                if monotonic_ns() - self._started_ns > self._limits.answer_seconds * 1e9:
                    raise TooLongError(f"the answer took longer than {self._limits.answer_seconds:g} s")
        finally:
            for fetching in under_way:
                fetching.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _fetch(self, wanted: int) -> "asyncio.Task[_Fetched]":
        """Ask for the next rows, and read them when those that were asked for before are read, whoever looks at them when."""
        pgconn = self._connection.pgconn
        with self._step():
            pgconn.send_query_params(b"FETCH FORWARD %d FROM gw" % wanted, (), result_format=self._binary)
            pgconn.pipeline_sync()
        return asyncio.create_task(self._read(wanted))

    async def _read(self, wanted: int) -> "_Fetched":
        pgconn, batch = self._connection.pgconn, self._blocks.batch()
        async with self._turn:
            with self._step():
                pgconn.set_chunked_rows_mode(max(1, wanted // _CHUNKS))
                arrived = poll()
                arrived.register(pgconn.socket, POLLIN)
                while (result := await self._connection.wait(_next(pgconn, arrived))) is not None:
                    batch.add(self._blocks.block(_checked(result)))
                    if batch.nbytes > self._limits.fetch_bytes:
                        raise TooLargeError(
                            f"{batch.rows} rows are larger than {self._limits.fetch_bytes} bytes together"
                        )
                    await asyncio.sleep(0)
                await self._connection.wait(_next(pgconn, arrived))  # the mark of its end
        return _Fetched(wanted, batch)

    async def _execute(self, statement: str, parameters: Sequence[Parameter]) -> None:
        with self._step():
            await self._connection.wait(_execute(self._connection.pgconn, statement, parameters))

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """Watch the time of a step, and tell apart what becomes of it."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        except StatementError as error:
            raise _told_apart(error, self._limits, stopped=self._stopped) from error
        except errors.Error as error:
            raise self._broken() from error
        finally:
            watch.cancel()

    def _broken(self) -> Exception:
        if self._stopped:
            return _too_long(self._limits)
        return UnavailableError("the connection to the database broke")

    async def _watch(self) -> None:
        """Stop a step which the server's own timeout did not: ask, then end the backend."""
        await asyncio.sleep(self._limits.watch_seconds)
        self._stopped = True
        _log.warning("reader_cancelled", extra={"pid": self._connection.info.backend_pid})
        with contextlib.suppress(errors.Error):
            await self._connection.cancel_safe(timeout=2.0)
        await asyncio.sleep(1.0)
        with contextlib.suppress(UnavailableError, errors.Error):
            async with self._database.transaction() as tx:
                await stop_backend(tx, self._connection.info.backend_pid)


@contextlib.asynccontextmanager
async def reading(
    database: Database, reader: Reader, limits: Limits, as_of: Snapshot | None = None
) -> AsyncIterator[Reading]:
    """Give a connection for one query, closed afterwards whatever happened; raise BusyError or UnavailableError."""
    connection = await _connect(database, reader, limits, _options(limits, as_of))
    try:
        yield Reading(connection, database, limits, as_of)
    finally:
        await connection.close()


def _options(limits: Limits, as_of: Snapshot | None) -> str:
    options = _SESSION.format(statement_ms=int(limits.step_seconds * 1000), idle_ms=int(limits.idle_seconds * 1000))
    if as_of is None:
        return options + " -c search_path=analyst"
    still_open = ",".join(map(str, as_of.open))
    return f"{options} -c search_path=analyst_past -c workbench.past_end={as_of.end} -c workbench.past_open={{{still_open}}}"


async def _connect(database: Database, reader: Reader, limits: Limits, options: str) -> AsyncConnection[TupleRow]:
    conninfo = make_conninfo(
        database.dsn,
        user=reader.role,
        password=reader.password,
        options=options,
        client_encoding="UTF8",
        connect_timeout=5,
        application_name="workbench sql",
    )
    started_ns = monotonic_ns()
    while True:
        try:
            return await AsyncConnection.connect(conninfo, autocommit=True)
        except errors.OperationalError as error:
            if not _is_crowded(error):
                raise UnavailableError("the database refused the reader's connection") from error
            if monotonic_ns() - started_ns > limits.connect_seconds * 1e9:
                raise BusyError("too many queries of this organization are running") from error
        await asyncio.sleep(_CONNECT_PAUSE_SECONDS)


def _is_crowded(error: errors.OperationalError) -> bool:
    """Tell whether the role has all its connections; one that was closed just now still counts for a moment."""
    return "too many connections" in str(error)  # a refused connection has no SQLSTATE


def _execute(pgconn: PGconn, statement: str, parameters: Sequence[Parameter]) -> PQGen[None]:
    """Run one statement without rows, always through the extended protocol; raise StatementError."""
    pgconn.send_query_params(
        statement.encode(),
        [None if each.text is None else each.text.encode() for each in parameters],
        param_types=[each.oid for each in parameters],
    )
    for result in (yield from generators.execute(pgconn)):
        _checked(result)


def _describe(pgconn: PGconn) -> PQGen[tuple[Column, ...]]:
    """Return the columns of the query."""
    pgconn.send_describe_portal(b"gw")
    (result,) = yield from generators.execute(pgconn)
    return described(_checked(result))


def _next(pgconn: PGconn, arrived: poll) -> PQGen[PGresult | None]:
    """Return the next rows of a FETCH, None at its end."""
    while pgconn.is_busy():
        if not arrived.poll(0):  # Postgres sends 8 KB at a time: waiting for each took more time than reading it
            yield WAIT_R
        pgconn.consume_input()
    return pgconn.get_result()


class _Fetched(msgspec.Struct, frozen=True):
    """What one FETCH gave."""

    wanted: int
    batch: Batch

    @property
    def ended(self) -> bool:
        """Whether there are no more rows."""
        return self.batch.rows < self.wanted

    def next_size(self) -> int:
        """Return how many rows to ask for next: up to two megabytes, growing no faster than sixteenfold."""
        fitting = self.wanted * _TARGET_BYTES // max(self.batch.nbytes, 1)
        return max(1, min(fitting, self.wanted * 16, _MOST_ROWS))


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


def _too_long(limits: Limits) -> TooLongError:
    return TooLongError(f"the query took longer than {min(limits.step_seconds, limits.watch_seconds):g} s")


def _told_apart(error: StatementError, limits: Limits, *, stopped: bool) -> Exception:
    match error.sqlstate:
        case "57P01" if not stopped:
            return UnavailableError("the database ended the connection")
        case "57014" | "57P01" | "25P03":
            return _too_long(limits)
        case "55P03" | "53300":
            return BusyError("the tables are busy; try again")
        case "40001" | "40P01":
            return OvertakenError("the read replica had to take in changes that the query was in the way of; try again")
        case "57P02" | "57P03" | "57P05":
            return UnavailableError("the database is stopping")
        case _:
            return error
