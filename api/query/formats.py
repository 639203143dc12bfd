"""The forms an answer can take, chosen by media type, and the stream of its bytes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from api.query.arrow import MEDIA_TYPE, ArrowStream, NoArrowError
from api.query.run import Answer, Batch, Cells, Column
from api.query.written import CsvText, JsonText

__all__ = ["FORMATS", "NoArrowError", "Written", "stream"]


class Written(Protocol):
    """A form of an answer being written."""

    media_type: str

    def __init__(self, columns: tuple[Column, ...]) -> None: ...

    def batch(self, rows: int, columns: list[Cells]) -> bytes:
        """Return the bytes that carry some rows, given by column."""
        ...

    def end(self) -> bytes:
        """Return the bytes that close the answer."""
        ...


FORMATS: dict[str, type[Written]] = {"application/json": JsonText, MEDIA_TYPE: ArrowStream, "text/csv": CsvText}


async def stream(answer: Answer, form: type[Written]) -> AsyncIterator[bytes]:
    """Give the bytes of an answer, at least one piece.

    The work on a batch happens off the event loop, and while Postgres makes the next one.
    """
    written = form(answer.columns)

    def write(batch: Batch) -> bytes:
        return written.batch(batch.rows, answer.shown(batch))

    async for batch in answer.batches():
        if piece := await asyncio.to_thread(write, batch):
            yield piece
    yield written.end()
