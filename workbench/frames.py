"""The result of a query as a polars frame, and JSON columns as polars types.

Polars decodes JSON numbers as doubles, so this module converts columns of JSON itself, without losing digits:

    true, false        Boolean         objects     Struct, with a field for every key in any of them
    whole numbers      Int64           lists       List
    other numbers      Decimal         only null   Null
    text, and values of several types  String: text as it is, other values as JSON

Numbers that fit neither Int64 nor 38 digits become String as well.

Importing this module loads polars, which takes 0.3 s, so callers import it inside the functions that make frames.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import wraps
from html import escape
from typing import Any, Self

import polars as pl
from polars.datatypes import DataTypeClass

from workbench.errors import InvalidArgumentError, usage_example
from workbench.language.codec import MalformedJsonError, decode, encode, printable
from workbench.language.event import MASK

MASKED_NOTE = "Email addresses are masked, because this key lacks the scope pii:read."
_MASKED_ADDRESS = f"{MASK}@"
_SHOWN_ROWS = 5  # polars displays so many from each end


class PrintableFrame(pl.DataFrame):
    """A polars frame that is displayed without control characters. Frames derived from it are displayed by polars."""

    def __str__(self) -> str:
        return printable(super().__str__())

    __repr__ = __str__


class Result(PrintableFrame):
    """The rows of a query. A derived frame, or a result that was changed in place, no longer has a query.

    `statement`, `params`: the SQL of the query and the values of its `:name` parameters. `query_hash`: a hash of both.
    `watermark`: the snapshot that the rows were read at; `wb.sql(…, as_of=frame)` reads the same events again.
    `answered_from`: of a report, whether it was counted over `parts` of events or by `sql`.
    """

    statement: str | None = None
    params: Mapping[str, Any] | None = None
    query_hash: str | None = None
    watermark: str | None = None
    answered_from: str | None = None

    @usage_example('frame.structs("payload")')
    def structs(self, *columns: str) -> Self:
        """Return the frame with columns of JSON as structs: `frame.structs("payload").unnest("payload")`.

        Numbers are exact. For a plain polars frame, which every polars method returns, use `wb.structs(frame,
        "payload")`. Raises InvalidArgumentError for a column that is missing or does not contain JSON.
        """
        return type(self)(with_structs(self, columns))

    def __str__(self) -> str:
        return printable("\n".join([super().__str__(), *([MASKED_NOTE] if self._shows_masks() else [])]))

    __repr__ = __str__

    def _repr_html_(self, **polars: Any) -> str:
        note = f"<p>{MASKED_NOTE}</p>" if self._shows_masks() else ""
        return super()._repr_html_(**polars) + note

    def _shows_masks(self) -> bool:
        """Return whether a masked email address is among the first or last rows, which are displayed."""
        shown = pl.concat([self.head(_SHOWN_ROWS), self.tail(_SHOWN_ROWS)]).select(pl.col(pl.String))
        return any(column.str.contains(_MASKED_ADDRESS, literal=True).any() for column in shown)

    def _forget_query(self) -> None:
        self.statement = self.params = self.query_hash = self.watermark = self.answered_from = None


def _forgetting(method: Callable[..., Any], *, always: bool) -> Any:
    """Return a polars method that forgets the query of a frame that it changes in place; `always`: of every frame."""

    @wraps(method)
    def wrapper(self: Result, *args: Any, **kwargs: Any) -> Any:
        returned = method(self, *args, **kwargs)
        if always or returned is self:
            self._forget_query()
        return returned

    return wrapper


# A changed frame is not the result of its query: `as_of=frame` and an audience's provenance would be wrong.
# These methods return the same frame if they change it in place, and a new frame otherwise.
for _name in ("extend", "hstack", "insert_column", "replace_column", "vstack"):
    setattr(Result, _name, _forgetting(getattr(pl.DataFrame, _name), always=False))
for _name in ("__setitem__", "drop_in_place"):
    setattr(Result, _name, _forgetting(getattr(pl.DataFrame, _name), always=True))
Result.columns = pl.DataFrame.columns.setter(  # type: ignore[method-assign, attr-defined]
    _forgetting(pl.DataFrame.columns.fset, always=True)  # type: ignore[attr-defined]
)


class EventFrame(Result):
    """The events of one name with the fields of their payloads as columns. `notes`: columns that stay text, and why."""

    notes: Sequence[str] = ()

    def __str__(self) -> str:
        return printable("\n".join([super().__str__(), *self.notes]))

    __repr__ = __str__

    def _repr_html_(self, **polars: Any) -> str:
        return super()._repr_html_(**polars) + "".join(f"<p>{escape(note)}</p>" for note in self.notes)


def event_frame(rows: Result, samples: Mapping[str, Sequence[Any]]) -> EventFrame:
    """Return events with a column for each field of their `payload`, a text of JSON, and for each name in `samples`.

    `samples`: values of fields, which help to decide on the type: a field without values, or with whole numbers only,
    gets the type that it has in other periods.
    """
    payloads = [decode(text.encode()) if text is not None else {} for text in rows["payload"]]
    events = rows.drop("payload")
    columns, notes = [], []
    for field in dict.fromkeys([*samples, *(key for payload in payloads for key in payload)]):
        values = [payload.get(field) for payload in payloads]
        name = f"payload.{field}" if field in events.columns else field
        dtype = _dtype_of([*values, *samples.get(field, ())])
        if mixed := _mixed_kinds(values):
            notes.append(f"{name} is text, because its values have several types: {mixed}.")
        columns.append(pl.Series(name, [_fitted(value, dtype) for value in values], dtype=dtype))
    frame = EventFrame(events.hstack(columns))
    frame.notes = notes
    frame.statement, frame.params = rows.statement, rows.params
    frame.query_hash, frame.watermark = rows.query_hash, rows.watermark
    return frame


def _mixed_kinds(values: Iterable[Any]) -> str:
    """Return the kinds of values with their numbers, `98 number, 2 text`; empty if all are of one kind."""
    kinds = Counter(_KINDS.get(type(value), "number") for value in values if value is not None)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) if len(kinds) > 1 else ""


_KINDS = {str: "text", bool: "yes/no", dict: "object", list: "list"}


def read_result(streams: Iterable[bytes], headers: Mapping[str, str]) -> Result:
    """Return the rows of Arrow IPC streams of one schema, with the query hash and the watermark in the headers."""
    # Without rechunk the frame keeps one chunk per batch, and the rows are not copied.
    rows = Result(pl.concat([pl.read_ipc_stream(stream) for stream in streams], rechunk=False))
    rows.query_hash, rows.watermark = headers.get("Query-Hash"), headers.get("Watermark")
    rows.answered_from = headers.get("Answered-From")
    return rows


def structs(texts: pl.Series) -> pl.Series:
    """Return a column of JSON texts as the narrowest polars type that represents all values exactly."""
    # polars' json_decode is not used: it reads 12345678901234567890.10 as the double 12345678901234567000.
    values = [None if text is None else decode(text.encode()) for text in texts]
    dtype = _dtype_of(values)
    return pl.Series(texts.name, [_fitted(value, dtype) for value in values], dtype=dtype)


def frame_of(rows: Iterable[Any], **columns: type) -> PrintableFrame:
    """Return a frame of structs, or of tuples with one value per column.

    `columns` are names with a type: str, int, bool, datetime (in UTC; also from ISO 8601 texts), list (of texts), or
    dict for values that become JSON.
    """
    records = [row if isinstance(row, tuple) else [getattr(row, name) for name in columns] for row in rows]
    data = {
        name: [None if record[index] is None else _CELLS[kind](record[index]) for record in records]
        for index, (name, kind) in enumerate(columns.items())
    }
    # Explicit types: polars would infer Null for a column without values.
    return PrintableFrame(data, schema={name: _COLUMNS[kind] for name, kind in columns.items()})


_COLUMNS: Mapping[type, pl.DataType] = {
    str: pl.String(),
    int: pl.Int64(),
    bool: pl.Boolean(),
    datetime: pl.Datetime("us", "UTC"),
    list: pl.List(pl.String()),
    dict: pl.String(),
}
_CELLS: Mapping[type, Callable[[Any], Any]] = {
    str: str,
    int: int,
    bool: bool,
    datetime: lambda at: datetime.fromisoformat(at) if isinstance(at, str) else at,
    list: list,
    dict: lambda value: encode(value).decode(),
}


def with_structs(frame: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """Return the frame with columns of JSON as structs.

    Raises InvalidArgumentError for a column that is missing, not text, or not valid JSON.
    """
    converted = []
    for column in columns:
        if frame.schema.get(column) != pl.String:
            texts = ", ".join(name for name, dtype in frame.schema.items() if dtype == pl.String) or "none"
            raise InvalidArgumentError(f"{column!r} is not a text column of the frame; its text columns: {texts}")
        try:
            converted.append(structs(frame[column]))
        except MalformedJsonError:
            raise InvalidArgumentError(f"Column {column!r} contains values that are not valid JSON") from None
    return frame.with_columns(converted)


_MAX_DIGITS = 38  # of a polars Decimal


def _dtype_of(values: Sequence[Any]) -> pl.DataType:
    """Return the narrowest type that represents all of these values without loss."""
    present = [value for value in values if value is not None]
    types = {type(value) for value in present}
    if not types:
        return pl.Null()
    if types == {bool}:
        return pl.Boolean()
    if types == {dict}:
        keys = dict.fromkeys(key for value in present for key in value)
        return pl.Struct({key: _dtype_of([value.get(key) for value in present]) for key in keys})
    if types == {list}:
        return pl.List(_dtype_of([item for value in present for item in value]))
    if types == {int} and all(-(2**63) <= value < 2**63 for value in present):
        return pl.Int64()
    if types <= {int, Decimal}:
        before = after = 0
        for number in map(Decimal, present):
            exponent = number.as_tuple().exponent
            assert isinstance(exponent, int)  # JSON has no NaN
            before, after = max(before, number.adjusted() + 1), max(after, -exponent)
        return pl.Decimal(_MAX_DIGITS, after) if before + after <= _MAX_DIGITS else pl.String()
    return pl.String()


def _fitted(value: Any, dtype: pl.DataType | DataTypeClass) -> Any:
    """Return a value in the form that a column of this type accepts."""
    match dtype:
        case _ if value is None:
            return None
        case pl.Struct():
            return {field.name: _fitted(value.get(field.name), field.dtype) for field in dtype.fields}
        case pl.List():
            return [_fitted(item, dtype.inner) for item in value]
        case pl.Decimal():
            return Decimal(value)
        case pl.String():
            return value if isinstance(value, str) else encode(value).decode()
        case _:
            return value
