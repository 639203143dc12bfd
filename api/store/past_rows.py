"""Rows of the import in the binary format of COPY, made when an event is read: all but what only its transaction knows.

Those fields stand at the end of a row (see `add_keys` and `add_past_events` in `sql/queries/history.sql`): the moment of a key, the
contact and the number of an event.
"""

import struct
from functools import lru_cache

from api.language.event import Event

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"


def key_row(org_id: int, key_digest: bytes, event_id: bytes, body_digest: bytes) -> bytes:
    """Return the row of an idempotency key without its moment; rows of an organization sort as their digests do."""
    return _KEY(5, 8, org_id, 16, key_digest, 16, event_id, 16, body_digest)


def event_row(org_id: int, event_id: bytes, event: Event, at_us: int, idempotency_key: str, who: bytes) -> bytes:
    """Return the row of an event up to the sixteen bytes of its contact's id, after which its number is to come.

    It occurred, and is said to have been created, at `at_us`; `who`: the `who_fields` of the identifiers it carries.
    """
    at, payload, key = at_us - _EPOCH_US, event.payload, idempotency_key.encode()
    begin = _EVENT(12, 8, org_id, 16, event_id, 8, at, 8, at, len(payload) + 1, _JSONB)
    return b"".join((begin, payload, _LENGTH(len(key)), key, _name_field(event.name), who, _SIXTEEN))


def who_fields(wallet: str | None, email: str | None, external_id: str | None) -> bytes:
    """Return the identifiers as an event carries them; `email` is sealed."""
    return _text_field(wallet) + _text_field(email) + _text_field(external_id)


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
