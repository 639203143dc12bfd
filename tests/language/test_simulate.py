"""A simulation plays one event through on a virtual clock, without effects."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import contact_from
from workbench.language.channel import INAPP, InappMessage, RetryPolicy
from workbench.language.codec import decode, encode, normalize
from workbench.language.contact import ContactState, apply_event
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.filter import Verdict
from workbench.language.graph import Graph, read_graph
from workbench.language.problem import Problem
from workbench.language.run import State, delay_after, message_id
from workbench.language.simulate import (
    SIMULATED_ID,
    ScheduledEvent,
    SimulatedAutomation,
    SimulationInput,
    Trace,
    read_contact,
    simulate,
)
from workbench.language.trigger import Trigger, read_trigger

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


def automation(
    filters: list[dict[str, Any]] | None = None, title: str = "Hi {{ contact.tier }}"
) -> SimulatedAutomation:
    """Return an automation for `paid`: if there is an amount, it adds a tag, sends a message and exits."""
    trigger = read_trigger(normalize({"type": "app_event", "event": "Paid", "filters": filters or []}))
    graph = read_graph(
        {
            "nodes": [
                {"id": "t", "type": "app_event"},
                {"id": "c", "type": "condition", "data": {"filters": [{"path": "amount", "operator": "exists"}]}},
                {"id": "tag", "type": "add_tag", "data": {"tag": "payer"}},
                {"id": "m", "type": "send_inapp", "data": {"title": title, "body": "{{ amount }}"}},
                {"id": "x", "type": "exit"},
            ],
            "edges": [
                {"source": "t", "target": "c"},
                {"source": "c", "target": "tag", "sourceHandle": "true"},
                {"source": "tag", "target": "m"},
                {"source": "m", "target": "x"},
            ],
        }
    )
    assert isinstance(trigger, Trigger)
    assert isinstance(graph, Graph)
    return SimulatedAutomation(trigger, graph)


def event(name: str = "paid", payload: Any = None, contact: Any = None, attributes: Any = None) -> Event:
    body = {
        "event": name,
        "contact": contact or {"walletAddress": evm_wallet("A")},
        "payload": payload,
        "attributes": attributes,
    }
    parsed = read_event(json.dumps(body).encode(), 0)
    assert isinstance(parsed, Event), parsed
    return parsed


def outcomes(trace: Trace) -> list[tuple[str, str]]:
    return [(step.node_id, step.outcome) for step in trace.steps]


def test_a_matching_event_runs_to_the_end() -> None:
    trace = simulate(automation(), event(payload={"amount": 2.5}, attributes={"tier": "gold"}), contact_from(None), NOW)
    assert outcomes(trace) == [("t", "entered"), ("c", "branched"), ("tag", "tagged"), ("m", "sent"), ("x", "exited")]
    assert trace.messages == (InappMessage(message_id(SIMULATED_ID, "m"), "m", evm_wallet("a"), "Hi gold", "2.5"),)
    assert (trace.matched, trace.tags, trace.state, trace.outcome) == (True, ("payer",), State.EXITED, "exit")


def test_the_other_branch_ends_the_entry() -> None:
    trace = simulate(automation(), event(), contact_from(None), NOW)
    assert outcomes(trace) == [("t", "entered"), ("c", "branched")]
    assert (trace.steps[1].handle, trace.state, trace.outcome) == ("false", State.COMPLETED, "completed")


def test_a_trace_without_a_match_has_the_verdicts() -> None:
    filters: list[dict[str, Any]] = [
        {"path": "amount", "operator": "eq", "value": 2.5},
        {"path": "email", "operator": "exists"},
    ]
    trace = simulate(automation(filters), event(payload={"amount": "2.5"}), contact_from(None), NOW)
    assert trace == Trace(
        False,
        (Verdict("amount", "eq", Decimal("2.5"), False, True, "2.5"), Verdict("email", "exists", None, False, False)),
    )


def test_another_name_does_not_match_even_if_its_filters_pass() -> None:
    trace = simulate(automation(), event("refund"), contact_from(None), NOW)
    assert (trace.matched, trace.name_matched, trace.steps, trace.state) == (False, False, (), None)


def test_trigger_filters_see_the_contact_completed_by_the_event() -> None:
    filters = [{"path": "email", "operator": "eq", "value": "ann@b.co"}]
    contact = contact_from({"email": "Ann@B.co"})
    assert simulate(automation(filters), event(), contact, NOW).matched


def test_without_a_wallet_retries_pass_on_the_virtual_clock_and_the_entry_is_dead() -> None:
    paid = event(payload={"amount": 1}, contact={"externalId": "u"}, attributes={"tier": "gold"})
    trace = simulate(automation(), paid, contact_from(None), NOW)
    failed = trace.steps[3:]
    assert [(step.node_id, step.outcome, step.attempt) for step in failed] == [("m", "failed", n) for n in range(1, 7)]
    at = NOW
    for step, number in zip(failed, range(1, 7), strict=True):
        assert step.at == at
        at += delay_after(INAPP.delays_s, number, f"{SIMULATED_ID}/") or at - at
    assert (trace.state, trace.outcome, trace.messages) == (State.DEAD, "no_wallet", ())


def test_the_retry_policy_can_be_set() -> None:
    paid = event(payload={"amount": 1}, contact={"externalId": "u"}, attributes={"tier": "gold"})
    trace = simulate(automation(), paid, contact_from(None), NOW, SimulationInput(retries=RetryPolicy(())))
    assert [step.attempt for step in trace.steps if step.outcome == "failed"] == [1]


def test_a_failing_template_is_dead_and_names_the_missing_value() -> None:
    trace = simulate(automation(), event(payload={"amount": 1}), contact_from(None), NOW)
    assert (trace.state, trace.outcome) == (State.DEAD, "template_error")
    assert trace.error == "template_error: the value before it has no key 'tier'"


def test_i2_an_unpublished_automation_matches_and_sends_nothing() -> None:
    trace = simulate(SimulatedAutomation(Trigger(), None), event(), contact_from(None), NOW)
    assert (trace.matched, trace.steps, trace.state, trace.outcome) == (
        True,
        (),
        State.COMPLETED,
        "no_published_version",
    )


def test_the_event_updates_attributes_and_identifiers_of_the_contact() -> None:
    contact = ContactState("c1", Identifiers(email="a@b.co"), {"tier": "gold", "age": 3})
    updated = apply_event(contact, Identifiers(evm_wallet("a"), "x@y.co"), {"tier": "iron"})
    assert updated == ContactState("c1", Identifiers(evm_wallet("a"), "a@b.co"), {"tier": "iron", "age": 3})


@pytest.mark.parametrize(("after_s", "title"), [(0, "Hi none"), (1, "Hi gold")])
def test_an_event_finds_what_the_others_of_its_batch_change(after_s: int, title: str) -> None:
    first = event(payload={"amount": 2.5}, attributes={"tier": "gold"})
    later = event("left", attributes={"tier": "none"})
    circumstances = SimulationInput(later=(ScheduledEvent(timedelta(seconds=after_s), later),))
    trace = simulate(automation(), first, contact_from(None), NOW, circumstances)
    assert [message.title for message in trace.messages if isinstance(message, InappMessage)] == [title]


def test_an_email_moves_with_the_wallet_sent_with_it() -> None:
    contact = ContactState("c1", Identifiers(evm_wallet("a"), "a@b.co"))
    updated = apply_event(contact, Identifiers(evm_wallet("a"), "x@y.co"), {})
    assert updated.identifiers == Identifiers(evm_wallet("a"), "x@y.co")


def test_a_trace_is_json_with_exact_numbers() -> None:
    filters = [{"path": "amount", "operator": "eq", "value": 2.50}]
    trace = simulate(automation(filters), event(payload={"amount": 2.5}), contact_from(None), NOW)
    read = decode(encode(trace))
    assert read["verdicts"][0] == {
        "path": "amount",
        "operator": "eq",
        "value": Decimal("2.5"),
        "passed": True,
        "present": True,
        "actual": Decimal("2.5"),
    }
    assert set(read["steps"][0]) == {"nodeId", "kind", "at", "outcome"}
    assert b"node_id" not in encode(trace)


def test_a_described_contact_is_normalized_as_the_service_would_store_it() -> None:
    described = {
        "id": "c1",
        "email": "Ann@Example.com",
        "walletAddress": evm_wallet("Ab"),
        "externalId": "U1",
        "attributes": {"score": 0.1},
        "tags": ["a"],
        "segments": ["s"],
    }
    assert contact_from(described) == ContactState(
        "c1",
        Identifiers(evm_wallet("ab"), "ann@example.com", "U1", evm_wallet("Ab")),
        {"score": Decimal("0.1")},
        ("a",),
        ("s",),
    )
    assert contact_from(None) == contact_from({}) == ContactState(SIMULATED_ID)
    assert contact_from({"attributes": {1: "a"}}).attributes == {"1": "a"}, (
        "in Python, the keys of a dict may be numbers"
    )


@pytest.mark.parametrize(
    ("described", "field"),
    [
        (5, "contact"),
        ([], "contact"),
        ({"email": "nope"}, "contact.email"),
        ({"email": 5}, "contact.email"),
        ({"walletAddress": [evm_wallet("a")]}, "contact.walletAddress"),
        ({"externalId": 5}, "contact.externalId"),
        ({"id": 5}, "contact.id"),
        ({"id": "\ud800"}, "contact.id"),
        ({"externalId": "a\0"}, "contact.externalId"),
        ({"attributes": [1]}, "contact.attributes"),
        ({"attributes": {"a": object()}}, "contact.attributes"),
        ({"tags": "vip"}, "contact.tags"),
        ({"tags": [5]}, "contact.tags"),
        ({"segments": {}}, "contact.segments"),
    ],
)
def test_an_invalid_description_names_its_field(described: Any, field: str) -> None:
    problems = read_contact(described)
    assert isinstance(problems, tuple)
    assert all(isinstance(problem, Problem) for problem in problems)
    assert [problem.field for problem in problems] == [field]
    with pytest.raises(ValueError, match=field):
        contact_from(described)


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ({"email": 5}, "must be a string"),
        ({"email": "nope"}, "not a valid email address"),
        ({"attributes": [1]}, "must be an object"),
        ({"attributes": {"a": object()}}, "must hold strings, numbers and booleans"),
        ({"optedOut": ["fax"]}, "must be an array with some of inapp, email, webhook, connection"),
    ],
)
def test_an_invalid_description_has_a_reason(described: Any, reason: str) -> None:
    problems = read_contact(described)
    assert isinstance(problems, tuple)
    assert [problem.reason for problem in problems] == [reason]


def test_empty_texts_of_a_description_are_absent() -> None:
    described = {"id": "", "email": "", "walletAddress": "", "externalId": "", "optedOut": ["email"], "declined": ["n"]}
    assert contact_from(described) == ContactState(SIMULATED_ID, opted_out=("email",), declined=("n",))


def test_filters_of_the_trigger_see_the_id_of_the_contact() -> None:
    known = ContactState("c1", Identifiers(external_id="u1"))
    trace = simulate(
        automation([{"path": "contactId", "operator": "eq", "value": "c1"}]), event(payload={}), known, NOW
    )
    assert trace.verdicts[0].actual == "c1"


def test_a_simulation_may_go_on_until_the_last_moment_that_has_a_date() -> None:
    until = SimulationInput(until=datetime.max.replace(tzinfo=UTC))
    trace = simulate(automation(title="Hi"), event(payload={"amount": 1}), contact_from(None), NOW, until)
    assert trace.state is State.EXITED
