"""A simulation has the ids, the identifiers and the moments of what it repeats, also in a masked trace."""

from typing import Any

import pytest

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import contact_from
from tests.language.test_simulate_waits import (
    ANY,
    DAY,
    HOUR,
    MESSAGE,
    NO,
    NOW,
    YES,
    build_automation,
    event,
    node,
    run_simulation,
    steps_of,
)
from tests.language.test_timeline import log_trigger
from workbench.language.channel import RetryPolicy, WebhookMessage
from workbench.language.codec import decode, encode
from workbench.language.contact import IdentifierKey, IdentifierKind
from workbench.language.run import State, delay_after
from workbench.language.simulate import SIMULATED_ID, ScheduledEvent, SimulatedAutomation, SimulationInput, simulate
from workbench.language.trigger import read_sample


def condition(path: str) -> dict[str, Any]:
    return node("c", "condition", filters=[{"path": path, "operator": "exists"}])


@pytest.mark.parametrize("event_id", ["", "0199a000-0000-7000-8000-000000000000"])
def test_the_pauses_between_retries_are_those_of_the_repeated_event(event_id: str) -> None:
    sent = event(contact={"externalId": "u"})
    circumstances = SimulationInput(retries=RetryPolicy((60.0,)), event_id=event_id)
    trace = simulate(build_automation(MESSAGE), sent, contact_from(None), NOW, circumstances)
    _, first, second = trace.steps
    assert second.at - first.at == delay_after((60.0,), 1, f"{SIMULATED_ID}/{event_id}")


def test_an_address_that_belongs_to_another_contact_stays_there() -> None:
    automation = build_automation(condition("contact.email"), YES, NO, edges="t>c c:true>yes c:false>no")
    both = event(contact={"email": "ann@b.co", "walletAddress": evm_wallet("A")})
    contact = contact_from({"walletAddress": evm_wallet("b")})
    others: dict[IdentifierKey, str] = {(IdentifierKind.EMAIL, "ann@b.co"): "other"}
    for owners, tag in ({}, "yes"), (others, "no"):
        trace = simulate(automation, both, contact, NOW, SimulationInput(owners=owners))
        masking = SimulationInput(owners=owners, visible_contact=contact)
        assert (trace.tags, simulate(automation, both, contact, NOW, masking)) == ((tag,), trace)


def test_a_masked_trace_has_the_same_messages_within_the_cap() -> None:
    messages = [MESSAGE | {"id": f"m{number}"} for number in range(3)]
    automation = build_automation(*messages, settings={"frequencyCap": {"messages": 2, "seconds": 86_400}})
    trace = run_simulation(automation)
    assert [step.outcome for step in trace.steps] == ["entered", "sent", "sent", "skipped"]
    assert run_simulation(automation, visible_contact=contact_from(None)) == trace


def test_each_filter_of_a_missed_event_is_judged_at_its_moment() -> None:
    filters = [{"path": "size", "operator": "eq", "value": 5}]
    wait = node(
        "w", "wait_for_event", event="bought", timeoutSeconds=86_400, filters=filters, where="day | days_since == 2"
    )
    automation = build_automation(wait, YES, edges="t>w w:matched>yes")
    payload = {"day": "2026-11-18", "size": 1}
    trace = run_simulation(automation, ScheduledEvent(HOUR, event("bought", payload=payload)))
    (missed,) = trace.missed
    assert [verdict.passed for verdict in missed.verdicts] == [False, True]


def test_an_event_that_comes_as_its_wait_ends_is_not_missed() -> None:
    filters = [{"path": "size", "operator": "eq", "value": 5}]
    wait = node("w", "wait_for_event", event="bought", timeoutSeconds=86_400, filters=filters)
    trace = run_simulation(build_automation(wait), ScheduledEvent(DAY, event("bought", payload={"size": 1})))
    assert (steps_of(trace)[-1], trace.state, trace.missed) == (("w", "timed_out", 1), State.COMPLETED, ())


def test_a_later_event_of_an_unpublished_automation_changes_nothing() -> None:
    unpublished = SimulatedAutomation(ANY, None)
    trace = run_simulation(unpublished, ScheduledEvent(HOUR, event()))
    assert (trace.outcome, trace) == ("no_published_version", run_simulation(unpublished))


def test_the_payload_of_a_log_has_the_order_of_its_signature() -> None:
    trigger = log_trigger("Moved(address sender, address to)")
    args = {"sender": evm_wallet("a"), "to": evm_wallet("b")}
    sample = read_sample(encode({"type": "onchain_event", "args": args}), trigger, 0)
    assert not isinstance(sample, tuple)
    hook = node("h", "send_webhook", url="https://a.example", body="{{ payload }}")
    trace = simulate(SimulatedAutomation(trigger, build_automation(hook).graph), sample, contact_from(None), NOW)
    (message,) = trace.messages
    assert isinstance(message, WebhookMessage)
    assert [*decode(message.body)] == ["chainId", "contract", "txHash", "logIndex", "blockNumber", "sender", "to"]
