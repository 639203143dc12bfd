"""Entries: finding them, statistics, replay of dead ones, and completion of interrupted changes.

A replayed entry passes the same nodes of the same version again; its messages keep their ids, so nothing is sent twice.

A resume first commits that the automation runs and then moves its entries in batches; a deactivation cancels them the
same way. If the process ends in between, `run_entry_recovery` completes the work. Any number of processes may run it,
because each batch is a transaction under the automation's lock.
"""

from collections import Counter, defaultdict

import msgspec

from api.automations.automations import (
    ARCHIVED,
    INACTIVE,
    Author,
    Refusal,
    cancel_rest,
    conflict,
    record,
    resume_rest,
    retry_conflicts,
    unknown,
)
from api.automations.views import StatsView, StepCounts, message_view, visible_messages
from api.clock import Clock
from api.crypto import EmailDisplay, OrgKeys
from api.jobs import every, one_by_one
from api.store import automations
from api.store.automations import FIRST_ID, EntriesQuery
from api.store.database import Database, Transaction
from api.store.events import wake_engine
from api.store.messages import list_messages
from api.store.moves import list_entry_moves
from api.store.query import run
from workbench.language.body import Id
from workbench.language.responses import DeadLetterView, EntryHistoryView, EntryView
from workbench.language.run import TERMINAL, State

COUNTED = 100_000  # entries of an automation that statistics look at: about a second of work
RECOVERY_INTERVAL_S = 10.0
RECOVERY_BATCH = 100
_REPLAY_BATCH = 10_000
_SYSTEM = ""  # not a key: the audit log does not record the work of the job


class FindEntriesQuery(EntriesQuery, frozen=True, rename="camel"):
    event: str | None = None
    event_id: Id | None = None
    idempotency_key: str | None = None


async def find_entries(database: Database, org_id: int, keys: OrgKeys, query: FindEntriesQuery) -> list[EntryView]:
    event_id, event = query.event_id, None if query.event is None else query.event.lower()
    async with database.transaction() as tx:
        if (key := query.idempotency_key) is not None:
            key_event_id = await automations.find_event_by_key(tx, org_id, key, keys.key_digest(key))
            if key_event_id is None or event_id not in (None, key_event_id):
                return []
            event_id = key_event_id
        if event_id is not None:
            return await automations.list_entries_of_event(tx, org_id, event_id, event, query)
        if event is not None:
            return await automations.list_entries_by_name(tx, org_id, event, query)
        return await automations.list_entries(tx, org_id, query)


async def list_entries(
    database: Database, org_id: int, automation_id: str, query: EntriesQuery
) -> list[EntryView] | Refusal:
    async with database.transaction() as tx:
        if await automations.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        return await automations.list_entries_of_automation(tx, org_id, automation_id, query)


async def count_stats(database: Database, org_id: int, automation_id: str) -> StatsView | Refusal:
    """Return the counts of an automation over its newest 100,000 entries."""
    async with database.transaction() as tx:
        if await automations.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        counts = await automations.count_entries_by_node(tx, org_id, automation_id, COUNTED)
        outcomes = await automations.count_step_outcomes(tx, org_id, automation_id, COUNTED)
        message_counts = await automations.count_messages_by_node(tx, org_id, automation_id, COUNTED)
    nodes: dict[str, dict[str, int]] = {}
    for node, outcome, count in outcomes:
        nodes.setdefault(node, {})[outcome] = count
    states, live = Counter[State](), Counter[str]()
    for state, node_id, count in counts:
        states[state] += count
        if node_id is not None and state not in TERMINAL:
            live[node_id] += count
    steps: defaultdict[tuple[str, str], StepCounts] = defaultdict(StepCounts)
    for message_count in message_counts:
        steps[message_count.node_id, message_count.channel].add(message_count)
    messages = tuple(step.results(*key) for key, step in sorted(steps.items()))
    return StatsView({state.value: states[state] for state in State}, nodes, dict(live), states.total(), messages)


async def count_dead_letters(
    database: Database, org_id: int, automation_id: str | None
) -> list[DeadLetterView] | Refusal:
    """Count the newest 100,000 dead entries of each automation by automation, cause and node, the latest first."""
    async with database.transaction() as tx:
        if automation_id is not None and await automations.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        return await automations.count_dead(tx, org_id, automation_id, COUNTED)


