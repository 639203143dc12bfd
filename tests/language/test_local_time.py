"""Times of day and dates become moments by the clock of a zone, also when clocks change."""

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.local_time import LONGEST_DAY, date_moment, day_start, find_zone, next_moment, time_zone

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ZURICH = "Europe/Zurich"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("clock", "weekdays", "zone", "now", "moment"),
    [
        ("09:00", (), None, "2026-11-20 08:59:59", "2026-11-20 09:00"),
        ("09:00", (), None, "2026-11-20 09:00", "2026-11-20 09:00"),  # at the moment itself
        ("09:00", (), None, "2026-11-20 09:00:01", "2026-11-21 09:00"),
        ("09:00", (), ZURICH, "2026-11-20 08:30", "2026-11-21 08:00"),
        ("09:00", (), "Asia/Tokyo", "2026-11-20 23:30", "2026-11-21 00:00"),  # it is Saturday there
        ("09:00", (1,), None, "2026-11-20 10:00", "2026-11-23 09:00"),  # a Friday
        ("09:00", (5,), None, "2026-11-20 10:00", "2026-11-27 09:00"),
        ("09:00", (5, 6), "Asia/Tokyo", "2026-11-20 23:30", "2026-11-21 00:00"),
        ("09:00", (), ZURICH, "2026-03-28 12:00", "2026-03-29 07:00"),  # a night of one hour less
        ("09:00", (), ZURICH, "2026-10-24 12:00", "2026-10-25 08:00"),
        ("02:30", (), ZURICH, "2026-03-28 12:00", "2026-03-29 01:30"),  # skipped: the clock shows 03:30
        ("02:30", (), ZURICH, "2026-10-24 12:00", "2026-10-25 00:30"),  # shown twice: the first one
        ("02:30", (), ZURICH, "2026-10-25 00:45", "2026-10-26 01:30"),
        ("09:00", (), "Pacific/Apia", "2011-12-29 20:00", "2011-12-30 19:00"),  # a zone that skipped a day
    ],
)
def test_a_time_of_day_comes_by_the_clock_of_the_zone(
    clock: str, weekdays: tuple[int, ...], zone: str | None, now: str, moment: str
) -> None:
    assert next_moment(time.fromisoformat(clock), weekdays, time_zone(zone), at(now)) == at(moment)


@pytest.mark.parametrize(
    ("date", "shift", "clock", "weekdays", "zone", "moment"),
    [
        ("2026-12-24", timedelta(), None, (), None, "2026-12-24 00:00"),
        ("2026-12-24", timedelta(), None, (), ZURICH, "2026-12-23 23:00"),
        ("2026-12-24", -3 * DAY, "09:00", (), ZURICH, "2026-12-21 08:00"),
        ("2026-12-24T22:15:00Z", timedelta(), None, (), ZURICH, "2026-12-24 22:15"),
        ("2026-12-24T23:30:00Z", timedelta(), "09:00", (), ZURICH, "2026-12-25 08:00"),  # Christmas there
        ("2026-12-24T22:15:00+05:00", 2 * HOUR, None, (), None, "2026-12-24 19:15"),
        ("2026-12-24T22:15:00Z", -DAY - HOUR, None, (), None, "2026-12-23 21:15"),
        ("2026-03-30T08:00:00Z", -3 * DAY, None, (), ZURICH, "2026-03-27 09:00"),  # 10:00 by both clocks
        ("2026-10-25T01:30:00Z", timedelta(), None, (), ZURICH, "2026-10-25 01:30"),  # the second 02:30
        ("2026-12-25", timedelta(), "09:00", (1,), None, "2026-12-28 09:00"),  # a Friday
        ("2026-12-25", timedelta(), "09:00", (5,), None, "2026-12-25 09:00"),
    ],
)
def test_a_date_is_shifted_by_days_of_the_calendar(
    date: str, shift: timedelta, clock: str | None, weekdays: tuple[int, ...], zone: str | None, moment: str
) -> None:
    at_clock = None if clock is None else time.fromisoformat(clock)
    assert date_moment(date, shift, at_clock, weekdays, time_zone(zone)) == at(moment)


@pytest.mark.parametrize(
    "value",
    [None, "", "soon", "2026-02-30", "2026-12-24T09:00:00", "24.12.2026", 20261224, True, ["2026-12-24"], "9999-12-31"],
)
def test_other_values_are_no_date(value: Any) -> None:
    assert date_moment(value, 2 * DAY, None, (), UTC) is None


def test_the_first_zone_that_exists_counts() -> None:
    assert time_zone("Europe/Nowhere", ZURICH) == time_zone(ZURICH)
    assert time_zone(None, None) is UTC


zones = st.sampled_from([ZURICH, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "?"])
clocks = st.builds(time, st.integers(0, 23), st.integers(0, 59))
moments = st.integers(86_400, 7_258_118_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@given(clocks, st.frozensets(st.integers(1, 7)), zones, moments)
def test_the_next_moment_is_ahead_and_then_reached(
    clock: time, weekdays: frozenset[int], zone: str, now: datetime
) -> None:
    moment = next_moment(clock, weekdays, time_zone(zone), now)
    assert now <= moment <= now + timedelta(days=7 if weekdays else 1) + 2 * DAY
    assert next_moment(clock, weekdays, time_zone(zone), moment) == moment


@pytest.mark.parametrize(
    ("zone", "now", "start"),
    [
        (None, "2026-11-20 00:00", "2026-11-20 00:00"),
        ("Asia/Tokyo", "2026-11-20 14:59:59", "2026-11-19 15:00"),
        (ZURICH, "2026-03-29 21:59", "2026-03-28 23:00"),  # a day of 23 hours
        (ZURICH, "2026-10-25 22:59", "2026-10-24 22:00"),  # a day of 25 hours
        ("America/Havana", "2026-11-01 05:30", "2026-11-01 04:00"),  # midnight is shown twice: the first one
        ("America/Santiago", "2026-09-06 05:00", "2026-09-06 04:00"),  # midnight is skipped: the clock shows 01:00
    ],
)
def test_a_day_begins_at_midnight_by_the_clock_of_the_zone(zone: str | None, now: str, start: str) -> None:
    assert day_start(time_zone(zone), at(now)) == at(start)


@given(st.timedeltas(DAY, 50_000 * DAY), st.sampled_from(sorted(available_timezones())))
def test_no_day_is_longer_than_the_longest(since_1970: timedelta, zone: str) -> None:
    now = datetime(1970, 1, 1, tzinfo=UTC) + since_1970
    assert timedelta() <= now - day_start(time_zone(zone), now) < LONGEST_DAY


def test_moments_are_in_utc() -> None:
    now, zone = at("2026-11-20 10:00"), time_zone(ZURICH)
    dated = date_moment("2026-11-20", timedelta(), None, (), zone)
    assert dated is not None
    assert dated == at("2026-11-19 23:00")
    assert all(moment.tzinfo is UTC for moment in (day_start(zone, now), next_moment(time(9), (), zone, now), dated))


def test_the_name_of_a_zone_is_bounded() -> None:
    assert find_zone("Etc/" + "x" * 60) is None
    assert find_zone("Europe/Zurich") == time_zone(ZURICH)
    assert find_zone(5) is None
