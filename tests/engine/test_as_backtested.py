"""Events that are sent to a live automation and then backtested take the same steps at the same times.

In between, the contact changes: by events, an import, persons, a merge and another automation.
"""

import copy
import re
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

import polars as pl
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from api.automations.automations import Author
from api.channels.outcome import Failed, Outcome, Retry
from api.channels.outcome import Sent as Accepted
from api.channels.outgoing import OUTGOING, Transports
from api.clock import from_us, uuid7
from api.contacts import contacts, preferences
from api.contacts.merge import Pair, merge
from api.crypto import EmailDisplay
from api.engine import facts
from api.ingest.parse import EventReader
from api.ingest.store import prepare, store_history
from api.store.query import run
from tests.engine.conftest import (
    AcceptingTransport,
    EngineBench,
    ManualClock,
    MovedClock,
    compared_cases,
    read_report,
    written_graph,
)
from tests.engine.killing import KILLS, RETRIES, Kill, KilledEngines
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import DATES, EVENTS, WHERES, graph_of, sound_graphs
from workbench.backtest.agreement import compare, recorded_failures
from workbench.backtest.simulate_bucket import contact_since, read_changes, read_real_entries
from workbench.backtest.source import ContactSample, EventSelection
from workbench.language import advance, timeline
from workbench.language.channel import Message, RetryPolicy
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState, ValueChange
from workbench.language.event import Identifiers
from workbench.language.live import PublishedVersion, live_changes
from workbench.language.simulate import LivePast, SimulatedAutomation, backtest
from workbench.language.timeline import EventRecord, OtherMessage, SimulatedEntry
from workbench.language.trigger import Trigger, read_trigger
from workbench.sql import statement

# No sum of delays equals a difference of these, so no two entries are due at the same time
OFFSETS = (0, 20, 33, 75, 3_690, 90_045, 500_025)
LOOP_LIMIT = 1  # instead of 100, so that two entries within a minute are enough for the loop guard
HOOK_GRAPH = {
    "nodes": [{"id": "0", "type": "app_event"}, {"id": "1", "type": "send_webhook", "data": {"url": "https://a.co"}}],
    "edges": [{"source": "0", "sourceHandle": None, "target": "1"}],
    "settings": {},
}
PERIOD, LAST_RUNS = timedelta(days=9), timedelta(minutes=5)
SEALED = re.compile(r"enc[0-9]+_[0-9a-f]+")
Sent = tuple[int, str, dict[str, Any]]
Change = tuple[int, str, Any]  # seconds, kind, what changes

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
        {"frequencyCap": {"messages": 1, "per": "day"}},
        {},
    )
)
# Another automation on the same event, whose messages count towards the frequency cap, and which changes the contact
OTHERS = st.sampled_from((None, "older", "younger"))
ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "plan": st.sampled_from(["pro", "free", "Europe/Zurich", 1, True]),
        "since": st.sampled_from(DATES),
        "locale": st.sampled_from(["de-at", "fr"]),
    },
)
MADE = {
    "event": st.tuples(st.sampled_from(("noticed", "deposit", *EVENTS)), ATTRIBUTES),
    "identifier": st.sampled_from([{"email": "new@b.co"}, {"externalId": "ann"}]),
    "import": ATTRIBUTES,
    "tag": st.tuples(st.lists(st.sampled_from("ab"), max_size=2), st.lists(st.sampled_from(["a", "vip"]), max_size=2)),
    "opt_out": st.fixed_dictionaries({}, optional={"email": st.booleans(), "inapp": st.booleans()}),
    "topics": st.fixed_dictionaries({}, optional={"news": st.booleans(), "deals": st.booleans()}),
    "segment": st.booleans(),
    "merge": ATTRIBUTES,
}
CHANGES = st.lists(
    st.tuples(
        st.sampled_from((7, 29, 1_013, 4_027, 91_033, 410_009)),
        st.sampled_from(list(MADE)).flatmap(lambda kind: st.tuples(st.just(kind), MADE[kind])),
    ),
    max_size=4,
    unique_by=lambda change: change[0],
).map(lambda changes: sorted((seconds, *change) for seconds, change in changes))
OTHER_NODES: list[dict[str, Any]] = [
    {"id": "t", "type": "app_event", "data": {}},
    {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}},
]
CHANGING_NODES = [
    *OTHER_NODES,
    {"id": "a", "type": "add_tag", "data": {"tag": "vip"}},
    {"id": "u", "type": "update_contact", "data": {"attributes": {"plan": "{{ plan | default('free') }}"}}},
    {"id": "d", "type": "delay", "data": {"seconds": 2_003}},
    {"id": "r", "type": "remove_tag", "data": {"tag": "vip"}},
]
CHANGING_EDGES = [("t", "m"), ("m", "a"), ("a", "u"), ("u", "d"), ("d", "r")]
CONTACTS = st.sampled_from(
    [{"walletAddress": evm_wallet("a"), "email": "ann@b.co"}, {"walletAddress": evm_wallet("a")}, {"email": "ann@b.co"}]
)


