"""Rows of the import in the binary format of COPY, made when events are read: all but what only their transaction knows.

Those fields stand at the end of a row (see `sql/queries/copying.sql`): the moment of a key, the
contact and the number of an event. Many rows are made at a time, and what has the same size in each is filled in by the byte: a
call per row would cost more than the row.
"""

import struct
from collections.abc import Sequence

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"


def key_rows(
    org_id: int, key_digests: Sequence[bytes], event_ids: Sequence[bytes], body_digests: Sequence[bytes]
) -> list[bytes]:
    """Return the rows of idempotency keys without their moment; rows of an organization sort as their digests do."""
    rows = _Rows(_KEY.pack(5, 8, org_id, 16, b"", 16, b"", 16, b""), len(event_ids))
    rows.fill(18, 16, b"".join(key_digests))
    rows.fill(38, 16, b"".join(event_ids))
    rows.fill(58, 16, b"".join(body_digests))
    return rows.parts()


def event_heads(
    org_id: int, event_ids: Sequence[bytes], ats_us: Sequence[int], payloads: Sequence[bytes]
) -> list[bytes]:
    """Return the beginnings of the rows of events, up to their payloads; each is said to be created when it occurred."""
    count = len(event_ids)
    moments = struct.pack(f">{count}q", *[at_us - _EPOCH_US for at_us in ats_us])
    rows = _Rows(_EVENT.pack(12, 8, org_id, 16, b"", 8, 0, 8, 0, 0, _JSONB), count)
    rows.fill(18, 16, b"".join(event_ids))
    rows.fill(38, 8, moments)
    rows.fill(50, 8, moments)
    rows.fill(58, 4, struct.pack(f">{count}i", *[len(payload) + 1 for payload in payloads]))
    return rows.parts()


def event_tails(idempotency_keys: Sequence[bytes], names: Sequence[str]) -> list[bytes]:
    """Return what stands behind the payloads of events: key and name. Behind that, `who_fields`, contact and number are to come."""
    fields = {name: _text_field(name) for name in set(names)}
    lengths = {length: _LENGTH(length) for length in set(map(len, idempotency_keys))}
    return [lengths[len(key)] + key + fields[name] for key, name in zip(idempotency_keys, names, strict=True)]


def who_fields(wallet: str | None, email: str | None, external_id: str | None) -> bytes:
    """Return the identifiers as an event carries them, up to the sixteen bytes of its contact's id; `email` is sealed."""
    return b"".join((_text_field(wallet), _text_field(email), _text_field(external_id), _SIXTEEN))


def moment_field(at_us: int) -> bytes:
    """Return the field of a moment in microseconds since the epoch."""
    return number_field(at_us - _EPOCH_US)


def number_field(number: int) -> bytes:
    """Return the field of a bigint."""
    return _NUMBER(8, number)


class _Rows:
    """Rows of one size that begin as copies of one of them."""

    def __init__(self, first: bytes, count: int) -> None:
        self._size = len(first)
        self._bytes = bytearray(first * count)

    def fill(self, offset: int, size: int, values: bytes) -> None:
        """Put a value of this size into each row, all of them at the same offset."""
        for byte in range(size):
            self._bytes[offset + byte :: self._size] = values[byte::size]

    def parts(self) -> list[bytes]:
        """Return the rows."""
        filled, size = bytes(self._bytes), self._size
        return [filled[start : start + size] for start in range(0, len(filled), size)]


_EPOCH_US = 946_684_800_000_000  # Postgres counts from the year 2000
_JSONB = 1  # the version that stands before the text
_NULL = b"\xff\xff\xff\xff"
_SIXTEEN = b"\0\0\0\x10"
_KEY = struct.Struct(">hiqi16si16si16s")  # each field has its length before it, each row their number
_EVENT = struct.Struct(">hiqi16siqiqiB")
_NUMBER = struct.Struct(">iq").pack
_LENGTH = struct.Struct(">i").pack


def _text_field(value: str | None) -> bytes:
    if value is None:
        return _NULL
    raw = value.encode()
    return _LENGTH(len(raw)) + raw
