"""The query of each report: what its template decides its structure from, and the values of its parameters."""

from datetime import UTC, datetime
from typing import Any

import pytest

from workbench.language.body import read_body
from workbench.language.codec import encode
from workbench.language.problem import Problem
from workbench.language.reports import (
    REPORTS,
    SPANS,
    ActiveUsers,
    Cohorts,
    Every,
    Funnel,
    MessagePerformance,
    Paths,
    ReportBody,
    Retention,
    Revenue,
    TimeToConvert,
    report_query,
    start_of_period,
)

LOG = f"0x{7:040x}:transfer"
SINCE, UNTIL = "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"
PERIOD = {"until": True, "past": False, "logs": False, "segment": ""}
SINCE_VALUE = {"since": "2026-11-01T00:00:00+00:00"}
PERIOD_VALUES = SINCE_VALUE | {"until": "2026-12-01T00:00:00+00:00"}
NAMES = (
    *("since", "until", "now", "by", "by_key", "value", "value_key", "segment", "segment_0", "segment_1", "every"),
    *("periods", "limit", "within", "previous", "spans", "steps", "step_1", "step_2", "start", "event", "back", "goal"),
    *("logs", "contracts", "counted_0", "counted_1"),
)


def read(kind: type[ReportBody], **fields: Any) -> ReportBody:
    report = read_body(kind, encode({"since": SINCE, "until": UNTIL} | fields))
    assert not isinstance(report, tuple), report
    return report


