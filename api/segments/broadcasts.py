"""Broadcasts: an automation is started for every contact of a segment, or of the organization.

The recipients are fixed when the broadcast starts: one statement stores a start for each of them, and says how many
entered and left since the number that its author saw. Entries follow in pages, each in a transaction that also moves
the broadcast on, so an engine that is killed repeats at most a page that was never committed. A page holds the row lock
of its broadcast: several engines share the broadcasts, and a stop waits for one page.

Starts are dated so that `PACE` of them are due per second. The entries of events, which are due at once, therefore
never wait behind all entries of a broadcast.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from api.automations.automations import Author, Refusal, conflict, invalid, record, unknown
from api.clock import Clock, to_us, uuid7
from api.jobs import every
from api.store import broadcasts as store
from api.store.broadcasts import BroadcastRow, Recipients
from api.store.database import Database, Transaction
from api.store.events import wake_engine
from api.store.query import run
from api.store.segments import find_segment
from workbench.language.body import Body, Moment, ShortName
from workbench.language.problem import Problem
from workbench.language.responses import BroadcastPreview, BroadcastView

POLL_INTERVAL_S = 1.0
PAGE_CONTACTS = 5_000
PACE = 5_000  # contacts per second
_SAMPLE_SIZE = 20


class PreviewBody(Body, frozen=True):
    """The contacts to start: those of a `segment`, or `all` of the organization."""

    segment: ShortName | None = None
    all: bool = False

    def conflicts(self) -> Iterator[Problem]:
        if (self.segment is None) != self.all:
            yield Problem("", 'name a segment, or write "all": true')


class BroadcastBody(PreviewBody, frozen=True):
    """A broadcast `at` a time, by default at once.

    With `contacts` and `watermark` of a preview, the broadcast says how many contacts entered and left since then.
    """

    at: Moment | None = None
    contacts: Annotated[int, Meta(ge=0)] | None = None
    watermark: Moment | None = None

    def conflicts(self) -> Iterator[Problem]:
        yield from super().conflicts()
        if (self.contacts is None) != (self.watermark is None):
            yield Problem("watermark", "belongs to the contacts of a preview: pass both or neither")


def broadcast_view(row: BroadcastRow) -> BroadcastView:
    names = set(BroadcastView.__struct_fields__) - {"segment"}
    return BroadcastView(**{name: getattr(row, name) for name in names}, segment=row.segment or None)


async def preview(
    database: Database, author: Author, automation_id: str, body: PreviewBody
) -> BroadcastPreview | Refusal:
    """Count the contacts that a broadcast would start now. Writes nothing."""
    async with database.transaction() as tx:
        counted = await _count(tx, author, automation_id, body)
    if isinstance(counted, Refusal):
        return counted
    return BroadcastPreview(**msgspec.structs.asdict(counted))


async def create(database: Database, author: Author, automation_id: str, body: BroadcastBody) -> BroadcastRow | Refusal:
    """Plan a broadcast; refused unless the automation is live and starts from broadcasts."""
    if body.at is not None and body.at < author.now:
        return invalid((Problem("at", "is in the past"),))
    async with database.transaction() as tx:
        counted = await _count(tx, author, automation_id, body)
        if isinstance(counted, Refusal):
            return counted
        sender = await store.find_sender(tx, author.org_id, automation_id)
        if sender is None or not (sender.active and sender.broadcasts):
            return conflict("publish and activate the automation first: its trigger must be a broadcast")
        contacts, watermark = (counted.contacts, counted.watermark)
        if body.contacts is not None and body.watermark is not None:
            contacts, watermark = body.contacts, body.watermark
        row = await store.insert_broadcast(
            tx,
            author.org_id,
            uuid7(author.now_us),
            automation_id,
            body.segment or "",
            body.at or author.now,
            contacts,
            watermark,
            author.now,
            author.key_id,
        )
        detail = {"broadcast": row.id, "segment": body.segment, "contacts": counted.contacts, "at": row.at}
        await record(tx, author, "automation.broadcast", automation_id, detail)
    return row


async def stop(database: Database, author: Author, broadcast_id: str) -> BroadcastRow | Refusal:
    """Make no further entries. Those that were made stay."""
    async with database.transaction() as tx:
        row = await store.lock_broadcast(tx, author.org_id, broadcast_id)
        if row is None:
            return unknown("broadcast")
        if row.state in ("planned", "running"):
            row = msgspec.structs.replace(row, state="stopped", reason="stopped", ended_at=author.now)
            await store.write_broadcast(tx, row)
            detail = {"broadcast": row.id, "entries": row.entries}
            await record(tx, author, "automation.stop_broadcast", row.automation_id, detail)
    return row


async def _count(tx: Transaction, author: Author, automation_id: str, body: PreviewBody) -> Recipients | Refusal:
    if await store.find_sender(tx, author.org_id, automation_id) is None:
        return unknown("automation")
    if body.segment is not None:
        segment = await find_segment(tx, author.org_id, body.segment)
        if segment is None:
            return invalid((Problem("segment", f"there is no segment {body.segment!r}"),))
        if segment.refreshed_at is None:
            return conflict("the audience is incomplete: further parts must be sent first", "segment")
    return await store.count_recipients(tx, author.org_id, body.segment or "", _SAMPLE_SIZE, author.now)


async def keep_sending(database: Database, clock: Clock) -> None:
    await every(POLL_INTERVAL_S, "send_broadcasts", lambda: send_due(database, clock))


async def send_due(database: Database, clock: Clock) -> None:
    """Continue the broadcasts that are due, a page of each in turn, until this process can continue none."""
    while True:
        async with database.transaction() as tx:
            due = await store.find_due_broadcasts(tx, clock.now())
        if not any([await _send_page(database, clock, *key) for key in due]):
            return


async def _send_page(database: Database, clock: Clock, org_id: int, broadcast_id: str) -> bool:
    """Start a broadcast, or make its next entries; False if another process does, or the automation is paused."""
    async with database.transaction() as tx:
        row, now = await store.claim_broadcast(tx, org_id, broadcast_id), clock.now()
        sender = None if row is None else await store.find_sender(tx, org_id, row.automation_id)
        if row is None or (sender is not None and sender.active and sender.paused):
            return False
        if sender is None or not (sender.active and sender.broadcasts) or sender.version is None:
            row = msgspec.structs.replace(row, state="stopped", reason="automation_inactive", ended_at=now)
        elif row.state == "planned":
            total, entered = await store.add_recipients(tx, row, now, PACE)
            # Contacts of the organization are dated a moment before they are visible, so some may look older.
            entered = max(entered, total - row.contacts)
            departed = row.contacts + entered - total
            row = msgspec.structs.replace(row, state="running", entered=entered, departed=departed, started_at=now)
        else:
            first_id = uuid7(to_us(now))
            page = await store.add_broadcast_entries(
                tx, row, first_id, sender.version, sender.activation, PAGE_CONTACTS
            )
            row = msgspec.structs.replace(
                row, entries=row.entries + page.entries, last_start=page.last_start or row.last_start
            )
            if page.starts < PAGE_CONTACTS:
                row = msgspec.structs.replace(row, state="done", ended_at=now)
            await run(tx, wake_engine())
        await store.write_broadcast(tx, row)
    return True
