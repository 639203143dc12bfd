"""Statements as typed functions, sent in one round trip, over the same connection that psycopg uses.

A function of `api/store/<subject>.py` that is decorated with `@query` or `@call` runs the statement of its name in
`sql/queries/<subject>.sql`. Its signature is the whole declaration: parameters are encoded by their annotations, and
the rows are read as its return type.

    @query
    async def find_version(tx: Transaction, org_id: int, automation_id: Uuid, version: int) -> VersionRow | None:
        "Return a published version."

- A parameter that is a struct gives its fields to the statement's parameters of the same names. A list of structs gives
  an array per field. A field that is itself a struct, a dict or a list of tuples is sent and read as JSON.
- A struct is read from the columns with the names of its fields (those with defaults may be absent), a scalar from the
  first column. `X | None` is the first row if there is one, a list or set all rows, a dict all rows by their first
  column (grouped, for a dict of lists); `bool` is false without rows, `RowCount` the number of rows written, and None
  reads nothing.

`@query` runs the statement at once. `@call` returns a `Call`; `run()` sends any number of them together. What does not
fit together (a parameter without an argument, an argument without a parameter, a type without an encoding) fails when
the module is imported. `tests/store/test_query.py` compares every result with the columns that Postgres describes.

A psycopg cursor costs about 100 microseconds of CPU time per statement, most of it for adapting parameters, and its
pipeline mode costs no less. `run()` uses psycopg's own wrapper of libpq: each statement is compiled once and parsed
once per connection, and only rows are adapted. An array is one literal, which costs a tenth of adapting each element.

Statements are prepared again every 10 seconds. A plan made while a table was empty may scan the whole table later
(measured: 41 ms for 200 rows instead of 6 ms), and nothing replans it until the table has statistics.

`TenantDatabase`, at the end, is the second barrier behind the `org_id` in every statement. Row-level security applies
to the application, too (sql/row_security.sql): a pool for requests shows no tenant's row until its task calls
`act_for()` with the organization of the verified key, whatever a statement or its parameters say. Work that serves all
organizations (the writer of events, the engine, upkeep, the lookup of keys) uses a `Database` that sees them all.
"""

import inspect
import struct
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

import msgspec
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.generators import fetch
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import WAIT_R, WAIT_RW

from api.clock import monotonic_ns
from api.crypto import INDEX
from api.store.database import NO_ORGANIZATION, Database, RefusedDataError, Transaction, load_numbered
from workbench.language.codec import decode, encode

# --- Annotations: the Postgres type of a parameter or result where its Python type leaves a choice

Uuid: TypeAlias = Annotated[str, "uuid"]
"""An id or digest: 32 hexadecimal digits, with or without hyphens. Arrays of it are sent in binary format."""
Json: TypeAlias = Annotated[bytes, "json"]
"""The text of a JSON value. Other `bytes` are bytea."""
Digests: TypeAlias = Annotated[str, "digests"]
"""One or several blind indexes in one text (`OrgKeys.digests`), sent as an array of UUIDs."""
JsonTexts: TypeAlias = Annotated[Collection[str], "records"]
"""Texts for `string_to_array(..., chr(30))`: JSON contains no record separators, so nothing has to be quoted."""
RowCount: TypeAlias = Annotated[int, "rows"]
"""As a result: the number of rows written."""

# --- Encoding

Encode: TypeAlias = Callable[[Any], bytes]

_ARRAY_HEADER = struct.Struct("!iiIii")  # dimensions, whether there are nulls, element type; length, first index
_UUID_OID = 2950
_UUID_LENGTH = "00000010"  # 16, before each element


def _text(value: str) -> bytes:
    raw = value.encode()
    if b"\0" in raw:  # libpq would send only what precedes it
        raise RefusedDataError("a text contains the character NUL")
    return raw


def _unchanged(value: bytes) -> bytes:
    return value


def _array(values: Collection[object]) -> bytes:
    # Postgres writes arrays as JSON does, except for the brackets and the escapes in texts.
    return b"{" + encode(list(values))[1:-1] + b"}"


def _texts(values: Collection[str | None]) -> bytes:
    literal = _array(values)
    if b"\\" not in literal:
        return literal
    quoted = [
        "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values
    ]
    return _text("{" + ",".join(quoted) + "}")


def _json_texts(values: Collection[str]) -> bytes:
    text = "\x1e".join(values)
    if text.count("\x1e") != max(len(values) - 1, 0):
        raise RefusedDataError("a JSON text contains a record separator")
    return _text(text)


