"""Contacts that enter and leave a segment, schedules and broadcasts: the engine's entries equal those of a backtest.

The starts are read with the statement of a backtest, from the views of analysts.
"""

import copy
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from api.automations.automations import Author
from api.channels.outgoing import OUTGOING, Transports
from api.clock import from_us, uuid7
from api.query.limits import QuerySlots
from api.segments import broadcasts
from api.segments.broadcasts import BroadcastBody, plan_runs, send_due, start_due
from api.segments.candidates import SegmentServices
from api.segments.definition import SegmentBody
from api.segments.segments import SegmentResult, save_audience
from api.store.broadcasts import BroadcastRow
from tests.engine.conftest import AcceptingTransport, EngineBench, ManualClock, MovedClock, compared_cases, read_report
from tests.engine.killing import RETRIES, KilledEngines
from tests.engine.test_as_backtested import PERIOD, SHARED_SETTINGS, STREAMS, Sent, ends, simulated_steps, steps
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import DECLINED, graph_of, sound_graphs
from workbench.backtest.source import ContactSample, select
from workbench.backtest.starts import select_starts
from workbench.language.contact import ContactState
from workbench.language.cron import Cron
from workbench.language.event import Identifiers
from workbench.language.simulate import SimulatedAutomation, backtest
from workbench.language.starts import StartSource
from workbench.language.timeline import EventRecord, SimulatedEntry
from workbench.language.trigger import Trigger, read_trigger
from workbench.sql import statement

LEAD = timedelta(hours=2)  # contacts and the first members are older than the automation
PEOPLE = ({"walletAddress": evm_wallet("a"), "email": "ann@b.co"}, {"email": "ben@b.co"})
TABLES = (
    *("entries", "entry_steps", "messages", "events", "starts", "broadcasts", "schedules", "segment_sizes", "segments"),
    *("segment_members", "contact_changes", "identities", "contacts"),
)

MEMBERS = st.sets(st.sampled_from(range(len(PEOPLE)))).map(sorted)
# Differences of these, of the events' times and of the runs are no sums of delays: no two entries are due at one time
REFRESHED_AT = (11, 47, 3_701, 100_009, 350_003)
REFRESHES = st.lists(MEMBERS, min_size=2, max_size=len(REFRESHED_AT)).map(
    lambda members: [*zip(REFRESHED_AT, members, strict=False)]
)
SENT_AT = st.sets(st.sampled_from([29, 5_003, 200_017]), min_size=1, max_size=2).map(sorted)
SEGMENTS = st.sampled_from([None, "vip"])
TRIGGERS = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["segment_entered", "segment_left"]),
            "segment": st.just("vip"),
            "where": st.sampled_from([None, "segment == 'vip'", "email == 'ann@b.co'"]),
        }
    ),
    st.fixed_dictionaries(
        {"type": st.just("schedule"), "segment": SEGMENTS, "timezone": st.sampled_from(["UTC", "Europe/Zurich"])}
    ),
    st.just({"type": "broadcast"}),
)
Action = Callable[[], Awaitable[None]]


class Segment:
    """The segment `vip`: an audience whose frame is replaced."""

    def __init__(self, bench: EngineBench) -> None:
        self._bench = bench
        unused: Any = None
        self._services = SegmentServices(bench.database, unused, bench.keyring, 60.0, QuerySlots())
        self._revision: int | None = None

    async def replace(self, members: list[str]) -> None:
        body = SegmentBody(name="vip", contact_ids=members, revision=self._revision)
        result = await save_audience(self._services, author(self._bench), body)
        assert isinstance(result, SegmentResult), result
        self._revision = result.row.revision


def author(bench: EngineBench) -> Author:
    return Author(bench.org_id, uuid7(0), bench.clock.now_us())


def trigger_of(spec: dict[str, Any], start: datetime) -> dict[str, Any]:
    """Return the spec; a schedule gets runs at two times of two days of the period."""
    if spec["type"] != "schedule":
        return spec
    days = ",".join(str((start + timedelta(days=ahead)).day) for ahead in (2, 6))
    return spec | {"cron": f"17 5,19 {days} * *"}


async def play(bench: EngineBench, actions: list[tuple[timedelta, Action]]) -> None:
    """Do the actions at their times, and run the engine whenever entries are due, until the period is over."""
    clock, engines = bench.clock, KilledEngines(bench, [])
    end, remaining = clock.ahead + PERIOD, deque(sorted(actions, key=lambda action: action[0]))
    while True:
        ((due_at,),) = await bench.fetch(
            "SELECT min(due_at) FROM entries WHERE state IN ('pending', 'waiting', 'retrying')"
        )
        due = timedelta.max if due_at is None else due_at - from_us(0)
        if remaining and remaining[0][0] <= due:
            clock.ahead, act = remaining.popleft()
            await act()
        elif due < end:
            clock.ahead = max(clock.ahead, due)
        else:
            return
        await engines.drive(until=end)


