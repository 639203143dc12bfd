"""Plays worlds with real engines on a real Postgres, one after the other, in one organization of one database.

The clock is the world's. Ids come from random numbers of a fixed seed, because splits, holdouts and delays of retries
depend on them: a world is played in the same way each time.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pytest

from api import clock as api_clock
from api.automations import moves
from api.automations.automations import Author, Refusal
from api.automations.pins import pin
from api.automations.trial import PreparedTrial
from api.channels.bounce import Bounce
from api.channels.outcome import Delivery, Failed, Outcome, Retry, Sent, Unknown
from api.channels.outgoing import OUTGOING, Transports
from api.clock import from_us, uuid7
from api.contacts import contacts, erase, merge, preferences
from api.contacts.bounces import record_bounce
from api.crypto import EmailDisplay
from api.engine import facts
from api.ingest.match import Triggers
from api.ingest.parse import DryRun, EventReader
from api.ingest.starts import find_starter
from api.ingest.store import prepare, store_batch, store_history
from api.segments import broadcasts
from api.segments.broadcasts import BroadcastBody
from api.store.broadcasts import BroadcastRow
from api.store.contacts import find_contact_state, find_contact_states, list_activation_changes
from api.store.database import Database, Transaction
from api.store.query import run
from tests.chain.pages import Chain, transfer
from tests.engine.conftest import EngineBench, ManualClock
from tests.engine.killing import Delay, KilledEngines
from tests.engine.moving import edit, plan_move, services
from tests.engine.pausing import pause, resume
from tests.fidelity.worlds import (
    LOGS,
    PERIOD,
    SEGMENT,
    Action,
    Answer,
    Automation,
    Change,
    Erasure,
    Import,
    Merge,
    MoveBack,
    Pause,
    Publication,
    Report,
    Resume,
    SegmentMove,
    SentBroadcast,
    SentEvent,
    Transfer,
    Undo,
    World,
)
from tests.language.strategies import SNIPPETS
from workbench.backtest.simulate_bucket import AutomationPayload, VersionPayload
from workbench.connection import Connection
from workbench.language import advance, timeline
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState
from workbench.language.cron import Cron
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.explain import ExplanationView
from workbench.language.live import ActivationChange
from workbench.language.onchain import ZERO_ADDRESS, log_sample
from workbench.language.run import TERMINAL, State
from workbench.language.simulate import EARLIEST
from workbench.language.starts import SegmentChange, StartSource, StartType
from workbench.language.trigger import Trigger, read_trigger

LOOP_LIMIT = 1  # instead of 100, so that two entries within a minute are enough for the loop guard
LAST_RUNS = timedelta(minutes=5)
# What a world leaves behind, children first
TABLES = (
    "entry_moves", "moves", "schedules", "entry_steps", "entry_transitions", "message_outcomes", "messages", "entries",
    "starts", "broadcasts", "events", "idempotency_keys", "idempotency_mismatches", "dry_runs", "identity_conflicts",
    "identities", "consents", "suppressions", "segment_members", "contact_changes", "contact_merges", "erasures",
    "erased_wallets", "closed_endpoints", "onchain_events", "chain_watches", "unknown_wallet_counts", "contacts",
    "audit_log", "automation_versions", "automations", "late_events",
)  # fmt: skip


class RecordedStep(NamedTuple):
    """A step of an entry. `attempt`: its number, without those of killed engines."""

    node_id: str
    kind: str
    outcome: str
    handle: str | None
    cause: str | None
    attempt: int
    at: datetime


class UncountedMessage(NamedTuple):
    """A message that counts towards a cap no more, or that may have arrived."""

    contact_id: str
    automation_id: str
    bounced: bool


class StartedEntry(msgspec.Struct, frozen=True):
    """An entry of the engine, with its steps, and its texts by node."""

    id: str
    automation_id: str
    event_id: str
    contact_id: str
    created_at: datetime
    state: str
    outcome: str | None
    node_id: str | None
    steps: list[RecordedStep]
    texts: list[tuple[str, str]]

    @property
    def last_at(self) -> datetime:
        """When it ended; the last moment of all if it is open."""
        if State(self.state) not in TERMINAL:
            return datetime.max.replace(tzinfo=UTC)
        return max((step.at for step in self.steps), default=self.created_at)


class PlayedEvent(msgspec.Struct):
    """An event or a start, its id, and what others said about it just before.

    `described`: as a simulation takes it. `position`: in the actions of the world; a run of a schedule is between two.
    `matched`: how many automations a dry run would start; None: of a start. `behind`: the contacts with entries that
    were due, but not decided yet. `trials`, `explanations`: by the position
    of the automation.
    """

    described: dict[str, Any]
    at: datetime
    position: float
    matched: int | None = None
    behind: frozenset[str] = frozenset()
    trials: dict[int, PreparedTrial] = {}
    explanations: dict[int, ExplanationView] = {}
    id: str = ""
    contact_id: str = ""


class PlayedWorld(msgspec.Struct):
    """What happened in a world. `graphs`: of the first version of each automation."""

    world: World
    automation_ids: list[str]
    graphs: list[dict[str, Any]]
    events: list[PlayedEvent]
    entries: list[StartedEntry] = []
    previews: list[tuple[int, int]] = []  # contacts of a preview, and entries of the broadcast
    killed: int = 0
    versions: dict[int, list[VersionPayload]] = {}  # of automations that were published again, or paused
    activations: dict[str, list[ActivationChange]] = {}  # by automation
    erased: set[str] = set()
    merged_with_erased: set[str] = set()  # also if the merge was undone
    disturbed: dict[str, list[datetime]] = {}  # by contact: when something other than its events changed it
    changed: dict[str, list[datetime]] = {}  # by contact: when its events changed it
    delays: list[Delay] = []
    moved: set[str] = set()  # contacts whose identifiers moved to another contact, or came from one
    conflicts: set[str] = set()  # events with an identifier of another contact
    closed: bool = False  # whether a delivery or a report closed an address
    reopened: set[str] = set()  # contacts whose closed address a person opened again
    uncounted: list[UncountedMessage] = []


class ScheduledRun(msgspec.Struct, frozen=True):
    """A run of the automation that starts by a schedule."""

    at: int
    to_segment: bool


OUTCOMES: dict[Answer, Outcome] = {
    "sent": Sent(),
    "refused": Retry("refused"),
    "later": Retry("refused", 3_600),
    "no_answer": Unknown("no_answer"),
    "gone": Failed("gone"),
}


class AnsweringTransport:
    """A transport that gives the deliveries to each contact these answers, and accepts those after them."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers: defaultdict[str | None, Iterator[Answer]] = defaultdict(lambda: iter(answers))

    async def send(self, delivery: Delivery, *_: Any) -> Outcome:
        return OUTCOMES[next(self._answers[delivery.contact_id], "sent")]

    async def close(self) -> None:
        """Do nothing."""


