"""A redacted trace shows no personal data."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import contact_from
from workbench.language.channel import EmailMessage, InappMessage
from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.decision import Decision
from workbench.language.event import Event, Identifiers, mask_email
from workbench.language.graph import Graph, read_graph
from workbench.language.redact import redact_decision
from workbench.language.run import ContactUpdated, Effect, EntryJoined, Run, State, Step, TagAdded, TagRemoved
from workbench.language.simulate import (
    EARLIEST,
    NO_INPUT,
    ScheduledEvent,
    SimulatedAutomation,
    SimulationInput,
    Trace,
    simulate,
)
from workbench.language.trigger import Trigger, read_trigger

EMAIL = "zqq'qq&qqq@example.com"  # a trace has no other text with a q
ANN = contact_from({"id": "ann", "email": EMAIL, "walletAddress": evm_wallet("a"), "attributes": {"tier": "gold"}})
MASKED = replace(ANN, identifiers=replace(ANN.identifiers, email=mask_email(EMAIL)))
EVENT = Event("a", Identifiers(wallet=evm_wallet("a")))


def traced(
    *nodes: dict[str, Any], ways: tuple[str | None, ...] = (), filters: Any = (), **more: Any
) -> tuple[Trace, Trace]:
    """Simulate nodes in a row; return the full trace and the redacted one. `ways`: the handles to the next nodes."""
    steps = [{"id": "t", "type": "app_event"}, *({"id": f"n{number}"} | node for number, node in enumerate(nodes))]
    handles = (None, *ways, *[None] * len(nodes))
    edges = [
        {"source": a["id"], "target": b["id"], "sourceHandle": handle}
        for (a, b), handle in zip(pairwise(steps), handles, strict=False)
    ]
    graph, trigger = (
        read_graph({"nodes": steps, "edges": edges}),
        read_trigger({"type": "app_event", "filters": list(filters)}),
    )
    assert isinstance(graph, Graph)
    assert isinstance(trigger, Trigger)
    simulation_input: SimulationInput = replace(NO_INPUT, **more)
    automation = SimulatedAutomation(trigger, graph)
    return (
        simulate(automation, EVENT, ANN, EARLIEST, simulation_input),
        simulate(automation, EVENT, ANN, EARLIEST, replace(simulation_input, visible_contact=MASKED)),
    )


def as_json(trace: Trace) -> str:
    return encode(trace).decode()


FILTERS = st.sampled_from(
    [
        "upper",
        "title",
        "capitalize",
        "urlencode",
        "truncate(5)",
        "last",
        "replace('@', '')",
        "replace('q', 'Q')",
        "trim",
    ]
)
PATHS = st.sampled_from(["contact.email", "email", "contact['email']", "(contact.email ~ email)"])


@given(PATHS, st.lists(FILTERS, max_size=4), st.booleans())
def test_a_text_shows_only_the_mask_of_an_address(path: str, chain: list[str], html: bool) -> None:
    text = "{{ " + " | ".join([path, *chain]) + " }}"
    full, redacted = traced(
        {"type": "send_inapp", "data": {"title": text, "body": text}},
        {"type": "send_email", "data": {"subject": "s", "body": text, "html": html}},
        {"type": "send_webhook", "data": {"url": "https://x.example/?" + text, "body": {"k": text}}},
        {"type": "update_contact", "data": {"attributes": {"copy": text}}},
        {"type": "send_inapp", "data": {"title": "{{ contact.copy }}", "body": "-"}},
        {"type": "condition", "data": {"filters": [{"path": "contact.copy", "operator": "exists"}]}},
    )
    assert [step.outcome for step in redacted.steps] == [step.outcome for step in full.steps]
    assert [(message.id, type(message)) for message in redacted.messages] == [
        (message.id, type(message)) for message in full.messages
    ]
    assert "q" not in as_json(redacted).lower()


def test_conditions_decide_on_the_true_address_and_show_the_mask() -> None:
    filters = [{"path": "contact.copy", "operator": "eq", "value": EMAIL.upper()}]
    full, redacted = traced(
        {"type": "update_contact", "data": {"attributes": {"copy": "{{ contact.email | upper }}"}}},
        {"type": "condition", "data": {"filters": filters}},
        {"type": "exit"},
        ways=(None, "true"),
    )
    assert (redacted.state, redacted.outcome) == (full.state, full.outcome) == (State.EXITED, "exit")
    [verdict] = redacted.steps[2].detail["verdicts"]
    assert (verdict["passed"], verdict["actual"]) == (True, "Z•••@EXAMPLE.COM")


def test_an_error_shows_no_address() -> None:
    full, redacted = traced(
        {"type": "send_inapp", "data": {"title": "{{ contact[contact.email | upper] }}", "body": "-"}}
    )
    assert full.error == redacted.error == "template_error: the value before it has no such key"
    assert redacted.steps[-1].detail["error"] in redacted.error


def test_results_that_differ_for_the_mask_are_hidden() -> None:
    fits = "{{ 1 / ((contact.email | length) - " + str(len(mask_email(EMAIL))) + ") }}"
    full, redacted = traced(
        {"type": "send_inapp", "data": {"title": fits, "body": "-"}},
        {"type": "update_contact", "data": {"attributes": {"copy": fits}}},
        {"type": "send_inapp", "data": {"title": "{{ contact.copy }}", "body": "-"}},
    )
    assert full.state is redacted.state is State.COMPLETED
    assert [(message.title, message.body) for message in redacted.messages] == [("•••", "•••"), ("•••", "-")]
    assert redacted.attributes == {"copy": "•••"}


def test_verdicts_of_the_trigger_and_of_waits_show_the_mask() -> None:
    filters = [{"path": "email", "operator": "contains", "value": "qqq@"}]
    wait = {"type": "wait_for_event", "data": {"event": "b", "timeoutSeconds": 60, "filters": filters}}
    later = ScheduledEvent(timedelta(seconds=5), Event("b", Identifiers()))
    full, redacted = traced(wait, filters=filters, later=(later,))
    assert (redacted.matched, redacted.steps[-1].outcome) == (full.matched, "matched")
    assert [(verdict.passed, verdict.actual) for verdict in redacted.verdicts] == [(True, mask_email(EMAIL))]
    missing = [{"path": "email", "operator": "eq", "value": "b@example.com"}]
    _, redacted = traced(wait | {"data": wait["data"] | {"filters": missing}}, later=(later,))
    assert [missed_event.verdicts[0].actual for missed_event in redacted.missed] == [mask_email(EMAIL)]


def test_details_of_steps_are_hidden_unless_they_are_known_to_be_harmless() -> None:
    run = Run("e1", "a1", State.RUNNING)
    step = Step("n", "some_kind", EARLIEST, "copied", detail={"tag": "vip", "copy": EMAIL})
    masked = replace(step, detail={"tag": "vip", "copy": "z•••"})
    (shown, hidden) = (redact_decision(Decision(run, step), Decision(run, other)).step for other in (masked, None))
    assert (shown and shown.detail) == {"tag": "vip", "copy": "z•••"}
    assert (hidden and hidden.detail) == {"tag": "vip", "copy": "•••"}


RUN = Run("e1", "a1", State.RUNNING)


def decided(
    outcome: str, detail: dict[str, Any] | None = None, effects: tuple[Effect, ...] = (), error: str | None = None
) -> Decision:
    return Decision(replace(RUN, error=error), Step("n", "k", EARLIEST, outcome, detail=detail or {}), effects)


@pytest.mark.parametrize(
    ("visible", "error"),
    [
        (decided("failed", {"cause": "template_error", "error": "masked"}), "masked"),
        (decided("failed", {"cause": "other", "error": "masked"}), "•••"),
        (decided("sent", {"cause": "template_error", "error": "masked"}), "•••"),
        (Decision(RUN), "•••"),
    ],
)
def test_an_error_is_that_of_the_visible_contact_if_it_fails_for_the_same_cause(visible: Decision, error: str) -> None:
    true, shown = (
        decided("failed", {"cause": "template_error", "error": text}, error=f"template_error: {text}")
        for text in ("secret", error)
    )
    assert redact_decision(true, visible) == shown


def test_an_entry_that_goes_on_after_a_failure_has_no_error_and_other_errors_stay() -> None:
    failed = decided("failed", {"cause": "c", "error": "x"})
    assert redact_decision(failed, failed) == failed
    sent = decided("sent", {"messageId": "m"}, error="unknown node")
    assert redact_decision(sent, Decision(RUN)) == sent
    assert redact_decision(Decision(RUN), sent) == Decision(RUN)


def test_effects_are_those_on_the_visible_contact_or_hidden_if_these_are_others() -> None:
    updated, masked = ContactUpdated({"copy": EMAIL}), ContactUpdated({"copy": "z•••"})
    email = EmailMessage("m", "n", EMAIL, "subject", "body")
    inapp = InappMessage("m", "n", "0x1", "title", "body")
    kept = (TagAdded("a"), TagRemoved("b"), EntryJoined("e2", True))
    assert redact_decision(decided("updated", {}, (updated,)), decided("updated", {}, (masked,))).effects == (masked,)
    assert redact_decision(decided("updated", {}, (updated, email, inapp, *kept)), Decision(RUN)).effects == (
        ContactUpdated({"copy": "•••"}),
        EmailMessage("m", "n", "•••", "•••", "•••"),
        InappMessage("m", "n", "0x1", "•••", "•••"),
        *kept,
    )


@pytest.mark.parametrize(
    ("visible", "actual"),
    [
        (decided("checked", {"verdicts": [{"actual": "z•••"}, {"actual": 2}]}), ["z•••", 2]),
        (decided("checked"), ["•••", "•••"]),
        (Decision(RUN), ["•••", "•••"]),
    ],
)
def test_verdicts_have_the_values_of_the_visible_contact_or_none(visible: Decision, actual: list[Any]) -> None:
    verdicts = [{"passed": True, "actual": EMAIL}, {"passed": False, "actual": 1}]
    shown = [verdict | {"actual": value} for verdict, value in zip(verdicts, actual, strict=True)]
    assert redact_decision(decided("checked", {"verdicts": verdicts}), visible) == decided(
        "checked", {"verdicts": shown}
    )


def test_a_detail_of_a_step_with_another_outcome_is_hidden() -> None:
    copied, other = decided("copied", {"tag": "vip", "copy": EMAIL}), decided("other", {"tag": "vip", "copy": "z•••"})
    assert redact_decision(copied, other) == decided("copied", {"tag": "vip", "copy": "•••"})


def test_a_reader_with_full_access_sees_everything() -> None:
    full, _ = traced({"type": "send_inapp", "data": {"title": "{{ contact.email }}", "body": "-"}})
    assert full.messages[0].title == EMAIL
    assert isinstance(ANN, ContactState)