async def read_history(
    database: Database, org_id: int, entry_id: str, show: EmailDisplay
) -> EntryHistoryView | Refusal:
    """Return an entry with its steps, messages, transitions and moves."""
    async with database.transaction() as tx:
        entry = await automations.find_entry(tx, org_id, entry_id)
        if entry is None:
            return unknown("entry")
        steps = await automations.list_steps(tx, org_id, entry_id)
        all_messages = await list_messages(tx, org_id, entry_id)
        messages = await visible_messages(tx, org_id, all_messages, show, lambda _: entry_id)
        transitions = await automations.list_transitions(tx, org_id, entry_id)
        moves = await list_entry_moves(tx, org_id, entry_id)
    views = tuple(message_view(row, show) for row in messages)
    lists = {"steps": tuple(steps), "messages": views, "transitions": tuple(transitions), "moves": tuple(moves)}
    return msgspec.structs.replace(entry, **lists)


@retry_conflicts
async def replay(database: Database, author: Author, entry_id: str, show: EmailDisplay) -> EntryHistoryView | Refusal:
    """Give a dead entry a new cycle of attempts; refused in any other state, and if its automation is not active."""
    async with database.transaction() as tx:
        entry = await automations.find_entry(tx, author.org_id, entry_id)
        if entry is None:
            return unknown("entry")
        if (refusal := await _inactive_refusal(tx, author, entry.automation_id)) is not None:
            return refusal
        locked = await automations.lock_entry(tx, author.org_id, entry_id)
        if locked is None or locked[0] is not State.DEAD:
            state = "gone" if locked is None else locked[0].value
            return conflict(f"only a dead entry can be replayed; this one is {state}")
        await automations.revive_entries(tx, author.org_id, [entry_id], author.now)
        await record(tx, author, "entry.replay", entry_id, {"cause": locked[1]})
        await run(tx, wake_engine())
    return await read_history(database, author.org_id, entry_id, show)


async def replay_all(database: Database, author: Author, automation_id: str, cause: str | None) -> int | Refusal:
    """Replay the dead entries of an automation, optionally of one cause; return how many.

    Each transaction replays up to 10,000 (about a second) and has its own audit row, so an interruption loses nothing.
    """

    @retry_conflicts
    async def replay_next(after: str) -> list[str] | Refusal:
        async with database.transaction() as tx:
            if (refusal := await _inactive_refusal(tx, author, automation_id)) is not None:
                return refusal
            ids = await automations.find_dead(tx, author.org_id, automation_id, cause, after=after, limit=_REPLAY_BATCH)
            if ids:
                await automations.revive_entries(tx, author.org_id, ids, author.now)
                await record(tx, author, "automation.replay", automation_id, {"cause": cause, "replayed": len(ids)})
                await run(tx, wake_engine())
        return ids

    total, after = 0, FIRST_ID
    while True:
        ids = await replay_next(after)
        if isinstance(ids, Refusal):
            return total or ids
        if not ids:
            return total
        total, after = total + len(ids), ids[-1]


async def replay_everywhere(database: Database, author: Author, cause: str | None) -> int:
    """Replay the dead entries of every active automation, optionally of one cause; return how many."""
    async with database.transaction() as tx:
        automation_ids = await automations.find_dead_automations(tx, author.org_id)
    total = 0
    for automation_id in automation_ids:
        replayed = await replay_all(database, author, automation_id, cause)
        total += 0 if isinstance(replayed, Refusal) else replayed  # deactivated in the meantime
    return total


async def _inactive_refusal(tx: Transaction, author: Author, automation_id: str) -> Refusal | None:
    """Refuse a replay for an inactive automation: the engine would cancel the entries permanently."""
    # The lock is shared by replays and excludes a deactivation until this transaction ends.
    active = await automations.lock_automation_shared(tx, author.org_id, automation_id)
    if active is None:
        return unknown("automation")
    return None if active else conflict("the automation is not active; its entries would be cancelled, not replayed")


async def run_entry_recovery(database: Database, clock: Clock) -> None:
    """Complete interrupted resumes and deactivations every ten seconds, until cancelled."""
    await every(RECOVERY_INTERVAL_S, "resting_entries", lambda: recover_entries(database, clock))


async def recover_entries(database: Database, clock: Clock) -> int:
    """Complete the interrupted changes that are due; return the number of automations."""
    async with database.transaction() as tx:
        rows = await automations.find_stranded_entries(tx, RECOVERY_BATCH)

    async def complete(row: tuple[int, str, bool, bool]) -> None:
        org_id, automation_id, active, archived = row
        author = Author(org_id, _SYSTEM, clock.now_us())
        if active:
            await resume_rest(database, author, automation_id)
        else:
            await cancel_rest(database, author, automation_id, ARCHIVED if archived else INACTIVE)

    await one_by_one("resting_entries", rows, complete)
    return len(rows)
