"""Triggers without an event: a contact enters or leaves a segment."""

from itertools import pairwise
from typing import Any

import pytest

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import NOW, graph_of
from workbench.language.check import CatalogFacts, check, check_against, segments_of
from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.cron import Cron
from workbench.language.event import Event, Identifiers
from workbench.language.graph import Graph
from workbench.language.local_time import time_zone
from workbench.language.problem import Problem
from workbench.language.simulate import SimulatedAutomation, simulate
from workbench.language.starts import StartSource, read_start_sample
from workbench.language.trigger import Trigger, read_sample, read_trigger

SPEC = {"type": "segment_entered", "segment": "vip"}
ANN = ContactState("c1", Identifiers(evm_wallet("a"), "ann@b.co"), segments=("vip",))


def trigger(**more: Any) -> Trigger:
    parsed = read_trigger(SPEC | more)
    assert isinstance(parsed, Trigger), parsed
    return parsed


def sample(raw: bytes, of: Trigger) -> Event:
    event = read_sample(raw, of, 0)
    assert isinstance(event, Event), event
    return event


def shape(*nodes: dict[str, Any]) -> Graph:
    steps = [{"id": str(number), **node} for number, node in enumerate(nodes)]
    chain = ["t", *(step["id"] for step in steps)]
    edges = [{"source": source, "target": target} for source, target in pairwise(chain)]
    return graph_of({"nodes": [{"id": "t", "type": "segment_entered"}, *steps], "edges": edges})


@pytest.mark.parametrize("name", ["segment", "filters", "where"])
def test_the_contacts_of_a_broadcast_are_chosen_when_it_is_sent(name: str) -> None:
    values = {"segment": "vip", "filters": [{"path": "email", "operator": "exists"}], "where": "email is defined"}
    problems = read_trigger({"type": "broadcast", name: values[name]})
    assert isinstance(problems, tuple)
    assert [problem.field for problem in problems] == [f"triggerSpec.{name}"]


def test_a_simulated_broadcast_may_name_its_segment() -> None:
    tag = {"type": "add_tag", "data": {"tag": "x"}}
    message = {"type": "send_inapp", "data": {"title": "Hi", "body": "{{ segment | default('everyone') }}"}}
    automation = SimulatedAutomation(trigger(type="broadcast", segment=None), shape(tag, message))
    for raw, body in ((b'{"type": "broadcast"}', "everyone"), (b'{"type": "broadcast", "segment": "vip"}', "vip")):
        trace = simulate(automation, sample(raw, automation.trigger), ANN, NOW)
        assert [message.body for message in trace.messages] == [body]


@pytest.mark.parametrize("segment", [None, "", "VIP", "a b", 5, ["vip"], "x" * 65])
def test_a_segment_has_the_name_of_a_segment(segment: Any) -> None:
    problems = read_trigger({"type": "segment_left", "segment": segment})
    assert isinstance(problems, tuple)
    assert [problem.field for problem in problems] == ["triggerSpec.segment"]


def test_a_start_has_the_identifiers_and_the_segment_in_its_context() -> None:
    where = "segment == 'vip' and email is defined and event == 'segment_entered'"
    message = {"type": "send_inapp", "data": {"title": "{{ event }}", "body": "{{ segment }} {{ payload.segment }}"}}
    automation = SimulatedAutomation(trigger(where=where), shape(message))
    event = sample(b'{"type": "segment_entered"}', automation.trigger)
    trace = simulate(automation, event, ANN, NOW)
    assert [(message.title, message.body) for message in trace.messages] == [("segment_entered", "vip vip")]  # type: ignore[union-attr]
    assert not simulate(automation, event, ContactState("c2", Identifiers("0xb")), NOW).matched


def test_neither_events_nor_starts_of_other_segments_begin_it() -> None:
    automation = SimulatedAutomation(trigger(), shape())
    posted = sample(b'{"event": "segment_entered", "contact": {"externalId": "u"}}', automation.trigger)
    other = sample(b'{"type": "segment_entered"}', trigger(segment="other"))
    for event in (posted, other):
        assert not simulate(automation, event, ANN, NOW).name_matched
    assert not automation.trigger.is_wildcard
    problems = read_sample(b'{"type": "segment_left"}', automation.trigger, 0)
    assert isinstance(problems, tuple)
    assert str(problems[0]) == "event.type: this automation does not start from segment_left"


LOGS = read_trigger(
    {"type": "onchain_event", "chainId": 1, "contract": "0x" + "a" * 40, "signature": "Paid(address who)"}
    | {"walletArg": "who"}
)


@pytest.mark.parametrize(
    ("of", "described", "problem"),
    [
        (trigger(), {"type": "onchain_event"}, "event.type: this automation does not start from on-chain events"),
        (Trigger(), {"type": "broadcast"}, "event.type: this automation does not start from broadcast"),
        (LOGS, {"type": "broadcast"}, "event.type: this automation does not start from broadcast"),
        (
            LOGS,
            {"type": "onchain_event", "args": {}},
            "event.args.who: must be an address: 0x and 40 hexadecimal digits",
        ),
        (trigger(), {"type": "segment_entered", "contact": {"email": 5}}, "event.contact.email: must be a string"),
        (Trigger(), {"contact": {"email": 5}}, "event.event: is required"),
        (Trigger(), ["type"], "event: must be a JSON object"),
    ],
)
def test_a_sample_that_cannot_start_an_automation_has_problems(of: Trigger, described: Any, problem: str) -> None:
    problems = read_sample(encode(described), of, 0)
    assert isinstance(problems, tuple)
    assert str(problems[0]) == problem


