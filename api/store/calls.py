"""Statements as values: prepared once per connection, and any number of them sent in one round trip.

A cursor of psycopg costs about 100 microseconds of CPU time per statement, most of it for adapting parameters, and its
pipeline mode no less. What runs for every batch of events goes this way instead, over the same connection, through psycopg's
own wrapper of libpq: parameters are texts already, a statement is parsed once, and only the rows are adapted.

Statements are prepared anew every few seconds. A plan made while a table was empty may go through all of it (seen: 41 ms for 200
rows instead of 6), and until statistics come nobody would tell that it has grown.
"""

from collections.abc import Callable, Sequence
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
from api.store.database import Transaction
from api.store.statements import load_numbered

Value = str | bytes | int | datetime | None
Rows = list[tuple[Any, ...]]
Result = TypeVar("Result", covariant=True)
First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")
Fourth = TypeVar("Fourth")

_SERVES_NS = 10_000_000_000
_ANSWERED = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Statement(msgspec.Struct, frozen=True):
    """A named statement with `$1` parameters, whose values are given by the names in `order`."""

    name: bytes
    text: bytes
    order: tuple[str, ...]


class Call(Generic[Result]):
    """A statement with its values, and how its rows are read."""

    __slots__ = ("formats", "read", "statement", "values")

    def __init__(self, statement: Statement, read: Callable[[Rows], Result], **values: Value) -> None:
        self.statement = statement
        self.values = [_encoded(values[name]) for name in statement.order]
        self.formats = [int(isinstance(values[name], bytes)) for name in statement.order]
        self.read = read


def nothing(rows: Rows) -> None:
    """Read nothing: for statements that only write."""


BEGIN = Statement(b"begin", b"BEGIN", ())
COMMIT = Call(Statement(b"commit", b"COMMIT", ()), nothing)
"""Ends the transaction in the same round trip as what stands before it."""

ROLLBACK = Call(Statement(b"rollback", b"ROLLBACK", ()), nothing)
"""Undoes it, in the same way."""


@cache
def statements(file: str) -> dict[str, Statement]:
    """Return the statements of `sql/queries/<file>.sql` by name."""
    return {
        name: Statement(f"{file}.{name}".encode(), text.encode(), order)
        for name, (text, order) in load_numbered(file).items()
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
    """Run calls in their order, in the open transaction or a new one; return what each read. The first error is raised."""
    if not calls:
        return ()
    async with tx.lock:
        results = await tx.wait(_exchange(tx, calls))
    return tuple(call.read(_rows(tx, result, call)) for call, result in zip(calls, results, strict=True))


def _exchange(tx: Transaction, calls: Sequence[Call[Any]]) -> PQGen[list[PGresult]]:
    """Send everything, then read everything. A connection left in the middle of that is closed: nobody could use it."""
    pgconn = tx.pgconn
    begins = pgconn.transaction_status == TransactionStatus.IDLE
    if monotonic_ns() > tx.prepared_until_ns:
        tx.prepared.clear()
        tx.prepared_until_ns = monotonic_ns() + _SERVES_NS
    fresh = {call.statement.name: call.statement for call in calls if call.statement.name not in tx.prepared}
    if begins and BEGIN.name not in tx.prepared:
        fresh[BEGIN.name] = BEGIN
    pgconn.enter_pipeline_mode()
    try:
        for statement in fresh.values():
            pgconn.send_close_prepared(statement.name)  # after a rollback it may still be there
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
    except BaseException:
        pgconn.finish()
        raise
    tx.prepared.update(name for name, result in zip(fresh, results[1::2], strict=False) if result.status in _ANSWERED)
    for result in results:
        if result.status not in _ANSWERED:
            raise errors.error_from_result(result)
    return results[2 * len(fresh) + begins * (1 + len(tx.opening)) :]


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
        case bytes():  # binary
            return value
        case str():
            return value.encode()
        case int():
            return b"%d" % value
        case datetime():
            return value.isoformat().encode()
        case None:
            return None
