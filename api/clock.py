"""The only place that reads the clock or makes ids.

Time is the database's: every process measures the offset of Postgres's clock to its own monotonic clock and
counts from there, so an API host whose wall clock is ten minutes off, or steps back, judges and orders as the others do.
"""

import os
import struct
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Database time. Until the first `calibrate` it counts from the wall clock of this host."""

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._last_unique_us = 0

    def calibrate(self, database_now: datetime, sent_ns: int, received_ns: int) -> None:
        """Learn the offset from `database_now`, read between the two monotonic readings (nanoseconds)."""
        middle_us = (sent_ns + received_ns) // 2000
        self._offset_us = (database_now - _EPOCH) // timedelta(microseconds=1) - middle_us

    def now_us(self) -> int:
        """Microseconds since the epoch, database time."""
        return time.monotonic_ns() // 1000 + self._offset_us

    def now(self) -> datetime:
        """Return this moment by the database's clock, aware, in UTC."""
        return from_us(self.now_us())

    def unique_now_us(self) -> int:
        """Like `now_us`, and greater than every value it returned before in this process."""
        now_us = time.monotonic_ns() // 1000 + self._offset_us
        if now_us <= self._last_unique_us:
            now_us = self._last_unique_us + 1
        self._last_unique_us = now_us
        return now_us


def from_us(microseconds: int) -> datetime:
    """Return the aware UTC moment so many microseconds after the epoch."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_us(moment: datetime) -> int:
    """Return whole microseconds from the epoch to an aware moment."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def monotonic_ns() -> int:
    """Nanoseconds on this process's monotonic clock, for measuring spans."""
    return time.monotonic_ns()


def uuid7(at_us: int) -> str:
    """Return a version 7 UUID (RFC 9562) of the moment `at_us`, in canonical text; later moments sort later."""
    millis, micros = divmod(at_us, 1000)
    return _millis_text(millis) + _MICROS_TEXTS[micros] + _CHANCE.take()


def uuid7s(ats_us: Sequence[int]) -> list[bytes]:
    """Return such UUIDs of many moments, as bytes."""
    firsts = struct.pack(f">{len(ats_us)}Q", *[at // 1000 << 16 | 0x7000 | at % 1000 * 4096 // 1000 for at in ats_us])
    chance = bytearray(os.urandom(len(firsts)))
    chance[::8] = chance[::8].translate(_VARIANT)
    return [firsts[start : start + 8] + chance[start : start + 8] for start in range(0, len(firsts), 8)]


def uuid7_from(at_us: int, chance: bytes) -> str:
    """Return the version 7 UUID of a moment and eight bytes of chance, with the sub-millisecond part in `rand_a`."""
    millis, micros = divmod(at_us, 1000)
    low = 0x8000000000000000 | int.from_bytes(chance, "big") >> 2
    return "%08x-%04x-%04x-%04x-%012x" % (  # noqa: UP031  twice as fast as format()
        millis >> 16,
        millis & 0xFFFF,
        0x7000 | micros * 4096 // 1000,
        low >> 48,
        low & 0xFFFFFFFFFFFF,
    )


def us_of(uuid7: str) -> int:
    """Return the beginning of the millisecond of a version 7 UUID, in microseconds since the epoch."""
    return int(uuid7[:8] + uuid7[9:13], 16) * 1000


@lru_cache(maxsize=8)
def _millis_text(millis: int) -> str:
    return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-"


_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))
_MICROS_TEXTS = [f"{0x7000 | micros * 4096 // 1000:04x}-" for micros in range(1000)]


class _Chance:
    """The last 64 bits of ids, as text; one call of the kernel serves five hundred. Threads may share it."""

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


_CHANCE = _Chance()


def token(size: int) -> bytes:
    """Return `size` bytes of cryptographic chance."""
    return os.urandom(size)