def test_values_that_a_start_never_has_and_unknown_segments_are_reported() -> None:
    condition = {"type": "condition", "data": {"filters": [{"path": "amountUsd", "operator": "exists"}]}}
    graph = shape({"type": "add_tag", "data": {"tag": "x"}}, condition)
    missing = [item.node_id for item in check(trigger(), graph) if "is always missing" in item.message]
    assert missing == ["1"]
    assert segments_of(trigger(), graph) == ("vip",)
    warnings = check_against(CatalogFacts(segments=("vips",)), trigger(), graph)
    assert [(item.field, item.message) for item in warnings] == [
        ("triggerSpec.segment", "unknown segment 'vip'; did you mean 'vips'?")
    ]


WEEKLY = StartSource("schedule", None, "0 9 * * mon", "Europe/Zurich", "skip")
SHOWN = {"cron": "0 9 * * mon", "timezone": "Europe/Zurich", "missed": "skip"}


@pytest.mark.parametrize(
    ("source", "key", "shown"),
    [
        (StartSource("segment_entered", "vip"), "segment_entered:vip", {"segment": "vip"}),
        (StartSource("segment_left", "vip"), "segment_left:vip", {"segment": "vip"}),
        (StartSource("broadcast"), "broadcast", {"segment": None}),
        (WEEKLY, "schedule:0 9 * * mon:Europe/Zurich:", {"segment": None, **SHOWN}),
        (
            StartSource("schedule", "vip", "0 9 * * mon", "Europe/Zurich", "skip"),
            "schedule:0 9 * * mon:Europe/Zurich:vip",
            {"segment": "vip", **SHOWN},
        ),
    ],
)
def test_the_key_of_a_source_and_what_titles_show_of_it(source: StartSource, key: str, shown: dict[str, Any]) -> None:
    assert (source.key, source.shown_values, source.name) == (key, shown, source.type)


def test_the_times_of_a_schedule_are_in_its_zone() -> None:
    times = WEEKLY.times()
    assert isinstance(times, Cron)
    assert (times.hours, times.zone) == ({9}, time_zone("Europe/Zurich"))
    assert StartSource("segment_left", "vip").times() == StartSource("schedule", cron="x").times()


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "segment_left", "segment": "vip"},
        {"type": "broadcast"},
        {"type": "schedule", "segment": "vip", "cron": "0 9 * * mon", "timezone": "Europe/Zurich", "missed": "skip"},
    ],
)
def test_a_source_has_every_field_of_its_spec(spec: dict[str, Any]) -> None:
    fields = {"cron": None, "segment": None, "timezone": "UTC", "missed": "once"} | spec
    read = read_trigger(spec)
    assert isinstance(read, Trigger)
    assert read.source == StartSource(**fields)


def test_every_problem_of_a_schedule_is_named_with_what_to_write() -> None:
    spec = {"type": "schedule", "segment": 5, "cron": 5, "timezone": 5, "missed": 5, "filters": [5], "where": "a"}
    assert read_trigger(spec)[:6] == (  # type: ignore[index]
        Problem("triggerSpec.filters", "does not belong to a schedule: its contacts are those of a segment"),
        Problem("triggerSpec.where", "does not belong to a schedule: its contacts are those of a segment"),
        Problem("triggerSpec.segment", "must be the name of a segment, like vip"),
        Problem("triggerSpec.timezone", "must be a time zone, like Europe/Zurich"),
        Problem(
            "triggerSpec.cron",
            "must have five fields (minute, hour, day of the month, month, day of the week), like 0 9 * * mon",
        ),
        Problem("triggerSpec.missed", "must be once or skip"),
    )
    assert read_trigger({"type": "broadcast", "segment": "vip"}) == (
        Problem("triggerSpec.segment", "does not belong to a broadcast: its contacts are those of a segment"),
    )


def test_a_sample_of_a_start_has_its_contact_and_segment() -> None:
    entered = StartSource("segment_entered", "vip")
    assert read_start_sample({"segment": "other"}, entered) == Event(
        "segment_entered", Identifiers(), payload=b'{"segment":"vip"}', source="segment_entered:vip"
    )
    assert read_start_sample({"segment": "vip", "contact": None}, StartSource("broadcast")) == Event(
        "broadcast", Identifiers(), payload=b'{"segment":"vip"}', source="broadcast"
    )
    assert read_start_sample({"segment": 5, "contact": {"externalId": "u1"}}, StartSource("broadcast")) == Event(
        "broadcast", Identifiers(external_id="u1"), source="broadcast"
    )
    refused = read_start_sample({"contact": {}}, entered)
    assert isinstance(refused, tuple)
    assert [problem.field for problem in refused] == ["event.contact"]
