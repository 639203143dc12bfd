"""For random graphs, the engine on Postgres takes the steps of `simulate` and ends in the same state."""

import os
from datetime import timedelta
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from api.channels.outcome import Outcome, Sent
from api.channels.outgoing import OUTGOING, Transports
from api.clock import from_us
from api.ingest.starts import find_starter
from tests.engine.conftest import EngineBench, MovedClock
from tests.engine.killing import KILLS, RETRIES, Kill, KilledEngines
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import DECLINED, EVENTS, SINCE, SIX_DAYS_AGO, graph_of, sound_graphs
from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.run import TERMINAL
from workbench.language.simulate import ScheduledEvent, SimulatedAutomation, SimulationInput, Trace, simulate
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger

CASES = int(os.environ.get("COMPARED_CASES", "60"))
BODIES = st.fixed_dictionaries(
    {
        "event": st.sampled_from(EVENTS),
        "payload": st.dictionaries(
            st.sampled_from(["size", "plan", "é", "since"]),
            st.sampled_from(
                ["pro", 1, 2.5, None, Decimal("1E+2"), Decimal("-0.0"), {"bb": 1, "a": [Decimal("2E+1")]}, SIX_DAYS_AGO]
            ),
        ),
        "attributes": st.dictionaries(st.sampled_from(["plan", "locale"]), st.sampled_from(["pro", "free", "de-at"]))
        | SINCE,
    }
)
# All later deposits, which come within a minute, join
COLLECTED = st.none() | st.fixed_dictionaries(
    {"seconds": st.sampled_from([60, 3_600, 90_000])}, optional={"max": st.just(4)}
)
LATER = st.lists(st.tuples(st.sampled_from([59, 3_601, 90_001, 500_001]), BODIES), max_size=3)
CONTACTS = st.sampled_from(
    [{"walletAddress": evm_wallet("a"), "email": "ann@b.co"}, {"walletAddress": evm_wallet("a")}, {"email": "ann@b.co"}]
)


class AcceptingTransport:
    """A transport that accepts every message."""

    async def send(self, *_: Any) -> Outcome:
        return Sent()

    async def close(self) -> None:
        """Do nothing."""


class ManualClock(MovedClock):
    """A clock that only tests move."""

    def now_us(self) -> int:
        return self.ahead // timedelta(microseconds=1)


async def play_events(
    bench: EngineBench, engines: KilledEngines, later: list[tuple[int, dict[str, Any]]], entry_id: str
) -> None:
    """Send the events and run the engine at their times, until the entry has ended."""
    clock = bench.clock
    start, remaining = clock.ahead, sorted(later, key=lambda event: event[0])
    for _ in range(100):
        await engines.drive()
        ((state, due_at),) = await bench.fetch(
            "SELECT state, greatest(CASE state WHEN 'running' THEN lease_until ELSE due_at END,"
            " (SELECT max(lease_until) FROM entries WHERE state = 'running')) FROM entries WHERE id = %s",
            entry_id,
        )
        if state in TERMINAL and not remaining:
            return
        due = timedelta.max if state in TERMINAL else due_at - from_us(0)
        if remaining and start + timedelta(seconds=remaining[0][0]) <= due:
            seconds = remaining[0][0]
            clock.ahead = start + timedelta(seconds=seconds)
            await bench.ingest(*(body for at, body in remaining if at == seconds))
            remaining = [event for event in remaining if event[0] > seconds]
        else:
            clock.ahead = max(clock.ahead, due)
    raise AssertionError("the entry never ends")


DEPOSIT = {"event": "deposit", "attributes": {}}