async def read_records(
    bench: EngineBench, automation: SimulatedAutomation, since: datetime, until: datetime
) -> dict[str, list[EventRecord]]:
    """Return the events and starts by contact, as a backtest reads them."""
    source = automation.trigger.source
    assert isinstance(source, StartSource)
    starts = select_starts([source], since, until, None, own=True)
    selection = select([automation]).with_starts(starts, automation.id)
    text = statement("backtest_events", sample=ContactSample(), selection=selection, live=False)
    rows = await read_report(bench, text, {"since": since, "until": until, **selection.params})
    records: dict[str, list[EventRecord]] = {}
    for contact_id, at, event_id, name, payload, *sent, source_key, _, _ in sorted(
        rows, key=lambda row: (row[1], str(row[2]))
    ):
        record = EventRecord(str(event_id), name, at, Identifiers(*sent), payload, source_key)
        records.setdefault(str(contact_id), []).append(record)
    return records


@compared_cases(10)
@given(
    written=sound_graphs().filter(lambda drawn: not graph_of(drawn).collects),  # starts are not collected
    shared_settings=SHARED_SETTINGS,
    spec=TRIGGERS,
    first_members=MEMBERS,
    refreshes=REFRESHES,
    stream=STREAMS,
    sent_at=SENT_AT,
    sent_to=SEGMENTS,
)
async def test_a_backtest_of_what_started_equals_the_engine(
    bench: EngineBench,
    written: dict[str, Any],
    shared_settings: dict[str, Any],
    spec: dict[str, Any],
    first_members: list[int],
    refreshes: list[tuple[int, list[int]]],
    stream: list[Sent],
    sent_at: list[int],
    sent_to: str | None,
) -> None:
    written = copy.deepcopy(written)
    written["settings"] |= shared_settings
    written["settings"].pop("quietHours", None)  # they end for all entries at one time, in no defined order
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us()) - LEAD
    bench.clock = clock
    bench.retries = RETRIES
    bench.driver = bench.new_driver()
    transport: Any = AcceptingTransport()
    bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
    await bench.connection("chat", "k1")
    await bench.add_topics()
    for table in TABLES:
        await bench.execute(f"DELETE FROM {table} WHERE org_id = %s", bench.org_id)
    await bench.execute("UPDATE automations SET active = false WHERE org_id = %s", bench.org_id)
    for person in PEOPLE:
        await bench.ingest({"event": "seen", "contact": person})
        clock.ahead += timedelta(seconds=1)
    rows = await bench.fetch("SELECT id::text FROM contacts ORDER BY created_at")
    people = [contact_id for (contact_id,) in rows]
    segment = Segment(bench)
    await segment.replace([people[number] for number in first_members])
    clock.ahead += LEAD
    since, until = clock.now(), clock.now() + PERIOD
    spec = trigger_of(spec, since)
    written["nodes"][0]["type"] = spec["type"]
    edges = [(edge["source"], edge["target"], edge["sourceHandle"]) for edge in written["edges"]]
    automation_id = await bench.automation(
        written["nodes"], edges, trigger=spec, snippets=written.get("snippets"), **written["settings"]
    )
    await bench.execute("UPDATE automations SET created_at = %s WHERE id = %s", since, automation_id)
    trigger = read_trigger(spec)
    assert isinstance(trigger, Trigger), trigger
    assert isinstance(trigger.source, StartSource)

    async def run_broadcasts() -> None:
        await plan_runs(bench.database, clock)
        await start_due(bench.database, clock)
        await send_due(bench.database, clock)

    async def broadcast() -> None:
        body = BroadcastBody(segment=sent_to, all=sent_to is None)
        row = await broadcasts.create(bench.database, author(bench), automation_id, body)
        assert isinstance(row, BroadcastRow), row
        await run_broadcasts()

    async def send(name: str, payload: dict[str, Any]) -> None:
        await bench.ingest({"event": name, "contact": PEOPLE[0], "payload": payload})

    def at(seconds: int, action: Callable[..., Awaitable[None]], *arguments: Any) -> tuple[timedelta, Action]:
        return clock.ahead + timedelta(seconds=seconds), lambda: action(*arguments)

    actions = [at(seconds + 1, send, name, payload) for seconds, name, payload in stream]
    actions += [at(seconds, segment.replace, [people[number] for number in members]) for seconds, members in refreshes]
    if spec["type"] == "broadcast":
        actions += [at(seconds, broadcast) for seconds in sent_at]
    if isinstance(cron := trigger.source.times(), Cron):
        for time in cron.times_after(since):
            if time >= until:
                break
            actions.append((time - from_us(0), run_broadcasts))
    await play(bench, actions)
    automation = SimulatedAutomation(trigger, graph_of(written), automation_id)
    records = await read_records(bench, automation, since, until)
    entries: list[SimulatedEntry] = []
    for contact_id, person in zip(people, PEOPLE, strict=True):
        identifiers = Identifiers(person.get("walletAddress"), person["email"])
        contact = ContactState(contact_id, identifiers, declined=DECLINED)
        entries += backtest(automation, contact, records.get(contact_id, []), until, RETRIES)
    event(f"{spec['type']}: {'some' if entries else 'no'} entries")
    assert simulated_steps(entries) == await steps(bench, automation_id)
    rows = await bench.entries("event_id::text, state, outcome, node_id")
    assert ends(entries) == set(rows)
    rows = await bench.entries("event_id::text, contact_id::text, created_at")
    started = {(entry.event.id, at) for entry in entries for at in [entry.event.at]}
    assert started == {(start_id, created_at) for start_id, _, created_at in rows}
