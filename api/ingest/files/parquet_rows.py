"""Parquet: rows are numbered from 1; moments without a zone are UTC."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from api.ingest.files.row import Row, UnreadableFileError
from api.ingest.files.table import Table

_BATCH = 2_000


class ParquetRows:
    """The rows of a parquet file past the first `after`; row groups of which nothing is wanted are not read."""

    def __init__(self, name: str, file: pq.ParquetFile, after: int, table: Callable[[Sequence[str]], Table]) -> None:
        self._name, self._file, self._after = name, file, after
        self._table = table(file.schema_arrow.names)
        self._done = after
        self._count: int = max(file.metadata.num_rows, 1)

    @property
    def share(self) -> float:
        """How much of the file has been read."""
        return min(self._done / self._count, 1.0)

    def __iter__(self) -> Iterator[Row]:
        """Give every row."""
        row = self._table.row
        try:
            for number, batch in self._batches():
                self._done = number + batch.num_rows
                columns = [_readable(column).to_pylist() for column in batch.columns]
                yield from map(row, range(number + 1, self._done + 1), zip(*columns, strict=True))
        except (pa.ArrowException, OSError) as error:
            raise UnreadableFileError(f"{self._name}: {error}") from error

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches, each with the number of rows that stand before it."""
        metadata = self._file.metadata
        group = before = 0
        while group < metadata.num_row_groups and before + metadata.row_group(group).num_rows <= self._after:
            before += metadata.row_group(group).num_rows
            group += 1
        for batch in self._file.iter_batches(_BATCH, row_groups=range(group, metadata.num_row_groups)):
            done = max(self._after - before, 0)
            if done < batch.num_rows:
                yield before + done, batch.slice(done)
            before += batch.num_rows


@contextmanager
def parquet_file(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a parquet file; raise UnreadableFileError."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(f"{path.name}: {error}") from error


def _readable(column: pa.Array) -> pa.Array:
    """Return moments as texts, in microseconds, UTC: Python's own take ten times as long, and end at nanoseconds."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.string())
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column
