"""A simulation reads the later events that its caller describes."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from workbench.language.codec import normalize
from workbench.language.event import Event, Identifiers
from workbench.language.problem import Problem
from workbench.language.simulate import ScheduledEvent, read_scheduled_events

NOW_US = round(datetime(2026, 11, 20, 10, tzinfo=UTC).timestamp() * 1_000_000)
BOUGHT = {"event": "Bought", "contact": {"externalId": "u"}, "payload": {"size": 2.50}}


def read(value: Any) -> tuple[tuple[ScheduledEvent, ...], list[str]]:
    problems: list[Problem] = []
    scheduled = read_scheduled_events(normalize(value), NOW_US, "events", problems)
    return scheduled, [problem.field for problem in problems]


def test_later_events_are_read_as_they_would_be_posted() -> None:
    event = Event("bought", Identifiers(external_id="u"), payload=b'{"size":2.5}')
    half = {"afterSeconds": Decimal("0.5"), "event": BOUGHT}
    assert read([{"afterSeconds": 7_200, "event": BOUGHT}, half]) == (
        (ScheduledEvent(timedelta(hours=2), event), ScheduledEvent(timedelta(seconds=0.5), event)),
        [],
    )
    assert read(None) == read([]) == ((), [])


def test_a_later_event_may_arrive_at_once() -> None:
    [scheduled], problems = read([{"afterSeconds": 0, "event": BOUGHT}])
    assert (scheduled.after, problems) == (timedelta(0), [])


def test_an_event_is_validated_at_the_time_of_its_arrival() -> None:
    tomorrow = BOUGHT | {"occurredAt": "2026-11-21T10:00:00Z"}
    assert read([{"afterSeconds": 86_400, "event": tomorrow}])[1] == []
    assert read([{"afterSeconds": 60, "event": tomorrow}])[1] == ["events[0].event.occurredAt"]


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ({}, ["events"]),
        ([{}] * 101, ["events"]),
        ([5], ["events[0].event"]),
        ([{"afterSeconds": 1}], ["events[0].event"]),
        ([{"event": BOUGHT}], ["events[0].afterSeconds"]),
        ([{"afterSeconds": Decimal("-0.5"), "event": BOUGHT}], ["events[0].afterSeconds"]),
        ([{"afterSeconds": True, "event": BOUGHT}], ["events[0].afterSeconds"]),
        ([{"afterSeconds": 366 * 86_400 + 1, "event": BOUGHT}], ["events[0].afterSeconds"]),
        ([{"afterSeconds": 1, "event": {}}], ["events[0].event.event", "events[0].event.contact"]),
        (
            [{"afterSeconds": 1, "event": BOUGHT}, {"afterSeconds": 1, "event": BOUGHT | {"payload": 1}}],
            ["events[1].event.payload"],
        ),
    ],
)
def test_problems_name_their_field(value: Any, fields: list[str]) -> None:
    assert read(value)[1] == fields


def test_problems_have_a_text_and_valid_events_are_read_beside_them() -> None:
    problems: list[Problem] = []
    value = [5, {"afterSeconds": "1", "event": BOUGHT}, {"afterSeconds": 366 * 86_400, "event": BOUGHT}]
    scheduled = read_scheduled_events(normalize(value), NOW_US, "later", problems)
    assert [item.after for item in scheduled] == [timedelta(days=366)]
    assert problems == [
        Problem("later[0].event", "must be an event"),
        Problem("later[1].afterSeconds", "must be a number of seconds from 0 to 31,622,400"),
    ]
    assert read([{"afterSeconds": 1, "event": BOUGHT}] * 100)[1] == []
    problems.clear()
    assert read_scheduled_events({}, NOW_US, "later", problems) == ()
    assert problems == [Problem("later", "must be an array of at most 100 later events")]