async def play_events(
    bench: EngineBench,
    engines: KilledEngines,
    contact: dict[str, str],
    stream: list[Sent],
    changes: list[Change],
    late: bool,
) -> None:
    """Send the events, change the contact and run the engine at their times, until the period is over.

    `late`: run it only at its end.
    """
    clock = bench.clock
    start, end = clock.ahead, clock.ahead + PERIOD
    remaining: list[tuple[timedelta, str, Any]] = sorted(
        ((start + timedelta(seconds=seconds), *what) for seconds, *what in (*stream, *changes)), key=itemgetter(0)
    )
    while True:
        due = await engines.next_due()
        if due <= clock.ahead and (not late or clock.ahead >= end - LAST_RUNS):
            await engines.drive(until=end)
        elif remaining and (late or remaining[0][0] <= due):
            clock.ahead, name, what = remaining.pop(0)
            if name in MADE:
                await make_change(bench, contact, name, what)
            else:
                await bench.ingest({"event": name, "contact": contact, "payload": what})
        elif late and clock.ahead < end - LAST_RUNS:
            clock.ahead = end - LAST_RUNS
        elif due < end:
            clock.ahead = due
        else:
            return


async def make_change(bench: EngineBench, contact: dict[str, str], kind: str, what: Any) -> None:
    """Change the contact as an event, an import, a person or a refresh does, or by merging another contact into it."""
    now_us = bench.clock.now_us()
    author, show = Author(bench.org_id, uuid7(now_us), now_us), EmailDisplay(bench.keyring.of(bench.org_id), True)
    ((contact_id,),) = await bench.fetch("SELECT id::text FROM contacts WHERE merged_into IS NULL")
    database = bench.database
    match kind:
        case "event":
            name, attributes = what
            await bench.ingest({"event": name, "contact": contact, "attributes": attributes})
        case "identifier":
            what = what if "walletAddress" in contact else {"externalId": "ann"}  # another email is another contact
            await bench.ingest({"event": "noticed", "contact": contact | what})
        case "import":
            written = {"event": "noticed", "contact": contact, "attributes": what}
            event = EventReader(bench.clock, "n").read(bench.org_id, show.keys, encode(written), False)
            assert not isinstance(event, tuple), event
            async with database.transaction() as tx:
                stored = await store_history(tx, bench.org_id, prepare([event], author.now), author.now)
                await run(tx, *stored.writes)
        case "tag":
            await contacts.tag(database, author, contact_id, *what, show)
        case "opt_out":
            await contacts.opt_out(database, author, contact_id, what, show)
        case "topics":
            await preferences.change(database, author, contact_id, what, {})
        case "segment":
            await bench.change_member("d", contact_id, enters=what)
        case "merge":
            key = uuid7(now_us)
            await bench.ingest({"event": "noticed", "contact": {"externalId": key}, "attributes": what | {"merged": 1}})
            ((other_id,),) = await bench.fetch("SELECT id::text FROM contacts WHERE external_id = %s", key)
            await contacts.tag(database, author, other_id, ["b"], [], show)
            await merge(database, author, Pair(contact_id, other_id), show)


TABLES = (
    *("entries", "entry_steps", "messages", "events", "identities", "contact_merges", "contact_changes"),
    *("segment_members", "consents", "suppressions", "idempotency_keys", "contacts"),
)
COLUMNS = {
    "events": "contact_id::text, created_at, id::text, event, payload::text, sent_wallet_address, sent_email,"
    " sent_external_id, source, member_id::text",
    "contacts": "contact_id::text, wallet_address, email, external_id, metadata::text, tags, opted_out, segments,"
    " declined, member_id::text",
    "changes": 'contact_id::text, changed_at, at, field, old, new, event_id, "order", is_own, cause, member_id::text,'
    " merge_id",
    "messages": "contact_id::text, at, event_id, is_younger, member_id::text",
    "entries": "contact_id::text, event_id, version, state, outcome, created_at, updated_at, claim, step, node_id,"
    " step_outcome, handle, cause, at",
}


