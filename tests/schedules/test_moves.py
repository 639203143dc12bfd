"""All states that engines, operators and the clock reach from a new entry, and the same moves on a real Postgres."""

from datetime import timedelta
from typing import Any, NamedTuple

from api.automations import automations, moves
from api.automations.body import AutomationEdit
from api.automations.entries import replay_all
from api.clock import uuid7
from api.engine.claims import Claims, run_of
from api.engine.facts import BatchFacts, FactsRequest, WatchedFacts
from api.engine.progress import EntryProgress
from api.engine.record import CancelledEntries, LostLeases, record
from api.store.chain import drop_logs, restore_entries
from api.store.contacts import ContactKey, cancel_entries_of_contact
from api.store.database import RefusedDataError
from api.store.entries import Claim, renew_leases
from api.store.events import wake_waiting_entries
from api.store.query import run
from tests.engine.conftest import EngineBench, written_graph
from tests.engine.moving import edit, plan_move, services
from tests.engine.pausing import AWAIT, TAG, TRIGGER, author
from tests.schedules.moves import (
    CLAIMABLE,
    ENGINE,
    OPERATORS,
    RAISES_TOKEN,
    Automation,
    Hold,
    Row,
    World,
    explore,
    moved,
)
from workbench.language.advance import RequiredFacts
from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.facts import Facts
from workbench.language.run import TERMINAL, TRANSITIONS, State

HOUR, TOKEN = timedelta(hours=1), 5
WAITS = [("t", "w"), ("w", "g", "matched")]
LIVE = frozenset(State) - TERMINAL
REACHED = explore()
ON_POSTGRES = (*ENGINE, "wake", "erase", "drop", "restore", *OPERATORS)  # time is no statement


def test_the_states_make_exactly_the_transitions_of_the_table() -> None:
    made = {
        (world.row.state, after.row.state)
        for world, nexts in REACHED.items()
        for _, after in nexts
        if after.row.state is not world.row.state
    }
    assert made == TRANSITIONS.keys()


def test_an_entry_runs_under_one_claim_at_most() -> None:
    for row, _, engines in REACHED:
        claims = engines.count(Hold.CURRENT)
        assert claims <= (row.state is State.RUNNING)


def test_only_an_engine_whose_claim_is_valid_changes_the_row_that_it_records() -> None:
    for world, nexts in REACHED.items():
        for name, after in nexts:
            if ": record_" in name and after.row != world.row:
                assert world.engines[int(name[7]) - 1] is Hold.CURRENT


def test_every_state_has_a_way_out_that_one_engine_takes_alone() -> None:
    """Also after a crash of the other engine in any state; a paused automation has to be resumed."""
    allowed = ("resume", "becomes_due", "lease_expires", *(f"engine 2: {action}" for action in ENGINE))
    before: dict[World, set[World]] = {}
    for world, nexts in REACHED.items():
        for name, after in nexts:
            if name in allowed:
                before.setdefault(after, set()).add(world)
    new = [world for world in REACHED if world.row.state in TERMINAL]
    ending = set(new)
    while new:
        fresh = before.get(new.pop(), set()) - ending
        ending |= fresh
        new += fresh
    assert not REACHED.keys() - ending


def test_a_crash_changes_no_row() -> None:
    for world, nexts in REACHED.items():
        assert all(after.row == world.row for name, after in nexts if name.endswith("crash"))


async def test_postgres_refuses_all_other_transitions(bench: EngineBench) -> None:
    refused = set()
    for old in State:
        for new in State:
            try:
                await bench.execute(_ADD_TRANSITION, bench.org_id, old.value, new.value)
            except RefusedDataError:
                refused.add((old, new))
    assert refused == {(old, new) for old in State for new in State} - TRANSITIONS.keys()


_ADD_TRANSITION = (
    "INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at)"
    " VALUES (%s, gen_random_uuid(), %s, %s, now())"
)


_ADD_ENTRIES = """
    INSERT INTO entries (org_id, id, automation_id, automation_version, event_id, event_created_at, contact_id, state,
                         outcome, node_id, since, due_at, lease_until, lease_token, awaits, created_at, updated_at)
    SELECT %s, id, automation_id, 1, event_id, at, contact_id, state,
           outcome, 'w', at, due_at, lease_until, %s, awaits, at, at
    FROM jsonb_to_recordset(%s::jsonb) AS e (id uuid, automation_id uuid, event_id uuid, contact_id uuid, state text,
        outcome text, due_at timestamptz, lease_until timestamptz, awaits text[], at timestamptz)
"""


_ADD_EVENTS = """
    WITH c AS (
        INSERT INTO contacts (org_id, id, created_at, updated_at)
        SELECT org_id, contact_id, created_at, created_at FROM entries
    )
    INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key)
    SELECT org_id, event_id, contact_id, 'deposit', created_at, created_at, event_id FROM entries
"""


