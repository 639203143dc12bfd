"""A wait ends at a time of day, or at a date of the contact or the event, which is followed if it moves."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.language.test_simulate_waits import MESSAGE, NO, YES, build_automation, event, node
from workbench.language.advance import attribution_window, max_duration
from workbench.language.check import check
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.simulate import ScheduledEvent, SimulatedAutomation, SimulationInput, Trace, backtest, simulate
from workbench.language.timeline import EventRecord

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def by_date(**data: Any) -> SimulatedAutomation:
    waits = node(
        "w", "wait_until", **{"attribute": "contact.ends", "offsetSeconds": -3 * 86_400, "time": "09:00"} | data
    )
    return build_automation(waits, YES, NO, edges="t>w w:reached>yes w:missed>no")


def run(
    automation: SimulatedAutomation,
    attributes: dict[str, Any],
    *later: tuple[timedelta, dict[str, Any]],
    payload: Any = None,
) -> Trace:
    scheduled = tuple(ScheduledEvent(after, event("changed", attributes=written)) for after, written in later)
    started = event(payload=payload or {})
    return simulate(
        automation, started, ContactState("c", attributes=attributes), NOW, SimulationInput(later=scheduled)
    )


def ends(trace: Trace) -> list[tuple[str, str | None, datetime]]:
    return [(step.outcome, step.detail.get("cause"), step.at) for step in trace.steps if step.node_id == "w"]


def test_a_time_of_day_is_that_of_the_contact() -> None:
    automation = build_automation(node("w", "wait_until", time="09:00", weekdays=[1]), YES)
    monday = datetime(2026, 11, 23, tzinfo=UTC)
    assert ends(run(automation, {"timezone": "Asia/Tokyo"}))[-1] == ("waited", None, monday)
    assert ends(run(automation, {"timezone": "Europe/Nowhere"}))[-1] == ("waited", None, monday + 9 * HOUR)


@pytest.mark.parametrize(("attributes", "hour"), [({}, 8), ({"timezone": "Asia/Tokyo"}, 0), ({"timezone": "?"}, 8)])
def test_the_automation_has_a_time_zone_for_contacts_without_one(attributes: dict[str, Any], hour: int) -> None:
    waits = node("w", "wait_until", time="09:00")
    automation = build_automation(waits, YES, settings={"timezone": "Europe/Zurich"})
    assert ends(run(automation, attributes))[-1][2] == datetime(2026, 11, 21, hour, tzinfo=UTC)


def test_quiet_hours_use_the_time_zone_of_the_automation() -> None:
    quiet = {"quietHours": {"from": "19:00", "to": "20:00"}, "timezone": "Asia/Tokyo"}
    trace = run(build_automation(MESSAGE, settings=quiet), {})
    assert trace.steps[1].detail == {"cause": "quiet_hours", "until": "2026-11-20T11:00:00Z"}


def test_a_date_of_the_contact_is_reached_by_its_clock() -> None:
    trace = run(by_date(timezoneAttribute="tz"), {"ends": "2026-12-24", "tz": "Europe/Zurich"})
    reached = datetime(2026, 12, 21, 8, tzinfo=UTC)
    assert ends(trace) == [("waiting", "date", NOW), ("waited", None, reached)]
    assert trace.tags == ("yes",)


@pytest.mark.parametrize("attribute", ["payload.due", "contact.due", "due"])
def test_a_date_is_that_of_the_event_or_the_contact(attribute: str) -> None:
    due = {"due": "2026-12-24T10:00:00Z"}
    contact, payload = ({}, due) if attribute.startswith("payload.") else (due, {})
    automation = by_date(attribute=attribute)
    assert ends(run(automation, contact, payload=payload))[-1][2] == datetime(2026, 12, 21, 9, tzinfo=UTC)
    assert ends(run(automation, {}, payload={})) == [("missed", "no_date", NOW)]


@pytest.mark.parametrize(
    ("ends_at", "cause"),
    [(None, "no_date"), ("soon", "no_date"), ("2026-11-22", "date_passed"), ("2028-01-01", "date_too_far")],
)
def test_a_contact_without_a_date_ahead_takes_the_other_way(ends_at: str | None, cause: str) -> None:
    trace = run(by_date(), {} if ends_at is None else {"ends": ends_at})
    assert ends(trace) == [("missed", cause, NOW)]
    assert trace.tags == ("no",)


@pytest.mark.parametrize(
    ("written", "last"),
    [
        ({"ends": "2026-12-10"}, ("waited", None, datetime(2026, 12, 7, 9, tzinfo=UTC))),  # earlier
        ({"ends": "2027-01-24"}, ("waited", None, datetime(2027, 1, 21, 9, tzinfo=UTC))),  # later
        ({"ends": "2026-11-24"}, ("missed", "date_passed", NOW + 2 * DAY)),
        ({"ends": "never"}, ("missed", "no_date", NOW + 2 * DAY)),
        ({"ends": "2027-11-25"}, ("missed", "date_too_far", NOW + 2 * DAY)),  # 367 days after the wait began
        ({"timezone": "Asia/Tokyo"}, ("waited", None, datetime(2026, 12, 21, tzinfo=UTC))),
        ({"other": 1}, ("waited", None, datetime(2026, 12, 21, 9, tzinfo=UTC))),
    ],
)
def test_a_date_or_a_zone_that_changes_is_followed(written: dict[str, Any], last: Any) -> None:
    assert ends(run(by_date(), {"ends": "2026-12-24"}, (2 * DAY, written))) == [("waiting", "date", NOW), last]


def test_a_date_that_another_entry_moves_is_followed() -> None:
    moves = node("u", "update_contact", attributes={"ends": "{{ payload.ends | default(contact.ends) }}"})
    waits = node("w", "wait_until", attribute="ends")
    automation = build_automation(moves, waits, YES, NO, edges="t>u u>w w:reached>yes w:missed>no")
    payloads = {"1": b"{}", "2": b'{"ends": "2026-11-25"}'}
    events = [EventRecord(id_, "paid", NOW + int(id_) * DAY, Identifiers(), raw) for id_, raw in payloads.items()]
    contact = ContactState("c", attributes={"ends": "2026-12-24"})
    entries = list(backtest(automation, contact, events, NOW + 60 * DAY))
    assert [entry.steps[-1].at for entry in entries] == [datetime(2026, 11, 25, tzinfo=UTC)] * 2


def test_the_longest_wait_has_a_bound() -> None:
    time_of_day, weekly = (
        build_automation(node("w", "wait_until", **data), YES).graph
        for data in ({"time": "09:00"}, {"time": "09:00", "weekdays": [1]})
    )
    assert time_of_day is not None
    assert weekly is not None
    assert [max_duration(time_of_day), max_duration(weekly)] == [DAY + 7 * HOUR, 7 * DAY + 7 * HOUR]
    dated = by_date().graph
    assert dated is not None
    assert attribution_window(dated) == 373 * DAY


def test_the_check_warns_if_both_ways_lead_to_the_same_step() -> None:
    waits = node("w", "wait_until", attribute="contact.ends")
    both = build_automation(waits, MESSAGE, edges="t>w w:reached>m w:missed>m")
    assert both.graph is not None
    warnings = [remark.message for remark in check(both.trigger, both.graph) if remark.node_id == "w"]
    assert warnings == ["contacts that have no date or a past date reach 'm', too"]
