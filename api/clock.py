"""Time and ids. Every stored time and id comes from this module.

The time is the database's. Every process measures the offset between the clock of Postgres and its own monotonic clock,
and adds it to the latter. So all hosts agree on the order of events, also if the wall clock of one is wrong or is set
back.
"""

import os
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Database time. Until the first `calibrate` it counts from the wall clock of this host."""

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._last_unique_us = 0

    def calibrate(self, database_now: datetime, sent_ns: int, received_ns: int) -> None:
        """Set the offset from `database_now`, which was read between two monotonic readings (nanoseconds)."""
        middle_us = (sent_ns + received_ns) // 2000
        self._offset_us = (database_now - _EPOCH) // timedelta(microseconds=1) - middle_us

    def now_us(self) -> int:
        """Return microseconds since the epoch, by the database's clock."""
        return time.monotonic_ns() // 1000 + self._offset_us

    def now(self) -> datetime:
        """Return the time by the database's clock, aware, in UTC."""
        return from_us(self.now_us())

    def unique_now_us(self) -> int:
        """Return `now_us`, raised if necessary: each value is greater than all earlier ones in this process."""
        now_us = time.monotonic_ns() // 1000 + self._offset_us
        if now_us <= self._last_unique_us:
            now_us = self._last_unique_us + 1
        self._last_unique_us = now_us
        return now_us


def from_us(microseconds: int) -> datetime:
    """Return a time in microseconds since the epoch as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_us(moment: datetime) -> int:
    """Return an aware datetime as whole microseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def monotonic_ns() -> int:
    """Return nanoseconds on the monotonic clock of this process, for measuring durations."""
    return time.monotonic_ns()


def uuid7(at_us: int) -> str:
    """Return a version 7 UUID (RFC 9562) of the moment `at_us`, in canonical text; later moments sort later."""
    # Ingest creates an id for every event, so the parts are kept: the millisecond, the microseconds, and random bits.
    millis, micros = divmod(at_us, 1000)
    return _millis_text(millis) + _MICROS_TEXTS[micros] + _RANDOM_BITS.take()


def uuid7_from(at_us: int, random_bytes: bytes) -> str:
    """Return the version 7 UUID of a moment and eight random bytes, with the microseconds in `rand_a`."""
    millis, micros = divmod(at_us, 1000)
    low = 0x8000000000000000 | int.from_bytes(random_bytes, "big") >> 2  # the two upper bits are the variant
    return "%08x-%04x-%04x-%04x-%012x" % (  # noqa: UP031  twice as fast as format()
        millis >> 16,
        millis & 0xFFFF,
        0x7000 | micros * 4096 // 1000,
        low >> 48,
        low & 0xFFFFFFFFFFFF,
    )


def us_of(uuid7: str) -> int:
    """Return the start of the millisecond of a version 7 UUID, in microseconds since the epoch."""
    return int(uuid7[:8] + uuid7[9:13], 16) * 1000


@lru_cache(maxsize=8)
def _millis_text(millis: int) -> str:
    return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-"


_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))
_MICROS_TEXTS = [f"{0x7000 | micros * 4096 // 1000:04x}-" for micros in range(1000)]


class _RandomBits:
    """The last 64 bits of ids, as text; one system call serves 500 ids. Threads may share it."""

    def __init__(self) -> None:
        self._pool: list[str] = []

    def take(self) -> str:
        try:
            return self._pool.pop()
        except IndexError:
            fresh = bytearray(os.urandom(4_000))
            fresh[::8] = fresh[::8].translate(_VARIANT)
            text = fresh.hex()
            self._pool = [f"{text[start : start + 4]}-{text[start + 4 : start + 16]}" for start in range(16, 8_000, 16)]
            return f"{text[:4]}-{text[4:16]}"


_RANDOM_BITS = _RandomBits()


def token(size: int) -> bytes:
    """Return `size` bytes that cannot be guessed."""
    return os.urandom(size)
