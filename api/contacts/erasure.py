"""Forgetting a contact.

One transaction takes its identifiers and everything else that it is known by, ends its entries and voids the leases of those that
a worker holds: from its commit on, nothing is decided for it and nobody is recognised as it. What its events, messages and steps say
is taken page by page after it. The rows stay, and count.

An event may come in at the same moment: ingest recognises a contact without a lock, so the event can be committed just after the
erasure. No transaction of ingest lives longer than seconds, so a minute later everything is done once more, by whichever process
comes first; a row in `erasures` waits for that, also when the process that began has died.
"""

from datetime import datetime, timedelta

import msgspec

from api.authoring.again import retried
from api.authoring.automations import Author, record
from api.authoring.refusal import Refusal, conflict, unknown
from api.chores import every, one_by_one
from api.clock import Clock
from api.store import erasure as store
from api.store.database import Database
from api.store.erasure import BEGINNING, Part, Subject
from api.store.locks import lock_contacts

LATER = timedelta(minutes=1)
LOOK_SECONDS = 15.0
AT_ONCE = 100

_PARTS: tuple[Part, ...] = ("events", "messages", "entries")


class ErasedView(msgspec.Struct, frozen=True, rename="camel"):
    """What was done: when the contact was forgotten, and how many entries ended."""

    id: str
    erased_at: datetime
    cancelled_entries: int


async def erase(database: Database, author: Author, contact_id: str) -> ErasedView | Refusal:
    """Forget a contact. A second time does it again, for what may have come in between."""
    who = Subject(author.org_id, contact_id)
    erased = await _forget(database, author, who)
    if isinstance(erased, ErasedView):
        await _clean(database, who)
    return erased


async def keep_erased(database: Database, clock: Clock) -> None:
    """Look at erased contacts once more, until cancelled."""
    await every(LOOK_SECONDS, "erase_again", lambda: erase_again(database, clock.now()))


async def erase_again(database: Database, now: datetime) -> int:
    """Look once more at those whose moment has come; return how many they were."""
    async with database.transaction() as tx:
        due = await store.due_erasures(tx, now, AT_ONCE)
    await one_by_one("erase_again", due, lambda who: _erase_again(database, who, now))
    return len(due)


@retried
async def _forget(database: Database, author: Author, who: Subject) -> ErasedView | Refusal:
    async with database.transaction() as tx:
        await lock_contacts(tx, [who.contact_id])
        found = await store.erased_contact(tx, who)
        if found is None:
            return unknown("contact")
        if found.merged_into is not None:
            return conflict(f"it was merged into contact {found.merged_into}: erase that one, or undo the merge first")
        if found.unsettled:
            return conflict("a merge was taken back a moment ago, and rows are on their way: try again in two minutes")
        cancelled = await store.forget(tx, who, author.now)
        await store.await_erasure(tx, who, author.now + LATER)
        if found.at is None:
            await record(tx, author, "contact.erase", who.contact_id, {"cancelledEntries": cancelled})
    return ErasedView(who.contact_id, found.at or author.now, cancelled)


async def _erase_again(database: Database, who: Subject, now: datetime) -> None:
    await _forget_again(database, who, now)
    await _clean(database, who)
    async with database.transaction() as tx:
        await store.end_erasure(tx, who, now)


@retried
async def _forget_again(database: Database, who: Subject, now: datetime) -> None:
    async with database.transaction() as tx:
        await lock_contacts(tx, [who.contact_id])
        await store.forget(tx, who, now)


async def _clean(database: Database, who: Subject) -> None:
    """Take what its events, messages and entries say, a page at a time."""
    for part in _PARTS:
        after: store.Cursor | None = BEGINNING
        while after is not None:
            after = await _clean_page(database, part, who, after)


@retried
async def _clean_page(database: Database, part: Part, who: Subject, after: store.Cursor) -> store.Cursor | None:
    async with database.transaction() as tx:
        return await store.clean(tx, part, who, after)
