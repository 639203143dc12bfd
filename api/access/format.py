"""The form of API keys, pure: `sk_live_…`, `sk_test_…`, `pk_live_<org>_…`, `wb_…`.

After the prefix come 32 characters of chance (190 bits in base 62) and six of CRC-32 over all that precedes. The checksum
is no secret: it finds typing errors and lets scanners recognise leaked keys.
"""

import re
import string
import zlib
from functools import lru_cache
from typing import Literal

Kind = Literal["live", "test", "publishable", "workbench"]

KINDS: tuple[Kind, ...] = ("live", "test", "publishable", "workbench")
CHANCE_BYTES = 32
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM, _CHECK = 32, 6
_FORM = re.compile(
    r"(?:(?P<live>sk_live_)|(?P<test>sk_test_)|(?P<publishable>pk_live_[a-z0-9-]{1,40}_)|(?P<workbench>wb_))"
    r"[0-9A-Za-z]{38}",
    re.ASCII,
)


def make(kind: Kind, org_name: str, chance: bytes) -> str:
    """Return the key of a kind made from 32 bytes of chance."""
    secret = _base62(int.from_bytes(chance) % len(_ALPHABET) ** _RANDOM, _RANDOM)
    text = prefix(kind, org_name) + secret
    return text + _checksum(text)


def prefix(kind: Kind, org_name: str) -> str:
    """Return what every key of the kind begins with."""
    match kind:
        case "live":
            return "sk_live_"
        case "test":
            return "sk_test_"
        case "publishable":
            return f"pk_live_{org_name}_"
        case "workbench":
            return "wb_"


@lru_cache(maxsize=4_096)
def parse(key: str) -> Kind | None:
    """Return the kind of a well-formed key, or None; form and checksum only, no secret is compared."""
    match = _FORM.fullmatch(key)
    if match is None or _checksum(key[:-_CHECK]) != key[-_CHECK:]:
        return None
    return next(kind for kind in KINDS if match[kind])


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECK)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
