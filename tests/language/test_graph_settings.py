"""The settings of an automation are read, and their problems are reported."""

from datetime import time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.filter import Filter
from workbench.language.graph import (
    AutomationSettings,
    FrequencyCap,
    Goal,
    Graph,
    QuietHours,
    Reentry,
    follows_clocks,
    read_graph,
    read_settings,
)
from workbench.language.local_time import LONGEST_DAY


def test_settings_are_part_of_the_graph() -> None:
    written = {
        "reentry": {"policy": "once_per", "days": 7},
        "goal": {"event": "Paid", "filters": [{"path": "plan", "operator": "eq", "value": "pro"}]},
        "quietHours": {"from": "22:00", "to": "08:00", "timezoneAttribute": "tz"},
        "frequencyCap": {"messages": 3, "seconds": 86_400},
        "timezone": "Europe/Zurich",
    }
    graph = read_graph({"nodes": [], "edges": [], "settings": written})
    assert isinstance(graph, Graph)
    assert graph.settings == AutomationSettings(
        Reentry("once_per", 7),
        Goal("paid", (Filter("plan", "eq", "pro"),)),
        QuietHours(time(22), time(8), "tz"),
        FrequencyCap(3, timedelta(days=1)),
        timezone="Europe/Zurich",
    )


@pytest.mark.parametrize("written", [None, {}, {"goal": None}, {"reentry": {"policy": "always"}}])
def test_without_settings_every_event_enters(written: Any) -> None:
    assert read_settings(written, "s") == AutomationSettings()


def test_a_cap_is_for_a_period_or_for_a_day_of_the_calendar() -> None:
    cap = {"messages": 2, "per": "day", "timezoneAttribute": "tz"}
    assert read_settings({"frequencyCap": cap}, "s").frequency_cap == FrequencyCap(2, LONGEST_DAY, "tz")
    assert follows_clocks({"settings": {"frequencyCap": cap}})
    assert not follows_clocks({"settings": {"frequencyCap": {"messages": 2, "seconds": 60}}})


@pytest.mark.parametrize("policy", ["once", "not_while_running"])
def test_the_other_policies_need_no_days(policy: Any) -> None:
    assert read_settings({"reentry": {"policy": policy, "days": "x"}}, "s").reentry == Reentry(policy)


def test_the_attribute_with_the_zone_is_called_timezone() -> None:
    hours = read_settings({"quietHours": {"from": "00:00", "to": "23:59", "timezoneAttribute": None}}, "s").quiet_hours
    assert hours == QuietHours(time(0), time(23, 59), "timezone")


@pytest.mark.parametrize(
    ("written", "fields"),
    [
        ([], ["s"]),
        ({"quiet_hours": {}}, ["s.quiet_hours"]),
        ({"goal": "paid"}, ["s.goal"]),
        ({"goal": {}}, ["s.goal.event"]),
        ({"goal": {"event": "a b", "filters": {}}}, ["s.goal.event", "s.goal.filters"]),
        ({"reentry": {}}, ["s.reentry.policy"]),
        ({"reentry": {"policy": ["once"]}}, ["s.reentry.policy"]),
        ({"reentry": {"policy": "once_per"}}, ["s.reentry.days"]),
        ({"reentry": {"policy": "once_per", "days": 0}}, ["s.reentry.days"]),
        ({"reentry": {"policy": "once_per", "days": True}}, ["s.reentry.days"]),
        ({"reentry": {"policy": "once_per", "days": 3_651}}, ["s.reentry.days"]),
        ({"quietHours": {"from": "24:00", "to": "8:00"}}, ["s.quietHours.from", "s.quietHours.to"]),
        ({"quietHours": {"from": "22:00", "to": "22:00"}}, ["s.quietHours.to"]),
        ({"quietHours": {"from": 22, "to": "08:00"}}, ["s.quietHours.from"]),
        ({"quietHours": {"from": "22:00", "to": "08:00", "timezoneAttribute": 1}}, ["s.quietHours.timezoneAttribute"]),
        ({"timezone": "Europe/Nowhere"}, ["s.timezone"]),
        ({"timezone": {"name": "UTC"}}, ["s.timezone"]),
        ({"frequencyCap": {}}, ["s.frequencyCap.messages", "s.frequencyCap.seconds"]),
        (
            {"frequencyCap": {"messages": 0, "seconds": 366 * 86_400 + 1}},
            ["s.frequencyCap.messages", "s.frequencyCap.seconds"],
        ),
        ({"frequencyCap": {"messages": 1, "per": "week"}}, ["s.frequencyCap.per"]),
        ({"frequencyCap": {"messages": 1, "per": "day", "seconds": 60}}, ["s.frequencyCap.seconds"]),
        (
            {"frequencyCap": {"messages": 1, "per": "day", "timezoneAttribute": 1}},
            ["s.frequencyCap.timezoneAttribute"],
        ),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_reported_and_left_out(written: Any, fields: list[str]) -> None:
    settings_read = read_settings(written, "s")
    assert [problem.field for problem in settings_read.problems] == fields
    assert settings_read == AutomationSettings(problems=settings_read.problems)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["once", "once_per", "22:00", "paid", ""]),
    lambda inner: st.dictionaries(
        st.sampled_from(
            ["reentry", "goal", "quietHours", "frequencyCap", "policy", "days", "event", "filters", "from", "to"]
        ),
        inner,
    ),
    max_leaves=12,
)  # fmt: skip


@given(values)
def test_reading_settings_never_raises(value: Any) -> None:
    assert isinstance(read_settings(value, "s"), AutomationSettings)