def queried(report: ReportBody, **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what the templates were rendered from, and the parameters, of which the text uses all."""
    rendered = []

    def statement(name: str, **structure: Any) -> str:
        rendered.append({"name": name} | structure)
        return " ".join(f":{parameter}" for parameter in NAMES)

    query = report_query(report, statement, **more)
    return rendered, dict(query.params)


def structure(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "period": PERIOD, "by": None, "dotted": [], "counted": ""} | more


@pytest.mark.parametrize(
    ("kind", "fields", "rendered", "values"),
    [
        (
            Funnel,
            {"steps": ["Visit", "paid"]},
            structure("funnel", steps=[1, 2]),
            {"step_1": "visit", "step_2": "paid", "within": "604800 seconds"},
        ),
        (
            Funnel,
            {"steps": ["Visit"], "withinSeconds": 60, "by": "contact.plan"},
            structure("funnel", steps=[1], by="contact"),
            {"step_1": "visit", "within": "60 seconds", "by": ["plan"]},
        ),
        (
            Funnel,
            {"steps": ["visit"], "by": "contact.segments"},
            structure("funnel", steps=[1], by="segment"),
            {"step_1": "visit", "within": "604800 seconds"},
        ),
        (
            Funnel,
            {"steps": ["visit"], "by": "utm.source"},
            structure("funnel", steps=[1], by="event", dotted=["by"]),
            {"step_1": "visit", "within": "604800 seconds", "by": ["utm", "source"], "by_key": "utm.source"},
        ),
        (
            Funnel,
            {"steps": ["visit", LOG.replace("transfer", "Transfer")]},
            structure("funnel", steps=[1, 2], period=PERIOD | {"logs": True}),
            {"step_1": "visit", "step_2": LOG, "within": "604800 seconds", "logs": [LOG], "contracts": [f"0x{7:040x}"]},
        ),
        (
            Retention,
            {"start": "Visit"},
            structure("retention", back=False),
            {"start": "visit", "every": "week", "periods": 8},
        ),
        (
            Retention,
            {"start": "visit", "back": "Paid", "every": "day", "periods": 3},
            structure("retention", back=True),
            {"start": "visit", "back": "paid", "every": "day", "periods": 3},
        ),
        (
            Cohorts,
            {"start": "visit", "event": "Paid", "value": "amount.usd"},
            structure("cohorts", value=True, dotted=["value"]),
            {
                "start": "visit",
                "event": "paid",
                "value": ["amount", "usd"],
                "value_key": "amount.usd",
                "every": "month",
                "periods": 6,
            },
        ),
        (
            Cohorts,
            {"start": "visit", "event": "paid"},
            structure("cohorts", value=False),
            {"start": "visit", "event": "paid", "every": "month", "periods": 6},
        ),
        (
            ActiveUsers,
            {},
            structure("active_users", event=False),
            {"every": "day", "previous": "2026-10-31T00:00:00+00:00"},
        ),
        (
            ActiveUsers,
            {"event": "Visit", "every": "week"},
            structure("active_users", event=True),
            {"event": "visit", "every": "week", "previous": "2026-10-19T00:00:00+00:00"},
        ),
        (Paths, {}, structure("paths", start=False), {"steps": 4, "within": "604800 seconds", "limit": 20}),
        (
            Paths,
            {"start": "Visit", "steps": 2, "withinSeconds": 1, "limit": 5},
            structure("paths", start=True),
            {"start": "visit", "steps": 2, "within": "1 seconds", "limit": 5},
        ),
        (
            Revenue,
            {"event": "Paid", "value": "amount", "by": "plan"},
            structure("revenue", every=False, by="event"),
            {"event": "paid", "value": ["amount"], "by": ["plan"]},
        ),
        (
            Revenue,
            {"event": "Paid", "value": "a.b", "by": "c.d", "every": "day"},
            structure("revenue", every=True, by="event", dotted=["by", "value"]),
            {
                "event": "paid",
                "value": ["a", "b"],
                "value_key": "a.b",
                "by": ["c", "d"],
                "by_key": "c.d",
                "every": "day",
            },
        ),
        (
            TimeToConvert,
            {"start": "Visit", "goal": "Paid"},
            structure("time_to_convert"),
            {"start": "visit", "goal": "paid", "within": "2592000 seconds", "spans": SPANS},
        ),
        (MessagePerformance, {}, structure("message_performance", goal=False), {"within": "604800 seconds"}),
        (
            MessagePerformance,
            {"goal": "Paid"},
            structure("message_performance", goal=True),
            {"goal": "paid", "within": "604800 seconds"},
        ),
    ],
)
def test_each_report_renders_its_structure_and_binds_its_values(
    kind: type[ReportBody], fields: dict[str, Any], rendered: dict[str, Any], values: dict[str, Any]
) -> None:
    assert queried(read(kind, **fields)) == ([rendered], PERIOD_VALUES | values)


def test_every_report_is_listed() -> None:
    assert [report.name for report in REPORTS] == [
        *("funnel", "retention", "cohorts", "active_users", "paths", "revenue", "time_to_convert"),
        "message_performance",
    ]


def test_the_end_of_the_period_is_given_or_the_watermark_or_the_moment_of_the_query() -> None:
    values = {"goal": "paid", "within": "604800 seconds"}
    now = datetime(2026, 11, 15, tzinfo=UTC)
    rendered, params = queried(read(MessagePerformance, goal="paid", until=None))
    assert (rendered[0]["period"], params) == (
        {"until": False, "past": False, "logs": False, "segment": ""},
        SINCE_VALUE | values,
    )
    rendered, params = queried(read(MessagePerformance, goal="paid", until=None), now=now)
    assert rendered[0]["period"] == {"until": False, "past": True, "logs": False, "segment": ""}
    assert params == SINCE_VALUE | values | {"now": "2026-11-15T00:00:00+00:00"}
    report = read(MessagePerformance, goal="paid", until=None, asOf="2026-11-20T12:00:00+02:00~1~2")
    rendered, params = queried(report, now=now)
    assert rendered[0]["period"] == {"until": False, "past": True, "logs": False, "segment": ""}
    assert params == SINCE_VALUE | values | {"now": "2026-11-20T10:00:00+00:00"}
    rendered, params = queried(read(MessagePerformance, goal="paid", asOf="2026-11-20T12:00:00Z~1:2"))
    assert rendered[0]["period"] == {"until": True, "past": True, "logs": False, "segment": ""}
    assert params == PERIOD_VALUES | values


def test_a_report_of_one_segment_and_one_of_several() -> None:
    period = {"until": True, "past": False, "logs": False}
    rendered, params = queried(read(ActiveUsers, segments=["vip"]))
    assert [item["period"] for item in rendered] == [period | {"segment": "segment"}]
    assert params["segment"] == "vip"
    rendered, params = queried(read(ActiveUsers, segments=["vip", "new"]))
    assert [item["period"] for item in rendered[:2]] == [
        period | {"segment": "segment_0"},
        period | {"segment": "segment_1"},
    ]
    text = " ".join(f":{name}" for name in NAMES)
    assert rendered[2:] == [{"name": "compared", "reports": [text, text]}]
    assert (params["segment_0"], params["segment_1"]) == ("vip", "new")


def test_what_the_kernels_counted_is_a_value_for_each_segment() -> None:
    rendered, params = queried(read(ActiveUsers), counted=["[1]"])
    assert ([item["counted"] for item in rendered], params["counted_0"]) == (["counted_0"], "[1]")
    rendered, params = queried(read(ActiveUsers, segments=["vip", "new"]), counted=["[1]", "[2]"])
    assert [item.get("counted") for item in rendered] == ["counted_0", "counted_1", None]
    assert (params["counted_0"], params["counted_1"]) == ("[1]", "[2]")


def test_only_parameters_that_the_text_uses_have_a_value() -> None:
    query = report_query(read(Paths), lambda name, **_: f"SELECT ':until', \":limit\", :since FROM {name}")
    assert (query.text, query.params) == ("SELECT ':until', \":limit\", :since FROM paths", SINCE_VALUE)


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({"until": SINCE}, [Problem("until", "must be after since")]),
        ({"until": "2026-11-01T00:00:00.000001Z", "asOf": "x"}, []),
        ({"until": None, "asOf": "x"}, [Problem("asOf", "is not the watermark of a result of this organization")]),
        (
            {"until": None, "asOf": "0001-01-01T00:00:00+14:00~1"},
            [Problem("asOf", "is not the watermark of a result of this organization")],
        ),
        ({"until": None, "asOf": "2026-11-20T12:00:00Z~1"}, []),
        ({"by": "a..b"}, [Problem("by", "must be a path: names with a dot between them")]),
        ({"by": 5}, [Problem("by", "must be a path: names with a dot between them")]),
    ],
)
def test_fields_that_do_not_fit_have_a_problem(fields: dict[str, Any], problems: list[Problem]) -> None:
    report = read_body(Funnel, encode({"since": SINCE, "until": UNTIL, "steps": ["visit"]} | fields))
    assert (list(report) if isinstance(report, tuple) else []) == problems


@pytest.mark.parametrize(
    ("end", "every", "periods", "start"),
    [
        ("2026-11-20T10:30:15.5", "day", 0, "2026-11-20"),
        ("2026-11-20T00:00:00", "day", 0, "2026-11-19"),
        ("2026-11-20T00:00:00.000001", "day", 2, "2026-11-18"),
        ("2026-11-20T10:00:00", "week", 0, "2026-11-16"),
        ("2026-11-16T00:00:00", "week", 1, "2026-11-02"),
        ("2026-11-20T10:00:00", "month", 0, "2026-11-01"),
        ("2026-11-20T10:00:00", "month", 10, "2026-01-01"),
        ("2026-11-20T10:00:00", "month", 11, "2025-12-01"),
        ("2026-12-31T10:00:00", "month", 12, "2025-12-01"),
    ],
)
def test_the_start_of_a_period(end: str, every: Every, periods: int, start: str) -> None:
    moment, expected = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (end, start))
    assert start_of_period(moment, every, periods) == expected


def test_the_first_period_of_all_has_none_before_it() -> None:
    report = read(ActiveUsers, since="0001-01-01T00:00:00Z")
    assert report.values()["previous"] == "0001-01-01T00:00:00+00:00"
    assert read(ActiveUsers, since="0002-01-01T00:00:00Z").values()["previous"] == "0001-12-31T00:00:00+00:00"
    assert read(ActiveUsers, since="2026-11-01T23:59:59.999999Z").values()["previous"] == "2026-10-31T00:00:00+00:00"
    assert read(ActiveUsers, since="2026-11-01T00:00:00.5Z").values()["previous"] == "2026-10-31T00:00:00+00:00"
