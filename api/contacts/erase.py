"""Erasing a contact.

One transaction removes its identifiers, attributes and tags, cancels its entries and raises their lease tokens, so
that a worker that has claimed one writes nothing. After the commit, no event is matched to the contact and the engine
makes no decision for it. Its history, and the content of its events, messages and steps, are removed page by page
afterwards. Other rows stay, so counts do not change.

Ingest recognises a contact without a lock, so an event can be committed just after the erasure. No ingest transaction
lasts longer than a few seconds, so everything is removed again a minute later, by any process. A row in `erasures`
schedules the repetition, even if the first process ends halfway.
"""

from datetime import datetime, timedelta

import msgspec

from api.automations.automations import Author, Refusal, conflict, record, retry_conflicts, unknown
from api.clock import Clock
from api.jobs import every, one_by_one
from api.store import contacts as store
from api.store.contacts import FIRST_CURSOR, ContactKey, ErasurePart
from api.store.database import Database
from api.store.locks import hold_contacts
from api.store.query import run

SECOND_ERASURE_DELAY = timedelta(minutes=1)  # no ingest transaction lasts that long
CHECK_INTERVAL_S = 15.0
ERASURES_PER_RUN = 100

_PARTS: tuple[ErasurePart, ...] = ("changes", "events", "messages", "entries")


class ErasedView(msgspec.Struct, frozen=True, rename="camel"):
    """An erasure."""

    id: str
    erased_at: datetime
    cancelled_entries: int


async def erase(database: Database, author: Author, contact_id: str) -> ErasedView | Refusal:
    """Erase a contact. Repeating it is safe, and erases rows that were added since."""
    contact = ContactKey(author.org_id, contact_id)

    @retry_conflicts
    async def erase_contact() -> ErasedView | Refusal:
        async with database.transaction() as tx:
            await run(tx, hold_contacts([contact_id]))
            erasure = await store.find_erasure(tx, contact)
            if erasure is None:
                return unknown("contact")
            if (kept_id := erasure.merged_into) is not None:
                return conflict(f"this contact was merged into {kept_id}: erase that contact, or undo the merge first")
            if erasure.unsettled:  # an undone merge is still moving rows back to this contact
                return conflict(
                    "a merge was undone a moment ago and its rows are still being moved: try again in two minutes"
                )
            cancelled = await store.erase_contact(tx, contact, author.now)
            # In the same transaction, so that a crash before the content is removed only delays the removal.
            await store.schedule_erasure(tx, contact, author.now + SECOND_ERASURE_DELAY)
            if erasure.at is None:
                await record(tx, author, "contact.erase", contact_id, {"cancelledEntries": cancelled})
        return ErasedView(contact_id, erasure.at or author.now, cancelled)

    erased = await erase_contact()
    if isinstance(erased, ErasedView):
        await _erase_content(database, contact)
    return erased


async def keep_erased(database: Database, clock: Clock) -> None:
    await every(CHECK_INTERVAL_S, "erase_again", lambda: erase_again(database, clock.now()))


async def erase_again(database: Database, now: datetime) -> int:
    """Erase contacts a second time, when it is due; return their number."""
    async with database.transaction() as tx:
        due = await store.find_due_erasures(tx, now, ERASURES_PER_RUN)

    @retry_conflicts
    async def erase_contact(contact: ContactKey) -> None:
        async with database.transaction() as tx:
            await run(tx, hold_contacts([contact.contact_id]))
            await store.erase_contact(tx, contact, now)

    async def repeat_erasure(contact: ContactKey) -> None:
        await erase_contact(contact)
        await _erase_content(database, contact)
        async with database.transaction() as tx:
            await store.finish_erasure(tx, contact, now)

    await one_by_one("erase_again", due, repeat_erasure)
    return len(due)


async def _erase_content(database: Database, contact: ContactKey) -> None:
    """Remove its history and the content of its events, messages and entries, one transaction per page."""

    @retry_conflicts
    async def erase_page(part: ErasurePart, after: store.PageCursor) -> store.PageCursor | None:
        async with database.transaction() as tx:
            return await store.erase_page(tx, part, contact, after)

    for part in _PARTS:
        after: store.PageCursor | None = FIRST_CURSOR
        while after is not None:
            after = await erase_page(part, after)
