"""Rows of the import in the binary format of COPY, made when events are read: all but what only their transaction knows.

Those fields stand at the end of a row (see `add_keys` and `add_past_events` in `sql/queries/history.sql`): the moment of a key, the
contact and the number of an event. Rows are made many at a time, as a call for each would cost more than its row.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

from api.language.event import Event

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"


def key_rows(
    org_id: int, key_digests: Sequence[bytes], event_ids: Sequence[bytes], body_digests: Sequence[bytes]
) -> list[bytes]:
    """Return the rows of idempotency keys without their moment; rows of an organization sort as their digests do."""
    return [
        _KEY(5, 8, org_id, 16, key_digest, 16, event_id, 16, body_digest)
        for key_digest, event_id, body_digest in zip(key_digests, event_ids, body_digests, strict=True)
    ]


def event_rows(
    org_id: int, event_ids: Sequence[bytes], ats_us: Sequence[int], events: Sequence[Event], keys: Sequence[bytes]
) -> list[bytes]:
    """Return the rows of events up to whom they are about: the `who_fields`, the contact and the number are to come.

    Each occurred, and is said to have been created, at its moment; `keys`: the idempotency keys in effect.
    """
    names = [_name_field(event.name) for event in events]
    payloads = [event.payload for event in events]
    ats = [at_us - _EPOCH_US for at_us in ats_us]
    return [
        b"".join(
            (
                _EVENT(12, 8, org_id, 16, event_id, 8, at, 8, at, len(payload) + 1, _JSONB),
                payload,
                _LENGTH(len(key)),
                key,
                name,
            )
        )
        for event_id, at, payload, key, name in zip(event_ids, ats, payloads, keys, names, strict=True)
    ]


def who_fields(wallet: str | None, email: str | None, external_id: str | None) -> bytes:
    """Return the identifiers as an event carries them, up to the sixteen bytes of its contact's id; `email` is sealed."""
    return b"".join((_text_field(wallet), _text_field(email), _text_field(external_id), _SIXTEEN))


def moment_field(at_us: int) -> bytes:
    """Return the field of a moment in microseconds since the epoch."""
    return number_field(at_us - _EPOCH_US)


def number_field(number: int) -> bytes:
    """Return the field of a bigint."""
    return _NUMBER(8, number)


_EPOCH_US = 946_684_800_000_000  # Postgres counts from the year 2000
_JSONB = 1  # the version that stands before the text
_NULL = b"\xff\xff\xff\xff"
_SIXTEEN = b"\0\0\0\x10"
_KEY = struct.Struct(">hiqi16si16si16s").pack  # each field has its length before it, each row their number
_EVENT = struct.Struct(">hiqi16siqiqiB").pack
_NUMBER = struct.Struct(">iq").pack
_LENGTH = struct.Struct(">i").pack


@lru_cache(maxsize=1_024)
def _name_field(name: str) -> bytes:
    return _text_field(name)


def _text_field(value: str | None) -> bytes:
    if value is None:
        return _NULL
    raw = value.encode()
    return _LENGTH(len(raw)) + raw
