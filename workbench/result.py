"""What a query returned: a polars frame that knows which question it answers, and as of when.

Importing this module loads polars, which takes 0.3 s: it is done where a frame is made.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import polars as pl

from api.language.codec import MalformedJsonError
from workbench.errors import DraftError, spoken
from workbench.structs import structs


class Result(pl.DataFrame):
    """The rows of an answer. Frames that are made from it answer another question: theirs are None.

    `query_hash` is the same for the same `statement` with the same values. `watermark` names what the rows were taken from:
    `wb.sql(…, as_of=frame)` asks for the same events once more.
    """

    statement: str | None = None
    params: Mapping[str, Any] | None = None
    query_hash: str | None = None
    watermark: str | None = None

    @spoken('frame.structs("payload")')
    def structs(self, *columns: str) -> Self:
        """Return the frame with columns of JSON as structs, numbers exact: `frame.structs("payload").unnest("payload")`."""
        return type(self)(self.with_columns(_structs(self, column) for column in columns))


def result(streams: Iterable[bytes], headers: Mapping[str, str]) -> Result:
    """Return the rows of Arrow IPC streams of one schema, each read as it comes, with what the answer's headers say about them."""
    rows = Result(pl.concat([pl.read_ipc_stream(stream) for stream in streams], rechunk=False))
    rows.query_hash, rows.watermark = headers.get("Query-Hash"), headers.get("Watermark")
    return rows


def _structs(frame: pl.DataFrame, column: str) -> pl.Series:
    if frame.schema.get(column) != pl.String:
        raise DraftError(f"there is no column {column!r} of text here")
    try:
        return structs(frame[column])
    except MalformedJsonError:
        raise DraftError(f"column {column!r} holds what is no JSON") from None
