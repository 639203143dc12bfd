"""An Arrow IPC stream, cut at its messages, so that each batch can be read as soon as it is here.

Format: Arrow columnar format, "Encapsulated message format" and "IPC streaming format"
(https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc). A message is

    0xFFFFFFFF, size of the metadata (int32), metadata (a flatbuffer `Message`, padded), body

and a stream ends with 0xFFFFFFFF, 0. Of the metadata only two fields are read here: what the message is, and how long its
body is. What the batches hold is polars' to read.
"""

import struct
from collections.abc import Iterable, Iterator

import msgspec

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_RECORD_BATCH = 3  # of the union MessageHeader in Message.fbs
_HEADER_TYPE, _BODY_LENGTH = 1, 3  # numbers of fields in the table Message


class CutShortError(Exception):
    """The stream ended before its end mark, so rows may be missing."""


class _Message(msgspec.Struct, frozen=True):
    kind: int
    raw: list[memoryview]


def batches(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Give each batch as a whole stream of its own; an empty one when there is none. Raise CutShortError.

    `pieces` are the stream's bytes, cut anywhere; no more of them is held than one batch.
    """
    head, empty = b"", True  # head: the schema, and dictionaries if there are any
    for message in _messages(pieces):
        if message.kind == _RECORD_BATCH:
            empty = False
            yield b"".join([head, *message.raw, END])
        else:
            head = b"".join([head, *message.raw])
    if empty:
        yield head + END


def _messages(pieces: Iterable[bytes]) -> Iterator[_Message]:
    arriving = _Arriving(pieces)
    while (prefix := b"".join(arriving.take(8))) != END:
        mark, size = struct.unpack("<Ii", prefix)
        if mark != 0xFFFFFFFF or size < 0:
            raise CutShortError
        metadata = b"".join(arriving.take(size))
        body = arriving.take(_field(metadata, _BODY_LENGTH, "<q"))
        yield _Message(_field(metadata, _HEADER_TYPE, "<B"), [memoryview(prefix + metadata), *body])


def _field(metadata: bytes, number: int, form: str) -> int:
    """Return a number of the flatbuffer's root table, 0 where it is left out."""
    (table,) = struct.unpack_from("<I", metadata, 0)
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    (length,) = struct.unpack_from("<H", metadata, vtable)
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0] if slot < length else 0
    return int(struct.unpack_from(form, metadata, table + offset)[0]) if offset else 0


class _Arriving:
    """Bytes that come in pieces, taken in lengths of our own, and not copied."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def take(self, length: int) -> list[memoryview]:
        """Return the next `length` bytes, in pieces; raise CutShortError when there are not so many."""
        taken: list[memoryview] = []
        while length > 0:
            if not self._rest:
                self._rest = self._next()
            taken.append(self._rest[:length])
            self._rest = self._rest[length:]
            length -= len(taken[-1])
        return taken

    def _next(self) -> memoryview:
        piece = next(self._pieces, None)
        if piece is None:
            raise CutShortError
        return memoryview(piece)
