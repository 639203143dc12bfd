"""An engine that is late decides at the moments of the timeline: it takes the steps of a backtest."""

from datetime import timedelta
from typing import Any

import pytest

from tests.engine.conftest import EngineBench, written_graph
from tests.engine.test_as_backtested import ends, simulated_steps, steps
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import graph_of
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers
from workbench.language.simulate import ScheduledEvent, SimulatedAutomation, SimulationInput, backtest, simulate
from workbench.language.timeline import EventRecord
from workbench.language.trigger import Trigger

WALLET = Identifiers(evm_wallet("a"), wallet_raw=evm_wallet("A"))
TRIGGER = {"id": "t", "type": "app_event", "data": {}}
WAIT = {"id": "w", "type": "wait_for_event", "data": {"event": "purchase", "timeoutSeconds": 2}}
AGAIN = WAIT | {"id": "v"}
DELAY = {"id": "d", "type": "delay", "data": {"seconds": 10}}
MESSAGE = {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}}
THANKS = MESSAGE | {"id": "n"}
GOAL = {"goal": {"event": "purchase"}}
WAITING = [TRIGGER, WAIT, MESSAGE, THANKS], [("t", "w"), ("w", "m", "timeout"), ("w", "n", "matched")]
TWICE = [TRIGGER, WAIT, AGAIN, MESSAGE], [("t", "w"), ("w", "v", "matched"), ("v", "m", "matched")]
AIMING = [TRIGGER, MESSAGE, DELAY, THANKS], [("t", "m"), ("m", "d"), ("d", "n")]
MILLISECOND = timedelta(milliseconds=1)


async def events(bench: EngineBench, identifiers: Identifiers) -> list[EventRecord]:
    rows = await bench.fetch("SELECT id::text, event, created_at, payload::text FROM events ORDER BY created_at, id")
    return [EventRecord(event_id, name, at, identifiers, payload.encode()) for event_id, name, at, payload in rows]


async def play_late(bench: EngineBench, graph: Any, gaps: list[int], settings: dict[str, Any]) -> tuple[Any, Any]:
    """Send a deposit and then purchases; start the engine a minute later. Return its steps and the backtest's."""
    nodes, edges = graph
    automation_id = await bench.automation(nodes, edges, **settings)
    batch = [{"event": "deposit"}]
    for gap in gaps:  # milliseconds; 0: in the same batch
        if gap:
            await bench.ingest(*batch)
            bench.clock.ahead += gap * MILLISECOND
            batch = []
        batch.append({"event": "purchase"})
    await bench.ingest(*batch)
    bench.clock.ahead += timedelta(minutes=1)
    await bench.drive()
    written = written_graph(nodes, edges, settings)
    ((contact_id,),) = await bench.fetch("SELECT id::text FROM contacts")
    automation = SimulatedAutomation(Trigger(frozenset({"deposit"})), graph_of(written), automation_id)
    contact, stored = ContactState(contact_id, WALLET), await events(bench, WALLET)
    entries = list(backtest(automation, contact, stored, bench.clock.now()))
    ended = [(event_id, *rest) for event_id, *rest in await bench.entries("event_id::text, state, outcome, node_id")]
    return (
        ([step[1:] for step in await steps(bench, automation_id)], set(ended)),
        ([step[1:] for step in simulated_steps(entries)], ends(entries)),
    )


@pytest.mark.parametrize("gaps", [[], [0], [5], [1_500], [2_500], [0, 0], [5, 5], [5, 0]])
@pytest.mark.parametrize(
    ("graph", "settings"), [(WAITING, {}), (TWICE, {}), (AIMING, GOAL)], ids=["wait", "two waits", "goal"]
)
async def test_a_late_engine_sees_events_when_they_were_received(
    bench: EngineBench, graph: Any, settings: dict[str, Any], gaps: list[int]
) -> None:
    engine, backtested = await play_late(bench, graph, gaps, settings)
    assert engine == backtested


@pytest.mark.parametrize("gap", [0, 5])
async def test_a_purchase_right_after_the_trigger_ends_the_wait(bench: EngineBench, gap: int) -> None:
    await play_late(bench, WAITING, [gap], {})
    assert await bench.steps() == ["entered", "waiting", "matched", "sent"]


@pytest.mark.parametrize("gap", [0, 5])
async def test_a_goal_right_after_the_trigger_ends_the_entry_after_its_first_steps(
    bench: EngineBench, gap: int
) -> None:
    await play_late(bench, AIMING, [gap], GOAL)
    assert await bench.steps() == ["entered", "sent", "waiting", "goal"]


async def test_quiet_hours_and_caps_follow_the_real_time(bench: EngineBench) -> None:
    """An event comes outside the quiet hours, and the engine gets to it within them."""
    now = bench.clock.now()
    quiet = {"from": f"{now + timedelta(hours=2):%H:%M}", "to": f"{now + timedelta(hours=4):%H:%M}"}
    cap = {"messages": 1, "seconds": 3_600}
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")], quietHours=quiet, frequencyCap=cap)
    await bench.send("k1")
    bench.clock.ahead += timedelta(hours=1.5)  # by the timeline, the first message is out of the cap's period
    await bench.send("k2")
    bench.clock.ahead += timedelta(hours=1.5)
    await bench.drive()
    assert await bench.steps() == ["entered", "waiting"] * 2
    bench.clock.ahead += timedelta(hours=1.5)
    await bench.drive()
    assert sorted(await bench.steps()) == ["entered", "entered", "sent", "skipped", "waiting", "waiting"]


async def test_retries_are_counted_from_the_real_time(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")])
    await bench.send("k", {"email": "ann@example.com"})
    bench.clock.ahead += timedelta(hours=1)
    await bench.drive()
    assert await bench.entries("state, attempts, due_at > created_at + interval '1 hour'") == [("retrying", 1, True)]


@pytest.mark.parametrize(
    ("names", "awaited", "outcomes"),
    [
        (["purchase", "purchase"], "purchase", ["waiting", "matched", "sent"]),
        (["purchase", "login"], "login", ["waiting", "matched", "sent"]),
        (["login", "purchase"], "login", ["waiting", "timed_out"]),
    ],
)
async def test_later_events_of_one_moment_come_in_their_order_as_in_a_simulation(
    bench: EngineBench, names: list[str], awaited: str, outcomes: list[str]
) -> None:
    second = {"id": "v", "type": "wait_for_event", "data": {"event": awaited, "timeoutSeconds": 2}}
    nodes, edges = [TRIGGER, WAIT, second, MESSAGE], [("t", "w"), ("w", "v", "matched"), ("v", "m", "matched")]
    automation_id = await bench.automation(nodes, edges)
    await bench.ingest({"event": "deposit"})
    await bench.drive()
    bench.clock.ahead += timedelta(seconds=1)
    await bench.ingest(*({"event": name} for name in names))
    bench.clock.ahead += timedelta(minutes=1)
    await bench.drive()
    written = written_graph(nodes, edges, {})
    later = tuple(ScheduledEvent(timedelta(seconds=1), Event(name, WALLET)) for name in names)
    automation = SimulatedAutomation(Trigger(frozenset({"deposit"})), graph_of(written), automation_id)
    contact, trigger = ContactState("c", WALLET), Event("deposit", WALLET)
    trace = simulate(automation, trigger, contact, bench.clock.now(), SimulationInput(later=later))
    assert await bench.steps() == ["entered", "waiting", "matched", *outcomes]
    assert [step.outcome for step in trace.steps] == await bench.steps()