class SeededBits:
    """The random bits of ids."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def take(self) -> str:
        bits = self._random.getrandbits(62) | 1 << 63
        return f"{bits >> 48:04x}-{bits & 0xFFFFFFFFFFFF:012x}"


class StageBench(EngineBench):
    """A bench whose statements are transactions of their own, on one connection: a third of all round trips fewer."""

    def __init__(self, database: Database, org_id: int, transports: Transports, connection: Transaction) -> None:
        super().__init__(database, org_id, transports)
        self._connection = connection

    async def fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return await (await self._connection.execute(query.encode(), values)).fetchall()

    async def execute(self, query: str, *values: Any) -> None:
        await self._connection.execute(query.encode(), values or None)


class Stage:
    """The organization in which worlds are played. `connection`: of its notebook."""

    def __init__(self, bench: StageBench, connection: Connection) -> None:
        self.bench, self.connection = bench, connection
        self.show = EmailDisplay(bench.keyring.of(bench.org_id), True)

    @property
    def author(self) -> Author:
        return Author(self.bench.org_id, uuid7(self.bench.clock.now_us()), self.bench.clock.now_us())

    async def prepare(self) -> None:
        """Add what all worlds share: a connection, topics, snippets, and a segment."""
        bench = self.bench
        await bench.connection("chat", "k1")
        await bench.add_topics()
        for name, snippet in SNIPPETS.items():
            values = bench.org_id, name, snippet["version"], snippet["body"], uuid7(1)
            await bench.execute("INSERT INTO snippets VALUES (%s, %s, %s, %s, now(), %s)", *values)
        await bench.execute(
            "INSERT INTO segments (org_id, id, name, kind, size, refreshed_at, revision, created_at, created_by,"
            " updated_at, updated_by) SELECT %s, id, %s, 'audience', 0, now(), 1, now(), id, now(), id"
            " FROM (SELECT gen_random_uuid() AS id) i",
            bench.org_id,
            SEGMENT,
        )

    async def clear(self) -> None:
        deletes = "; ".join(f"DELETE FROM {table} WHERE org_id = {self.bench.org_id}" for table in TABLES)
        await self.bench.execute(f"{deletes}; DELETE FROM chain_blocks; DELETE FROM chains")

    async def play(self, world: World, observer: "Observer") -> PlayedWorld:
        """Play a world on an empty organization; return what happened."""
        bench = self.bench
        await self.clear()
        bench.clock = clock = ManualClock()
        clock.ahead = world.begin - from_us(0)
        transport: Any = AnsweringTransport(world.answers)
        bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
        engines = KilledEngines(bench, world.kills)
        await bench.execute("UPDATE organizations SET timezone = %s WHERE id = %s", world.zone, bench.org_id)
        played = PlayedWorld(world, [], [], [])
        clock.ahead -= timedelta(days=2)
        for contact in world.contacts:
            if contact.past is not None:
                clock.ahead += timedelta(seconds=1)
                hello = {"event": "hello", "contact": contact.identifiers, "attributes": contact.past}
                await bench.ingest(hello)
                contact_id = await self._find_contact(contact.identifiers)
                assert contact_id is not None
                await self._change(
                    contact_id, contact.tags, (), contact.topics, dict.fromkeys(contact.opted_out, False)
                )
                if contact.member:
                    await bench.change_member(SEGMENT, contact_id, enters=True)
        if any(isinstance(action, Transfer) for action in world.actions):  # also logs that no automation starts from
            names = "chainId", "contract", "signature", "walletArg"
            await bench.execute(
                "INSERT INTO chain_watches VALUES (%s, %s, %s, %s, %s, now())",
                bench.org_id,
                *(LOGS[name] for name in names),
            )
        for automation in world.automations:
            clock.ahead += timedelta(seconds=1)
            played.automation_ids.append(await self._publish(automation, played))
        clock.ahead = world.begin - from_us(0)
        await self._play_actions(played, engines, observer)
        played.killed, played.delays = engines.killed, engines.delays
        played.entries = await self._entries(engines)
        played.closed = await self._has_closed()
        uncounted = await bench.fetch(
            "SELECT contact_id::text, automation_id::text, feedback IS NOT DISTINCT FROM 'bounced' FROM messages"
            " WHERE status = 'failed' OR status = 'skipped' AND body IS NOT NULL OR feedback = 'bounced'"
        )
        played.uncounted = [UncountedMessage(*row) for row in uncounted]
        async with bench.database.transaction() as tx:
            for automation_id in played.automation_ids:
                played.activations[automation_id] = await list_activation_changes(tx, bench.org_id, automation_id)
        return played

    async def _publish(self, automation: Automation, played: PlayedWorld) -> str:
        async with self.bench.database.transaction() as tx:
            pinned = decode(await pin(tx, self.bench.org_id, encode(automation.graph)))
        played.graphs.append(pinned)
        edges = [(edge["source"], edge["target"], edge["sourceHandle"]) for edge in pinned["edges"]]
        pins = pinned.get("snippets"), pinned.get("timezone")
        trigger, settings = automation.trigger, pinned["settings"]
        return await self.bench.automation(pinned["nodes"], edges, 1, trigger, *pins, **settings)

    async def _play_actions(self, played: PlayedWorld, engines: KilledEngines, observer: "Observer") -> None:
        """Let everything happen at its time, and run the engines when entries are due. `late`: only at the end."""
        world, clock = played.world, self.bench.clock
        start = clock.ahead
        end, remaining = start + PERIOD, with_runs(world)
        while True:
            due = await engines.next_due()
            if due <= clock.ahead and (not world.late or clock.ahead >= end - LAST_RUNS):
                await engines.drive(until=end)
            elif remaining and (world.late or start + timedelta(seconds=remaining[0].at) <= due):
                action = remaining.pop(0)
                batch = [action]
                while remaining and remaining[0].at == action.at:
                    batch.append(remaining.pop(0))
                position = sum(earlier.at < action.at for earlier in world.actions)
                clock.ahead = max(clock.ahead, start + timedelta(seconds=action.at))
                if isinstance(action, SentEvent):
                    await self._send(batch, position, played, observer)
                else:
                    await self._perform(action, position, played, observer)
            elif world.late and clock.ahead < end - LAST_RUNS:
                clock.ahead = end - LAST_RUNS
            elif due < end:
                clock.ahead = due
            else:
                clock.ahead = end
                return

    async def _send(self, batch: list[Any], position: int, played: PlayedWorld, observer: "Observer") -> None:
        """Send a batch of events, each of which other interpreters have looked at."""
        bench = self.bench
        events = []
        for number, action in enumerate(batch, position):
            events.append(PlayedEvent(action.body, bench.clock.now(), number, await self._dry_run(action)))
            await observer.before(self, played, events[-1])
        owners = await self._owners()
        await bench.ingest(*(action.body for action in batch))
        rows = await bench.fetch(
            "SELECT id::text, contact_id::text, EXISTS (SELECT FROM identity_conflicts c WHERE c.org_id = e.org_id"
            " AND c.event_id = e.id) FROM events e WHERE org_id = %s AND created_at = %s ORDER BY id",
            bench.org_id,
            bench.clock.now(),
        )
        for event, (event.id, event.contact_id, has_conflict) in zip(events, rows, strict=True):
            if has_conflict:  # it has an identifier of another contact
                self._disturb(played, event.contact_id)
                played.conflicts.add(event.id)
        now_owned = await self._owners()
        for key, owner in owners.items():
            if now_owned[key] != owner:  # an identifier that moved
                self._disturb(played, owner, now_owned[key])
                played.moved |= {owner, now_owned[key]}
        changed = [event.contact_id for event in events if event.described["attributes"]]
        for contact_id in {*changed, *(owner for key, owner in now_owned.items() if key not in owners)}:
            played.changed.setdefault(contact_id, []).append(bench.clock.now())
        played.events += events

    async def _perform(
        self, action: Action | ScheduledRun, position: int, played: PlayedWorld, observer: "Observer"
    ) -> None:
        bench = self.bench
        match action:
            case SentBroadcast(to_segment=to_segment):
                for automation_id, automation in zip(played.automation_ids, played.world.automations, strict=True):
                    if automation.trigger["type"] == "broadcast":
                        await self._broadcast(automation_id, to_segment, position, played, observer)
            case Merge(keep=keep, absorbed=absorbed):
                ids = [
                    await self._find_contact(played.world.contacts[number].identifiers) for number in (keep, absorbed)
                ]
                kept, gone = ids
                if kept is not None and gone is not None and kept != gone:
                    merged = await merge.merge(bench.database, self.author, merge.Pair(kept, gone), self.show)
                    assert not isinstance(merged, Refusal) or merged.reason == "conflict", merged
                    self._disturb(played, kept, gone)
                    played.moved |= {kept, gone}
                    await self._settle()
            case Import():
                await self._import(action, played)
            case Undo():
                rows = await bench.fetch(
                    "SELECT id::text FROM contact_merges WHERE undone_at IS NULL ORDER BY created_at DESC LIMIT 1"
                )
                for (merge_id,) in rows:
                    undone = await merge.undo(bench.database, self.author, merge_id)
                    if isinstance(undone, merge.UndoneView):
                        self._disturb(played, undone.keep, undone.absorbed)
                        played.moved |= {undone.keep, undone.absorbed}
                        await self._settle()
            case Erasure():
                contact_id = await self._find_contact(played.world.contacts[action.contact].identifiers)
                if contact_id is not None:
                    erased = await erase.erase(bench.database, self.author, contact_id)
                    assert isinstance(erased, erase.ErasedView), erased
                    rows = await bench.fetch("SELECT id::text FROM contacts WHERE erased_at IS NOT NULL")
                    played.erased.update(erased_id for (erased_id,) in rows)  # also those merged into it
                    rows = await bench.fetch("SELECT keep_id::text, absorbed_id::text FROM contact_merges")
                    played.merged_with_erased.update(*(pair for pair in rows if not played.erased.isdisjoint(pair)))
            case Publication():
                await self._publish_again(action, played)
            case MoveBack():
                await self._move_back(action, played)
            case Pause(automation=number):
                await pause(bench, played.automation_ids[number])
                played.versions.setdefault(number, [self.first_version(played, number)])
            case Resume(automation=number, cancel_overdue=cancel_overdue):
                await resume(bench, played.automation_ids[number], cancel_overdue=cancel_overdue)
            case Transfer():
                await self._transfer(action, position, played, observer)
            case Report():
                await self._report(action, position, played)
            case ScheduledRun():
                await self._run_schedule(action, position - 0.5, played, observer)
            case Change():
                contact_id = await self._find_contact(played.world.contacts[action.contact].identifiers)
                if contact_id is not None:
                    if action.channels.get("email") and await self._has_closed():
                        played.reopened.add(contact_id)
                    await self._change(contact_id, action.added, action.removed, action.topics, action.channels)
                    self._disturb(played, contact_id)
            case SegmentMove():
                contact_id = await self._find_contact(played.world.contacts[action.contact].identifiers)
                if contact_id is not None and await bench.change_member(SEGMENT, contact_id, action.enters):
                    self._disturb(played, contact_id)
                    kind: SegmentChange = "segment_entered" if action.enters else "segment_left"
                    await self._start(kind, contact_id, position, played, observer)

    async def _import(self, action: Import, played: PlayedWorld) -> None:
        bench, sent = self.bench, played.world.contacts[action.contact].identifiers
        body = encode({"event": "noticed", "contact": sent, "attributes": action.attributes})
        event = EventReader(bench.clock, "n").read(bench.org_id, self.show.keys, body, False)
        assert not isinstance(event, tuple), event
        async with bench.database.transaction() as tx:
            now = self.author.now
            stored = await store_history(tx, bench.org_id, prepare([event], now), now)
            await run(tx, *stored.writes)
        contact_id = await self._find_contact(sent)
        assert contact_id is not None
        self._disturb(played, contact_id)

    async def _transfer(self, action: Transfer, position: int, played: PlayedWorld, observer: "Observer") -> None:
        """Store a block with a log about a contact that has a wallet, as the follower of the chain does."""
        bench = self.bench
        contact_id = await self._find_contact(played.world.contacts[action.contact].identifiers)
        wallet = None if contact_id is None else (await self.contact(contact_id)).identifiers.wallet
        if contact_id is None or wallet is None:
            return
        chain: Any = await Chain.of(bench)  # type: ignore[arg-type]
        log = transfer(position + 1, wallet, bench.clock.now())
        event = PlayedEvent(described_log(position, wallet), bench.clock.now(), position, contact_id=contact_id)
        await observer.before(self, played, event)
        await chain.store(position + 1, log)
        rows = await bench.fetch("SELECT id::text FROM onchain_events WHERE created_at = %s", bench.clock.now())
        for (event.id,) in rows:  # none, if nothing watches the contract
            played.events.append(event)

    async def _report(self, action: Report, position: int, played: PlayedWorld) -> None:
        """Record the report of a mail server about a contact that has an email address, and the event that it is."""
        bench = self.bench
        contact_id = await self._find_contact(played.world.contacts[action.contact].identifiers)
        if contact_id is None:
            return
        address, message_id = (await self.contact(contact_id)).identifiers.email, None
        latest = await bench.fetch(
            "SELECT recipient, id::text FROM messages WHERE contact_id = %s AND channel = 'email'"
            " AND status IN ('sent', 'unknown', 'failed') ORDER BY created_at DESC, id LIMIT 1",
            contact_id,
        )
        if latest:
            ((recipient, message_id),) = latest
            address = self.show.keys.open_email(recipient)
        if address is None:
            return
        bounce = Bounce(
            org_id=bench.org_id,
            feedback="complained" if action.kind == "complained" else "bounced",
            address_digests=self.show.keys.digests("email", address),
            message_id=message_id,
            address=address,
            status="4.2.2" if action.kind == "delayed" else None,
        )
        await record_bounce(bench.database, bench.keyring, bench.clock, bounce)
        owner = await self._find_contact({"email": address})
        self._disturb(played, contact_id, *(() if owner is None else (owner,)))
        rows = await bench.fetch(
            "SELECT id::text, contact_id::text, event FROM events WHERE org_id = %s AND created_at = %s",
            bench.org_id,
            bench.clock.now(),
        )
        for event_id, owner_id, name in rows:
            self._disturb(played, owner_id)
            event = PlayedEvent({"event": name}, bench.clock.now(), position, id=event_id, contact_id=owner_id)
            played.events.append(event)

    async def _settle(self) -> None:
        """Let the job run that comes a minute after a merge or its undo."""
        bench = self.bench
        await merge.settle_due(bench.database, bench.clock.now() + merge.SETTLE_DELAY)

    async def _publish_again(self, action: Publication, played: PlayedWorld) -> None:
        """Publish another version; without a move if its mapping names steps that no entry can be at."""
        bench, automation_id = self.bench, played.automation_ids[action.automation]
        graph = {key: value for key, value in action.graph.items() if key != "snippets"}
        await edit(bench, automation_id, graph)
        planned = await plan_move(bench, automation_id, action.mode)
        if isinstance(planned, Refusal):
            planned = await plan_move(bench, automation_id, "none")
        if isinstance(planned, Refusal):
            return
        await moves.complete(services(bench), bench.org_id, automation_id, planned)
        await self._disturb_moved(played)
        first = self.first_version(played, action.automation)
        played.versions[action.automation] = [first]
        rows = await bench.fetch(
            "SELECT published_at, version, graph::text FROM automation_versions"
            " WHERE automation_id = %s AND version > 1 ORDER BY version",
            automation_id,
        )
        for at, version, written in rows:
            payload = AutomationPayload(automation_id, first.automation.trigger_spec, decode(written.encode()))
            played.versions[action.automation].append(VersionPayload(at, version, payload))

    @staticmethod
    def first_version(played: PlayedWorld, number: int) -> VersionPayload:
        trigger = played.world.automations[number].trigger
        return VersionPayload(
            EARLIEST, 1, AutomationPayload(played.automation_ids[number], trigger, played.graphs[number])
        )

    async def _move_back(self, action: MoveBack, played: PlayedWorld) -> None:
        bench, automation_id = self.bench, played.automation_ids[action.automation]
        rows = await bench.fetch(
            "SELECT id::text FROM moves WHERE automation_id = %s ORDER BY id DESC LIMIT 1", automation_id
        )
        for (move_id,) in rows:
            undone = await moves.undo(services(bench), self.author, automation_id, move_id)
            assert not isinstance(undone, Refusal), undone
            await self._disturb_moved(played)

    async def _disturb_moved(self, played: PlayedWorld) -> None:
        rows = await self.bench.fetch(
            "SELECT e.contact_id::text FROM entry_moves m JOIN entries e ON e.org_id = m.org_id AND e.id = m.entry_id"
            " WHERE %s IN (m.moved_at, m.moved_back_at)",
            self.bench.clock.now(),
        )
        self._disturb(played, *(contact_id for (contact_id,) in rows))

    async def _run_schedule(
        self, planned: ScheduledRun, position: float, played: PlayedWorld, observer: "Observer"
    ) -> None:
        bench = self.bench
        if planned.to_segment:
            rows = await bench.fetch("SELECT contact_id::text FROM segment_members WHERE org_id = %s", bench.org_id)
        else:
            rows = await bench.fetch("SELECT id::text FROM contacts WHERE merged_into IS NULL AND erased_at IS NULL")
        starts = [
            await self._described_start("schedule", contact_id, position, planned.to_segment) for (contact_id,) in rows
        ]
        for start in starts:
            await observer.before(self, played, start)
        await broadcasts.plan_runs(bench.database, bench.clock)
        await broadcasts.start_due(bench.database, bench.clock)
        await broadcasts.send_due(bench.database, bench.clock)
        await self._find_starts(played, starts)

    async def _start(
        self, kind: SegmentChange, contact_id: str, position: int, played: PlayedWorld, observer: "Observer"
    ) -> None:
        """Start the automations of a change of the segment, as a refresh does."""
        bench, now = self.bench, self.bench.clock.now()
        start = await self._described_start(kind, contact_id, position)
        await observer.before(self, played, start)
        async with bench.database.transaction() as tx:
            starter = await find_starter(tx, bench.keyring, bench.org_id, StartSource(kind, SEGMENT), now)
            await starter.start(tx, [contact_id])
        await self._find_starts(played, [start])

    async def _broadcast(
        self, automation_id: str, to_segment: bool, position: int, played: PlayedWorld, observer: "Observer"
    ) -> None:
        bench = self.bench
        body = BroadcastBody(segment=SEGMENT) if to_segment else BroadcastBody(all=True)
        preview = await broadcasts.preview(bench.database, bench.keyring, self.author, automation_id, body)
        assert not isinstance(preview, Refusal), preview
        row = await broadcasts.create(bench.database, self.author, automation_id, body)
        assert isinstance(row, BroadcastRow), row
        starts = [
            await self._described_start("broadcast", contact_id, position, to_segment) for contact_id in preview.sample
        ]
        for start in starts:
            await observer.before(self, played, start)
        await broadcasts.start_due(bench.database, bench.clock)
        await broadcasts.send_due(bench.database, bench.clock)
        ((entries,),) = await bench.fetch(
            "SELECT entries FROM broadcasts WHERE org_id = %s AND id = %s", bench.org_id, row.id
        )
        played.previews.append((preview.contacts, entries))
        await self._find_starts(played, starts)

    async def _described_start(
        self, kind: StartType, contact_id: str, position: float, to_segment: bool = True
    ) -> PlayedEvent:
        contact = await self.contact(contact_id)
        sent = contact.identifiers
        named = {"walletAddress": sent.wallet, "email": sent.email, "externalId": sent.external_id}
        described = {"type": kind, "contact": named} | ({"segment": SEGMENT} if to_segment else {})
        return PlayedEvent(described, self.bench.clock.now(), position, contact_id=contact_id)

    async def _find_starts(self, played: PlayedWorld, starts: list[PlayedEvent]) -> None:
        rows = await self.bench.fetch(
            "SELECT contact_id::text, id::text, created_at FROM starts WHERE org_id = %s AND created_at >= %s",
            self.bench.org_id,
            self.bench.clock.now(),
        )
        stored = {contact_id: (start_id, at) for contact_id, start_id, at in rows}
        for start in starts:
            if start.contact_id in stored:
                start.id, start.at = stored[start.contact_id]
                played.events.append(start)

    async def _owners(self) -> dict[tuple[int, str], str]:
        rows = await self.bench.fetch(
            "SELECT kind, value_digest::text, contact_id::text FROM identities WHERE org_id = %s", self.bench.org_id
        )
        return {(kind, digest): contact_id for kind, digest, contact_id in rows}

    def _disturb(self, played: PlayedWorld, *contact_ids: str) -> None:
        for contact_id in contact_ids:
            played.disturbed.setdefault(contact_id, []).append(self.bench.clock.now())

    async def _find_contact(self, sent: dict[str, str]) -> str | None:
        async with self.bench.database.transaction() as tx:
            contact = await find_contact_state(tx, self.bench.org_id, self.show.keys, identifiers_of(sent))
        return None if contact is None else contact.id

    async def _has_closed(self) -> bool:
        """Return whether an address is closed, other than by the choice of its contact."""
        return bool(await self.bench.fetch("SELECT FROM suppressions WHERE cause IS NOT NULL"))

    async def behind(self) -> frozenset[str]:
        """Return the contacts with entries that are due, but not decided yet."""
        rows = await self.bench.fetch(
            "SELECT DISTINCT contact_id::text FROM entries"
            " WHERE state = 'running' OR state IN ('pending', 'waiting', 'retrying') AND due_at <= %s",
            self.bench.clock.now(),
        )
        return frozenset(contact_id for (contact_id,) in rows)

    async def contact(self, contact_id: str) -> ContactState:
        async with self.bench.database.transaction() as tx:
            return (await find_contact_states(tx, self.bench.org_id, self.show.keys, [contact_id]))[contact_id]

    async def _dry_run(self, action: SentEvent) -> int:
        """Return how many automations a dry run says that the event would start."""
        bench = self.bench
        body = encode(action.body | {"test": True})
        parsed = EventReader(bench.clock, "n").read(bench.org_id, bench.keyring.of(bench.org_id), body, False)
        assert not isinstance(parsed, tuple), parsed
        async with bench.database.transaction() as tx:
            (outcome,) = await store_batch(tx, [parsed], Triggers(bench.keyring), bench.clock.now())
        assert isinstance(outcome, DryRun), outcome
        return outcome.matched

    async def _change(self, contact_id: str, added: Any, removed: Any, topics: Any, channels: Any) -> None:
        if added or removed:
            await contacts.tag(self.bench.database, self.author, contact_id, added, removed, self.show)
        if topics or channels:
            changed = await preferences.change(self.bench.database, self.author, contact_id, topics, channels)
            assert not isinstance(changed, Refusal), changed

    async def _entries(self, engines: KilledEngines) -> list[StartedEntry]:
        rows = await self.bench.fetch(
            "SELECT id::text, automation_id::text, event_id::text, contact_id::text, created_at, state, outcome,"
            " node_id FROM entries ORDER BY created_at, automation_id, event_id"
        )
        steps = await self.bench.fetch(
            "SELECT entry_id::text, step, claim, node_id, kind, outcome, handle, detail ->> 'cause', attempt, at"
            " FROM entry_steps ORDER BY entry_id, claim, step"
        )
        sent = await self.bench.fetch(
            "SELECT entry_id::text, node_id, body FROM messages"
            " WHERE (status IN ('sent', 'delivered') OR feedback = 'bounced') AND body IS NOT NULL"  # not if erased
        )
        entries = {row[0]: StartedEntry(*row, [], []) for row in rows}
        for entry_id, number, claim, *values in steps:
            step = RecordedStep(*values)
            attempt = engines.own_attempt(entry_id, number, claim, step.attempt)
            entries[entry_id].steps.append(step._replace(attempt=attempt))
        for entry_id, node_id, body in sent:
            entries[entry_id].texts.append((node_id, body.replace(entry_id, entries[entry_id].event_id)))
        for entry in entries.values():
            entry.texts.sort()
        return [*entries.values()]


def described_log(position: int, wallet: str) -> dict[str, Any]:
    """Return a transfer as a simulation takes it: the log of the action at this position."""
    log = transfer(position + 1, wallet, from_us(0))
    place = {"txHash": log.tx_hash, "logIndex": log.log_index, "blockNumber": log.block_number}
    return log_sample({"from": ZERO_ADDRESS, "to": wallet, "value": str(position + 1)}) | place


def with_runs(world: World) -> list[Action | ScheduledRun]:
    """Return the actions of a world and the runs of its schedules, in order of time."""
    runs: list[ScheduledRun] = []
    for automation in world.automations:
        trigger = read_trigger(automation.trigger)
        if isinstance(trigger, Trigger) and isinstance(trigger.source, StartSource):
            cron = trigger.source.times() if trigger.source.type == "schedule" else None
            for time in () if not isinstance(cron, Cron) else cron.times_after(world.begin):
                if time >= world.begin + PERIOD:
                    break
                runs.append(
                    ScheduledRun((time - world.begin) // timedelta(seconds=1), trigger.source.segment is not None)
                )
    return sorted([*world.actions, *runs], key=lambda action: action.at)


def identifiers_of(sent: dict[str, str]) -> Identifiers:
    event = read_event(encode({"event": "x", "contact": sent}), 0)
    assert isinstance(event, Event), event
    return event.identifiers


class Observer:
    """Its method is called before each event."""

    async def before(self, stage: Stage, played: PlayedWorld, event: PlayedEvent) -> None:
        """Do nothing."""


@contextmanager
def patched() -> Iterator[None]:
    """Make ids and the loop guard small and repeatable, and broadcasts fast."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(api_clock, "_RANDOM_BITS", SeededBits())
        patches.setattr(broadcasts, "RATE", 10**9)
        for module in (advance, timeline, facts):
            patches.setattr(module, "LOOP_LIMIT", LOOP_LIMIT)
        yield
