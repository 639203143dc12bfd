"""The forms an answer can take, chosen by media type, and the stream of its bytes."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Protocol

from api.query.arrow import MEDIA_TYPE, ArrowStream, NoArrowError, PlainArrowStream
from api.query.run import Answer, Batch, Cells, Column
from api.query.written import CsvText, JsonText

__all__ = ["FORMATS", "NoArrowError", "Written", "form_for", "stream"]

_PIECE_BYTES = 128 * 1024


class Written(Protocol):
    """A form of an answer being written."""

    media_type: str
    binary: Collection[int]  # types that are read in Postgres's binary form

    def __init__(self, columns: tuple[Column, ...]) -> None: ...

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        """Return the bytes that carry some rows, given by column."""
        ...

    def end(self) -> bytes:
        """Return the bytes that close the answer."""
        ...


FORMATS: dict[str, type[Written]] = {"application/json": JsonText, MEDIA_TYPE: ArrowStream, "text/csv": CsvText}


def form_for(media_type: str, codings: str) -> type[Written]:
    """Return the form of a media type for a client with this `Accept-Encoding`."""
    if media_type == MEDIA_TYPE and codings.strip().lower() == "identity":
        return PlainArrowStream
    return FORMATS[media_type]


async def stream(answer: Answer, form: type[Written]) -> AsyncIterator[bytes]:
    """Give the bytes of an answer, at least one piece.

    A batch is written off the event loop, and while Postgres makes the next one.
    """
    written = form(answer.columns)

    def write(batch: Batch) -> bytes:
        return written.batch(batch.rows, answer.shown(batch))

    async for batch in answer.batches():
        for piece in _pieces(await asyncio.to_thread(write, batch)):
            yield piece
    yield written.end()


def _pieces(text: bytes) -> Iterator[bytes]:
    """Cut a text: on its way it is copied, and a megabyte at once takes ten times as long, on pages fresh from the system."""
    return (text[start : start + _PIECE_BYTES] for start in range(0, len(text), _PIECE_BYTES))
