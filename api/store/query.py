"""Prepared statements as values: any number of them sent in one round trip, over the same connection that psycopg uses.

A psycopg cursor costs about 100 microseconds of CPU time per statement, most of it for adapting parameters, and its
pipeline mode costs no less. Statements that run for every batch of events go through `run()` instead, on psycopg's own
wrapper of libpq: parameters are encoded already, each statement is parsed once per connection, and only rows are
adapted.

Statements are prepared again every 10 seconds. A plan made while a table was empty may scan the whole table later
(measured: 41 ms for 200 rows instead of 6 ms), and nothing replans it until the table has statistics.

The functions at the top build array parameters as one literal, which costs a tenth of adapting each element on its own.

`TenantDatabase`, at the end, is the second barrier behind the `org_id` in every statement. Row-level security applies
to the application, too (sql/wall.sql): a pool for requests shows no tenant's row until its task calls `act_for()` with
the organization of the verified key, whatever a statement or its parameters say. Work that serves all organizations
(the writer of events, the engine, upkeep, the lookup of keys) uses a `Database` that sees them all.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar, overload

import msgspec
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.generators import fetch
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import WAIT_R, WAIT_RW

from api.clock import monotonic_ns
from api.store.database import NO_ORGANIZATION, Database, Transaction, load_numbered

# --- Array parameters

_ARRAY_HEADER = struct.Struct("!iiIii")  # dimensions, whether there are nulls, element type; length, first index
_UUID_OID = 2950
_UUID_LENGTH = b"\0\0\0\x10"  # 16, before each element


def plain(values: Iterable[str | int | None]) -> str:
    """Return the literal of values that need no quoting: numbers, ids, digests. A text `null` would become NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def joined(values: Sequence[str]) -> str:
    """Return the literal of ids or digests without nulls."""
    return "{" + ",".join(values) + "}"


def uuids(values: Sequence[str]) -> bytes:
    """Return the binary form of ids or digests without nulls; Postgres reads it ten times as fast as text."""
    raw = bytes.fromhex("".join(values).replace("-", ""))
    if not raw:
        return _ARRAY_HEADER.pack(0, 0, _UUID_OID, 0, 0)[:12]  # an empty array ends after the element type
    elements = [raw[start : start + 16] for start in range(0, len(raw), 16)]
    return _ARRAY_HEADER.pack(1, 0, _UUID_OID, len(elements), 1) + _UUID_LENGTH + _UUID_LENGTH.join(elements)


def quoted(values: Sequence[str | None]) -> str:
    """Return the literal of any texts."""
    # Most texts need no escaping: joining all of them and looking once is faster than looking at each.
    try:
        text = '","'.join(values)  # type: ignore[arg-type]
    except TypeError:  # one of the values is NULL
        return _escaped(values)
    if not values or "\\" in text or text.count('"') != 2 * (len(values) - 1):
        return _escaped(values)
    return '{"' + text + '"}'


def moments(values: Iterable[datetime | None]) -> str:
    """Return the literal of timestamps."""
    return "{" + ",".join(["NULL" if value is None else f'"{value.isoformat()}"' for value in values]) + "}"


def records(texts: Iterable[str]) -> str:
    """Join JSON texts for `string_to_array(..., chr(30))`. JSON has no record separators, so this needs no quoting."""
    return "\x1e".join(texts)


def _escaped(values: Iterable[str | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else _quote(value) for value in values]) + "}"


