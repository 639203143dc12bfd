"""Entries: looking them up, and giving dead ones another life.

A replayed entry goes through the same nodes of the same version; its messages keep their ids, so nothing is sent twice.
"""

import re

import msgspec

from api.authoring.again import retried
from api.authoring.automations import Author, record
from api.authoring.refusal import Refusal, conflict, unknown
from api.authoring.texts import without_addresses
from api.authoring.views import (
    DeadView,
    EntryView,
    HistoryView,
    Shown,
    StatsView,
    dead_view,
    entry_view,
    history_view,
    stats_view,
)
from api.keyring import OrgKeys
from api.language.run import State
from api.store import authoring, histories
from api.store.authoring import FIRST_ID
from api.store.database import Database, Transaction
from api.store.histories import EntryRow, Page
from api.store.wake import wake_engine

COUNTED = 100_000
_REPLAYED_AT_ONCE = 10_000
_LOG = re.compile(r"(\d{1,18}):(0x[0-9a-fA-F]{64}):(\d{1,9})", re.ASCII)


class Wanted(msgspec.Struct, frozen=True):
    """Which entries of the organization: those of an event, found by id, idempotency key or name."""

    page: Page
    event: str | None = None
    event_id: str | None = None
    idempotency_key: str | None = None


async def find_entries(database: Database, org_id: int, keys: OrgKeys, wanted: Wanted) -> list[EntryView]:
    """Return the wanted entries, newest first."""
    async with database.transaction() as tx:
        rows = await _wanted(tx, org_id, keys, wanted)
    return [entry_view(row) for row in rows]


async def entries_of(database: Database, org_id: int, automation_id: str, page: Page) -> list[EntryView] | Refusal:
    """Return entries of an automation, newest first."""
    async with database.transaction() as tx:
        if await authoring.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        rows = await histories.list_entries_of_automation(tx, org_id, automation_id, page)
    return [entry_view(row) for row in rows]


async def stats_of(database: Database, org_id: int, automation_id: str) -> StatsView | Refusal:
    """Return the counts of an automation, over its newest 100,000 entries: about a second of work."""
    async with database.transaction() as tx:
        if await authoring.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        standings = await histories.count_standings(tx, org_id, automation_id, COUNTED)
        outcomes = await histories.count_outcomes(tx, org_id, automation_id, COUNTED)
    return stats_view(standings, outcomes)


async def dead_letters(database: Database, org_id: int, automation_id: str | None) -> list[DeadView] | Refusal:
    """Return the dead entries by automation, cause and node, what died last first; of each automation the newest 100,000."""
    async with database.transaction() as tx:
        if automation_id is not None and await authoring.find_automation(tx, org_id, automation_id) is None:
            return unknown("automation")
        rows = await histories.count_dead(tx, org_id, automation_id, COUNTED)
    return [dead_view(row) for row in rows]


async def history(
    database: Database, org_id: int, entry_id: str, shown: Shown, *, clear: bool
) -> HistoryView | Refusal:
    """Return an entry with all that happened to it. Not `clear`: texts that an address may stand in are told as they were written."""
    async with database.transaction() as tx:
        found = await histories.find_entry(tx, org_id, entry_id)
        if found is None:
            return unknown("entry")
        steps = await histories.list_steps(tx, org_id, entry_id)
        messages = await histories.list_messages(tx, org_id, entry_id)
        transitions = await histories.list_transitions(tx, org_id, entry_id)
        if not clear:
            messages = await without_addresses(tx, org_id, messages, lambda _: entry_id)
    return history_view(*found, steps, messages, transitions, shown)