class _Case(NamedTuple):
    """A stored entry, and the claim that an engine has of it."""

    row: Row
    automation: Automation
    hold: Hold
    claim: Claim


class _Table:
    """Entries in all reachable states, each of its own contact and its own log."""

    def __init__(self, bench: EngineBench) -> None:
        self._bench = bench
        self._automations: dict[Automation, str] = {}
        self.now = bench.clock.now()
        self.cases: list[_Case] = []

    async def fill(self, action: str) -> None:
        """Store entries for an action, and the automations before operators change them."""
        bench, is_fenced = self._bench, action == "renew" or action.startswith("record_")
        await bench.execute(
            "WITH e AS (DELETE FROM entries), l AS (DELETE FROM onchain_events) DELETE FROM entry_transitions"
        )
        if action in OPERATORS or not self._automations:
            await self._add_automations()
        held = {
            (world.row, world.automation, hold if hold is not Hold.NONE else Hold.LOST)
            for world in REACHED
            for hold in world.engines
        }
        self.now = bench.clock.now()
        self.cases = [
            self._case(row, automation, hold)
            for row, automation, hold in sorted(held)
            if is_fenced or hold is Hold.LOST  # other actions carry no token
        ]
        await bench.execute(
            _ADD_ENTRIES, bench.org_id, TOKEN, encode([self._stored(case) for case in self.cases]).decode()
        )

    async def _add_automations(self) -> None:
        bench = self._bench
        for status in Automation:
            self._automations[status] = await bench.automation([TRIGGER, AWAIT, TAG], WAITS)
        await bench.execute(
            "UPDATE automations SET active = id <> %s, paused_at = CASE WHEN id = %s THEN now() END WHERE id = ANY(%s)",
            self._automations[Automation.INACTIVE],
            self._automations[Automation.PAUSED],
            list(self._automations.values()),
        )

    def _stored(self, case: _Case) -> dict[str, Any]:
        row, claim = case.row, case.claim
        lease_until = self.now + HOUR / 2 if row.is_leased else self.now - HOUR
        return {
            "id": claim.entry_id,
            "automation_id": claim.automation_id,
            "event_id": claim.event_id,
            "contact_id": claim.contact_id,
            "state": row.state,
            "outcome": _outcome(row),
            "due_at": self.now if row.is_due else self.now + HOUR,
            "lease_until": lease_until if row.state is State.RUNNING else None,
            "awaits": ["bought"] if row.state is State.WAITING else None,
            "at": self.now,
        }

    def _case(self, row: Row, automation: Automation, hold: Hold) -> _Case:
        entry_id, event_id, contact_id = (uuid7(self._bench.clock.unique_now_us()) for _ in range(3))
        token = TOKEN if hold is Hold.CURRENT else TOKEN - 1
        position = (entry_id, self._automations[automation], event_id, self.now, contact_id, None)
        claim = Claim(*position, 1, 0, 1, token, self.now + HOUR, self.now, None, None, 1)
        return _Case(row, automation, hold, claim)

    async def do(self, action: str) -> None:
        """Take the action on all entries, through the code of the service."""
        bench, org_id, now = self._bench, self._bench.org_id, self.now
        claims = Claims(bench.database, bench.clock)
        if action in OPERATORS:
            await bench.execute(_ADD_EVENTS)
            for automation_id in self._automations.values():
                await self._operate(action, automation_id)
        elif action == "claim":
            await claims.take(org_id, "ready", 1_000)
            await claims.take(org_id, "retrying", 1_000)
        elif action == "rescue":
            await claims.rescue(org_id, 1_000)
        elif action.startswith("record_"):
            for automation in Automation:
                await self._record([c for c in self.cases if c.automation is automation], State(action[7:]))
        elif action == "erase":
            async with bench.database.transaction() as tx:
                for case in self.cases:
                    await cancel_entries_of_contact(tx, ContactKey(org_id, case.claim.contact_id), now)
        else:
            if action in ("drop", "restore"):
                await self._add_logs()
            calls: dict[str, Any] = {
                "renew": renew_leases(org_id, [case.claim for case in self.cases], now + HOUR / 2),
                "drop": drop_logs(org_id, 1, 0, 1_000, now),
                "restore": restore_entries(org_id, [case.claim.event_id for case in self.cases], now),
                "wake": wake_waiting_entries([(org_id, c.claim.contact_id, "bought", now) for c in self.cases], now),
            }
            async with bench.database.transaction() as tx:
                await run(tx, calls[action])

    async def _operate(self, action: str, automation_id: str) -> None:
        database, caller = self._bench.database, author(self._bench)
        match action:
            case "pause":
                await automations.pause(database, caller, automation_id)
            case "resume" | "resume_without_overdue":
                without = action != "resume"
                await automations.resume(database, caller, automation_id, cancel_overdue=without)
            case "deactivate":
                await automations.deactivate(database, caller, automation_id)
            case "activate":
                await automations.activate(database, caller, automation_id)
            case "publish":
                trigger = encode({"type": "app_event", "event": "deposit", "filters": []})
                await automations.update(
                    database, caller, automation_id, AutomationEdit(revision=None, trigger_spec=trigger)
                )
                row = await automations.publish(database, caller, automation_id, None)
                assert isinstance(row, automations.AutomationRow), row
                assert row.published_version == 2
            case "move":  # to a version that waits for twice as long
                longer = AWAIT | {"data": {"event": "bought", "timeoutSeconds": 7_200}}
                await edit(self._bench, automation_id, written_graph([TRIGGER, longer, TAG], WAITS, {}))
                move_id = await plan_move(self._bench, automation_id, {"w": "w"}, timedelta())
                assert isinstance(move_id, str), move_id
                await moves.complete(services(self._bench), self._bench.org_id, automation_id, move_id)
            case "replay":
                await replay_all(database, caller, automation_id, None)

    async def _record(self, cases: list[_Case], to: State) -> None:
        left = {case.claim.entry_id: case.claim for case in cases}
        cancelled = "automation_inactive" if to is State.CANCELLED else None
        while left:
            due_at = self.now + HOUR if to in (State.WAITING, State.RETRYING) else None
            batch = [EntryProgress(claim, run_of(claim).to(to, due_at=due_at)) for claim in left.values()]
            facts = Facts("", Identifiers(), {}, ContactState(""), cancelled=cancelled, paused=to is State.PAUSED)
            decided_on = BatchFacts(
                self.now,
                {entry_id: FactsRequest(claim, RequiredFacts(), self.now) for entry_id, claim in left.items()},
                dict.fromkeys(left, facts),
                WatchedFacts({}, {}, {}, {}),
            )
            async with self._bench.database.transaction() as tx:
                result = await record(tx, self._bench.org_id, self._bench.keyring, batch, decided_on)
            match result:
                case LostLeases(entry_ids):
                    lost = entry_ids
                case CancelledEntries(outcomes):
                    lost = frozenset(outcomes)
                case _:
                    return
            left = {entry_id: claim for entry_id, claim in left.items() if entry_id not in lost}

    async def _add_logs(self) -> None:
        bench = self._bench
        await bench.execute('UPDATE automations SET trigger_spec = \'{"type": "onchain_event"}\'')
        await bench.execute(
            "INSERT INTO onchain_events (org_id, id, chain_id, contract, event, signature, tx_hash, log_index, digest,"
            " block_number, block_hash, block_time, created_at) SELECT org_id, event_id, 1, '0x', 'e', 'e()',"
            " event_id::text, 0, event_id, 1, '0x', now(), now() FROM entries"
        )

    async def rows(self) -> dict[str, tuple[Row, bool, list[list[str]]]]:
        """Return the row of each entry, whether its token was raised, and its transitions."""
        found = await self._bench.fetch(
            "SELECT e.id::text, e.state, e.due_at <= %s, coalesce(e.lease_until > %s, false), e.outcome,"
            " e.lease_token > %s, array(SELECT ARRAY[t.from_state, t.to_state] FROM entry_transitions t"
            " WHERE t.org_id = e.org_id AND t.entry_id = e.id ORDER BY t.seq) FROM entries e",
            self._bench.clock.now(),
            self.now,
            TOKEN,
        )
        rows = {}
        for entry_id, state, is_due, is_leased, outcome, is_raised, transitions in found:
            is_marked, is_dropped = outcome is not None and state in LIVE, outcome == "chain_reorg"
            row = Row(State(state), is_due, is_leased, is_marked, is_dropped)
            rows[entry_id] = _comparable(row), is_raised, transitions
        return rows