def _quote(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    return '"' + text.replace('"', '\\"') + '"'


# --- Statements and calls

Value = str | bytes | int | datetime | None
Rows = list[tuple[Any, ...]]
Result = TypeVar("Result", covariant=True)
First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")
Fourth = TypeVar("Fourth")

_PREPARED_FOR_NS = 10_000_000_000
_SUCCEEDED = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Statement(msgspec.Struct, frozen=True):
    """A named statement with `$1` parameters; `order` has the parameters' names."""

    name: bytes
    text: bytes
    order: tuple[str, ...]


class Call(Generic[Result]):
    """A statement with its values, and the function that reads its rows. `bytes` are sent in binary format."""

    __slots__ = ("formats", "read", "statement", "values")

    def __init__(self, statement: Statement, read: Callable[[Rows], Result], **values: Value) -> None:
        self.statement = statement
        self.values = [_encoded(values[name]) for name in statement.order]
        self.formats = [int(isinstance(values[name], bytes)) for name in statement.order]
        self.read = read


def nothing(rows: Rows) -> None:
    """Read nothing: for statements that only write. `run` then does not load their rows."""


BEGIN = Statement(b"begin", b"BEGIN", ())
# Calls, so that a transaction ends in the same round trip as the calls before them.
COMMIT = Call(Statement(b"commit", b"COMMIT", ()), nothing)
ROLLBACK = Call(Statement(b"rollback", b"ROLLBACK", ()), nothing)


@cache
def statements(subject: str) -> dict[str, Statement]:
    """Return the statements of `sql/queries/<subject>.sql` by name."""
    return {
        name: Statement(f"{subject}.{name}".encode(), text.encode(), order)
        for name, (text, order) in load_numbered(subject).items()
    }


@overload
async def run(tx: Transaction, first: Call[First], /) -> tuple[First]: ...
@overload
async def run(tx: Transaction, first: Call[First], second: Call[Second], /) -> tuple[First, Second]: ...
@overload
async def run(
    tx: Transaction, first: Call[First], second: Call[Second], third: Call[Third], /
) -> tuple[First, Second, Third]: ...
@overload
async def run(
    tx: Transaction, first: Call[First], second: Call[Second], third: Call[Third], fourth: Call[Fourth], /
) -> tuple[First, Second, Third, Fourth]: ...
@overload
async def run(tx: Transaction, /, *calls: Call[First]) -> tuple[First, ...]: ...
async def run(tx: Transaction, /, *calls: Call[Any]) -> tuple[Any, ...]:
    """Run calls in order, in the open transaction or a new one, and return their results. Raises the first error."""
    if not calls:
        return ()
    async with tx.lock:
        results = await tx.wait(_exchange(tx, calls))
    return tuple(call.read(_rows(tx, result, call)) for call, result in zip(calls, results, strict=True))


def _exchange(tx: Transaction, calls: Sequence[Call[Any]]) -> PQGen[list[PGresult]]:
    """Send everything, then read everything."""
    pgconn = tx.pgconn
    begins = pgconn.transaction_status == TransactionStatus.IDLE
    if monotonic_ns() > tx.prepared_until_ns:
        tx.prepared.clear()
        tx.prepared_until_ns = monotonic_ns() + _PREPARED_FOR_NS
    unprepared = {call.statement.name: call.statement for call in calls if call.statement.name not in tx.prepared}
    if begins and BEGIN.name not in tx.prepared:
        unprepared[BEGIN.name] = BEGIN
    pgconn.enter_pipeline_mode()
    try:
        for statement in unprepared.values():
            pgconn.send_close_prepared(statement.name)  # after a rollback it may still exist
            pgconn.send_prepare(statement.name, statement.text)
        if begins:
            pgconn.send_query_prepared(BEGIN.name, None)
            for text in tx.opening:
                pgconn.send_query_params(text, None)
        for call in calls:
            pgconn.send_query_prepared(call.statement.name, call.values, call.formats)
        pgconn.pipeline_sync()
        results = yield from _results(pgconn)
        pgconn.exit_pipeline_mode()
    except BaseException:  # interrupted in between, also by a cancellation: the state of the protocol is unknown
        pgconn.finish()
        raise
    # Two results per statement to prepare: of its close, then of its preparation.
    prepared = zip(unprepared, results[1::2], strict=False)
    tx.prepared.update(name for name, result in prepared if result.status in _SUCCEEDED)
    for result in results:
        if result.status not in _SUCCEEDED:
            raise errors.error_from_result(result)
    return results[2 * len(unprepared) + begins * (1 + len(tx.opening)) :]


def _results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    while pgconn.flush():
        if (yield WAIT_RW) & WAIT_R:
            pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        result = yield from fetch(pgconn)
        if result is None:
            continue  # the end of one statement's results
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


def _rows(tx: Transaction, result: PGresult, call: Call[Any]) -> Rows:
    if not result.ntuples or call.read is nothing:
        return []
    tx.reader.set_pgresult(result)
    return tx.reader.load_rows(0, result.ntuples, tuple)


def _encoded(value: Value) -> bytes | None:
    match value:
        case bytes():  # binary format
            return value
        case str():
            return value.encode()
        case int():
            return b"%d" % value
        case datetime():
            return value.isoformat().encode()
        case None:
            return None


# --- Tenants

_ACT_FOR = statements("query")["act_for"]
_acting_org: ContextVar[str] = ContextVar("acting_org", default=NO_ORGANIZATION)


def act_for(org_id: int) -> None:
    """Let transactions on a `TenantDatabase` that this task and its children begin see an organization's rows."""
    _acting_org.set(str(org_id))


def act_for_none() -> None:
    """Let them see no tenant's rows, until a key is verified."""
    _acting_org.set(NO_ORGANIZATION)


class TenantDatabase(Database):
    """A pool with transactions that see only the rows of the organization set by `act_for`, and none without it."""

    def __init__(self, dsn: str, size: int = 8, statement_ms: int = 10_000) -> None:
        super().__init__(dsn, size, statement_ms, org=NO_ORGANIZATION)

    def _visible_org(self) -> str:
        return _acting_org.get()

    async def _begin(self, tx: Transaction) -> None:
        await super()._begin(tx)
        if not tx.distributed:  # the same round trip as BEGIN; on Citus the opening statements set it
            await run(tx, Call(_ACT_FOR, nothing, org=self._visible_org()))
