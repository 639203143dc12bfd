"""Trials: the stored automation, the stored contact, the language's own interpreter, and nothing written."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from api.automations import automations, trial
from api.automations.body import read_edit
from api.automations.trial import Trial, TrialContext, retry_policy
from api.store import contacts
from workbench.language.codec import decode, encode
from workbench.language.graph import read_graph
from workbench.language.simulate import SimulatedAutomation, contact_from, simulate
from workbench.language.trigger import read_trigger

NOW = "2030-01-01T00:00:00Z"
THEN = datetime(2030, 1, 1, tzinfo=UTC)
WALLET = {"walletAddress": "0xAB"}
EVENT = {"event": "First_Deposit", "contact": WALLET, "payload": {"amountUsd": 1}}


def trial_context(desk: Any, *, shows_email: bool = True) -> TrialContext:
    return TrialContext(desk.org_id, desk.keys, retry_policy(None), shows_email)


def read_trial_of(desk: Any, **body: Any) -> Trial:
    parsed = trial.read_trial(encode({"event": EVENT} | body), desk.clock.now())
    assert isinstance(parsed, Trial), parsed
    return parsed


async def simulate_trial(desk: Any, automation_id: str, *, shows_email: bool = True, **body: Any) -> Any:
    return await trial.simulate_stored(
        desk.database, trial_context(desk, shows_email=shows_email), automation_id, read_trial_of(desk, **body)
    )


async def test_a_trial_with_the_stored_contact_is_the_local_simulation(desk: Any) -> None:
    row = await desk.create()
    contact = {"email": "Ann@Example.com", "walletAddress": "0xAB", "externalId": "u1"}
    await desk.ingest(event="signup", contact=contact, attributes={"tier": "gold", "level": 1.50})
    [(contact_id,)] = await desk.rows("UPDATE contacts SET tags = '{vip}' RETURNING id")
    described = contact_from(
        decode(encode(contact | {"id": contact_id, "tags": ["vip"], "attributes": {"tier": "gold", "level": 1.50}}))
    )
    described = msgspec.structs.replace(
        described, identifiers=msgspec.structs.replace(described.identifiers, email="ann@example.com")
    )
    sample = read_trial_of(desk, now=NOW)
    local = SimulatedAutomation(read_trigger(decode(row.trigger_spec)), read_graph(decode(row.graph)))
    trace = await simulate_trial(desk, row.id, now=NOW)
    assert trace == simulate(local, sample.event, described, sample.now)
    assert [(message.title, message.body) for message in trace.messages] == [("Thanks, gold", "You paid in 1")]


async def test_a_stored_contact_is_found_by_the_first_identifier_that_matches(desk: Any) -> None:
    await desk.ingest(event="a", contact={"externalId": "u1"}, attributes={"n": 1})
    await desk.ingest(event="a", contact={"email": "b@example.com"}, attributes={"n": 2})
    traces = []
    for sender in ({"externalId": "u1"}, {"externalId": "u1", "email": "B@example.com", "walletAddress": "0x9"}):
        identifiers = read_trial_of(desk, event=EVENT | {"contact": sender}).event.identifiers
        async with desk.database.transaction() as tx:
            traces.append(await contacts.find_contact_state(tx, desk.org_id, desk.keys, identifiers))
    assert [(contact.attributes["n"], contact.identifiers.email) for contact in traces] == [
        (1, None),
        (2, "b@example.com"),
    ]


async def test_a_contact_of_another_organization_is_not_found(desk: Any, other_desk: Any) -> None:
    await other_desk.ingest(event="a", contact=WALLET, attributes={"tier": "theirs"})
    row = await desk.create()
    assert (await simulate_trial(desk, row.id)).error.startswith("template_error")
    assert (await simulate_trial(other_desk, row.id)).reason == "unknown"


async def test_a_contact_that_is_given_overrides_the_stored_one(desk: Any) -> None:
    await desk.ingest(event="a", contact=WALLET, attributes={"tier": "gold"})
    row = await desk.create()
    trace = await simulate_trial(desk, row.id, contact={"id": None, "attributes": {"tier": "tin"}})
    assert trace.messages[0].title == "Thanks, tin"


async def test_a_trial_writes_nothing(desk: Any) -> None:
    row = await desk.publish()
    before = await desk.traces()
    await simulate_trial(desk, row.id, contact={"attributes": {"tier": "gold"}})
    assert await desk.traces() == before
    for table in ("contacts", "events", "entries", "messages", "dry_runs", "idempotency_keys"):
        assert await desk.rows(f"SELECT count(*) FROM {table}") == [(0,)]


async def test_a_trial_runs_the_draft_or_the_version_it_names(desk: Any) -> None:
    row = await desk.publish()
    await automations.update(
        desk.database, desk.author, row.id, read_edit(b'{"revision":2,"graph":{"nodes":[{"id":"t","type":"x"}]}}')
    )
    changes = {"contact": {"attributes": {"tier": "gold"}}}
    traces = [
        await simulate_trial(desk, row.id, **changes, **version)
        for version in ({}, {"version": 1}, {"version": "published"})
    ]
    assert [len(trace.messages) for trace in traces] == [0, 1, 1]
    missing = await simulate_trial(desk, row.id, version=2)
    assert str(missing.problems[0]) == "version: version 2 not found"


async def test_a_trial_of_what_is_not_published_ends_as_the_engine_would_end_it(desk: Any) -> None:
    row = await desk.create()
    trace = await simulate_trial(desk, row.id, version="published")
    assert (trace.matched, trace.state, trace.outcome, trace.steps) == (True, "completed", "no_published_version", ())


@pytest.mark.parametrize(
    ("sent", "shows_email", "visible"),
    [
        (WALLET, True, "ann@example.com"),
        (WALLET, False, "a•••@example.com"),
        (WALLET | {"email": "ann@example.com"}, False, "ann@example.com"),
    ],
)
async def test_a_stored_email_is_shown_only_with_the_right_scope(
    desk: Any, sent: Any, shows_email: bool, visible: str
) -> None:
    await desk.ingest(event="a", contact=WALLET | {"email": "ann@example.com"})
    nodes = [{"id": "t", "type": "app_event"}, {"id": "m", "type": "send_inapp", "data": {"title": "x"}}]
    nodes[1]["data"]["body"] = "{{ contact.email }}"
    row = await desk.create(graph={"nodes": nodes, "edges": [{"source": "t", "target": "m"}]})
    trace = await simulate_trial(desk, row.id, shows_email=shows_email, event=EVENT | {"contact": sent})
    assert [message.body for message in trace.messages] == [visible]


async def test_a_hidden_email_decides_as_it_would_in_the_engine_and_is_masked(desk: Any) -> None:
    await desk.ingest(event="a", contact=WALLET | {"email": "ann+x@example.com"})
    filters = [{"path": "contact.email", "operator": "eq", "value": "ann+x@example.com"}]
    body = "{{ contact.email | upper }} {{ contact.email }} {{ contact.email | title }}"
    nodes: list[dict[str, Any]] = [
        {"id": "t", "type": "app_event"},
        {"id": "c", "type": "condition", "data": {"filters": filters}},
        {
            "id": "m",
            "type": "send_inapp",
            "data": {"title": "x", "body": body, "data": {"to": ["{{ contact.email }}"]}},
        },
    ]
    edges = [{"source": "t", "target": "c"}, {"source": "c", "target": "m", "sourceHandle": "true"}]
    row = await desk.create(graph={"nodes": nodes, "edges": edges})
    trace = await simulate_trial(desk, row.id, shows_email=False)
    assert (trace.state, [step.handle for step in trace.steps]) == ("completed", [None, "true", None])
    assert trace.messages[0].body == "A•••@EXAMPLE.COM a•••@example.com A•••@example.com"
    assert b"ann+x" not in encode(trace).lower()


def problems_of(**body: Any) -> list[str]:
    parsed = trial.read_trial(encode(body), THEN)
    assert isinstance(parsed, tuple)
    return [problem.field for problem in parsed]


def test_a_bad_trial_is_refused_naming_the_fields() -> None:
    assert problems_of() == ["event"]
    assert problems_of(event=[]) == ["event"]
    assert problems_of(
        event={"event": "a b", "contact": {}}, now="today", version=0, contact={"tags": [1], "email": 2}
    ) == [*("now", "event.event", "event.contact", "contact.email", "contact.tags", "version")]


def test_the_moment_of_a_trial_judges_its_event() -> None:
    event = {"event": "a", "contact": WALLET, "occurredAt": NOW}
    assert isinstance(trial.read_trial(encode({"event": event}), THEN), Trial)
    assert [problem.field for problem in trial.read_trial(encode({"event": event}), THEN - timedelta(days=1))] == [
        "event.occurredAt"
    ]


async def test_an_unsaved_automation_can_be_simulated(desk: Any) -> None:
    body = {"triggerSpec": {"type": "app_event"}, "graph": {"nodes": [], "edges": []}, "event": EVENT}
    whole = trial.read_unsaved_trial(encode(body), desk.clock.now())
    result = await trial.simulate_unsaved(desk.database, trial_context(desk), whole)
    assert (result.matched, result.state) == (True, "dead")
    refused = trial.read_unsaved_trial(encode(body | {"triggerSpec": None, "graph": 7, "event": 7}), desk.clock.now())
    assert [problem.field for problem in refused] == ["triggerSpec", "graph", "event"]


def drawn(*nodes: dict[str, Any], **settings: Any) -> dict[str, Any]:
    steps = [{"id": "t", "type": "app_event"}, *nodes]
    edges = [{"source": a["id"], "target": b["id"]} for a, b in pairwise(steps)]
    return {"nodes": steps, "edges": edges, "settings": settings}


SAY = {"id": "m", "type": "send_inapp", "data": {"title": "x", "body": "y"}}


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({"reentry": {"policy": "once"}}, "refused"),
        ({"reentry": {"policy": "once_per", "days": 1}}, "refused"),
        ({"frequencyCap": {"messages": 1, "seconds": 3_600}}, "skipped"),
        ({}, "sent"),
    ],
    ids=["once", "once a day", "capped", "always"],
)
async def test_a_trial_knows_what_happened_to_the_contact_before(desk: Any, settings: Any, outcome: str) -> None:
    row = await desk.publish(graph=drawn(SAY, **settings))
    first = await simulate_trial(desk, row.id)
    await desk.ingest(**EVENT)
    await desk.drive()
    second = await simulate_trial(desk, row.id)
    assert (first.steps[-1].outcome, second.steps[-1].outcome) == ("sent", outcome)
    await desk.ingest(**EVENT)
    await desk.drive()
    happened = await desk.rows("SELECT outcome FROM entry_steps ORDER BY at, step")
    assert [outcome_name for (outcome_name,) in happened][-1] == outcome
    earlier = await simulate_trial(desk, row.id, now=NOW.replace("2030", "2020"), event=EVENT)
    assert earlier.steps[-1].outcome == "sent"


async def test_a_draft_that_is_brought_along_divides_contacts_as_its_automation_does(desk: Any) -> None:
    split = {"id": "s", "type": "split", "data": {"branches": [{"handle": handle, "percent": 50} for handle in "ab"]}}
    graph = drawn(split)
    graph["nodes"].append(SAY)
    graph["edges"].append({"source": "s", "target": "m", "sourceHandle": "a"})
    row = await desk.publish(graph=graph)
    predicted = []
    for number in range(8):
        event = EVENT | {"contact": {"walletAddress": f"0x{number}"}}
        await desk.ingest(**event)
        body = {"triggerSpec": {"type": "app_event"}, "graph": graph, "event": event, "automationId": row.id}
        whole = trial.read_unsaved_trial(encode(body), desk.clock.now())
        predicted.append((await trial.simulate_unsaved(desk.database, trial_context(desk), whole)).steps[1].handle)
    await desk.drive()
    happened = await desk.rows("SELECT handle FROM entry_steps WHERE node_id = 's' ORDER BY entry_id")
    assert [handle for (handle,) in happened] == predicted
    refused = trial.read_unsaved_trial(encode(body | {"automationId": "mine"}), desk.clock.now())
    assert [problem.field for problem in refused] == ["automationId"]
