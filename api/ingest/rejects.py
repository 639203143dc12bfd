"""What an import refused, in a file that can be mended and imported: one row per line, in the shape of the contract.

A line is the event as we understood it, with the reason in front: `{"rejected": {"line": 7, "reason": "…"}, "event": …}`. The
import drops the field `rejected` as any field it does not know. A row that is no JSON object stands there as text.

Of what an earlier run refused only digests are held: a million of them take a hundred megabytes.
"""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from api.ingest.files.sources import REFUSED, Source
from api.ingest.report import Refusal
from api.language.codec import encode

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def beside(path: Path) -> Path:
    """Return the usual place of the refusals of a file or folder."""
    return path.absolute().with_name(path.absolute().name + REFUSED)


class UnwritableError(Exception):
    """Refusals cannot be kept where they belong; the text says why."""


class Rejects:
    """A file of refusals: made when there is the first, and written on by a later run without saying anything twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: BinaryIO | None = None
        self._there: set[bytes] = set()
        self._fresh = False  # something was written that is not on disk

    def add(self, source: Source, refusal: Refusal, text: bytes) -> None:
        """Keep a row and why it was refused; raise UnwritableError."""
        line = _line(source.name, refusal, text) + b"\n"
        file = self._file or self._opened()
        self.count += 1
        if _digest(line) not in self._there:
            file.write(line)
            self._fresh = True

    def flush(self) -> None:
        """Bring everything to the disk."""
        if self._file is not None and self._fresh:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._fresh = False

    def _opened(self) -> BinaryIO:
        try:
            self._file = self.path.open("a+b")
            self._read(self._file)
        except OSError as error:
            raise UnwritableError(
                f"{self.path}: {error.strerror}; --rejects PATH says where else rows go that were refused"
            ) from error
        return self._file

    def _read(self, file: BinaryIO) -> None:
        """Take in what is there, and end its last line if that was cut off."""
        line = b"\n"
        file.seek(0)
        for line in file:
            self._there.add(_digest(line.removesuffix(b"\n") + b"\n"))
        if not line.endswith(b"\n"):
            file.write(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._file is not None:
            self._file.close()


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


def _line(name: str, refusal: Refusal, text: bytes) -> bytes:
    why = {"file": name, "line": refusal.line, "reason": refusal.reason}
    try:
        fields = _OBJECT.decode(text)
    except (ValueError, RecursionError):
        return encode({"rejected": why | {"text": text.decode(errors="replace")}})
    return encode({"rejected": why} | {name: value for name, value in fields.items() if name != "rejected"})
