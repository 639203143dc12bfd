"""Events that are sent to a live automation and then backtested take the same steps at the same times."""

import copy
import os
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from api.channels.outgoing import OUTGOING, Transports
from api.clock import from_us
from api.engine import facts
from tests.engine.conftest import EngineBench, MovedClock
from tests.engine.killing import KILLS, RETRIES, Kill, KilledEngines
from tests.engine.test_as_simulated import AcceptingTransport, ManualClock
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import DATES, DECLINED, EVENTS, WHERES, graph_of, sound_graphs
from workbench.language import advance, timeline
from workbench.language.channel import Message
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.simulate import SimulatedAutomation, backtest
from workbench.language.timeline import EventRecord, OtherMessage, SimulatedEntry
from workbench.language.trigger import Trigger, read_trigger

CASES = int(os.environ.get("COMPARED_CASES", "60"))
# No sum of delays equals a difference of these, so no two entries are due at the same time
OFFSETS = (0, 20, 33, 75, 3_690, 90_045, 500_025)
LOOP_LIMIT = 1  # instead of 100, so that two entries within a minute are enough for the loop guard
HOOK_GRAPH = {
    "nodes": [{"id": "0", "type": "app_event"}, {"id": "1", "type": "send_webhook", "data": {"url": "https://a.co"}}],
    "edges": [{"source": "0", "sourceHandle": None, "target": "1"}],
    "settings": {},
}
PERIOD, LAST_RUNS = timedelta(days=9), timedelta(minutes=5)
Sent = tuple[int, str, dict[str, Any]]

STREAMS = st.lists(
    st.tuples(
        st.sampled_from(OFFSETS[1:]),
        st.sampled_from(("deposit",) * 3 + EVENTS),
        st.fixed_dictionaries(
            {},
            optional={
                "plan": st.sampled_from(["pro", 1, 2.5, None]),
                "size": st.sampled_from(["pro", 1, 2.5, None]),
                "since": st.sampled_from(DATES),
            },
        ),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda event: event[0],
).map(lambda later: [(0, "deposit", {"plan": "pro"}), *sorted(later, key=lambda event: event[0])])
# Settings by which the entries of a contact affect each other
SHARED_SETTINGS = st.sampled_from(
    (
        {"reentry": {"policy": "not_while_running"}},
        {"reentry": {"policy": "once_per", "days": 1}},
        {"frequencyCap": {"messages": 1, "seconds": 5 * 86_400}},
        {},
    )
)
# Another automation on the same event, whose messages count towards the frequency cap
OTHERS = st.sampled_from((None, "older", "younger"))
OTHER_NODES = [
    {"id": "t", "type": "app_event", "data": {}},
    {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}},
]
CONTACTS = st.sampled_from(
    [{"walletAddress": evm_wallet("a"), "email": "ann@b.co"}, {"walletAddress": evm_wallet("a")}, {"email": "ann@b.co"}]
)


async def play_events(
    bench: EngineBench, engines: KilledEngines, contact: dict[str, str], stream: list[Sent], late: bool
) -> None:
    """Send the events and run the engine at their times, until the period is over. `late`: run it only at its end."""
    clock = bench.clock
    start, end = clock.ahead, clock.ahead + PERIOD
    remaining = [(start + timedelta(seconds=seconds), name, payload) for seconds, name, payload in stream]
    while True:
        ((due_at,),) = await bench.fetch(
            "SELECT min(CASE state WHEN 'running' THEN lease_until ELSE due_at END) FROM entries"
            " WHERE state IN ('pending', 'running', 'waiting', 'retrying')"
        )
        due = timedelta.max if due_at is None else due_at - from_us(0)
        if remaining and (late or remaining[0][0] <= due):
            clock.ahead, name, payload = remaining.pop(0)
            await bench.ingest({"event": name, "contact": contact, "payload": payload})
        elif late and clock.ahead < end - LAST_RUNS:
            clock.ahead = end - LAST_RUNS
        elif due < end:
            clock.ahead = max(clock.ahead, due)
        else:
            return
        if not late or clock.ahead >= end - LAST_RUNS:
            await engines.drive(until=end)


async def events(bench: EngineBench, identifiers: Identifiers) -> list[EventRecord]:
    rows = await bench.fetch("SELECT id::text, event, created_at, payload::text FROM events ORDER BY created_at, id")
    return [EventRecord(event_id, name, at, identifiers, payload.encode()) for event_id, name, at, payload in rows]


async def other_messages(bench: EngineBench, automation_id: str) -> list[OtherMessage]:
    """Return the messages of other automations, as backtest_messages.sql reads them."""
    rows = await bench.fetch(
        "SELECT m.created_at, CASE WHEN m.created_at = e.created_at THEN e.event_id::text ELSE '' END,"
        " m.automation_id > %s FROM messages m JOIN entries e ON e.id = m.entry_id"
        " WHERE m.automation_id <> %s AND m.status NOT IN ('failed', 'skipped') ORDER BY 1, 2, 3",
        automation_id,
        automation_id,
    )
    return [OtherMessage(*row) for row in rows]


