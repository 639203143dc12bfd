"""Rows of merged contacts on their way: events, messages, entries and on-chain events, moved page by page.

A merge, or taking one back, changes identifiers, attributes and live entries in one transaction: from its commit on there is one
contact, or two. Its rows follow. An event may be committed to the absorbed contact just after that, because ingest recognises a
contact without a lock; no transaction of ingest lives longer than seconds, so a minute later everything is looked for once more, by
whichever process comes first. `contact_merges.due_at` waits for that, also when the process that began has died.
"""

from datetime import datetime, timedelta

import msgspec

from api.authoring.again import retried
from api.chores import every, one_by_one
from api.clock import Clock
from api.language.merging import later
from api.store import merging as store
from api.store.database import Database, Transaction
from api.store.locks import lock_contacts
from api.store.merging import Absorbed, MergeRow, Move, Part

LATER = timedelta(minutes=1)
LOOK_SECONDS = 15.0
PAGE = 1_000
PAGES_AT_ONCE = 20
AT_ONCE = 100

_PARTS: tuple[Part, ...] = ("entries", "messages", "events", "onchain")


async def keep_settled(database: Database, clock: Clock) -> None:
    """Move what is due, until cancelled."""
    await every(LOOK_SECONDS, "settle_merges", lambda: settle_due(database, clock.now()))


async def settle_due(database: Database, now: datetime) -> int:
    """Move all rows of merges whose moment has come; return how many merges they were."""
    async with database.transaction() as tx:
        due = await store.due_merges(tx, now, AT_ONCE)

    async def settle(merge: tuple[int, str]) -> None:
        await _fold(database, *merge, now)
        await move_pages(database, *merge)
        await _settle(database, *merge, now)

    await one_by_one("settle_merges", due, settle)
    return len(due)


async def move_pages(database: Database, org_id: int, merge_id: str, most: int | None = None) -> bool:
    """Move rows, at most so many pages; return whether no row is left."""
    left = most
    for part in _PARTS:
        while await _move_page(database, org_id, merge_id, part) == PAGE:
            left = None if left is None else left - 1
            if left == 0:
                return False
    return True


async def direction(tx: Transaction, org_id: int, row: MergeRow) -> Move:
    """Return whose rows go to whom: to the survivor, or back to who they first came to."""
    absorbed, keep = [await store.survivor(tx, org_id, each) for each in (row.absorbed_id, row.keep_id)]
    if row.undone_at is None:
        return Move(row.absorbed_id, absorbed)
    return Move(keep, absorbed, await store.family(tx, org_id, row.absorbed_id))


@retried
async def _move_page(database: Database, org_id: int, merge_id: str, part: Part) -> int:
    async with database.transaction() as tx:
        row = await store.find_merge(tx, org_id, merge_id, hold=True)
        assert row is not None, "merges are never deleted"
        move = await direction(tx, org_id, row)
        return 0 if move.from_id == move.to_id else await store.move_rows(tx, org_id, part, move, PAGE)


@retried
async def _fold(database: Database, org_id: int, merge_id: str, now: datetime) -> None:
    """Give the survivor what was written to the absorbed contact at the moment of the merge."""
    async with database.transaction() as tx:
        row = await store.find_merge(tx, org_id, merge_id)
        if row is None or row.undone_at is not None:
            return
        keep_id = await store.survivor(tx, org_id, row.absorbed_id)
        await lock_contacts(tx, [keep_id, row.absorbed_id])
        both = await store.people(tx, org_id, [keep_id, row.absorbed_id])
        keep, absorbed = both[keep_id], both[row.absorbed_id].person
        attributes = later(row.absorbed.attributes, absorbed.attributes)
        tags = [tag for tag in absorbed.tags if tag not in (*row.absorbed.tags, *keep.person.tags)]
        if keep.erased or both[row.absorbed_id].merged_into != keep_id or not (attributes or tags):
            return
        person = msgspec.structs.replace(
            keep.person, attributes=keep.person.attributes | attributes, tags=(*keep.person.tags, *tags)
        )
        await store.write_person(tx, org_id, keep_id, person, now)
        noted = Absorbed(absorbed.attributes, absorbed.tags, row.absorbed.segments)
        await store.note_absorbed(tx, org_id, merge_id, noted)


@retried
async def _settle(database: Database, org_id: int, merge_id: str, now: datetime) -> None:
    """Note whether that was the last look; entries that wait for an event may have missed one that came in between."""
    async with database.transaction() as tx:
        row = await store.find_merge(tx, org_id, merge_id)
        assert row is not None, "merges are never deleted"
        move = await direction(tx, org_id, row)
        await lock_contacts(tx, [move.from_id, move.to_id])
        await store.find_merge(tx, org_id, merge_id, hold=True)
        again = move.from_id != move.to_id and await store.is_worked_on(tx, org_id, move)
        is_last = now >= (row.undone_at or row.created_at) + LATER and not again
        await store.wake_waiting_entries(tx, org_id, move.to_id, now)
        await store.settle_merge(tx, org_id, merge_id, None if is_last else now + LATER)
