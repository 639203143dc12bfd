"""Schedules: cron expressions in a time zone, also on the days on which the clock is set forward or back."""

from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

from workbench.language.cron import Cron, read_cron
from workbench.language.local_time import time_zone
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger, read_trigger


def times(expression: str, after: str, count: int = 3, timezone: str = "Europe/Zurich") -> list[str]:
    """Return the next times in the zone, with their offset."""
    cron = read_cron(expression, time_zone(timezone))
    assert isinstance(cron, Cron), cron
    moment = datetime.fromisoformat(after).replace(tzinfo=cron.zone)
    found = islice(cron.times_after(moment.astimezone(UTC)), count)
    return [f"{time.astimezone(cron.zone):%a %Y-%m-%d %H:%M %z}" for time in found]


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 9 * * mon", "2025-01-01", ["Mon 2025-01-06 09:00 +0100", "Mon 2025-01-13 09:00 +0100"]),
        ("0 9 * * 1-5", "2025-01-03T09:00", ["Mon 2025-01-06 09:00 +0100", "Tue 2025-01-07 09:00 +0100"]),
        ("30 8,17 1 */6 *", "2025-01-01T09:00", ["Wed 2025-01-01 17:30 +0100", "Tue 2025-07-01 08:30 +0200"]),
        ("0 0 13 * fri", "2025-06-01", ["Fri 2025-06-06 00:00 +0200", "Fri 2025-06-13 00:00 +0200"]),
        ("0 9 */2 * mon", "2025-01-01", ["Mon 2025-01-13 09:00 +0100", "Mon 2025-01-27 09:00 +0100"]),
        ("0 0 29 feb *", "2025-01-01", ["Tue 2028-02-29 00:00 +0100", "Sun 2032-02-29 00:00 +0100"]),
        ("5/20 0 * * 7", "2025-01-01", ["Sun 2025-01-05 00:05 +0100", "Sun 2025-01-05 00:25 +0100"]),
    ],
)
def test_the_next_times_of_an_expression(expression: str, after: str, expected: list[str]) -> None:
    assert times(expression, after, 2) == expected


def test_a_time_that_the_clock_skips_is_later_on_that_day() -> None:
    assert times("30 2 * * *", "2025-03-29T03:00", 2) == ["Sun 2025-03-30 03:30 +0200", "Mon 2025-03-31 02:30 +0200"]
    assert times("0 3 * * *", "2025-03-29T03:00", 2) == ["Sun 2025-03-30 03:00 +0200", "Mon 2025-03-31 03:00 +0200"]
    assert times("*/30 * * * *", "2025-03-30T01:00", 3) == [
        "Sun 2025-03-30 01:30 +0100", "Sun 2025-03-30 03:00 +0200", "Sun 2025-03-30 03:30 +0200"
    ]  # fmt: skip


def test_a_time_that_the_clock_passes_twice_counts_once_unless_every_hour_counts() -> None:
    assert times("30 2 * * *", "2025-10-25T03:00", 2) == ["Sun 2025-10-26 02:30 +0200", "Mon 2025-10-27 02:30 +0100"]
    assert times("30 * * * *", "2025-10-26T01:30", 3) == [
        "Sun 2025-10-26 02:30 +0200", "Sun 2025-10-26 02:30 +0100", "Sun 2025-10-26 03:30 +0100"
    ]  # fmt: skip


def test_a_clock_that_is_set_forward_by_half_an_hour_adds_no_run() -> None:
    assert times("15 * * * *", "2026-10-04T01:00", 3, "Australia/Lord_Howe") == [
        "Sun 2026-10-04 01:15 +1030", "Sun 2026-10-04 02:45 +1100", "Sun 2026-10-04 03:15 +1100"
    ]  # fmt: skip


def test_a_day_that_a_zone_left_out_runs_the_next_day() -> None:
    # Samoa had no 30 December 2011.
    assert times("0 9 30 dec *", "2011-12-01", 1, "Pacific/Apia") == ["Sat 2011-12-31 09:00 +1400"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cron", None),
        ("cron", "0 9 * *"),
        ("cron", "0 9 * * * *"),
        ("cron", "60 9 * * *"),
        ("cron", "0 24 * * *"),
        ("cron", "0 9 0 * *"),
        ("cron", "0 9 * 13 *"),
        ("cron", "0 9 * * 8"),
        ("cron", "0 9 * * mon-"),
        ("cron", "0 9 * jan1 *"),
        ("cron", "0 9 5-1 * *"),
        ("cron", "*/0 9 * * *"),
        ("cron", "0 9 31 2 *"),
        ("cron", "0 9 31 2,4,6 *"),
        ("cron", "0 " * 200),
        ("timezone", "Europe/Zurch"),
        ("timezone", "../etc/passwd"),
        ("timezone", ""),
        ("timezone", None),
        ("missed", "later"),
        ("segment", "VIP"),
        ("filters", [{"path": "email", "operator": "exists"}]),
        ("where", "email is defined"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused(field: str, value: Any) -> None:
    spec = {"type": "schedule", "cron": "0 9 * * *", "timezone": "UTC", "segment": "vip"} | {field: value}
    problems = read_trigger(spec)
    assert isinstance(problems, tuple)
    assert [problem.field for problem in problems] == [f"triggerSpec.{field}"]


def test_a_schedule_may_be_for_all_contacts_in_utc() -> None:
    trigger = read_trigger({"type": "schedule", "cron": "0 9 * * *"})
    assert isinstance(trigger, Trigger)
    assert trigger.source == StartSource("schedule", None, "0 9 * * *", "UTC", "once")


def test_times_are_in_utc_and_those_of_the_day_before_are_past() -> None:
    cron = read_cron("0 0 * * *", time_zone("Asia/Tokyo"))
    assert isinstance(cron, Cron)
    (moment,) = islice(cron.times_after(datetime(2025, 1, 1, 15, tzinfo=UTC)), 1)
    assert moment == datetime(2025, 1, 2, 15, tzinfo=UTC)
    assert moment.tzinfo is UTC


@pytest.mark.parametrize(
    ("expression", "fires"), [("*/59 * * * *", True), ("*/1 * * * *", True), ("*/0 * * * *", False)]
)
def test_a_step_is_at_least_one(expression: str, fires: bool) -> None:
    assert isinstance(read_cron(expression, UTC), Cron) is fires


def test_the_longest_expression() -> None:
    assert isinstance(read_cron("0 9 * *" + " " * 192 + "*", UTC), Cron)
    assert isinstance(read_cron("0 9 * *" + " " * 193 + "*", UTC), str)
