"""Bytes of files, unpacked by their ending (`.gz`, `.zst`), with how many of those on disk have been read."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from api.ingest.files.row import UnreadableFileError

PACKED = (".gz", ".zst")
MAX_LINE = 1_048_576  # bytes; the largest valid event is far below


class Opened:
    """A file that is being read, line by line."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path, self._raw = path, raw
        self._size = max(path.stat().st_size, 1)
        self._file = _unpacked(path, raw)

    @property
    def share(self) -> float:
        """How much of the file has been read, from 0 to 1."""
        return min(self._raw.tell() / self._size, 1.0)

    def lines(self) -> Iterator[bytes | None]:
        """Yield lines with their ends; None for one that is too long to keep."""
        readline = self._file.readline
        try:
            while line := readline(MAX_LINE):
                if len(line) < MAX_LINE or line.endswith(b"\n"):
                    yield line
                    continue
                while line and not line.endswith(b"\n"):
                    line = readline(MAX_LINE)
                yield None
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            raise UnreadableFileError(f"{self._path.name}: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Open a file for reading; raise UnreadableFileError."""
    try:
        with path.open("rb") as raw:
            yield Opened(path, raw)
    except OSError as error:
        raise UnreadableFileError(f"{path.name}: {error.strerror or error}") from error


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
        case ".zst":
            unpacking = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
            return io.BufferedReader(unpacking, 1 << 18)
        case _:
            return raw
