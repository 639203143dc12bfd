"""A place on disk for the files of a backtest, which goes with the last who holds it. Only its owner may look into it.

Rows on disk, in buckets by contact: what is read in any order comes back contact by contact, a bucket at a time.

A bucket is a file of Arrow streams one behind the other, each with its length before it.
"""

import io
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import polars as pl


class Folder:
    """A temporary folder; `remove()` does not wait until it is let go."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="workbench-backtest-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


_HELD = 65_536  # rows that are held before they are put down
_LENGTH = struct.Struct("<q")


class Spool:
    """Takes rows with a column `contact_id` and puts them into so many buckets."""

    def __init__(self, folder: Path, buckets: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._buckets = buckets
        self._held: list[pl.DataFrame] = []
        self._rows = 0

    def take(self, rows: pl.DataFrame) -> None:
        """Take some rows."""
        self._held.append(rows)
        self._rows += rows.height
        if self._rows >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Put down what is held."""
        if not self._rows:
            return
        rows = pl.concat(self._held)
        self._held, self._rows = [], 0
        hashed = rows.with_columns(bucket=pl.col("contact_id").hash(seed=0) % self._buckets)
        for (bucket,), part in hashed.partition_by("bucket", as_dict=True, include_key=False).items():
            _append(_path(self._folder, bucket), part)


def read(folder: Path, bucket: int) -> pl.DataFrame | None:
    """Return the rows of a bucket, None when it has none."""
    path = _path(folder, bucket)
    return pl.concat(_pieces(path)) if path.exists() else None


def _path(folder: Path, bucket: int) -> Path:
    return folder / f"{bucket:06}.arrows"


def _append(path: Path, rows: pl.DataFrame) -> None:
    stream = io.BytesIO()
    rows.write_ipc_stream(stream, compression="lz4")
    with path.open("ab") as file:
        file.write(_LENGTH.pack(stream.tell()))
        file.write(stream.getbuffer())


def _pieces(path: Path) -> Iterator[pl.DataFrame]:
    with path.open("rb") as file:
        while length := file.read(_LENGTH.size):
            yield pl.read_ipc_stream(file.read(_LENGTH.unpack(length)[0]))
