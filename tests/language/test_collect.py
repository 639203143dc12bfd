"""A step that collects: which events join, when it ends, and what texts see of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.language.strategies import contact_from, graph_of
from workbench.language.check import check, errors
from workbench.language.codec import encode
from workbench.language.event import Event, read_event
from workbench.language.graph import Graph, read_graph
from workbench.language.simulate import ScheduledEvent, SimulatedAutomation, SimulationInput, Trace, backtest, simulate
from workbench.language.timeline import EventRecord
from workbench.language.trigger import Trigger, read_trigger

START = datetime(2026, 11, 20, 10, tzinfo=UTC)
TEXT = "{{ events | length }}: {% for e in events %}{{ e.amount }} {% endfor %}= {{ events | sum('amount') }}"
TRIGGER = Trigger(frozenset({"deposit"}))


def written(collect: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {
        "nodes": [
            {"id": "t", "type": "app_event"},
            {"id": "c", "type": "collect", "data": collect},
            {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": TEXT}},
        ],
        "edges": [{"source": "t", "target": "c"}, {"source": "c", "target": "m"}],
        "settings": settings,
    }


def digest(collect: dict[str, Any], **settings: Any) -> Graph:
    return graph_of(written(collect, **settings))


def deposit(amount: object = 1, name: str = "deposit", **payload: Any) -> Event:
    body = {"event": name, "contact": {"externalId": "u"}, "payload": {"amount": amount, **payload}}
    event = read_event(encode(body), 0)
    assert isinstance(event, Event), event
    return event


def run(graph: Graph, *later: tuple[int, Event], trigger: Trigger = TRIGGER, **contact: Any) -> Trace:
    scheduled = tuple(ScheduledEvent(timedelta(seconds=seconds), event) for seconds, event in later)
    known = contact_from({"walletAddress": "0x" + "a" * 40, **contact})
    automation = SimulatedAutomation(trigger, graph)
    return simulate(automation, deposit(1), known, START, SimulationInput(later=scheduled))


def body(trace: Trace) -> str:
    (message,) = trace.messages
    return str(message.body)


def collected_at(trace: Trace) -> datetime:
    (step,) = [step for step in trace.steps if step.outcome == "collected"]
    return step.at


def test_later_events_of_the_same_name_join_until_the_time_is_over() -> None:
    events = (60, deposit(2)), (3_599, deposit(3.5)), (120, deposit(9, "trade")), (3_600, deposit(4))
    trace = run(digest({"seconds": 3_600}), *events)
    assert body(trace) == "3: 1 2 3.5 = 6.5"
    assert collected_at(trace) == START + timedelta(hours=1)
    assert trace.steps[-2].detail == {"events": 3}


def test_the_event_that_makes_the_most_ends_it() -> None:
    trace = run(
        digest({"seconds": 3_600, "max": 3}), (5, deposit(2)), (9, deposit(3)), (9, deposit(4)), (20, deposit(5))
    )
    assert body(trace) == "3: 1 2 3 = 6"
    assert collected_at(trace) == START + timedelta(seconds=9)


def test_only_events_with_the_same_value_join() -> None:
    graph = digest({"seconds": 60, "key": "payload.order.id"})
    later = [(1, deposit(2)), (2, deposit(3, order={"id": None})), (3, deposit(4, order={}))]
    assert body(run(graph, *later)) == "3: 1 2 4 = 7"


def test_only_events_that_would_start_the_automation_join() -> None:
    trigger = read_trigger({"type": "app_event", "event": "deposit", "where": "amount < 10"})
    assert isinstance(trigger, Trigger)
    assert body(run(digest({"seconds": 60}), (1, deposit(20)), (2, deposit(3)), trigger=trigger)) == "2: 1 3 = 4"


def test_it_ends_at_a_time_of_day_of_the_contact() -> None:
    graph = digest({"until": "09:00"}, timezone="America/New_York")
    assert collected_at(run(graph)) == datetime(2026, 11, 20, 14, tzinfo=UTC)
    assert collected_at(run(graph, attributes={"timezone": "Asia/Tokyo"})) == datetime(2026, 11, 21, 0, tzinfo=UTC)
    assert collected_at(run(digest({"until": "09:00"}))) == datetime(2026, 11, 21, 9, tzinfo=UTC)


def test_a_changed_time_zone_moves_the_end() -> None:
    moved = read_event(
        encode({"event": "moved", "contact": {"externalId": "u"}, "attributes": {"timezone": "Asia/Tokyo"}}), 0
    )
    assert isinstance(moved, Event)
    assert collected_at(run(digest({"until": "09:00"}), (60, moved))) == datetime(2026, 11, 21, 0, tzinfo=UTC)


def test_without_a_collect_events_is_a_value_of_the_payload() -> None:
    graph = {"nodes": written({"seconds": 1})["nodes"][::2], "edges": [{"source": "t", "target": "m"}]}
    trace = simulate(
        SimulatedAutomation(TRIGGER, graph_of(graph)),
        deposit(1, events=[{"amount": 7}]),
        contact_from({"walletAddress": "0x" + "a" * 40}),
        START,
    )
    assert body(trace) == "1: 7 = 7"


def test_in_a_backtest_joined_events_start_no_entries_and_do_not_count() -> None:
    graph = digest({"seconds": 60, "max": 2}, reentry={"policy": "once_per", "days": 1})
    contact = contact_from({"id": "c", "walletAddress": "0x" + "a" * 40})
    records = [
        EventRecord(f"e{number}", "deposit", START + timedelta(seconds=seconds), contact.identifiers, b'{"amount":1}')
        for number, seconds in enumerate((0, 10, 20, 86_500, 86_510))
    ]
    automation = SimulatedAutomation(TRIGGER, graph, "a")
    entries = sorted(
        backtest(automation, contact, records, START + timedelta(days=3)), key=lambda entry: entry.event.id
    )
    assert [(entry.run.outcome, entry.steps[-1].outcome) for entry in entries] == [
        ("completed", "sent"),
        ("joined", "joined"),
        ("reentry", "refused"),
        ("completed", "sent"),
        ("joined", "joined"),
    ]
    assert entries[1].steps[-1].detail == {"entryId": "e0"}


@pytest.mark.parametrize(
    "test", [{"where": "events | length > 1"}, {"filters": [{"path": "events", "operator": "exists"}]}]
)
def test_a_step_keeps_no_copy_of_the_collected_events(test: dict[str, Any]) -> None:
    steps = written({"seconds": 60})
    steps["nodes"].append({"id": "k", "type": "condition", "data": test})
    steps["edges"] = [
        {"source": "t", "target": "c"},
        {"source": "c", "target": "k"},
        {"source": "k", "sourceHandle": "true", "target": "m"},
    ]
    trace = run(graph_of(steps), (5, deposit(2, note="secret")))
    assert body(trace) == "2: 1 2 = 3"
    (verdict,) = next(step for step in trace.steps if step.node_id == "k").detail["verdicts"]
    assert verdict["actual"] in (2, {"events": 2})
    assert b"secret" not in encode([step.detail for step in trace.steps])


def test_filters_of_a_later_wait_read_the_collected_events_also_in_a_backtest() -> None:
    wait = {"event": "trade", "where": "amount == events | sum('amount')", "timeoutSeconds": 3_600}
    steps = written({"seconds": 60})
    steps["nodes"].append({"id": "w", "type": "wait_for_event", "data": wait})
    steps["edges"].append({"source": "m", "target": "w"})
    graph = graph_of(steps)
    trace = run(graph, (5, deposit(2)), (70, deposit(2, "trade")), (80, deposit(3, "trade")))
    assert (trace.steps[-1].outcome, trace.steps[-1].at) == ("matched", START + timedelta(seconds=80))
    contact = contact_from({"id": "c", "walletAddress": "0x" + "a" * 40})
    records = [
        EventRecord(f"e{at}", name, START + timedelta(seconds=at), contact.identifiers, encode({"amount": amount}))
        for at, name, amount in ((0, "deposit", 1), (5, "deposit", 2), (70, "trade", 2), (80, "trade", 3))
    ]
    entries = backtest(SimulatedAutomation(TRIGGER, graph, "a"), contact, records, START + timedelta(days=1))
    ends = {entry.event.id: (entry.steps[-1].outcome, entry.steps[-1].at) for entry in entries}
    assert ends["e0"] == ("matched", START + timedelta(seconds=80))


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        ({}, "seconds", "is missing: write a number of seconds, or a time of day as `until`"),
        ({"seconds": 5, "until": "09:00"}, "until", "cannot be combined with `seconds`: write one of them"),
        ({"seconds": 0}, "seconds", "must be a whole number of seconds from 1 to 31,622,400 (366 days)"),
        ({"until": "9:00"}, "until", "must be a time of day from 00:00 to 23:59, like 09:00"),
        ({"seconds": 5, "key": ""}, "key", "must be a path of 1 to 128 characters, like orderId"),
        ({"seconds": 5, "max": 1}, "max", "must be a whole number from 2 to 1,000"),
    ],
)
def test_wrong_data_is_an_error_at_its_field(data: dict[str, Any], field: str, reason: str) -> None:
    (error,) = errors(check(TRIGGER, digest(data)))
    assert (error.node_id, error.field, error.message) == ("c", f"graph.nodes[1].data.{field}", reason)


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "segment_entered", "segment": "vip"},
        {"type": "broadcast"},
        {"type": "schedule", "cron": "0 9 * * *"},
        {
            "type": "onchain_event",
            "chainId": 1,
            "contract": "0x" + "a" * 40,
            "signature": "Transfer(address from,address to,uint256 value)",
            "walletArg": "to",
        },
    ],
)
def test_only_events_can_be_collected(spec: dict[str, Any]) -> None:
    trigger = read_trigger(spec)
    assert isinstance(trigger, Trigger), trigger
    (error,) = errors(check(trigger, digest({"seconds": 5})))
    message = f"collects events, but a {spec['type']} starts this automation: an app_event must start it"
    assert (error.node_id, error.field, error.message) == ("c", "graph.nodes[1].type", message)


def test_a_text_that_reads_events_too_early_is_a_warning() -> None:
    early = written({"seconds": 5})
    early["edges"] = [{"source": "t", "target": "m"}, {"source": "m", "target": "c"}]
    without = {"nodes": early["nodes"][::2], "edges": early["edges"][:1]}
    found = []
    for graph in (written({"seconds": 5}), early, without):
        read = read_graph(graph)
        assert isinstance(read, Graph)
        found.append([str(item) for item in check(TRIGGER, read) if "'events'" in item.message])
    assert found == [
        [],
        [
            "m: reads 'events', which has only the event that started the entry: "
            "no step before it on every way collects events"
        ],
        ["m: reads 'events', which is a value of the event: no step before it on every way collects events"],
    ]