def collect_first(written: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return the graph with a step that collects after its trigger."""
    first, *others = written["nodes"]
    edges = [edge | {"source": "c"} if edge["source"] == first["id"] else edge for edge in written["edges"]]
    begins = {"source": first["id"], "sourceHandle": None, "target": "c"}
    nodes = [first, {"id": "c", "type": "collect", "data": data}, *others]
    settings = written["settings"] | {"holdout": None}  # it would end every entry at once
    return written | {"nodes": nodes, "edges": [begins, *edges], "settings": settings}


async def enter_segment(bench: EngineBench, contact: dict[str, str]) -> ContactState:
    """Let a new contact enter the segment `vip`, as a refresh does; return the contact."""
    await bench.ingest({"event": "hello", "contact": contact})
    ((contact_id,),) = await bench.fetch("SELECT id FROM contacts WHERE org_id = %s", bench.org_id)
    now, source = bench.clock.now(), StartSource("segment_entered", "vip")
    async with bench.database.transaction() as tx:
        values = bench.org_id, source.segment, contact_id, now
        await tx.execute("INSERT INTO segment_members VALUES (%s, %s, %s, %s)", values)
        starter = await find_starter(tx, bench.keyring, bench.org_id, source, now)
        await starter.start(tx, [str(contact_id)])
    identifiers = Identifiers(contact.get("walletAddress"), contact.get("email"))
    return ContactState(str(contact_id), identifiers, segments=(source.segment,), declined=DECLINED)


def simulate_entry(
    written: dict[str, Any],
    ids: tuple[str, str, str, str],
    events: list[Event],
    seconds: list[int],
    start: timedelta,
    entered: ContactState | None = None,
) -> Trace:
    automation_id, contact_id, entry_id, event_id = ids
    trigger, contact = Trigger(frozenset({"deposit"})), ContactState(contact_id, declined=DECLINED)
    if entered is not None:
        trigger, contact = Trigger(source=StartSource("segment_entered", "vip")), entered
    later = tuple(ScheduledEvent(timedelta(seconds=at), event) for at, event in zip(seconds, events[1:], strict=True))
    simulation_input = SimulationInput(later=later, retries=RETRIES, entry_id=entry_id, event_id=event_id)
    automation = SimulatedAutomation(trigger, graph_of(written), automation_id)
    return simulate(automation, events[0], contact, from_us(0) + start, simulation_input)


@settings(
    max_examples=CASES,
    derandomize="COMPARED_CASES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    written=sound_graphs(),
    body=BODIES,
    contact=CONTACTS,
    later=LATER,
    kills=KILLS | st.just([]),
    enters=st.sampled_from([False, False, True]),
    collected=COLLECTED,
)
async def test_the_engine_does_what_was_simulated(
    bench: EngineBench,
    written: dict[str, Any],
    body: dict[str, Any],
    contact: dict[str, str],
    later: list[tuple[int, dict[str, Any]]],
    kills: list[Kill],
    enters: bool,
    collected: dict[str, Any] | None,
) -> None:
    """`enters`: the contact enters a segment, instead of sending an event. `collected`: it collects deposits first."""
    if collected is not None:
        written = collect_first(written, collected)
        later = [*((58, body | DEPOSIT) for at, body in later if at == 59), *later]
    enters = enters and not graph_of(written).collects
    if kills:  # after a kill the engine lags: it finds the contact of then, and caps and retries follow the real time
        later = [(at, event | {"attributes": {}}) for at, event in later]
        contact = {"walletAddress": evm_wallet("a"), "email": "ann@b.co"}
        written = written | {"settings": {**written["settings"], "frequencyCap": None}}
    later = sorted(later, key=lambda event: event[0])
    moments = [seconds for seconds, _ in later]
    # The engine finds the attributes of all events of a moment in the contact, a simulation those of the events so far.
    assume(all(not body["attributes"] or moments.count(seconds) == 1 for seconds, body in later))
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us())
    bench.clock = clock
    transport: Any = AcceptingTransport()
    bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
    await bench.connection("chat", "k1")
    engines = KilledEngines(bench, kills)
    await bench.add_topics()
    for table in ("entries", "entry_steps", "messages", "events", "starts", "identities", "contacts"):
        await bench.execute(f"DELETE FROM {table} WHERE org_id = %s", bench.org_id)
    await bench.execute("UPDATE automations SET active = false WHERE org_id = %s", bench.org_id)
    edges = [(edge["source"], edge["target"], edge["sourceHandle"]) for edge in written["edges"]]
    trigger = {"type": "segment_entered", "segment": "vip"} if enters else None
    automation_id = await bench.automation(
        written["nodes"], edges, trigger=trigger, snippets=written["snippets"], **written["settings"]
    )
    start = clock.ahead
    bodies = [body | {"event": "deposit", "contact": contact}, *(event | {"contact": contact} for _, event in later)]
    entered = None
    if enters:
        entered = await enter_segment(bench, contact)
    else:
        await bench.ingest(bodies[0])
    ((entry_id, contact_id, event_id),) = await bench.entries("id, contact_id, event_id::text")
    events = [read_event(encode(body), clock.now_us()) for body in bodies]
    if entered is not None:
        source = StartSource("segment_entered", "vip")
        events[0] = Event(source.type, Identifiers(), payload=encode(source.payload), source=source.key)
    await play_events(bench, engines, [(at, body) for (at, _), body in zip(later, bodies[1:], strict=True)], entry_id)
    valid_events = [event for event in events if isinstance(event, Event)]
    ids = (automation_id, contact_id, entry_id, event_id)
    trace = simulate_entry(written, ids, valid_events, [at for at, _ in later], start, entered)
    steps = await bench.fetch(
        "SELECT node_id, outcome, handle, step, claim, attempt, at FROM entry_steps WHERE entry_id = %s"
        " ORDER BY claim, step",
        entry_id,
    )
    event(f"engines killed: {engines.killed}")
    assert [
        (node_id, outcome, handle, engines.own_attempt(entry_id, step, claim, attempt), at)
        for node_id, outcome, handle, step, claim, attempt, at in steps
    ] == [(step.node_id, step.outcome, step.handle, step.attempt, step.at) for step in trace.steps]
    joined = sum(body["event"] == "deposit" for _, body in later)
    assert await bench.entries() == [(trace.state, trace.outcome), *[("cancelled", "joined")] * joined]
    bodies_sent = dict(await bench.fetch("SELECT id::text, body FROM messages WHERE status = 'sent'"))
    assert bodies_sent == {message.id: message.body for message in trace.messages}


async def test_templates_print_payloads_and_attributes_as_they_are_stored(bench: EngineBench) -> None:
    """Payload, attributes and later events with keys and numbers that jsonb writes in another way."""
    text = "{{ payload }} {% for name in payload %}{{ name }} {% endfor %}{{ usd }} {{ contact }} {{ nested }}"
    nodes = [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "m", "type": "send_inapp", "data": {"title": "x", "body": text}},
        {"id": "w", "type": "send_webhook", "data": {"url": "https://a.example"}},
        {"id": "u", "type": "update_contact", "data": {"attributes": {"zz": "{{ amount }}", "b": 1}}},
        {"id": "n", "type": "send_inapp", "data": {"title": "x", "body": "{{ contact }}"}},
        {"id": "v", "type": "wait_for_event", "data": {"event": "later", "timeoutSeconds": 60}},
        {"id": "o", "type": "send_inapp", "data": {"title": "x", "body": "{{ contact }}"}},
    ]
    edges = [("t", "m"), ("m", "w"), ("w", "u"), ("u", "n"), ("n", "v"), ("v", "o", "matched")]
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us())
    bench.clock = clock
    transport: Any = AcceptingTransport()
    bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
    await bench.connection("chat", "k1")
    engines = KilledEngines(bench, [])
    automation_id = await bench.automation(nodes, edges)
    payload = {
        "plan": "pro",
        "amount": Decimal("1E+2"),
        "usd": Decimal("-0.0"),
        "nested": {"bb": 1, "a": [Decimal("2E+1")]},
    }
    odd = {"level": Decimal("1E+1"), "tier": Decimal("-0.00"), "é": True, "az": 1}
    contact = {"walletAddress": evm_wallet("a")}
    bodies = [
        {"event": "deposit", "contact": contact, "payload": payload, "attributes": odd},
        {"event": "later", "contact": contact, "payload": payload, "attributes": {"c": Decimal("3E+1")}},
    ]
    start = clock.ahead
    await bench.ingest(bodies[0])
    ((entry_id, contact_id, event_id),) = await bench.entries("id, contact_id, event_id::text")
    await play_events(bench, engines, [(9, bodies[1])], entry_id)
    events = [event for body in bodies if isinstance(event := read_event(encode(body), clock.now_us()), Event)]
    written = {
        "nodes": nodes,
        "edges": [dict(zip(("source", "target", "sourceHandle"), edge, strict=False)) for edge in edges],
    }
    trace = simulate_entry(written, (automation_id, contact_id, entry_id, event_id), events, [9], start)
    bodies_sent = dict(await bench.fetch("SELECT id::text, body FROM messages"))
    assert bodies_sent == {message.id: message.body for message in trace.messages}
    assert len(bodies_sent) == 4
