"""Rows on disk in buckets by contact: written in any order, read back one bucket at a time.

A bucket is a file of Arrow streams, each preceded by its length, because an Arrow stream cannot be appended to.
"""

import io
import secrets
import shutil
import struct
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

import polars as pl

_BUFFERED_ROWS = 65_536  # collected before they are distributed, because many small writes would be slow
_LENGTH = struct.Struct("<q")


class Folder:
    """A temporary folder that only its owner can read. It is deleted with this object, or earlier by `remove()`.

    Its path is chosen before `create()`, so that an interrupt during the creation can be followed by `remove()`.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"workbench-backtest-{secrets.token_hex(16)}"
        # A finalizer also runs when the kernel ends; __del__ might not.
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def create(self) -> None:
        self.path.mkdir(mode=0o700)


class BucketWriter:
    """Distributes rows with a column `contact_id` to a number of buckets.

    `groups`: the contact in whose bucket another one is, if that is not its own.
    """

    def __init__(self, folder: Path, buckets: int, groups: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._buckets, self._groups = buckets, groups
        self._frames: list[pl.DataFrame] = []
        self._rows = 0

    def write(self, rows: pl.DataFrame) -> None:
        """Add rows; they are on disk after `flush`."""
        self._frames.append(rows)
        self._rows += rows.height
        if self._rows >= _BUFFERED_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        rows = pl.concat(self._frames)
        self._frames, self._rows = [], 0
        # A fixed seed: events and contacts are distributed separately and must meet in the same bucket.
        group = pl.col("contact_id").replace(self._groups) if self._groups else pl.col("contact_id")
        hashed = rows.with_columns(bucket=group.hash(seed=0) % self._buckets)
        for (bucket,), part in hashed.partition_by("bucket", as_dict=True, include_key=False).items():
            stream = io.BytesIO()
            part.write_ipc_stream(stream, compression="lz4")
            with _path(self._folder, bucket).open("ab") as file:
                file.write(_LENGTH.pack(stream.tell()))
                file.write(stream.getbuffer())


def read_bucket(folder: Path, bucket: int) -> pl.DataFrame | None:
    """Return the rows of a bucket, or None if it is empty."""
    path = _path(folder, bucket)
    if not path.exists():
        return None
    frames = []
    with path.open("rb") as file:
        while length := file.read(_LENGTH.size):
            frames.append(pl.read_ipc_stream(file.read(_LENGTH.unpack(length)[0])))
    return pl.concat(frames)


def _path(folder: Path, bucket: int) -> Path:
    return folder / f"{bucket:06}.arrows"
