"""Automations that take days: tried with later events, and published only when the engine can run them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from api.automations import trial
from api.automations.trial import Trial, TrialContext, retry_policy
from workbench.language.codec import encode
from workbench.language.nodes import bucket

THEN = datetime(2030, 1, 1, tzinfo=UTC)
CONTACT = {"walletAddress": "0xAB"}
DEPOSIT = {"type": "app_event", "event": "deposit"}
EVENT = {"event": "deposit", "contact": CONTACT}
BOUGHT = {"event": "purchase", "contact": CONTACT, "attributes": {"plan": "pro"}}
WAIT = {"id": "w", "type": "wait_for_event", "data": {"event": "purchase", "timeoutSeconds": 86_400}}
YES = {"id": "y", "type": "send_inapp", "data": {"title": "t", "body": "{{ contact.plan }}"}}
HALVES = [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 50}]


def graph(*nodes: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the chain of nodes after a trigger, following the first handle of each node."""
    ways = {"wait_for_event": "matched", "split": "a"}
    row = [{"id": "t", "type": "app_event"}, *nodes]
    edges = [
        {"source": row[index]["id"], "target": node["id"], "sourceHandle": ways.get(row[index]["type"])}
        for index, node in enumerate(nodes)
    ]
    return {"nodes": row, "edges": edges} | ({"settings": settings} if settings else {})


async def tried(desk: Any, automation_id: str, **body: Any) -> Any:
    parsed = trial.read_trial(encode({"event": EVENT, "now": THEN} | body), desk.clock.now())
    assert isinstance(parsed, Trial), parsed
    return await trial.simulate_stored(
        desk.database, TrialContext(desk.org_id, desk.keys, retry_policy(None), True), automation_id, parsed
    )


async def test_a_trial_continues_with_later_events(desk: Any) -> None:
    row = await desk.create(triggerSpec=DEPOSIT, graph=graph(WAIT, YES))
    trace = await tried(desk, row.id, events=[{"afterSeconds": 3_600, "event": BOUGHT}])
    assert [(step.node_id, step.outcome) for step in trace.steps] == [
        ("t", "entered"),
        ("w", "waiting"),
        ("w", "matched"),
        ("y", "sent"),
    ]
    assert [message.body for message in trace.messages] == ["pro"]
    assert [step.outcome for step in (await tried(desk, row.id)).steps] == ["entered", "waiting", "timed_out"]


async def test_a_trial_sends_a_contact_along_the_way_that_the_engine_would(desk: Any) -> None:
    row = await desk.create(
        triggerSpec=DEPOSIT, graph=graph({"id": "s", "type": "split", "data": {"branches": HALVES}}, YES)
    )
    await desk.ingest(**EVENT, attributes={"plan": "free"})
    [(contact_id,)] = await desk.rows("SELECT id::text FROM contacts")
    number = bucket(row.id, "s", contact_id)
    step = (await tried(desk, row.id)).steps[1]
    assert (step.handle, step.detail) == ("a" if number < 50 else "b", {"share": number})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"events": {}}, "events"),
        ({"events": [{"afterSeconds": 1, "event": {"event": "x"}}]}, "events[0].event.contact"),
        ({"now": "1969-12-31T00:00:00Z"}, "now"),
        ({"now": "2201-01-01T00:00:00Z"}, "now"),
    ],
)
def test_a_bad_trial_is_refused_naming_the_field(body: dict[str, Any], field: str) -> None:
    refused = trial.read_trial(encode({"event": EVENT} | body), THEN)
    assert isinstance(refused, tuple)
    assert [problem.field for problem in refused] == [field]


async def test_a_split_can_be_published_and_runs_as_it_was_tried(desk: Any) -> None:
    row = await desk.publish(
        triggerSpec=DEPOSIT, graph=graph({"id": "s", "type": "split", "data": {"branches": HALVES}}, YES)
    )
    await desk.ingest(**EVENT, attributes={"plan": "free"})
    predicted = await tried(desk, row.id)
    assert await desk.drive() == 1
    handles = await desk.rows("SELECT node_id, outcome, handle FROM entry_steps ORDER BY claim, step")
    assert [*map(tuple, handles)] == [(step.node_id, step.outcome, step.handle) for step in predicted.steps]
