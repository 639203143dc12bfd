"""`Retry-After`: seconds, dates and invalid values, within bounds."""

from datetime import UTC, datetime

import pytest

from api.channels.outcome import parse_retry_after
from workbench.language.connections import MAX_RETRY_AFTER_S

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("999999999999", MAX_RETRY_AFTER_S),
        ("Sat, 21 Nov 2026 12:02:00 GMT", 120.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("Sat, 21 Nov 2048 11:00:00 GMT", MAX_RETRY_AFTER_S),
        ("-5", None),
        ("1e9", None),
        ("soon", None),
        ("", None),
        ("9" * 1_000, None),
        ("٣", None),
    ],
)
def test_retry_after_gives_seconds_or_nothing(text: str, seconds: float | None) -> None:
    assert parse_retry_after(text, NOW) == seconds