@retried
async def replay(
    database: Database, author: Author, entry_id: str, shown: Shown, *, clear: bool
) -> HistoryView | Refusal:
    """Give a dead entry a new cycle of attempts; refused for any other, and when its automation takes no entries."""
    async with database.transaction() as tx:
        found = await histories.find_entry(tx, author.org_id, entry_id)
        if found is None:
            return unknown("entry")
        if (refusal := await _resting(tx, author, found[0].automation_id)) is not None:
            return refusal
        locked = await histories.lock_entry(tx, author.org_id, entry_id)
        if locked is None or locked[0] is not State.DEAD:
            state = "gone" if locked is None else locked[0].value
            return conflict(f"only a dead entry can be replayed; this one is {state}")
        await histories.revive_entries(tx, author.org_id, [entry_id], author.now)
        await record(tx, author, "entry.replay", entry_id, {"cause": locked[1]})
        await wake_engine(tx)
    return await history(database, author.org_id, entry_id, shown, clear=clear)


async def replay_all(database: Database, author: Author, automation_id: str, cause: str | None) -> int | Refusal:
    """Replay every dead entry of an automation, of one cause when it is given; return how many.

    In transactions of up to 10,000 (about a second), each with its audit row: cut short, it has done a part.
    """
    total, after = 0, FIRST_ID
    while True:
        ids = await _replay_more(database, author, automation_id, cause, after)
        if isinstance(ids, Refusal):
            return total or ids
        if not ids:
            return total
        total, after = total + len(ids), ids[-1]


async def replay_everywhere(database: Database, author: Author, cause: str | None) -> int:
    """Replay the dead entries of every automation that is active, of one cause when it is given; return how many."""
    async with database.transaction() as tx:
        automation_ids = await histories.find_dead_automations(tx, author.org_id)
    total = 0
    for automation_id in automation_ids:
        replayed = await replay_all(database, author, automation_id, cause)
        total += 0 if isinstance(replayed, Refusal) else replayed  # switched off in the meantime
    return total


@retried
async def _replay_more(
    database: Database, author: Author, automation_id: str, cause: str | None, after: str
) -> list[str] | Refusal:
    """Replay the next dead entries beyond the id `after`; return their ids."""
    async with database.transaction() as tx:
        if (refusal := await _resting(tx, author, automation_id)) is not None:
            return refusal
        ids = await histories.find_dead(tx, author.org_id, automation_id, cause, after=after, most=_REPLAYED_AT_ONCE)
        if ids:
            await histories.revive_entries(tx, author.org_id, ids, author.now)
            await record(tx, author, "automation.replay", automation_id, {"cause": cause, "replayed": len(ids)})
            await wake_engine(tx)
    return ids


async def _resting(tx: Transaction, author: Author, automation_id: str) -> Refusal | None:
    """Refuse to replay for an automation that takes no entries: the engine would cancel what is dead, for good."""
    active = await authoring.share_automation(tx, author.org_id, automation_id)
    if active is None:
        return unknown("automation")
    return None if active else conflict("the automation is not active; its entries would be cancelled, not replayed")


async def _wanted(tx: Transaction, org_id: int, keys: OrgKeys, wanted: Wanted) -> list[EntryRow]:
    event_id = wanted.event_id
    if wanted.idempotency_key is not None:
        holder = await _event_of(tx, org_id, keys, wanted.idempotency_key)
        if holder is None or event_id not in (None, holder):
            return []
        event_id = holder
    if event_id is not None:
        return await histories.list_entries_of_event(tx, org_id, event_id, wanted.event, wanted.page)
    if wanted.event is not None:
        return await histories.list_entries_by_name(tx, org_id, wanted.event, wanted.page)
    return await histories.list_entries(tx, org_id, wanted.page)


async def _event_of(tx: Transaction, org_id: int, keys: OrgKeys, key: str) -> str | None:
    """Return the event that holds an idempotency key, or the log that is called so: `chainId:txHash:logIndex`."""
    holder = await histories.find_event_of_key(tx, org_id, keys.key_digest(key))
    if holder is None and (log := _LOG.fullmatch(key)) is not None:
        return await histories.find_log(tx, org_id, int(log[1]), log[2].lower(), int(log[3]))
    return holder
