"""The `Retry-After` of an answer (RFC 9110 §10.2.3), within bounds: a stranger does not decide how long we remember."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MOST = 86_400.0  # seconds: as long as the longest pause of the schedules

_SECONDS = re.compile(r"\d{1,12}", re.ASCII)


def retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds from `now` that are asked for, at most `MOST`; None for what is neither seconds nor a date."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), MOST)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), MOST)