async def steps(bench: EngineBench, automation_id: str, engines: KilledEngines | None = None) -> list[tuple[Any, ...]]:
    rows = await bench.fetch(
        "SELECT e.event_id::text, s.node_id, s.outcome, s.handle, e.id, s.step, s.claim, s.attempt, s.at"
        " FROM entry_steps s JOIN entries e ON e.id = s.entry_id WHERE e.automation_id = %s"
        " ORDER BY e.event_id, s.claim, s.step",
        automation_id,
    )
    engines = engines or KilledEngines(bench, [])
    return [
        (event_id, node_id, outcome, handle, engines.own_attempt(entry_id, step, claim, attempt), at)
        for event_id, node_id, outcome, handle, entry_id, step, claim, attempt, at in rows
    ]


async def bodies(bench: EngineBench, automation_id: str) -> dict[tuple[str, str], str]:
    """Return the sent texts by event and node, with the id of the entry replaced by that of its event."""
    rows = await bench.fetch(
        "SELECT e.event_id::text, m.node_id, replace(m.body, e.id::text, e.event_id::text)"
        " FROM messages m JOIN entries e ON e.id = m.entry_id WHERE m.automation_id = %s AND m.status = 'sent'",
        automation_id,
    )
    return {(event_id, node_id): body for event_id, node_id, body in rows}


def simulated_bodies(entries: list[SimulatedEntry]) -> dict[tuple[str, str], str]:
    effects = [(entry, effect) for entry in entries for decision in entry.decisions for effect in decision.effects]
    return {(entry.event.id, sent.node_id): sent.body for entry, sent in effects if isinstance(sent, Message)}


def simulated_steps(entries: list[SimulatedEntry]) -> list[tuple[Any, ...]]:
    return [
        (entry.event.id, step.node_id, step.outcome, step.handle, step.attempt, step.at)
        for entry in sorted(entries, key=lambda entry: entry.event.id)
        for step in entry.steps
    ]


def ends(entries: list[SimulatedEntry]) -> set[tuple[Any, ...]]:
    return {(entry.event.id, entry.run.state.value, entry.run.outcome, entry.run.node_id) for entry in entries}


@settings(
    max_examples=CASES,
    derandomize="COMPARED_CASES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    written=sound_graphs(),
    shared_settings=SHARED_SETTINGS,
    contact=CONTACTS,
    stream=STREAMS,
    where=st.none() | WHERES,
    other=OTHERS,
    late=st.booleans(),
    kills=KILLS | st.just([]),
)
@example(
    written=HOOK_GRAPH,
    shared_settings={},
    contact={"email": "ann@b.co"},
    stream=[(0, "deposit", {}), (20, "deposit", {}), (90_045, "deposit", {})],
    where=None,
    other=None,
    late=False,
    kills=[],
)
async def test_a_backtest_of_sent_events_equals_the_engine(
    bench: EngineBench,
    monkeypatch: pytest.MonkeyPatch,
    written: dict[str, Any],
    shared_settings: dict[str, Any],
    contact: dict[str, str],
    stream: list[Sent],
    where: str | None,
    other: str | None,
    late: bool,
    kills: list[Kill],
) -> None:
    for module in (advance, timeline, facts):
        monkeypatch.setattr(module, "LOOP_LIMIT", LOOP_LIMIT)
    written = copy.deepcopy(written)
    written["settings"] |= shared_settings
    written["settings"].pop("quietHours", None)  # they end for all entries at one time, in no defined order
    if late or kills:  # caps and retries follow the real time
        written["settings"].pop("frequencyCap", None)
        contact = {"walletAddress": evm_wallet("a"), "email": "ann@b.co"}
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us())
    bench.clock = clock
    transport: Any = AcceptingTransport()
    bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
    await bench.connection("chat", "k1")
    engines = KilledEngines(bench, kills)
    await bench.add_topics()
    for table in ("entries", "entry_steps", "messages", "events", "identities", "contacts"):
        await bench.execute(f"DELETE FROM {table} WHERE org_id = %s", bench.org_id)
    await bench.execute("UPDATE automations SET active = false WHERE org_id = %s", bench.org_id)
    edges = [(edge["source"], edge["target"], edge["sourceHandle"]) for edge in written["edges"]]
    if other == "older":
        await bench.automation(OTHER_NODES, [("t", "m")])
        clock.ahead += timedelta(milliseconds=1)
    spec = {"type": "app_event", "event": "deposit", "where": where}
    automation_id = await bench.automation(
        written["nodes"], edges, trigger=spec, snippets=written.get("snippets"), **written["settings"]
    )
    if other == "younger":
        clock.ahead += timedelta(milliseconds=1)
        await bench.automation(OTHER_NODES, [("t", "m")])
    until = from_us(0) + clock.ahead + PERIOD
    await play_events(bench, engines, contact, stream, late)
    event(f"engines killed: {engines.killed}")
    ((contact_id,),) = await bench.fetch("SELECT id::text FROM contacts")
    identifiers = Identifiers(contact.get("walletAddress"), contact.get("email"))
    trigger = read_trigger(spec)
    assert isinstance(trigger, Trigger), trigger
    automation = SimulatedAutomation(trigger, graph_of(written), automation_id)
    stored = await events(bench, identifiers)
    entries = list(
        backtest(
            automation,
            ContactState(contact_id, identifiers, declined=DECLINED),
            stored,
            until,
            RETRIES,
            await other_messages(bench, automation_id),
        )
    )
    assert simulated_steps(entries) == await steps(bench, automation_id, engines)
    assert simulated_bodies(entries) == await bodies(bench, automation_id)
    rows = await bench.entries("event_id::text, state, outcome, node_id, automation_id::text")
    assert ends(entries) == {tuple(row[:4]) for row in rows if row[4] == automation_id}
