"""Trials: the stored automation, the stored contact, the language's own interpreter, and nothing written."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from api.automations import automations, trial
from api.automations.body import AutomationEdit
from api.automations.trial import Trial, TrialContext
from api.clock import to_us
from api.contacts import contacts as contacts_api
from api.crypto import EmailDisplay
from api.store import contacts
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import contact_from
from workbench.language.body import read_body
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode, encode
from workbench.language.event import Event
from workbench.language.graph import Graph, Node, read_graph
from workbench.language.simulate import SimulatedAutomation, Trace, simulate
from workbench.language.trigger import Trigger, read_sample, read_trigger

NOW = "2030-01-01T00:00:00Z"
THEN = datetime(2030, 1, 1, tzinfo=UTC)
WALLET = {"walletAddress": evm_wallet("AB")}
EVENT = {"event": "First_Deposit", "contact": WALLET, "payload": {"amountUsd": 1}}


def trial_context(tenant: Any, *, shows_email: bool = True) -> TrialContext:
    return TrialContext(tenant.org_id, EmailDisplay(tenant.keys, shows_email), RetryPolicy())


def read_trial_of(tenant: Any, **body: Any) -> Trial:
    parsed = trial.trial_of(read_body(trial.TrialBody, encode({"event": EVENT} | body)), tenant.clock.now())
    assert isinstance(parsed, Trial), parsed
    return parsed


async def simulate_unsaved(tenant: Any, fields: dict[str, Any]) -> Any:
    body = read_body(trial.UnsavedTrialBody, encode(fields))
    event_trial = trial.trial_of(body, tenant.clock.now())
    return await trial.simulate_trial(tenant.database, trial_context(tenant), body, event_trial)


async def simulate_trial(tenant: Any, automation_id: str, *, shows_email: bool = True, **body: Any) -> Any:
    return await trial.simulate_trial(
        tenant.database, trial_context(tenant, shows_email=shows_email), automation_id, read_trial_of(tenant, **body)
    )


class UnknownAction(msgspec.Struct, frozen=True):
    """An action that the interpreter cannot run."""

    channel = None


def test_a_bug_of_the_interpreter_is_logged_with_the_automation(tenant: Any, caplog: pytest.LogCaptureFixture) -> None:
    node: Any = Node("t", "app_event", UnknownAction())
    sample = read_trial_of(tenant)
    automation = SimulatedAutomation(Trigger(), Graph(nodes=(node,)), "a1")
    event = read_sample(sample.event, automation.trigger, tenant.clock.now_us())
    assert isinstance(event, Event)
    prepared = trial.PreparedTrial(automation, contact_from(None), event)
    assert trial.run(prepared, trial_context(tenant), sample).outcome == "internal_error"
    (record,) = caplog.records
    assert (record.msg, vars(record)["automation_id"]) == ("simulation_failed", "a1")
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


async def test_a_trial_with_the_stored_contact_is_the_local_simulation(tenant: Any) -> None:
    row = await tenant.create()
    contact = {"email": "Ann@Example.com", "walletAddress": evm_wallet("AB"), "externalId": "u1"}
    await tenant.ingest(event="signup", contact=contact, attributes={"tier": "gold", "level": 1.50})
    [(contact_id,)] = await tenant.rows("UPDATE contacts SET tags = '{vip}' RETURNING id")
    described = contact_from(
        decode(encode(contact | {"id": contact_id, "tags": ["vip"], "attributes": {"tier": "gold", "level": 1.50}}))
    )
    described = msgspec.structs.replace(
        described, identifiers=msgspec.structs.replace(described.identifiers, email="ann@example.com")
    )
    sample = read_trial_of(tenant, now=NOW)
    local = SimulatedAutomation(read_trigger(decode(row.trigger_spec)), read_graph(decode(row.graph)))
    trace = await simulate_trial(tenant, row.id, now=NOW)
    event = read_sample(sample.event, local.trigger, to_us(sample.now))
    assert trace == simulate(local, event, described, sample.now)
    assert [(message.title, message.body) for message in trace.messages] == [("Thanks, gold", "You paid in 1")]


async def test_a_stored_contact_is_found_by_the_first_identifier_that_matches(tenant: Any) -> None:
    await tenant.ingest(event="a", contact={"externalId": "u1"}, attributes={"n": 1})
    await tenant.ingest(event="a", contact={"email": "b@example.com"}, attributes={"n": 2})
    traces = []
    for sender in (
        {"externalId": "u1"},
        {"externalId": "u1", "email": "B@example.com", "walletAddress": evm_wallet("9")},
    ):
        identifiers = read_sample(encode(EVENT | {"contact": sender}), Trigger(), tenant.clock.now_us()).identifiers
        async with tenant.database.transaction() as tx:
            traces.append(await contacts.find_contact_state(tx, tenant.org_id, tenant.keys, identifiers))
    assert [(contact.attributes["n"], contact.identifiers.email) for contact in traces] == [
        (1, None),
        (2, "b@example.com"),
    ]


async def test_a_contact_of_another_organization_is_not_found(tenant: Any, other_tenant: Any) -> None:
    await other_tenant.ingest(event="a", contact=WALLET, attributes={"tier": "theirs"})
    row = await tenant.create()
    assert (await simulate_trial(tenant, row.id)).error.startswith("template_error")
    assert (await simulate_trial(other_tenant, row.id)).reason == "unknown"


async def test_a_contact_in_the_request_overrides_the_stored_one(tenant: Any) -> None:
    await tenant.ingest(event="a", contact=WALLET, attributes={"tier": "gold"})
    row = await tenant.create()
    trace = await simulate_trial(tenant, row.id, contact={"id": None, "attributes": {"tier": "tin"}})
    assert trace.messages[0].title == "Thanks, tin"


async def test_a_contact_that_does_not_exist_yet_has_confirmed_no_topic(tenant: Any) -> None:
    await tenant.rows(
        "INSERT INTO topics (org_id, name, label, opt_in, created_at, updated_at)"
        f" VALUES ({tenant.org_id}, 'deals', 'Deals', 'double', now(), now()) RETURNING name"
    )
    message = {"title": "Hi", "body": "there", "topic": "deals"}
    nodes = [{"id": "t", "type": "app_event"}, {"id": "m", "type": "send_inapp", "data": message}]
    graph = {"nodes": nodes, "edges": [{"source": "t", "target": "m"}]}
    fields = {"triggerSpec": {"type": "app_event", "event": "First_Deposit"}, "graph": graph, "event": EVENT}
    trace = await simulate_unsaved(tenant, fields)
    assert [(step.outcome, step.detail.get("cause")) for step in trace.steps[1:]] == [("skipped", "declined_topic")]


async def test_a_trial_writes_nothing(tenant: Any) -> None:
    row = await tenant.publish()
    before = await tenant.traces()
    await simulate_trial(tenant, row.id, contact={"attributes": {"tier": "gold"}})
    assert await tenant.traces() == before
    for table in ("contacts", "events", "entries", "messages", "dry_runs", "idempotency_keys"):
        assert await tenant.rows(f"SELECT count(*) FROM {table}") == [(0,)]


async def test_a_trial_runs_the_draft_or_the_version_it_names(tenant: Any) -> None:
    row = await tenant.publish()
    await automations.update(
        tenant.database,
        tenant.author,
        row.id,
        read_body(AutomationEdit, b'{"revision":2,"graph":{"nodes":[{"id":"t","type":"x"}]}}'),
    )
    changes = {"contact": {"attributes": {"tier": "gold"}}}
    traces = [
        await simulate_trial(tenant, row.id, **changes, **version)
        for version in ({}, {"version": 1}, {"version": "published"})
    ]
    assert [len(trace.messages) for trace in traces] == [0, 1, 1]
    missing = await simulate_trial(tenant, row.id, version=2)
    assert str(missing.problems[0]) == "version: version 2 not found"


async def test_a_trial_of_an_unpublished_automation_ends_as_in_the_engine(tenant: Any) -> None:
    row = await tenant.create()
    trace = await simulate_trial(tenant, row.id, version="published")
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
    tenant: Any, sent: Any, shows_email: bool, visible: str
) -> None:
    await tenant.ingest(event="a", contact=WALLET | {"email": "ann@example.com"})
    nodes = [{"id": "t", "type": "app_event"}, {"id": "m", "type": "send_inapp", "data": {"title": "x"}}]
    nodes[1]["data"]["body"] = "{{ contact.email }}"
    row = await tenant.create(graph={"nodes": nodes, "edges": [{"source": "t", "target": "m"}]})
    trace = await simulate_trial(tenant, row.id, shows_email=shows_email, event=EVENT | {"contact": sent})
    assert [message.body for message in trace.messages] == [visible]


async def test_conditions_use_a_hidden_email_and_show_it_masked(tenant: Any) -> None:
    await tenant.ingest(event="a", contact=WALLET | {"email": "ann+x@example.com"})
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
    row = await tenant.create(graph={"nodes": nodes, "edges": edges})
    trace = await simulate_trial(tenant, row.id, shows_email=False)
    assert (trace.state, [step.handle for step in trace.steps]) == ("completed", [None, "true", None])
    assert trace.messages[0].body == "A•••@EXAMPLE.COM a•••@example.com A•••@example.com"
    assert b"ann+x" not in encode(trace).lower()


def problems_of(**body: Any) -> list[str]:
    parsed = read_body(trial.TrialBody, encode(body))
    assert isinstance(parsed, tuple)
    return [problem.field for problem in parsed]


def test_a_bad_trial_is_refused_naming_the_fields() -> None:
    assert problems_of() == ["event"]
    assert problems_of(event=[]) == ["event"]
    assert problems_of(
        event={"event": "a b", "contact": {}}, now="today", version=0, contact={"tags": [1], "email": 2}
    ) == [*("event.event", "event.contact", "contact.email", "contact.tags", "now", "version")]


def test_a_later_event_that_is_not_valid_is_named_with_its_index() -> None:
    later = [{"afterSeconds": 1, "event": EVENT}, 5]
    parsed = trial.trial_of(read_body(trial.TrialBody, encode({"event": EVENT, "events": later})), THEN)
    assert isinstance(parsed, tuple)
    assert [problem.field for problem in parsed] == ["events[1].event"]


async def test_the_time_of_a_trial_decides_whether_its_event_is_valid(tenant: Any) -> None:
    row = await tenant.create()
    event = {"event": "a", "contact": WALLET, "occurredAt": NOW}
    assert isinstance(await simulate_trial(tenant, row.id, event=event, now=NOW), Trace)
    refused = await simulate_trial(tenant, row.id, event=event, now=(THEN - timedelta(days=1)).isoformat())
    assert [problem.field for problem in refused.problems] == ["event.occurredAt"]


async def test_an_unsaved_automation_can_be_simulated(tenant: Any) -> None:
    body = {"triggerSpec": {"type": "app_event"}, "graph": {"nodes": [], "edges": []}, "event": EVENT}
    result = await simulate_unsaved(tenant, body)
    assert (result.matched, result.state) == (True, "dead")
    refused = read_body(trial.UnsavedTrialBody, encode(body | {"triggerSpec": None, "graph": 7, "event": 7}))
    assert [problem.field for problem in refused] == ["event", "triggerSpec", "graph"]


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
async def test_a_trial_uses_the_history_of_the_contact(tenant: Any, settings: Any, outcome: str) -> None:
    row = await tenant.publish(graph=drawn(SAY, **settings))
    first = await simulate_trial(tenant, row.id)
    await tenant.ingest(**EVENT)
    await tenant.drive()
    second = await simulate_trial(tenant, row.id)
    assert (first.steps[-1].outcome, second.steps[-1].outcome) == ("sent", outcome)
    await tenant.ingest(**EVENT)
    await tenant.drive()
    happened = await tenant.rows("SELECT outcome FROM entry_steps ORDER BY at, step")
    assert [outcome_name for (outcome_name,) in happened][-1] == outcome
    earlier = await simulate_trial(tenant, row.id, now=NOW.replace("2030", "2020"), event=EVENT)
    assert earlier.steps[-1].outcome == "sent"


async def test_a_draft_in_the_request_splits_contacts_like_its_automation(tenant: Any) -> None:
    split = {"id": "s", "type": "split", "data": {"branches": [{"handle": handle, "percent": 50} for handle in "ab"]}}
    graph = drawn(split)
    graph["nodes"].append(SAY)
    graph["edges"].append({"source": "s", "target": "m", "sourceHandle": "a"})
    row = await tenant.publish(graph=graph)
    predicted = []
    for number in range(8):
        event = EVENT | {"contact": {"walletAddress": evm_wallet(number)}}
        await tenant.ingest(**event)
        body = {"triggerSpec": {"type": "app_event"}, "graph": graph, "event": event, "automationId": row.id}
        predicted.append((await simulate_unsaved(tenant, body)).steps[1].handle)
    await tenant.drive()
    happened = await tenant.rows("SELECT handle FROM entry_steps WHERE node_id = 's' ORDER BY entry_id")
    assert [handle for (handle,) in happened] == predicted
    refused = read_body(trial.UnsavedTrialBody, encode(body | {"automationId": "mine"}))
    assert [problem.field for problem in refused] == ["automationId"]


async def test_an_identifier_of_another_contact_does_not_move_in_a_trial(tenant: Any) -> None:
    await tenant.ingest(event="a", contact=WALLET)
    await tenant.ingest(event="a", contact={"externalId": "e2"})
    await tenant.ingest(event="a", contact={"email": "b@example.com"})
    body = "{{ contact.externalId|default('-') }} {{ contact.email }}"
    nodes = [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "w", "type": "wait_for_event", "data": {"event": "later", "timeoutSeconds": 9}},
        {"id": "m", "type": "send_inapp", "data": {"title": "T", "body": body}},
    ]
    edges = [{"source": "t", "target": "w"}, {"source": "w", "target": "m", "sourceHandle": "matched"}]
    row = await tenant.create(graph={"nodes": nodes, "edges": edges})
    sent = {**WALLET, "externalId": "e2", "email": "b@example.com"}
    later = {"afterSeconds": 1, "event": {"event": "later", "contact": sent}}
    trace = await simulate_trial(tenant, row.id, events=[later])
    assert [message.body for message in trace.messages] == ["- b@example.com"]  # an email follows the wallet
    later = {"afterSeconds": 1, "event": EVENT | {"contact": {"externalId": "e2"}}}
    trace = await simulate_trial(
        tenant, row.id, event=EVENT | {"contact": {"walletAddress": evm_wallet("2e3")}}, events=[later]
    )
    assert "e2" not in str(trace)


async def test_the_stored_contact_is_taken_as_it_was_then(tenant: Any) -> None:
    await tenant.ingest(event="signup", contact=WALLET, attributes={"tier": "gold"})
    ((contact_id,),) = await tenant.rows("SELECT id::text FROM contacts")
    await contacts_api.tag(tenant.database, tenant.author, contact_id, ["vip"], [], tenant.show)
    then = tenant.clock.now().isoformat()
    await tenant.ingest(event="signup", contact=WALLET | {"email": "ann@b.co"}, attributes={"tier": "free", "new": 1})
    await contacts_api.tag(tenant.database, tenant.author, contact_id, [], ["vip"], tenant.show)
    message = {"id": "m", "type": "send_inapp", "data": {"title": "t", "body": "{{ contact.tags }} {{ contact.tier }}"}}
    told = {
        "id": "n",
        "type": "send_inapp",
        "data": {"title": "t", "body": "{{ contact.new | default('-') }} {{ email | default('-') }}"},
    }
    body = {
        "triggerSpec": {"type": "app_event", "event": "First_Deposit"},
        "graph": drawn(message, told),
        "event": EVENT,
    }
    assert [sent.body for sent in (await simulate_unsaved(tenant, body | {"now": then})).messages] == [
        '["vip"] gold',
        "- -",
    ]
    assert [sent.body for sent in (await simulate_unsaved(tenant, body)).messages] == ["[] free", "1 ann@b.co"]
