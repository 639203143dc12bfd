"""The results of a broadcast: what became of its entries and messages, and how many contacts reached the goal.

The entries of a broadcast are a range of an index, because their starts are numbered. They are read in pages.
"""

import asyncio
from collections import Counter, defaultdict

from api.automations.automations import Refusal, unknown
from api.automations.goals import (
    COUNTED,
    FILTERED_PAGE,
    MAX_FILTERED_EVENTS,
    MAX_VERSIONS,
    PAGE,
    find_reached,
    read_measurement,
)
from api.automations.views import StepCounts
from api.crypto import OrgKeys
from api.store import broadcasts as store
from api.store.automations import GoalWindow, list_versions
from api.store.broadcasts import BroadcastEntry
from api.store.database import Database
from workbench.language.channel import RetryPolicy
from workbench.language.lift import LiftGroup, lift
from workbench.language.responses import BroadcastGoal, BroadcastResults


async def read_results(
    database: Database, org_id: int, keys: OrgKeys, broadcast_id: str, retries: RetryPolicy, limit: int = COUNTED
) -> BroadcastResults | Refusal:
    """Return the results of the first `limit` entries of a broadcast; of fewer, if the goal has to read too much."""
    async with database.transaction() as tx:
        row = await store.find_broadcast(tx, org_id, broadcast_id)
        if row is None:
            return unknown("broadcast")
        versions = await list_versions(tx, org_id, row.automation_id, MAX_VERSIONS)
    measurement = await asyncio.to_thread(read_measurement, versions, retries)
    size = FILTERED_PAGE if measurement is not None and measurement.goal.filters else PAGE
    states = Counter[str]()
    steps: defaultdict[tuple[str, str], StepCounts] = defaultdict(StepCounts)
    treated, held_out = LiftGroup(), LiftGroup()
    after, counted, unknown_contacts, events = None, 0, 0, 0
    while counted < limit and events < MAX_FILTERED_EVENTS:
        async with database.transaction() as tx:
            page = await store.list_broadcast_entries(tx, row, after, min(size, limit - counted))
            counts = await store.count_messages_of_entries(tx, org_id, [entry.id for entry in page])
        states.update(entry.state for entry in page)
        for count in counts:
            steps[count.node_id, count.channel].add(count)
        if measurement is not None:
            admitted = [entry for entry in page if entry.admitted]
            windows = [
                GoalWindow(entry.contact_id, entry.event_id, entry.at, entry.at + measurement.within)
                for entry in admitted
            ]
            reached = await find_reached(database, org_id, keys, measurement.goal, windows)
            treated += _group(admitted, reached.contact_ids, held_out=False)
            held_out += _group(admitted, reached.contact_ids, held_out=True)
            unknown_contacts += reached.unknown
            events += reached.events
        counted += len(page)
        if len(page) < size:
            break
        after = page[-1].event_id
    goal = None
    if measurement is not None:
        goal = BroadcastGoal(
            measurement.goal.event,
            int(measurement.within.total_seconds()),
            treated,
            held_out,
            lift(treated, held_out) if measurement.holdout else None,
            unknown_contacts,
        )
    is_partial = counted < row.entries and (counted >= limit or events >= MAX_FILTERED_EVENTS)
    messages = tuple(counts.results(*step) for step, counts in sorted(steps.items()))
    return BroadcastResults(counted, is_partial, dict(states), messages, goal)


def _group(entries: list[BroadcastEntry], reached: frozenset[str], *, held_out: bool) -> LiftGroup:
    contact_ids = {entry.contact_id for entry in entries if entry.held_out is held_out}
    return LiftGroup(len(contact_ids), len(contact_ids & reached))
