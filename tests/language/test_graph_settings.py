"""The settings of an automation are read, and their problems are reported."""

from datetime import time, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workbench.language.filter import Filter
from workbench.language.graph import (
    MAX_ITEMS,
    AutomationSettings,
    Edge,
    FrequencyCap,
    Goal,
    Graph,
    QuietHours,
    Reentry,
    SettingName,
    follows_clocks,
    read_graph,
    read_settings,
)
from workbench.language.local_time import LONGEST_DAY, NOT_A_ZONE
from workbench.language.locales import NOT_A_LOCALE


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


TOO_SMALL = "must be a whole number from 1 to"


@pytest.mark.parametrize(
    ("written", "reasons"),
    [
        ([], ["graph.settings: must be an object"]),
        ({"quiet": 1}, [f"graph.settings.quiet: unknown setting; the settings are {', '.join(get_args(SettingName))}"]),
        ({"goal": 5}, ["graph.settings.goal: must be an object"]),
        ({"reentry": {"policy": "x"}}, [
            "graph.settings.reentry.policy: must be one of always, once, once_per, not_while_running"
        ]),
        ({"reentry": {"policy": "once_per", "days": 0}}, [f"graph.settings.reentry.days: {TOO_SMALL} 3,650"]),
        ({"quietHours": {"from": "25:00", "to": 5}}, [
            "graph.settings.quietHours.from: must be a time of day from 00:00 to 23:59, like 22:00",
            "graph.settings.quietHours.to: must be a time of day from 00:00 to 23:59, like 22:00",
        ]),
        ({"quietHours": {"from": "09:00", "to": "09:00", "timezoneAttribute": ""}}, [
            "graph.settings.quietHours.to: must differ from `from`, otherwise every hour would be quiet",
            "graph.settings.quietHours.timezoneAttribute: must be the name of an attribute of the contact",
        ]),
        ({"timezone": "Mars"}, [f"graph.settings.timezone: {NOT_A_ZONE}"]),
        ({"frequencyCap": {"messages": 0, "seconds": 0}}, [
            f"graph.settings.frequencyCap.messages: {TOO_SMALL} 1,000",
            f"graph.settings.frequencyCap.seconds: {TOO_SMALL} 31,622,400",
        ]),
        ({"frequencyCap": {"messages": 1, "per": "week", "seconds": 5}}, [
            "graph.settings.frequencyCap.per: must be day; any other period is written as `seconds`",
            "graph.settings.frequencyCap.seconds: has no effect with `per`: leave out one of them",
        ]),
        ({"holdout": 0}, ["graph.settings.holdout: must be a whole percentage from 1 to 50"]),
        ({"holdout": 51}, ["graph.settings.holdout: must be a whole percentage from 1 to 50"]),
        ({"localeAttribute": ""}, ["graph.settings.localeAttribute: must be the name of an attribute of the contact"]),
        ({"defaultLocale": "12"}, [f"graph.settings.defaultLocale: {NOT_A_LOCALE}"]),
        ({"goal": None, "holdout": None, "nope": None}, [
            f"graph.settings.nope: unknown setting; the settings are {', '.join(get_args(SettingName))}"
        ]),
        ({"goal": None, "holdout": 0}, ["graph.settings.holdout: must be a whole percentage from 1 to 50"]),
    ],
)  # fmt: skip
def test_the_reason_why_a_setting_is_left_out(written: Any, reasons: list[str]) -> None:
    graph = read_graph({"settings": written})
    assert isinstance(graph, Graph)
    assert list(map(str, graph.settings.problems)) == reasons
    assert replace(graph.settings, problems=()) == AutomationSettings()


@pytest.mark.parametrize("holdout", [1, 50])
def test_a_holdout_at_its_bounds(holdout: int) -> None:
    graph = read_graph({"settings": {"holdout": holdout}})
    assert isinstance(graph, Graph)
    assert graph.settings == AutomationSettings(holdout=holdout)


@pytest.mark.parametrize(
    ("graph", "follows"),
    [
        ({}, False),
        ({"nodes": 5, "settings": 5}, False),
        ({"nodes": [5, {"type": "wait_until"}]}, True),
        ({"nodes": [{"type": "collect"}]}, True),
        ({"nodes": [{"type": "delay"}], "settings": {}}, False),
        ({"settings": {"quietHours": {}}}, True),
        ({"settings": {"frequencyCap": {"per": "day"}}}, True),
        ({"settings": {"frequencyCap": {"seconds": 5}}}, False),
        ({"settings": {"frequencyCap": 5}}, False),
        ({"settings": {"quietHours": {}, "timezone": "Europe/Berlin"}}, False),
        ({"nodes": [{"type": "wait_until"}], "settings": {"timezone": None}}, True),
    ],
)
def test_a_graph_with_a_clock_and_no_time_zone_follows_that_of_the_organization(graph: Any, follows: bool) -> None:
    assert follows_clocks(graph) is follows


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        ({"timezone": "Mars"}, [f"g.timezone: {NOT_A_ZONE}"]),
        ({"nodes": [None] * (MAX_ITEMS + 1), "edges": 5}, [
            f"g.nodes: has {MAX_ITEMS + 1} items, at most {MAX_ITEMS} are allowed",
            "g.edges: must be an array",
        ]),
        ({"nodes": 5, "edges": [None] * (MAX_ITEMS + 1)}, [
            "g.nodes: must be an array",
            f"g.edges: has {MAX_ITEMS + 1} items, at most {MAX_ITEMS} are allowed",
        ]),
    ],
    ids=["zone", "nodes", "edges"],
)  # fmt: skip
def test_the_reason_why_a_graph_is_not_read(value: Any, reasons: list[str]) -> None:
    result = read_graph(value, "g")
    assert isinstance(result, tuple)
    assert list(map(str, result)) == reasons


def test_a_graph_without_nodes_may_have_edges() -> None:
    assert read_graph({"nodes": None, "edges": [{"source": "a", "target": "b"}]}) == Graph((), (Edge("", "a", "b"),))
