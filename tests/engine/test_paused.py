"""While an automation is paused, no entry is lost or takes a step, even if a worker dies."""

from datetime import timedelta
from typing import Any

import pytest

from api.automations import automations
from api.automations.automations import Refusal
from api.automations.body import AutomationEdit
from api.engine.claims import LEASE
from api.engine.facts import Graphs, read_facts
from api.engine.progress import advance_slice
from api.engine.record import StaleFacts, record
from tests.channels.conftest import endpoint, status
from tests.engine.conftest import EngineBench
from tests.engine.pausing import AWAIT, TAG, TRIGGER, WAIT, author, pause, resume, start_waiting
from tests.inapp.wallet import evm_wallet
from workbench.language.body import read_body
from workbench.language.channel import RetryPolicy
from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers
from workbench.language.graph import Graph, read_graph
from workbench.language.simulate import EARLIEST, ScheduledEvent, SimulatedAutomation, SimulationInput, simulate
from workbench.language.trigger import Trigger


async def test_a_paused_automation_takes_no_entries_and_resumed_takes_them_again(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, TAG, events=0)
    await pause(bench, automation_id)
    await bench.send("a")
    await resume(bench, automation_id)
    await bench.send("b")
    assert await bench.drive() == 1
    assert await bench.entries() == [("completed", "completed")]


