"""Moves: entries that wait on earlier versions continue on the live version.

A publication stores the move with its version. One statement fixes the entries of the move; then they are moved in
pages, each in one transaction:

1. Lock the contacts and then the entries of the page, as the recording of decisions does.
2. Read the facts that the engine would read, and predict for each entry what it does next on the new version.
3. Write the node, the end of the wait and the awaited events of entries with a next step, and the reason for each of
   the others.
4. Write the progress of the move.

So a killed process repeats at most one page, which was never committed, and several processes may work on one move. No
event is missed: ingest stores an awaited event either before the page, which then reads it, or after the page, and then
finds the entry waiting for it.

A page leaves out entries that an engine is working on; the move tries them again until `MAX_BUSY_TIME` is over. An undo
moves back, in the same way, the entries that are still where the move put them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from api.automations.automations import (
    Author,
    Refusal,
    check_move,
    conflict,
    draft_to_publish,
    invalid,
    record,
    retry_conflicts,
    unknown,
)
from api.automations.body import publication_errors
from api.clock import Clock, to_us
from api.crypto import Keyring
from api.engine.claims import run_of
from api.engine.facts import read_facts
from api.engine.progress import what_wakes
from api.jobs import every, one_by_one
from api.store import automations as automations_store
from api.store import moves as store
from api.store.automations import FIRST_ID
from api.store.database import Database, Transaction
from api.store.entries import Claim, joined_names
from api.store.events import wake_engine
from api.store.locks import hold_contacts, share_steps
from api.store.moves import EntryPlace, MovedBackRow, MovedRow, MoveRow, MovingEntry
from api.store.query import Call, run
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode
from workbench.language.facts import Facts
from workbench.language.graph import Graph
from workbench.language.moves import Move, MoveMode, Prediction, VersionedGraph, predict, steps_before
from workbench.language.responses import MovedEntryView, MoveState, MoveView, RefusedEntryView
from workbench.language.run import TERMINAL, State
from workbench.language.trigger import Trigger, read_trigger

PAGE_ENTRIES = 500
MAX_BUSY_TIME = timedelta(seconds=30)  # in which an engine ends most deliveries
RECOVERY_INTERVAL_S = 10.0
MAX_WAIT_S = 20.0  # of a request
MAX_PREVIEWED = 200_000  # entries
_RECOVERY_BATCH = 100
_BUSY_PAUSE_S = 0.5
_MAX_REFUSED, _MAX_SAMPLE, _MAX_REASONS = 100, 20, 100
_BUSY = "an engine is working on it"

_log = logging.getLogger("workbench.automations")

EntryPlan: TypeAlias = tuple[EntryPlace, Prediction] | str | None
"""Where an entry continues, with what was predicted; or why it stays; None if an engine is working on it."""


class MoveServices(msgspec.Struct, frozen=True):
    database: Database
    keyring: Keyring
    clock: Clock
    retries: RetryPolicy


class _Target(msgspec.Struct, frozen=True):
    """The graph and the node at which an entry continues, and its number of steps there."""

    graph: Graph
    node_id: str
    step: int


class _TargetGraphs(msgspec.Struct, frozen=True):
    """The graphs that entries continue on, for `read_facts`."""

    targets: Mapping[str, _Target]

    def of(self, _: int, claim: Claim) -> Graph | None:
        return self.targets[claim.entry_id].graph


# --- Versions


class CompiledVersions:
    """The versions of an automation, read and compiled when they are needed first."""

    def __init__(self, org_id: int, automation_id: str) -> None:
        self.key = org_id, automation_id
        self._versions: dict[int, tuple[VersionedGraph, Trigger]] = {}

    async def read(self, tx: Transaction, version: int) -> tuple[VersionedGraph, Trigger]:
        if version not in self._versions:
            row = await automations_store.find_version(tx, *self.key, version)
            assert row is not None, "versions are never deleted"
            self._versions[version] = await asyncio.to_thread(_compile, version, row.graph, row.trigger_spec)
        return self._versions[version]


def _compile(version: int, graph: Any, trigger_spec: Any) -> tuple[VersionedGraph, Trigger]:
    compiled, trigger = VersionedGraph(version, decode(graph)), read_trigger(decode(trigger_spec))
    _ = compiled.graph.route  # compiles here, in a thread
    return compiled, trigger if isinstance(trigger, Trigger) else Trigger()


# --- Predictions


async def _plan_entries(
    tx: Transaction,
    services: MoveServices,
    org_id: int,
    entries: Sequence[MovingEntry],
    targets: Mapping[str, _Target | str | None],
) -> dict[str, EntryPlan]:
    """Return what becomes of each entry, given its target or the reason why it has none."""
    now = services.clock.now()
    movable = {entry_id: target for entry_id, target in targets.items() if isinstance(target, _Target)}
    plans: dict[str, EntryPlan] = {
        entry_id: target for entry_id, target in targets.items() if not isinstance(target, _Target)
    }
    claims = {
        entry.entry_id: _claim(entry, movable[entry.entry_id], now) for entry in entries if entry.entry_id in movable
    }
    if claims:
        keys, graphs = services.keyring.of(org_id), _TargetGraphs(movable)
        facts = await read_facts(tx, org_id, keys, list(claims.values()), graphs, services.retries, now)
        plans |= await asyncio.to_thread(_predict_all, claims, movable, facts.facts)
    return plans


def _claim(entry: MovingEntry, target: _Target, now: datetime) -> Claim:
    """Return the claim that an engine would make if the entry were due now; of one that is due already, at its moment.

    With the entry's own version: it reads the parameters of the log that started the entry.
    """
    return Claim(
        entry.entry_id,
        entry.automation_id,
        entry.event_id,
        entry.event_created_at,
        entry.contact_id,
        target.node_id,
        entry.version,
        target.step,
        entry.attempts + 1,
        0,
        now,
        now if entry.state is State.PAUSED else min(entry.due_at, now),
        entry.since,
        entry.since_id,
        entry.activation,
        resumed=entry.state is State.PAUSED,
    )


def _predict_all(
    claims: Mapping[str, Claim], targets: Mapping[str, _Target], facts: Mapping[str, Facts]
) -> dict[str, EntryPlan]:
    plans: dict[str, EntryPlan] = {}
    for entry_id, claim in claims.items():
        target = targets[entry_id]
        try:
            prediction = predict(target.graph, run_of(claim), replace(facts[entry_id], paused=False), claim.due_at)
        except Exception as error:  # noqa: BLE001  a bug that one entry triggers must not stop the others
            _log.exception("prediction_failed", extra={"entry_id": entry_id})
            prediction = f"it would fail: internal_error: {type(error).__name__}"
        if isinstance(prediction, str):
            plans[entry_id] = prediction
            continue
        moved = prediction.run
        is_due = moved.state is not State.WAITING
        place = EntryPlace(
            entry_id,
            claim.version or 0,
            target.node_id,
            target.step,
            moved.due_at or claim.due_at,
            joined_names(what_wakes(target.graph, moved)) or None,
            is_due,
        )
        plans[entry_id] = place, prediction
    return plans


def _unmovable(entry: MovingEntry) -> str | None:
    """Return why an entry cannot be moved in its state; empty if an engine is working on it, or about to."""
    if entry.state in TERMINAL:
        return f"it has ended ({entry.outcome or entry.state.value})"
    if entry.state in (State.RUNNING, State.PENDING):
        return ""
    if entry.state is State.RETRYING:
        return "it is retrying a step"
    if entry.node_id is None or entry.since is None:
        return "it has not begun to wait"
    return None


async def _forward_targets(
    tx: Transaction,
    org_id: int,
    move: Move,
    trigger: Trigger,
    versions: CompiledVersions,
    entries: Sequence[MovingEntry],
) -> dict[str, _Target | str | None]:
    """Return the target of each entry on the new version, or the reason why it has none (None: an engine has it)."""
    targets: dict[str, _Target | str | None] = {}
    passed = await store.list_passed_nodes(tx, org_id, [entry.entry_id for entry in entries])
    for entry in entries:
        reason = _unmovable(entry)
        if reason is not None or entry.node_id is None or entry.version is None:
            targets[entry.entry_id] = reason or None
            continue
        if entry.version == move.to.version:
            targets[entry.entry_id] = f"it is on {move.label} already"
            continue
        start, started_by = await versions.read(tx, entry.version)
        node = move.target(start, entry.node_id)
        if isinstance(node, str):
            targets[entry.entry_id] = node
        elif _log_of(started_by) not in (None, _log_of(trigger)):
            targets[entry.entry_id] = f"the trigger of {move.label} reads another log"
        elif (again := move.repeated_step(node.id, passed.get(entry.entry_id, ()))) is not None:
            targets[entry.entry_id] = f"it would take the step {again!r} again"
        else:
            targets[entry.entry_id] = _Target(move.to.graph, node.id, steps_before(move.to.graph, node.id, entry.step))
    return targets


def _log_of(trigger: Trigger) -> tuple[str, str] | None:
    """Return what decides how the log that started an entry is read; None: no log starts it."""
    source = trigger.log_source
    return None if source is None else (source.key, source.wallet_arg)


async def _backward_targets(
    tx: Transaction, version: int, versions: CompiledVersions, entries: Sequence[MovingEntry]
) -> dict[str, _Target | str | None]:
    """Return the place of each entry before the move, or the reason why it stays where it is."""
    targets: dict[str, _Target | str | None] = {}
    for entry in entries:
        is_there = (entry.version, entry.node_id) == (version, entry.moved_to)
        if not is_there and entry.state not in TERMINAL:
            targets[entry.entry_id] = "it has gone on since it was moved"
            continue
        reason = _unmovable(entry)
        if reason is not None or entry.from_version is None or entry.from_node_id is None:
            targets[entry.entry_id] = reason or None
            continue
        former, _ = await versions.read(tx, entry.from_version)
        targets[entry.entry_id] = _Target(former.graph, entry.from_node_id, entry.from_step or 0)
    return targets


# --- Applying


async def keep_moving(services: MoveServices) -> None:
    """Complete interrupted moves every ten seconds, until cancelled."""
    await every(RECOVERY_INTERVAL_S, "moves", lambda: complete_moves(services))


async def complete_moves(services: MoveServices) -> None:
    async with services.database.transaction() as tx:
        open_moves = await store.find_open_moves(tx, _RECOVERY_BATCH)
    await one_by_one("moves", open_moves, lambda key: apply(services, *key))


async def apply(services: MoveServices, org_id: int, automation_id: str, move_id: str) -> None:
    """Move the entries of a move page by page, or move them back, until none is left."""
    versions = CompiledVersions(org_id, automation_id)
    pause_s: float | None = 0.0
    while pause_s is not None:
        await asyncio.sleep(pause_s)
        pause_s = await move_page(services, move_id, versions)


@retry_conflicts
async def move_page(services: MoveServices, move_id: str, versions: CompiledVersions) -> float | None:
    """Do the next part of a move; return how long to wait before the following one, or None at the end."""
    org_id, automation_id = versions.key
    async with services.database.transaction() as tx:
        await run(tx, share_steps(org_id))  # as every change of an automation, and every recorded step
        automation = await automations_store.lock_automation(tx, org_id, automation_id)
        row, now = await store.lock_move(tx, org_id, move_id), services.clock.now()
        if row is None or automation is None or row.state not in ("planned", "running", "undoing"):
            return None
        is_off = not automation.active or automation.archived_at is not None
        if is_off or (row.state != "undoing" and automation.published_version != row.version):
            await _finish(tx, row, "stopped", now)
            return None
        if row.state == "planned":
            await store.add_move_entries(tx, org_id, row.id, automation_id, row.version)
            await store.write_move(tx, replace(row, state="running", after=FIRST_ID))
            return 0.0
        list_page = store.list_page_back if row.state == "undoing" else store.list_page
        after = row.after or FIRST_ID
        page = await list_page(tx, org_id, row.id, after, PAGE_ENTRIES)
        if not page and after == FIRST_ID:
            await _finish(tx, row, "undone" if row.state == "undoing" else "done", now)
            return None
        if not page:  # those that an engine was working on, once more
            await store.write_move(tx, replace(row, after=FIRST_ID))
            return _BUSY_PAUSE_S
        contact_ids = {contact_id for _, contact_id in page}
        await run(tx, hold_contacts(contact_ids))
        entries = await store.lock_moving_entries(tx, org_id, row.id, [entry_id for entry_id, _ in page])
        if not contact_ids.issuperset(entry.contact_id for entry in entries):  # a merge came first
            await tx.rollback()
            return 0.0
        await _write_page(tx, services, row, versions, entries, now)
        await store.write_move(tx, replace(row, after=page[-1][0]))
    return 0.0


async def _write_page(
    tx: Transaction,
    services: MoveServices,
    row: MoveRow,
    versions: CompiledVersions,
    entries: Sequence[MovingEntry],
    now: datetime,
) -> None:
    org_id, is_undo = row.org_id, row.state == "undoing"
    if is_undo:
        targets = await _backward_targets(tx, row.version, versions, entries)
    else:
        to, trigger = await versions.read(tx, row.version)
        move = Move(to, decode(row.mode), f"version {row.version}")
        targets = await _forward_targets(tx, org_id, move, trigger, versions, entries)
    plans = await _plan_entries(tx, services, org_id, entries, targets)
    places: list[EntryPlace] = []
    rows: list[MovedRow] = []
    for entry in entries:
        result = plans[entry.entry_id]
        before = entry.entry_id, entry.version, entry.node_id, entry.step
        if isinstance(result, tuple):
            place, prediction = result
            places.append(replace(place, version=(entry.from_version or 0) if is_undo else row.version))
            rows.append(MovedRow(*before, place.node_id, *_outcome(entry, place, prediction)))
        elif result is not None:
            rows.append(MovedRow(*before, reason=result))
        elif now >= row.patient_until:
            rows.append(MovedRow(*before, reason=_BUSY))
    calls: list[Call[Any]] = [store.move_entries(org_id, places, now)] if places else []
    if rows and is_undo:
        back = [MovedBackRow(moved.entry_id, moved.reason) for moved in rows]
        calls.append(store.record_moved_back(org_id, row.id, back, now))
    elif rows:
        calls.append(store.record_moved(org_id, row.id, rows, now))
    if any(place.due_at <= now for place in places):
        calls.append(wake_engine())
    await run(tx, *calls)


def _outcome(
    entry: MovingEntry, place: EntryPlace, prediction: Prediction
) -> tuple[datetime | None, str, str | None, str | None]:
    """Return the end of the step (None: the resume of a paused entry), its outcome, the next step, and the ending."""
    until = None if place.is_due and entry.state is State.PAUSED else prediction.at
    return until, prediction.outcome, prediction.next_node_id, prediction.ends


async def _finish(tx: Transaction, row: MoveRow, state: MoveState, now: datetime) -> None:
    await store.write_move(tx, replace(row, state=state, ended_at=now))
    counts = await store.count_move(tx, row.org_id, row.id)
    detail = {"move": row.id, "version": row.version, "state": state, **msgspec.structs.asdict(counts)}
    ids = row.org_id, row.created_by, "automation.move", row.automation_id
    await automations_store.record_change(tx, *ids, detail, to_us(now))


_running: set[asyncio.Task[None]] = set()


async def complete(services: MoveServices, org_id: int, automation_id: str, move_id: str) -> MoveView:
    """Apply a move, and return it when it is complete, or after 20 seconds; then it continues in the background."""
    task = asyncio.create_task(apply(services, org_id, automation_id, move_id))
    _running.add(task)
    task.add_done_callback(_running.discard)
    # A client that disconnects must not interrupt it; if this process ends, `keep_moving` continues it.
    await asyncio.wait([task], timeout=MAX_WAIT_S)
    if task.done():
        task.result()
    async with services.database.transaction() as tx:
        row = await store.find_move(tx, org_id, automation_id, move_id)
        assert row is not None, "moves are never deleted"
        return await view(tx, row)


# --- Use cases


async def view(tx: Transaction, row: MoveRow) -> MoveView:
    counts = await store.count_move(tx, row.org_id, row.id)
    refused = await store.list_refused(tx, row.org_id, row.id, _MAX_REFUSED)
    reasons = await store.count_reasons(tx, row.org_id, row.id, _MAX_REASONS)
    sample = await store.list_moved(tx, row.org_id, row.id, _MAX_SAMPLE)
    return MoveView(
        id=row.id,
        to_version=row.version,
        move=decode(row.mode),
        state=row.state,
        entries=counts.entries,
        moved=counts.moved,
        moved_back=counts.moved_back,
        refused=tuple(refused),
        reasons=reasons,
        sample=tuple(sample),
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


async def list_moves(database: Database, org_id: int, automation_id: str, limit: int) -> list[MoveView] | Refusal:
    async with database.transaction() as tx:
        if await automations_store.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        return [await view(tx, row) for row in await store.list_moves(tx, org_id, automation_id, limit)]


async def read_move(database: Database, org_id: int, automation_id: str, move_id: str) -> MoveView | Refusal:
    async with database.transaction() as tx:
        row = await store.find_move(tx, org_id, automation_id, move_id)
        return unknown("move") if row is None else await view(tx, row)


async def undo(services: MoveServices, author: Author, automation_id: str, move_id: str) -> MoveView | Refusal:
    """Move the entries back that are still where a move put them; a move that is not complete moves no more."""

    @retry_conflicts
    async def begin() -> Refusal | None:
        async with services.database.transaction() as tx:
            await run(tx, share_steps(author.org_id))
            automation = await automations_store.lock_automation(tx, author.org_id, automation_id)
            row = await store.find_move(tx, author.org_id, automation_id, move_id)
            locked = None if row is None else await store.lock_move(tx, author.org_id, move_id)
            if automation is None or locked is None:
                return unknown("move")
            if not automation.active:
                return conflict("the automation is off, so its entries were cancelled")
            if locked.state in ("undoing", "undone"):
                return None
            begun = replace(
                locked, state="undoing", after=FIRST_ID, patient_until=author.now + MAX_BUSY_TIME, ended_at=None
            )
            await store.write_move(tx, begun)
            await record(tx, author, "automation.move_back", automation_id, {"move": move_id})
        return None

    refusal = await begin()
    return refusal or await complete(services, author.org_id, automation_id, move_id)


async def preview(
    services: MoveServices,
    author: Author,
    automation_id: str,
    mode: MoveMode,
    trigger_spec: bytes | None = None,
    graph: bytes | None = None,
) -> MoveView | Refusal:
    """Return what a publication of the draft, or of these specs, would move now. Writes nothing and takes no locks."""
    org_id = author.org_id
    async with services.database.transaction() as tx:
        draft = await draft_to_publish(tx, author, automation_id, trigger_spec, graph)
        if isinstance(draft, Refusal):
            return draft
        problems = await check_move(tx, draft, mode)
        problems = problems or await asyncio.to_thread(publication_errors, draft.trigger_spec, draft.graph)
        if problems:
            return invalid(problems)
        number = draft.published_version or 1
        rows = await store.list_waiting_page(tx, org_id, automation_id, number, MAX_PREVIEWED)
    to, trigger = await asyncio.to_thread(_compile, number, draft.graph, draft.trigger_spec)
    move = Move(to, mode, f"version {number}")
    moved: list[MovedEntryView] = []
    refused: list[RefusedEntryView] = []
    versions, until = CompiledVersions(org_id, automation_id), asyncio.get_running_loop().time() + MAX_WAIT_S
    simulated = 0
    for begin in range(0, len(rows), PAGE_ENTRIES):
        ids = [entry_id for entry_id, _ in rows[begin : begin + PAGE_ENTRIES]]
        async with services.database.transaction() as tx:
            entries = await store.read_moving_entries(tx, org_id, ids)
            targets = await _forward_targets(tx, org_id, move, trigger, versions, entries)
            plans = await _plan_entries(tx, services, org_id, entries, targets)
        for entry in entries:
            result = plans[entry.entry_id]
            if isinstance(result, tuple):
                assert entry.version is not None
                assert entry.node_id is not None
                place, outcome = result[0], _outcome(entry, *result)
                moved.append(MovedEntryView(entry.entry_id, entry.version, entry.node_id, place.node_id, *outcome))
            else:
                refused.append(RefusedEntryView(entry.entry_id, result or _BUSY))
        simulated = begin + len(ids)
        if asyncio.get_running_loop().time() > until:
            break
    counts = Counter(entry.reason for entry in refused).items()
    reasons = dict(sorted(counts, key=lambda item: (-item[1], item[0]))[:_MAX_REASONS])
    if simulated < len(rows):
        reasons["not simulated within 20 seconds"] = len(rows) - simulated
    return MoveView(
        id=None,
        to_version=number,
        move=mode,
        state="planned",
        entries=len(rows),
        moved=len(moved),
        moved_back=0,
        refused=tuple(refused[:_MAX_REFUSED]),
        reasons=reasons,
        sample=tuple(moved[:_MAX_SAMPLE]),
        created_at=author.now,
        ended_at=None,
    )