def _uuids(values: Collection[str]) -> bytes:
    """Return the binary form, which Postgres reads ten times as fast as text."""
    if not values:
        return _ARRAY_HEADER.pack(0, 0, _UUID_OID, 0, 0)[:12]  # an empty array ends after the element type
    count = len(values)
    try:
        digits = f" {_UUID_LENGTH}".join(values).encode().translate(None, b"-").decode()
        raw = bytes.fromhex(_UUID_LENGTH + digits)  # skips the spaces
    except ValueError:
        raise RefusedDataError("an id is not a UUID") from None
    if len(raw) != 20 * count or len(digits) != 41 * count - 9 or digits[32::41] != " " * (count - 1):
        raise RefusedDataError("an id is not a UUID")
    return _ARRAY_HEADER.pack(1, 0, _UUID_OID, count, 1) + raw


def _digests(text: str) -> bytes:
    return _uuids([text[start : start + INDEX] for start in range(0, len(text), INDEX)])


_SCALARS: dict[Any, Encode] = {
    bool: lambda value: b"t" if value else b"f",
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
    str: _text,
    datetime: lambda value: value.isoformat().encode(),
    timedelta: lambda value: b"%d microseconds" % (value // timedelta(microseconds=1)),
    bytes: _unchanged,
}
_ARRAYS: dict[Any, Encode] = {
    bool: _array,
    int: _array,
    str: _texts,
    datetime: _array,
    bytes: lambda values: _array([rf"\x{value.hex()}" for value in values]),
}
BINARY = (_unchanged, _uuids, _digests)  # the encoders of values in binary format


def encoder(hint: Any) -> Encode:
    """Return the encoder for an annotation. Raises TypeError if there is none."""
    hint, _ = without_none(hint)
    if hint == JsonTexts:
        return _json_texts
    if hint == Digests:
        return _digests
    if is_json(hint):
        return encode
    element = element_type(hint)
    if element is not None:
        return _array_encoder(element)
    return bytes if hint in (Json, msgspec.Raw) else _SCALARS[_builtin(hint)]


def is_json(hint: Any) -> bool:
    """Return whether values of this type are a JSON column: structs, dicts and collections of tuples."""
    target = get_origin(hint) or hint
    if get_origin(element_type(hint)) is tuple:
        return True
    return isinstance(target, type) and issubclass(target, (msgspec.Struct, dict))


def _array_encoder(element: Any) -> Encode:
    if element == Json:
        raise TypeError("an array of JSON values is declared as JsonTexts")
    element, nullable = without_none(element)
    return _uuids if element == Uuid and not nullable else _ARRAYS[_builtin(element)]


def element_type(hint: Any) -> Any:
    """Return the type of the elements of a collection, None for other types."""
    origin = get_origin(hint)
    return get_args(hint)[0] if isinstance(origin, type) and issubclass(origin, Collection) else None


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return `X` and True for `X | None`, otherwise the type and False."""
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        return Union[*(arg for arg in get_args(hint) if arg is not NoneType)], True
    return hint, False


def _builtin(hint: Any) -> Any:
    """Return the key in `_SCALARS` for a scalar type: `str` for an enum of texts, `int` for a literal number."""
    if get_origin(hint) is Annotated:
        return _builtin(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0])
    for builtin in _SCALARS:
        if isinstance(hint, type) and issubclass(hint, builtin):
            return builtin
    raise TypeError(f"no encoding for {hint}")


# --- Statements and calls

Rows = list[tuple[Any, ...]]
P = ParamSpec("P")
Result = TypeVar("Result")
CallResult = TypeVar("CallResult", covariant=True)
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


class Call(Generic[CallResult]):
    """A statement with its encoded values, their formats (1: binary), and the function that reads its rows."""

    __slots__ = ("_encoders", "formats", "read", "statement", "values")

    def __init__(
        self,
        statement: Statement,
        read: Callable[[Rows, PGresult], CallResult],
        values: Sequence[bytes | None] = (),
        formats: Sequence[int] = (),
        encoders: Sequence[Callable[[Any], bytes | None]] = (),
    ) -> None:
        self.statement, self.read, self.values, self.formats, self._encoders = (
            statement,
            read,
            values,
            formats,
            encoders,
        )

    def replace(self, **values: Any) -> Self:
        """Return the call with other values for some of the statement's parameters."""
        encoded = [*self.values]
        for name, value in values.items():
            position = self.statement.order.index(name)
            encoded[position] = self._encoders[position](value)
        return type(self)(self.statement, self.read, encoded, self.formats, self._encoders)

    def with_values_of(self, other: "Call[Any]") -> Self:
        """Return the call with the values of another call, encoded already, for its parameters of the same names."""
        values = dict(zip(other.statement.order, other.values, strict=True))
        encoded = [values.get(name, own) for name, own in zip(self.statement.order, self.values, strict=True)]
        return type(self)(self.statement, self.read, encoded, self.formats, self._encoders)


class Declaration(msgspec.Struct, frozen=True):
    """A statement and the type that its rows are read as."""

    statement: Statement
    returns: Any


DECLARATIONS: list[Declaration] = []
"""All declared statements of the imported modules."""


def call(declared: Callable[P, Result], name: str = "") -> Callable[P, Call[Result]]:
    """Turn a declaration into a function that returns a call for `run`. `name`: the statement's, if it differs."""
    return _compiled(declared, name, list(inspect.signature(declared).parameters.values()))


def query(
    declared: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, Result]], name: str = ""
) -> Callable[Concatenate[Transaction, P], Coroutine[Any, Any, Result]]:
    """Turn a declaration into a function that runs the statement in a transaction."""
    build = _compiled(declared, name, list(inspect.signature(declared).parameters.values())[1:])

    async def execute(tx: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        (result,) = await run(tx, build(*args, **kwargs))
        return result  # type: ignore[no-any-return]

    return execute


def _compiled(declared: Callable[..., Any], name: str, parameters: list[inspect.Parameter]) -> Callable[..., Call[Any]]:
    hints = declared.__annotations__
    subject = declared.__module__.rpartition(".")[2]
    statement = _statements(subject)[name or declared.__name__.removeprefix("_")]
    DECLARATIONS.append(Declaration(statement, hints["return"]))
    read = _reader(hints["return"])
    # Building a struct binds arguments to their parameters in a tenth of the time of `inspect.Signature.bind`.
    fields = [
        (parameter.name, Any) if parameter.default is parameter.empty else (parameter.name, Any, parameter.default)
        for parameter in parameters
    ]
    arguments = msgspec.defstruct(declared.__name__, fields, gc=False)
    sources = _sources([(parameter.name, hints[parameter.name]) for parameter in parameters], statement)
    plan = [sources[name] for name in statement.order]
    encoders, formats = [encode for _, encode, _ in plan], [is_binary for _, _, is_binary in plan]
    as_tuple = msgspec.structs.astuple

    def build(*args: Any, **kwargs: Any) -> Call[Any]:
        bound = as_tuple(arguments(*args, **kwargs))
        return Call(statement, read, [encode(bound[position]) for position, encode, _ in plan], formats, encoders)

    return build


_Source: TypeAlias = tuple[int, Callable[[Any], bytes | None], bool]
"""Where a statement's parameter comes from: the position of the argument, its encoder, whether that is binary."""


def _sources(parameters: list[tuple[str, Any]], statement: Statement) -> dict[str, _Source]:
    """Return the source of each of a statement's parameters. Raises TypeError if they do not fit together."""
    sources: dict[str, _Source] = {}
    for position, (name, hint) in enumerate(parameters):
        row = element_type(hint) or hint
        is_row = isinstance(row, type) and issubclass(row, msgspec.Struct)
        types = _fields(row) if is_row else {name: hint}
        used = types.keys() & set(statement.order) - ({other for other, _ in parameters} - {name})
        if not used or used & sources.keys():
            raise TypeError(f"{statement.name.decode()}: {name} is not used, or its parameters are given twice")
        for part in used:
            encode = _array_encoder(types[part]) if is_row and row is not hint else encoder(types[part])
            get = None if not is_row else attrgetter(part) if row is hint else _column(part)
            sources[part] = (position, _source(encode, get), encode in BINARY)
    if missing := set(statement.order) - sources.keys():
        raise TypeError(f"{statement.name.decode()}: no argument for {', '.join(sorted(missing))}")
    return sources


def _fields(row: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(row)}


def _column(field: str) -> Callable[[Any], list[Any]]:
    get = attrgetter(field)
    return lambda rows: list(map(get, rows))


def _source(encode: Encode, get: Callable[[Any], Any] | None) -> Callable[[Any], bytes | None]:
    if get is None:
        return lambda value: None if value is None else encode(value)
    return lambda row: None if (value := get(row)) is None else encode(value)


@cache
def _statements(subject: str) -> dict[str, Statement]:
    return {
        name: Statement(f"{subject}.{name}".encode(), text.encode(), order)
        for name, (text, order) in load_numbered(subject).items()
    }


# --- Reading

Read: TypeAlias = Callable[[Rows, PGresult], Any]


def nothing(rows: Rows, result: PGresult) -> None:
    """Read nothing: for statements that only write. `run` then does not load their rows."""


def _reader(hint: Any) -> Read:
    """Return the function that reads rows as this type."""
    if hint is None:
        return nothing
    hint, nullable = without_none(hint)
    origin, args = get_origin(hint), get_args(hint)
    if hint == RowCount:
        return lambda rows, result: result.command_tuples or 0
    if hint is bool and not nullable:
        return lambda rows, result: bool(rows) and rows[0][0] is True
    if origin is dict and get_origin(args[1]) is list:
        grouped = _rows_reader(get_args(args[1])[0], 1)
        return lambda rows, result: _groups(rows, grouped(rows, result))
    if origin is dict:
        values = _rows_reader(args[1], 1)
        return lambda rows, result: {row[0]: value for row, value in zip(rows, values(rows, result), strict=True)}
    if origin in (set, frozenset):
        elements = _rows_reader(args[0])
        return lambda rows, result: origin(elements(rows, result))
    if origin is list:
        return _rows_reader(args[0])
    one = _rows_reader(hint)
    return lambda rows, result: one(rows[:1], result)[0] if rows or not nullable else None


def _groups(rows: Rows, values: list[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row, value in zip(rows, values, strict=True):
        groups.setdefault(row[0], []).append(value)
    return groups


def _rows_reader(hint: Any, first: int = 0) -> Read:
    """Return the function that reads each row as a struct, a tuple or a scalar, from its column `first` on."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _structs_reader(hint, first)
    if get_origin(hint) is tuple and get_args(hint)[-1] is not Ellipsis:
        used = [
            (at, convert) for at, column in enumerate(get_args(hint)) if (convert := _converter(column)) is not None
        ]
        return lambda rows, result: [_converted(row[first:], used) for row in rows]
    convert = _converter(hint)
    if convert is None:
        return lambda rows, result: [row[first] for row in rows]
    return lambda rows, result: [convert(row[first]) for row in rows]


def _structs_reader(row_type: type[msgspec.Struct], first: int) -> Read:
    fields = _fields(row_type)
    converters = {name: convert for name, hint in fields.items() if (convert := _converter(hint)) is not None}
    order = [*fields]

    def read(rows: Rows, result: PGresult) -> list[Any]:
        names = [(result.fname(column) or b"").decode() for column in range(first, result.nfields)]
        values = [row[first:] for row in rows] if first else rows
        if used := [(position, converters[name]) for position, name in enumerate(names) if name in converters]:
            values = [_converted(row, used) for row in values]
        if names == order[: len(names)]:
            return [row_type(*row) for row in values]  # twice as fast
        return [row_type(**dict(zip(names, row, strict=True))) for row in values]

    return read


def _converted(row: tuple[Any, ...], converters: list[tuple[int, Callable[[Any], Any]]]) -> tuple[Any, ...]:
    columns = list(row)
    for position, convert in converters:
        columns[position] = convert(columns[position])
    return tuple(columns)


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return the function from a value that psycopg loads to one of this type; None if they are the same."""
    hint, _ = without_none(hint)
    target = get_origin(hint) or hint
    if target is dict:
        return decode
    if is_json(hint):
        return lambda value: None if value is None else msgspec.convert(decode(value), hint)
    if target in (tuple, msgspec.Raw) or (isinstance(target, type) and issubclass(target, Enum)):
        return lambda value: None if value is None else target(value)
    return None


# --- Running

BEGIN = Statement(b"begin", b"BEGIN", ())
# Calls, so that a transaction ends in the same round trip as the calls before them.
COMMIT = Call(Statement(b"commit", b"COMMIT", ()), nothing)
ROLLBACK = Call(Statement(b"rollback", b"ROLLBACK", ()), nothing)


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
    return tuple(call.read(_rows(tx, result, call), result) for call, result in zip(calls, results, strict=True))


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


# --- Tenants

_acting_org: ContextVar[str] = ContextVar("acting_org", default=NO_ORGANIZATION)


@query
async def _act_for(tx: Transaction, org: str) -> None:
    """Set the organization for row-level security in this transaction."""


def act_for(org_id: int) -> None:
    """Let transactions on a `TenantDatabase` that this task and its children begin see an organization's rows."""
    _acting_org.set(str(org_id))


def act_for_none() -> None:
    """Let the statements of this task see no tenant's rows, until a key is verified."""
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
            await _act_for(tx, self._visible_org())