async def test_a_due_entry_is_paused_once_and_continues_after_resume(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    assert await bench.drive() == 0
    bench.clock.ahead += timedelta(minutes=2)
    assert await bench.drive() == 1
    assert await bench.entries("state, node_id, attempts") == [("paused", "d", 0)]
    assert await bench.drive() == 0
    await resume(bench, automation_id)
    assert await bench.drive() == 1
    assert await bench.entries() == [("completed", "completed")]
    assert await bench.steps() == ["entered", "waiting", "waited", "tagged"]
    moves = await bench.fetch("SELECT from_state, to_state FROM entry_transitions ORDER BY seq")
    assert moves[2:] == [
        ("waiting", "running"),
        ("running", "paused"),
        ("paused", "pending"),
        ("pending", "running"),
        ("running", "completed"),
    ]


@pytest.mark.parametrize("overdue", [False, True])
async def test_many_entries_are_resumed_in_batches(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch, overdue: bool
) -> None:
    for name in ("_RESUME_BATCH", "_CANCEL_BATCH"):
        monkeypatch.setattr(automations, name, 2)
    automation_id = await start_waiting(bench, WAIT, TAG, events=5)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    assert await bench.drive() == 5
    await resume(bench, automation_id, cancel_overdue=overdue)
    await bench.drive()
    assert await bench.entries() == [("cancelled", "overdue") if overdue else ("completed", "completed")] * 5


async def test_an_entry_that_is_not_due_keeps_its_time(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    await resume(bench, automation_id)
    assert await bench.drive() == 0
    bench.clock.ahead += timedelta(minutes=2)
    assert await bench.drive() == 1
    assert await bench.entries() == [("completed", "completed")]


async def test_overdue_entries_can_be_cancelled_before_or_after_an_engine_saw_them(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG, events=2)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    assert await bench.driver.drive(bench.org_id, "ready", 1) == 1
    await resume(bench, automation_id, cancel_overdue=True)
    assert await bench.drive() == 0
    assert await bench.entries() == [("cancelled", "overdue")] * 2


async def test_an_event_during_a_pause_ends_the_wait_for_it(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, AWAIT)
    await pause(bench, automation_id)
    await bench.ingest({"event": "bought", "contact": {"walletAddress": evm_wallet("0")}})
    assert await bench.drive() == 1
    assert await bench.entries("state") == [("paused",)]
    bench.clock.ahead += timedelta(hours=2)
    await resume(bench, automation_id)
    await bench.drive()
    assert await bench.steps() == ["entered", "waiting", "matched"]


async def test_a_retried_message_is_paused_too_and_keeps_its_id(bench: EngineBench) -> None:
    async with endpoint(status(500), status(200)) as server:
        automation_id = await start_waiting(bench, {"id": "h", "type": "send_webhook", "data": {"url": server.url()}})
        await pause(bench, automation_id)
        bench.clock.ahead += timedelta(minutes=1)
        await bench.drive()
        assert await bench.entries("state, attempts") == [("paused", 1)]
        assert len(server.requests) == 1
        await resume(bench, automation_id)
        await bench.drive()
        first, second = (request.headers["webhook-id"] for request in server.requests)
    assert first == second
    assert await bench.entries("state, attempts") == [("completed", 2)]


@pytest.mark.parametrize("stop", [automations.deactivate, automations.archive])
async def test_deactivating_ends_the_pause_and_cancels_paused_entries(bench: EngineBench, stop: Any) -> None:
    automation_id = await start_waiting(bench, WAIT)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    await bench.drive()
    row = await stop(bench.database, author(bench), automation_id)
    assert (row.active, row.paused_at) == (False, None)
    assert await bench.entries("state") == [("cancelled",)]
    refused = await automations.pause(bench.database, author(bench), automation_id)
    assert isinstance(refused, Refusal)
    assert refused.reason == "conflict"


async def test_a_worker_that_dies_during_a_pause_loses_nothing(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    assert len(await bench.driver._claims.take(bench.org_id, "ready", 10)) == 1  # the worker dies after its claim
    bench.clock.ahead += LEASE
    assert await bench.driver.rescue(bench.org_id, 10) == 1
    await bench.drive()
    assert await bench.entries("state") == [("paused",)]
    await resume(bench, automation_id)
    await bench.drive()
    assert await bench.steps() == ["entered", "waiting", "waited", "tagged"]


async def test_an_entry_is_not_paused_if_its_automation_was_resumed_meanwhile(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    now, graphs, retries = bench.clock.now(), Graphs(bench.database), RetryPolicy((10.0,))
    claims = await bench.driver._claims.take(bench.org_id, "ready", 10)
    await graphs.load(bench.org_id, claims)
    async with bench.database.transaction() as tx:
        facts = await read_facts(tx, bench.org_id, bench.keyring.of(bench.org_id), claims, graphs, retries, now)
    batch = advance_slice(bench.org_id, claims, graphs, facts)
    assert [progress.run.state for progress in batch] == ["paused"]
    await resume(bench, automation_id)
    async with bench.database.transaction() as tx:
        assert await record(tx, bench.org_id, bench.keyring, batch, facts) == StaleFacts()


async def test_the_last_error_is_kept_while_an_entry_is_paused(bench: EngineBench) -> None:
    async with endpoint(status(500), status(200)) as server:
        automation_id = await start_waiting(bench, {"id": "h", "type": "send_webhook", "data": {"url": server.url()}})
        [(_, error)] = await bench.entries("state, last_error")
        await pause(bench, automation_id)
        bench.clock.ahead += timedelta(minutes=1)
        await bench.drive()
        assert await bench.entries("state, last_error") == [("paused", error)]
        await resume(bench, automation_id)
        assert await bench.entries("state, last_error") == [("pending", error)]
        await bench.drive()
    assert await bench.entries("state, last_error") == [("completed", None)]
    moves = await bench.fetch("SELECT reason FROM entry_transitions WHERE to_state = 'paused'")
    assert moves == [(None,)]


async def test_a_second_pause_changes_nothing(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT)
    once = await automations.pause(bench.database, author(bench), automation_id)
    assert await automations.pause(bench.database, author(bench), automation_id) == once
    assert await bench.fetch("SELECT count(*) FROM audit_log WHERE action = 'automation.pause'") == [(1,)]
    await resume(bench, automation_id)
    twice = await automations.resume(bench.database, author(bench), automation_id, cancel_overdue=True)
    assert not isinstance(twice, Refusal)
    assert await bench.entries("state") == [("waiting",)]
    assert await bench.fetch("SELECT count(*) FROM audit_log WHERE action = 'automation.resume'") == [(1,)]


async def test_a_version_published_during_a_pause_applies_to_later_entries(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    await bench.drive()
    graph = {"nodes": [TRIGGER, TAG | {"data": {"tag": "new"}}], "edges": [{"source": "t", "target": "g"}]}
    edit = read_body(AutomationEdit, encode({"revision": 2, "graph": graph}))
    assert not isinstance(edit, tuple)
    assert not isinstance(await automations.update(bench.database, author(bench), automation_id, edit), Refusal)
    published = await automations.publish(bench.database, author(bench), automation_id, None)
    assert not isinstance(published, Refusal)
    assert published.paused_at is not None
    await bench.send("meanwhile", {"walletAddress": evm_wallet("8")})
    await resume(bench, automation_id)
    await bench.send("later", {"walletAddress": evm_wallet("9")})
    await bench.drive()
    assert await bench.entries("automation_version, state") == [(1, "completed"), (2, "completed")]
    assert await bench.fetch("SELECT wallet_address, tags FROM contacts ORDER BY 1") == [
        (evm_wallet("0"), ["late"]),
        (evm_wallet("8"), []),
        (evm_wallet("9"), ["new"]),
    ]


@pytest.mark.parametrize(("minutes", "handle"), [(59, "matched"), (61, "timed_out")])
async def test_waiting_time_passes_during_a_pause_as_simulated(bench: EngineBench, minutes: int, handle: str) -> None:
    automation_id = await start_waiting(bench, AWAIT)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=minutes)
    await bench.ingest({"event": "bought", "contact": {"walletAddress": evm_wallet("0")}})
    await bench.drive()
    bench.clock.ahead += timedelta(hours=3)
    await bench.drive()
    assert await bench.entries("state") == [("paused",)]
    await resume(bench, automation_id)
    await bench.drive()
    assert (await bench.steps())[-1] == handle
    graph, trigger = read_graph({"nodes": [TRIGGER, AWAIT], "edges": [{"source": "t", "target": "w"}]}), Trigger()
    assert isinstance(graph, Graph)
    later = ScheduledEvent(timedelta(minutes=minutes), Event("bought", Identifiers(evm_wallet("0"))))
    trace = simulate(
        SimulatedAutomation(trigger, graph),
        Event("deposit", Identifiers(evm_wallet("0"))),
        ContactState("c"),
        EARLIEST,
        SimulationInput(later=(later,)),
    )
    assert trace.steps[-1].outcome == handle


async def test_a_date_that_came_in_a_pause_is_reached_when_it_is_resumed(bench: EngineBench) -> None:
    until = {"id": "w", "type": "wait_until", "data": {"attribute": "payload.due"}}
    automation_id = await bench.automation([TRIGGER, until], [("t", "w")])
    await bench.send("k", due=(bench.clock.now() + timedelta(hours=1)).isoformat())
    await bench.drive()
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(hours=3)
    await bench.drive()
    await resume(bench, automation_id)
    await bench.drive()
    assert await bench.steps() == ["entered", "waiting", "waited"]


async def test_a_message_resumed_in_quiet_hours_waits_until_they_end(bench: EngineBench) -> None:
    now = bench.clock.now()
    night = {"from": f"{now:%H:%M}", "to": f"{now + timedelta(hours=2):%H:%M}"}
    say = {"id": "m", "type": "send_inapp", "data": {"title": "x", "body": "y"}}
    automation_id = await bench.automation([TRIGGER, WAIT, say], [("t", "d"), ("d", "m")], quietHours=night)
    await bench.send("k")
    await bench.drive()
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=30)
    await bench.drive()
    await resume(bench, automation_id)
    await bench.drive()
    assert await bench.entries("state, node_id") == [("waiting", "m")]
    bench.clock.ahead += timedelta(hours=2)
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")]
