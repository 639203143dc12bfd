"""`Retry-After`: seconds, dates, and nonsense, within bounds; and what it makes of the schedule."""

from datetime import UTC, datetime, timedelta

import pytest

from api.channels.outcome import MAX_RETRY_AFTER_S, Retry, parse_retry_after

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
def test_what_is_asked_for(text: str, seconds: float | None) -> None:
    assert parse_retry_after(text, NOW) == seconds


def test_the_longer_of_schedule_and_request_holds() -> None:
    minute = timedelta(minutes=1)
    assert Retry("refused", 5.0).delay(minute) == minute
    assert Retry("refused", 300.0).delay(minute) == 5 * minute
    assert Retry("refused").delay(minute) == minute
