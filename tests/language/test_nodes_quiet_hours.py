"""Quiet hours follow the clock of the contact, also over midnight and when clocks change."""

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.graph import QuietHours
from workbench.language.local_time import time_zone
from workbench.language.nodes import quiet_until

NIGHT = QuietHours(time(22), time(8))
LUNCH = QuietHours(time(12), time(13, 30))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "zone", "now", "until"),
    [
        (NIGHT, None, "2026-11-20 21:59:59", None),
        (NIGHT, None, "2026-11-20 22:00", "2026-11-21 08:00"),
        (NIGHT, None, "2026-11-20 23:59", "2026-11-21 08:00"),
        (NIGHT, None, "2026-11-21 00:00", "2026-11-21 08:00"),
        (NIGHT, None, "2026-11-21 07:59:59", "2026-11-21 08:00"),
        (NIGHT, None, "2026-11-21 08:00", None),
        (LUNCH, None, "2026-11-20 12:00", "2026-11-20 13:30"),
        (LUNCH, None, "2026-11-20 13:30", None),
        (NIGHT, "Europe/Zurich", "2026-11-20 21:30", "2026-11-21 07:00"),
        (NIGHT, "Asia/Kolkata", "2026-11-20 16:29", None),
        (NIGHT, "Asia/Kolkata", "2026-11-20 16:30", "2026-11-21 02:30"),
        (NIGHT, "America/Los_Angeles", "2026-12-31 07:00", "2026-12-31 16:00"),
    ],
)
def test_quiet_hours_follow_the_contacts_clock(hours: QuietHours, zone: Any, now: str, until: str | None) -> None:
    assert quiet_until(hours, time_zone(zone), at(now)) == (None if until is None else at(until))


@pytest.mark.parametrize(
    ("end", "now", "until"),
    [
        (
            time(2, 30),
            "2026-03-29 00:45",
            "2026-03-29 01:30",
        ),  # 02:30 does not happen: the clock goes from 02:00 to 03:00
        (time(2, 30), "2026-10-25 00:15", "2026-10-25 00:30"),  # the first 02:15
        (time(2, 30), "2026-10-25 01:15", "2026-10-25 01:30"),  # the second 02:15
        (time(8), "2026-10-24 22:30", "2026-10-25 07:00"),  # a night of one hour more
    ],
)
def test_quiet_hours_end_when_clocks_change(end: time, now: str, until: str) -> None:
    assert quiet_until(QuietHours(time(0, 5), end), time_zone("Europe/Zurich"), at(now)) == at(until)


@pytest.mark.parametrize(
    "name",
    [None, "", "Zurich", "Europe/Nowhere", "Europe", "Europe/", "Europe/../Europe/Zurich", "../../etc/passwd",
     "/etc/passwd", "Europe/Zurich\0", "UTC+1", "tzdata", "a/b/c/d", "\ud800", "x" * 10_000, 5, True, ["UTC"]],
)  # fmt: skip
def test_an_invalid_time_zone_is_utc(name: Any) -> None:
    assert time_zone(name) is UTC


def test_a_time_zone_is_found_by_its_name() -> None:
    assert time_zone("Europe/Zurich") == ZoneInfo("Europe/Zurich")


clocks = st.builds(time, st.integers(0, 23), st.integers(0, 59))
moments = st.integers(86_400, 7_258_118_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
zones = st.sampled_from(
    ["Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "?"]
)


@given(clocks, clocks, zones, moments)
def test_quiet_hours_end_at_their_end(start: time, end: time, zone: str, now: datetime) -> None:
    if start == end:
        return
    hours = QuietHours(start, end)
    until = quiet_until(hours, time_zone(zone), now)
    if until is not None:
        assert now < until <= now + timedelta(hours=50)  # Apia once left out a day
        assert quiet_until(hours, time_zone(zone), until) is None
