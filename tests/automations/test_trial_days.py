"""Automations that take days: tried with later events, and published only when the engine can run them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from api.automations import trial
from api.automations.trial import Trial, TrialContext
from tests.inapp.wallet import evm_wallet
from workbench.language.body import read_body
from workbench.language.channel import RetryPolicy
from workbench.language.codec import encode
from workbench.language.nodes import bucket

THEN = datetime(2030, 1, 1, tzinfo=UTC)
CONTACT = {"walletAddress": evm_wallet("AB")}
DEPOSIT = {"type": "app_event", "event": "deposit"}
EVENT = {"event": "deposit", "contact": CONTACT}
BOUGHT = {"event": "purchase", "contact": CONTACT, "attributes": {"plan": "pro"}}
WAIT = {"id": "w", "type": "wait_for_event", "data": {"event": "purchase", "timeoutSeconds": 86_400}}
YES = {"id": "y", "type": "send_inapp", "data": {"title": "t", "body": "{{ contact.plan }}"}}
HALVES = [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 50}]


def graph(*nodes: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the chain of nodes after a trigger, following the first handle of each node."""
    handles = {"wait_for_event": "matched", "split": "a"}
    row = [{"id": "t", "type": "app_event"}, *nodes]
    edges = [
        {"source": row[index]["id"], "target": node["id"], "sourceHandle": handles.get(row[index]["type"])}
        for index, node in enumerate(nodes)
    ]
    return {"nodes": row, "edges": edges} | ({"settings": settings} if settings else {})


async def run_trial(tenant: Any, automation_id: str, **body: Any) -> Any:
    parsed = trial.trial_of(
        read_body(trial.TrialBody, encode({"event": EVENT, "now": THEN} | body)), tenant.clock.now()
    )
    assert isinstance(parsed, Trial), parsed
    return await trial.simulate_trial(
        tenant.database, TrialContext(tenant.org_id, tenant.show, RetryPolicy()), automation_id, parsed
    )


async def test_a_trial_continues_with_later_events(tenant: Any) -> None:
    row = await tenant.create(triggerSpec=DEPOSIT, graph=graph(WAIT, YES))
    trace = await run_trial(tenant, row.id, events=[{"afterSeconds": 3_600, "event": BOUGHT}])
    assert [(step.node_id, step.outcome) for step in trace.steps] == [
        ("t", "entered"),
        ("w", "waiting"),
        ("w", "matched"),
        ("y", "sent"),
    ]
    assert [message.body for message in trace.messages] == ["pro"]
    assert [step.outcome for step in (await run_trial(tenant, row.id)).steps] == ["entered", "waiting", "timed_out"]


async def test_a_trial_takes_the_same_branch_as_the_engine(tenant: Any) -> None:
    row = await tenant.create(
        triggerSpec=DEPOSIT, graph=graph({"id": "s", "type": "split", "data": {"branches": HALVES}}, YES)
    )
    await tenant.ingest(**EVENT, attributes={"plan": "free"})
    [(contact_id,)] = await tenant.rows("SELECT id::text FROM contacts")
    number = bucket(row.id, "s", contact_id)
    step = (await run_trial(tenant, row.id)).steps[1]
    assert (step.handle, step.detail) == ("a" if number < 50 else "b", {"share": number})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"events": {}}, "events: must be an array of at most 100 later events"),
        ({"events": [{"afterSeconds": 1, "event": {"event": "x"}}]}, "events[0].event.contact: "),
        ({"now": "1969-12-31T00:00:00Z"}, "now: "),
        ({"now": "2201-01-01T00:00:00Z"}, "now: "),
    ],
)
def test_a_bad_trial_is_refused_naming_the_field(body: dict[str, Any], problem: str) -> None:
    parsed = read_body(trial.TrialBody, encode({"event": EVENT} | body))
    refused = parsed if isinstance(parsed, tuple) else trial.trial_of(parsed, THEN)
    assert isinstance(refused, tuple)
    assert [str(refusal)[: len(problem)] for refusal in refused] == [problem]


async def test_a_published_split_takes_the_branch_of_its_trial(tenant: Any) -> None:
    row = await tenant.publish(
        triggerSpec=DEPOSIT, graph=graph({"id": "s", "type": "split", "data": {"branches": HALVES}}, YES)
    )
    await tenant.ingest(**EVENT, attributes={"plan": "free"})
    predicted = await run_trial(tenant, row.id)
    assert await tenant.drive() == 1
    handles = await tenant.rows("SELECT node_id, outcome, handle FROM entry_steps ORDER BY claim, step")
    assert [*map(tuple, handles)] == [(step.node_id, step.outcome, step.handle) for step in predicted.steps]
