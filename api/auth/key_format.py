"""The format of API keys (`sk_live_…`, `sk_test_…`, `pk_live_<org>_…`, `wb_…`) and the scopes of each kind. Pure.

After the prefix come 32 random characters (190 bits in base 62) and six of CRC-32 over everything before them. The
checksum is no secret: it catches typing errors, and lets secret scanners recognise leaked keys.
"""

import re
import string
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from api.auth import AccessError

Kind = Literal["live", "test", "publishable", "workbench"]

KINDS: tuple[Kind, ...] = ("live", "test", "publishable", "workbench")
WORKBENCH = (
    "events:read",
    "sql:read",
    "automations:write",
    "automations:publish",
    "contacts:read",
    "contacts:erase",
    "pii:read",
    "keys:admin",
    "pages:send",
    "automations:propose",
)
SECRET = ("ingest", "events:read")
RANDOM_BYTES = 32

# Erasing contacts, seeing their email addresses, administering keys, mailing pages and the
# rights of agents must be asked for by name.
_DEFAULT_WORKBENCH = WORKBENCH[:5]
# A publishable key is readable in the page's source, so it has no scope: it only lets a wallet sign in.
_SCOPES: dict[Kind, tuple[str, ...]] = {"live": SECRET, "test": SECRET, "publishable": (), "workbench": WORKBENCH}
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM_CHARACTERS, _CHECKSUM_CHARACTERS = 32, 6
_FORM = re.compile(
    r"(?:(?P<live>sk_live_)|(?P<test>sk_test_)|(?P<publishable>pk_live_[a-z0-9-]{1,40}_)|(?P<workbench>wb_))"
    r"[0-9A-Za-z]{38}",
    re.ASCII,
)


def make(kind: Kind, org_name: str, random_bytes: bytes) -> str:
    # The modulus reduces 256 random bits to 190, which biases the result by less than 2**-65.
    number = int.from_bytes(random_bytes) % len(_ALPHABET) ** _RANDOM_CHARACTERS
    text = prefix(kind, org_name) + _base62(number, _RANDOM_CHARACTERS)
    return text + _checksum(text)


def prefix(kind: Kind, org_name: str) -> str:
    match kind:
        case "live":
            return "sk_live_"
        case "test":
            return "sk_test_"
        case "publishable":
            return f"pk_live_{org_name}_"
        case "workbench":
            return "wb_"


@lru_cache(maxsize=4_096)  # every request parses its key, and most requests come with one of a few keys
def parse(key: str) -> Kind | None:
    """Return the kind of a well-formed key, or None. Checks form and checksum; no secret is compared."""
    match = _FORM.fullmatch(key)
    if match is None or _checksum(key[:-_CHECKSUM_CHARACTERS]) != key[-_CHECKSUM_CHARACTERS:]:
        return None
    return next(kind for kind in KINDS if match[kind])


def choose(kind: Kind, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested scopes of a key, or the default of its kind; raise AccessError for one it cannot have."""
    allowed = _SCOPES[kind]
    if not wanted:
        return _DEFAULT_WORKBENCH if kind == "workbench" else allowed
    if invalid := sorted(set(wanted) - set(allowed)):
        names = ", ".join(allowed) or "none"
        raise AccessError(f"a {kind} key cannot have the scope {', '.join(invalid)}; it can have {names}")
    return tuple(scope for scope in allowed if scope in wanted)


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECKSUM_CHARACTERS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
