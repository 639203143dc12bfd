"""What a query returned: a polars frame that knows which question it answers, and as of when.

Importing this module loads polars, which takes 0.3 s: it is done where a frame is made.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Self

import msgspec
import polars as pl

from api.language.codec import MalformedJsonError
from workbench.errors import DraftError, spoken
from workbench.structs import structs


class Origin(msgspec.Struct, frozen=True):
    """The question that rows answer, and what they were taken from; nothing of it is known of a frame that was made from others."""

    statement: str | None = None
    params: Mapping[str, Any] | None = None
    query_hash: str | None = None
    watermark: str | None = None


class Result(pl.DataFrame):
    """The rows of an answer. A frame that is made from it, or that is changed in place, answers another question: it knows none."""

    origin = Origin()

    @property
    def statement(self) -> str | None:
        """The query."""
        return self.origin.statement

    @property
    def params(self) -> Mapping[str, Any] | None:
        """The values of its `:name`s."""
        return self.origin.params

    @property
    def query_hash(self) -> str | None:
        """The same for the same statement with the same values."""
        return self.origin.query_hash

    @property
    def watermark(self) -> str | None:
        """What the rows were taken from: `wb.sql(…, as_of=frame)` asks for the same events once more."""
        return self.origin.watermark

    @spoken('frame.structs("payload")')
    def structs(self, *columns: str) -> Self:
        """Return the frame with columns of JSON as structs, numbers exact: `frame.structs("payload").unnest("payload")`.

        Polars returns frames of its own from its verbs; for those there is `wb.structs(frame, "payload")`.
        """
        return type(self)(with_structs(self, columns))

    def _changed(self) -> None:
        """Forget the question, of which these are the rows no more."""
        self.origin = Origin()


def _forgetting(verb: Callable[..., Any], *, always: bool) -> Any:
    """Return a verb of polars after which the frame that it changes has forgotten its question."""

    @wraps(verb)
    def forgetting(self: Result, *args: Any, **kwargs: Any) -> Any:
        done = verb(self, *args, **kwargs)
        if always or done is self:
            self._changed()
        return done

    return forgetting


for _name in (
    "extend",
    "hstack",
    "insert_column",
    "replace_column",
    "vstack",
):  # these return the frame that they change
    setattr(Result, _name, _forgetting(getattr(pl.DataFrame, _name), always=False))
for _name in ("__setitem__", "drop_in_place"):
    setattr(Result, _name, _forgetting(getattr(pl.DataFrame, _name), always=True))
Result.columns = pl.DataFrame.columns.setter(  # type: ignore[method-assign, attr-defined]
    _forgetting(pl.DataFrame.columns.fset, always=True)  # type: ignore[attr-defined]
)


def result(streams: Iterable[bytes], headers: Mapping[str, str], question: Origin = Result.origin) -> Result:
    """Return the rows of Arrow IPC streams of one schema, each read as it comes, with what the answer's headers say about them."""
    rows = Result(pl.concat([pl.read_ipc_stream(stream) for stream in streams], rechunk=False))
    rows.origin = msgspec.structs.replace(
        question, query_hash=headers.get("Query-Hash"), watermark=headers.get("Watermark")
    )
    return rows


def with_structs(frame: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """Return a frame with columns of JSON as structs; raise DraftError for a column that is not there, no text, or no JSON."""
    return frame.with_columns(_structs(frame, column) for column in columns)


def _structs(frame: pl.DataFrame, column: str) -> pl.Series:
    if frame.schema.get(column) != pl.String:
        raise DraftError(f"there is no column {column!r} of text here")
    try:
        return structs(frame[column])
    except MalformedJsonError:
        raise DraftError(f"column {column!r} holds what is no JSON") from None