class BacktestReader:
    """What a backtest reads of the automation, by its statements and on the views of analysts."""

    def __init__(self, bench: EngineBench, automation_id: str, since: datetime, until: datetime) -> None:
        self._bench = bench
        self._params = {
            "automation": automation_id,
            "since": since,
            "until": until,
            "channels": ["inapp", "email", "connection"],
            "topics": ["deals", "news"],
            "opt_in_topics": ["deals"],
        }

    async def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement as the client reads them, with addresses in clear."""
        selection = EventSelection(topics=True)
        structure = {
            "sample": ContactSample(),
            "selection": selection,
            "own": True,
            "live": False,
            "merged": False,
            "began_before": None,
        }
        text = statement(f"backtest_{name}", **structure)
        rows = await read_report(self._bench, f"SELECT {COLUMNS[name]} FROM (\n{text}\n) r", self._params)
        open_email = self._bench.keyring.of(self._bench.org_id).open_email

        def opened(value: Any) -> Any:
            return SEALED.sub(lambda sealed: open_email(sealed[0]), value) if isinstance(value, str) else value

        return [tuple(map(opened, row)) for row in rows]

    async def frame(self, name: str) -> pl.DataFrame | None:
        rows = await self.rows(name)
        names = [column.split("::")[0].strip(' "') for column in COLUMNS[name].split(",")]
        return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None) if rows else None

    async def events(self) -> list[EventRecord]:
        rows = sorted(await self.rows("events"), key=lambda row: row[1:3])
        return [
            EventRecord(event_id, name, at, Identifiers(*sent), payload.encode(), source)
            for _, at, event_id, name, payload, *sent, source, _ in rows
        ]

    async def contact(self) -> ContactState:
        """Return the contact as it is now."""
        ((contact_id, *identifiers, metadata, tags, opted_out, segments, declined, _),) = await self.rows("contacts")
        attributes = decode(metadata.encode())
        if identifiers[2] is not None:
            attributes.pop("externalId")
        values = (tuple(tags), tuple(segments), tuple(opted_out), tuple(declined))
        return ContactState(contact_id, Identifiers(*identifiers), attributes, *values)

    async def changes(self) -> list[ValueChange]:
        return next(iter(read_changes(await self.frame("changes")).values()), [])

    async def messages(self) -> list[OtherMessage]:
        return [OtherMessage(*message) for _, *message, _ in sorted(await self.rows("messages"))]


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


@compared_cases(20)
@given(
    written=sound_graphs(),
    shared_settings=SHARED_SETTINGS,
    contact=CONTACTS,
    stream=STREAMS,
    where=st.none() | WHERES,
    other=OTHERS,
    changes=CHANGES,
    late=st.sampled_from((False, False, True)),
    kills=st.just([]) | st.just([]) | KILLS,
)
@example(
    written=HOOK_GRAPH,
    shared_settings={},
    contact={"email": "ann@b.co"},
    stream=[(0, "deposit", {}), (20, "deposit", {}), (90_045, "deposit", {})],
    where=None,
    other=None,
    changes=[],
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
    changes: list[Change],
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
        changes = []  # a late engine sees the contact of its own time
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us())
    bench.clock = clock
    transport: Any = AcceptingTransport()
    bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
    await bench.connection("chat", "k1")
    engines = KilledEngines(bench, kills)
    await bench.add_topics()
    for table in TABLES:
        await bench.execute(f"DELETE FROM {table} WHERE org_id = %s", bench.org_id)
    await bench.execute("UPDATE automations SET active = false WHERE org_id = %s", bench.org_id)
    edges = [(edge["source"], edge["target"], edge["sourceHandle"]) for edge in written["edges"]]
    nodes, others = (OTHER_NODES, [("t", "m")]) if late or kills else (CHANGING_NODES, CHANGING_EDGES)
    if other == "older":
        await bench.automation(nodes, others)
        clock.ahead += timedelta(milliseconds=1)
    spec = {"type": "app_event", "event": "deposit", "where": where}
    automation_id = await bench.automation(
        written["nodes"], edges, trigger=spec, snippets=written.get("snippets"), **written["settings"]
    )
    if other == "younger":
        clock.ahead += timedelta(milliseconds=1)
        await bench.automation(nodes, others)
    since, until = from_us(0) + clock.ahead, from_us(0) + clock.ahead + PERIOD
    await play_events(bench, engines, contact, stream, changes, late)
    event(f"engines killed: {engines.killed}")
    trigger = read_trigger(spec)
    assert isinstance(trigger, Trigger), trigger
    automation = SimulatedAutomation(trigger, graph_of(written), automation_id)
    past = BacktestReader(bench, automation_id, since, until)
    stored, messages = await past.events(), await past.messages()
    first, made = contact_since(await past.contact(), await past.changes(), stored)
    event(f"changes: {len(made)}")
    entries = list(backtest(automation, first, stored, until, RETRIES, messages, made))
    assert simulated_steps(entries) == await steps(bench, automation_id, engines)
    assert simulated_bodies(entries) == await bodies(bench, automation_id)
    rows = await bench.entries("event_id::text, state, outcome, node_id, automation_id::text")
    assert ends(entries) == {tuple(row[:4]) for row in rows if row[4] == automation_id}
    real = read_real_entries(await past.frame("entries"))
    version = PublishedVersion(since, 1, trigger, graph_of(written))
    live = LivePast(live_changes([version], [], "live"), failures=recorded_failures(real))
    played = list(backtest(automation, first, stored, until, RETRIES, messages, made, live))
    assert [compare(real.pop(entry.event.id, None), entry, first.id, until) for entry in played] == [None] * len(played)
    assert real == {}


class FailingTransport(AcceptingTransport):
    """A transport with outcomes for its first messages; it accepts all others."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)

    async def send(self, *_: Any) -> Outcome:
        return self._outcomes.pop(0) if self._outcomes else Accepted()