def _outcome(row: Row) -> str | None:
    if row.state in TERMINAL:
        return "chain_reorg" if row.is_dropped else row.state.value
    return "overdue" if row.is_marked else None


def _comparable(row: Row) -> Row:
    """Return the row without what means nothing in its state."""
    return row._replace(
        is_due=row.is_due or row.state not in CLAIMABLE, is_leased=row.is_leased and row.state is State.RUNNING
    )


async def test_postgres_makes_the_moves_of_the_model(bench: EngineBench) -> None:
    """Every reachable state meets every action; an action that does nothing in the model changes no row."""
    table, different, changed = _Table(bench), [], set[str]()
    for action in ON_POSTGRES:
        await table.fill(action)
        await table.do(action)
        rows = await table.rows()
        for case in table.cases:
            after = moved(case.row, case.automation, action, case.hold)
            transitions = [[case.row.state.value, after.state.value]] if after.state is not case.row.state else []
            is_raised = action in RAISES_TOKEN and after != case.row
            if rows[case.claim.entry_id] != (_comparable(after), is_raised, transitions):
                different.append((action, case.automation, case.hold, case.row, after, rows[case.claim.entry_id]))
            if after != case.row:
                changed.add(action)
    assert not different
    assert changed == {*ON_POSTGRES} - {"pause", "publish"}  # which change no row
