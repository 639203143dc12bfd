"""The id of a request: the caller's `X-Request-Id` where it may stand in logs and headers as it is. Every answer names it.

8 to 64 letters, digits, dots and hyphens. No underscore: an API key that is sent here by mistake is not taken.
"""

import re
from collections.abc import Iterable

HEADER = "x-request-id"
_SANE = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{7,63}", re.ASCII)


def given_id(fields: Iterable[tuple[str, str]]) -> str | None:
    """Return the id that the caller gave, None where there is none, several, or one that we do not take."""
    given = [value for name, value in fields if name == HEADER]
    return given[0] if len(given) == 1 and _SANE.fullmatch(given[0]) else None
