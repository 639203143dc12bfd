"""An answer that does not have to fit into memory: frame by frame, or straight into a parquet file."""

from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from workbench import surroundings
from workbench.arrow import batches
from workbench.connection import Connection
from workbench.query import Question, answered

if TYPE_CHECKING:
    import polars as pl

    from workbench.result import Result

_ROW_GROUP = 16_384  # rows that are encoded together, so held: with polars's own number, rows of 1 KB took 180 MB more


class Stream:
    """A question that is asked when its rows are wanted, each time anew: by a loop, `.frames()` or `.to_parquet(path)`.

    Leaving a loop early ends the query on the server. Raises SqlError, also midway: rows that came before are not all.
    """

    def __init__(self, connection: Connection, question: Question) -> None:
        self._connection = connection
        self._question = question

    def __iter__(self) -> Iterator["Result"]:
        return self.frames()

    def frames(self) -> Generator["Result"]:
        """Give the rows in frames of up to some thousand, at least one frame, which has all columns."""
        from workbench.result import result

        with answered(self._connection, self._question) as (answer, pieces):
            for batch in batches(pieces):
                yield result([batch], answer.headers)

    def to_parquet(self, path: str | Path) -> Path:
        """Write all rows into a parquet file and return its path; a file that is there stays until the new one is whole."""
        with closing(self.frames()) as frames:
            return write_parquet(frames, Path(path))

    def __repr__(self) -> str:
        return "A query that runs when its rows are wanted: for frame in …, .frames(), .to_parquet(path)"


def write_parquet(frames: Iterator["pl.DataFrame"], target: Path, metadata: Mapping[str, str] | None = None) -> Path:
    """Write frames of one schema, at least one, as they come; a file that is there stays until the new one is whole.

    `metadata` is written into the file, too. Interrupted, it takes no more frames and leaves nothing behind.
    """
    unfinished = target.with_name(f".{target.name}.{surroundings.new_key()}")
    interrupted = Event()
    taken = takewhile(lambda _frame: not interrupted.is_set(), frames)
    try:
        # polars goes on writing behind the back of a main thread that is interrupted in it, so it gets a thread that is waited for
        with ThreadPoolExecutor(1) as writer:
            try:
                writer.submit(_sink, taken, unfinished, dict(metadata or {})).result()
            except KeyboardInterrupt:
                interrupted.set()
                raise
        return unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _sink(frames: Iterator["pl.DataFrame"], path: Path, metadata: dict[str, str]) -> None:
    """Write frames of one schema as they come."""
    from polars.io.plugins import register_io_source

    first = next(frames)

    def rows(*_pushed_down: Any) -> Iterator["pl.DataFrame"]:
        yield first
        yield from frames

    scanned = register_io_source(rows, schema=first.schema)
    scanned.sink_parquet(path, row_group_size=_ROW_GROUP, metadata=metadata)