async def test_deliveries_fail_as_they_did(bench: EngineBench) -> None:
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us())
    bench.clock = clock
    down = Retry("unreachable")
    transport: Any = FailingTransport(down, Retry("refused", 420), Accepted(), Failed("refused"), down, down, down)
    bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
    engines = KilledEngines(bench, [])
    bench.retries = RetryPolicy((10.0, 20.0))
    bench.driver = bench.new_driver()
    nodes: list[dict[str, Any]] = [
        {"id": "0", "type": "app_event"},
        {"id": "1", "type": "send_webhook", "data": {"url": "https://a.co"}},
        {"id": "2", "type": "add_tag", "data": {"tag": "vip"}},
    ]
    automation_id = await bench.automation(nodes, [("0", "1"), ("1", "2")])
    since, until = from_us(0) + clock.ahead, from_us(0) + clock.ahead + PERIOD
    stream: list[Sent] = [(0, "deposit", {}), (1_000, "deposit", {}), (2_000, "deposit", {}), (3_000, "deposit", {})]
    await play_events(bench, engines, {"email": "ann@b.co"}, stream, [], late=False)
    outcomes = [row[0] for row in await bench.fetch("SELECT outcome FROM entry_steps WHERE node_id = '1' ORDER BY at")]
    assert outcomes == ["failed", "failed", "sent", "failed", "failed", "failed", "failed", "sent"]
    past = BacktestReader(bench, automation_id, since, until)
    stored = await past.events()
    first, made = contact_since(await past.contact(), await past.changes(), stored)
    real = read_real_entries(await past.frame("entries"))
    graph = written_graph(nodes, [("0", "1"), ("1", "2")], {})
    version = PublishedVersion(since, 1, Trigger(names=frozenset({"deposit"})), graph_of(graph))
    live = LivePast(live_changes([version], [], "live"), failures=recorded_failures(real))
    automation = SimulatedAutomation(version.trigger, None, automation_id)
    played = list(backtest(automation, first, stored, until, bench.retries, (), made, live))
    assert [compare(real[entry.event.id], entry, first.id, until) for entry in played] == [None] * 4


async def test_batches_within_a_millisecond_stay_apart(bench: EngineBench) -> None:
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us())
    bench.clock = clock
    is_pro = {"filters": [{"path": "contact.plan", "operator": "eq", "value": "pro"}]}
    nodes: list[dict[str, Any]] = [{"id": "0", "type": "app_event"}, {"id": "1", "type": "condition", "data": is_pro}]
    automation_id = await bench.automation(nodes, [("0", "1")])
    since, until = from_us(0) + clock.ahead, from_us(0) + clock.ahead + PERIOD
    await bench.ingest({"event": "deposit", "attributes": {"plan": "free"}})
    await bench.drive()
    clock.ahead += timedelta(microseconds=300)
    await bench.ingest(*({"event": "noticed", "attributes": {"plan": plan}} for plan in ("trial", "pro")))
    past = BacktestReader(bench, automation_id, since, until)
    stored = [event for event in await past.events() if event.name == "deposit"]  # as the automation reads no others
    first, made = contact_since(await past.contact(), await past.changes(), stored)
    trigger = Trigger(names=frozenset({"deposit"}))
    automation = SimulatedAutomation(trigger, graph_of(written_graph(nodes, [("0", "1")], {})), automation_id)
    (entry,) = backtest(automation, first, stored, until, RETRIES, (), made)
    assert [step.handle for step in entry.steps] == [None, "false"]
    assert simulated_steps([entry]) == await steps(bench, automation_id)
