"""The payload of an event: an object that is stored as it was sent, within its limits (contract §2.1)."""

from collections.abc import Sequence

import msgspec

from api.language.codec import MAX_DEPTH, MalformedJsonError, compact, decode, unfit
from api.language.problem import Problem

MAX_PAYLOAD_BYTES = 16_384
MAX_PAYLOAD_TEXT = 262_144  # bytes as sent

_ALIKE = bytes.maketrans(b"123456789E[", b"000000000e{")  # digits, exponents, what opens a level
_ANY = msgspec.json.Decoder()


def read_payload(raw: bytes, problems: list[Problem]) -> bytes:
    """Return a payload as it is stored: as it was sent, unless it is large; add what is wrong with it."""
    if raw == b"null":
        return b"{}"
    if raw[:1] != b"{":
        problems.append(Problem("payload", "must be an object"))
    elif len(raw) > MAX_PAYLOAD_TEXT:
        problems.append(
            Problem("payload", f"is {len(raw)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed as compact JSON")
        )
    elif needs_a_look(raw):
        return _looked_at(raw, problems)
    return raw


def needs_a_look(raw: bytes) -> bool:
    """Whether anything in the text of an object may break a rule: such payloads are rare, the others are not judged.

    No number leaves the range unless it has 200 digits in a row, or an exponent.
    """
    alike = raw.translate(_ALIKE)
    return (
        len(raw) > MAX_PAYLOAD_BYTES
        or alike.count(b"{") > MAX_DEPTH
        or b"\\u" in alike
        or (b"0e" in alike and _has_odd_exponent(raw))
        or (len(raw) >= 200 and b"0" * 200 in alike)
    )


_BETWEEN = b"\x1e"  # stands in no JSON text
_OTHERS = bytes(byte for byte in range(256) if byte not in b"{" + _BETWEEN)


def all_sound(payloads: Sequence[bytes]) -> bool:
    """Whether none of many payloads without escapes needs a look, as far as one look at all of them together can tell."""
    alike = _BETWEEN.join(payloads).translate(_ALIKE)
    return (
        max(map(len, payloads), default=0) <= MAX_PAYLOAD_BYTES
        and b"0e" not in alike
        and b"0" * 200 not in alike
        and b"{" * (MAX_DEPTH + 1) not in alike.translate(None, _OTHERS)
    )


def _has_odd_exponent(raw: bytes) -> bool:
    """Whether an exponent may be too large: large ones overflow a float, negative ones and those of zero do not."""
    if b"e-" in raw or b"0e" in raw or b"E-" in raw or b"0E" in raw:
        return True
    try:
        _ANY.decode(raw)
    except (ValueError, RecursionError):
        return True
    return False


def _looked_at(raw: bytes, problems: list[Problem]) -> bytes:
    try:
        reason = unfit(decode(raw))
        small = raw if len(raw) <= MAX_PAYLOAD_BYTES else compact(raw)
    except MalformedJsonError as error:
        reason, small = str(error), b""
    if reason is None and len(small) > MAX_PAYLOAD_BYTES:
        reason = f"is {len(small)} bytes as compact JSON, at most {MAX_PAYLOAD_BYTES} are allowed"
    if reason is not None:
        problems.append(Problem("payload", reason))
    return small
