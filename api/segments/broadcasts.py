"""Broadcasts: an automation is started for every contact of a segment, or of the organization, once or on a schedule.

The recipients are fixed when the broadcast starts: one transaction stores a start for each contact of one snapshot, and
counts how many entered and left since the number that its author saw. Entries follow in pages, each in a transaction
that also moves the broadcast on, so an engine that is killed repeats at most a page that was never committed. A page
holds the row lock of its broadcast: several engines share the broadcasts, and a stop waits for one page.

Broadcasts leave room for other work. After each page an engine rests until the time of `RATE` is over, so that single
events find a free processor. Starts are dated so that `PACE` of them are due per second and engine, a third of what an
engine can do. The entries of events, which are due at once, therefore never wait behind all entries of a broadcast.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import Annotated

import msgspec
from msgspec import Meta

from api.automations.automations import INACTIVE, Author, Refusal, conflict, invalid, record, unknown
from api.clock import Clock, monotonic_ns, to_us, uuid7
from api.crypto import Keyring
from api.jobs import every, one_by_one
from api.segments.reach import check_reach, count_unreachable
from api.store import broadcasts as store
from api.store.automations import find_automation, find_version
from api.store.broadcasts import BroadcastAutomation, BroadcastRow, ScheduleRow
from api.store.database import Database, Transaction
from api.store.engines import count_engines
from api.store.events import wake_engine
from api.store.locks import STARTING, try_turn
from api.store.query import run
from api.store.segments import find_segment
from workbench.language.body import Body, Moment, ShortName
from workbench.language.codec import decode
from workbench.language.cron import Cron
from workbench.language.problem import Problem
from workbench.language.responses import BroadcastPreview, BroadcastView
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger, read_trigger

POLL_INTERVAL_S, PLAN_INTERVAL_S = 1.0, 5.0
PAGE_CONTACTS = 2_000
RATE = 40_000  # contacts per second for which an engine stores starts or makes entries, at most
PACE = 1_000  # entries per second and engine that are due
MISSED_AFTER = timedelta(minutes=5)  # a run that is later than this was missed
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
    contacts: Annotated[int, Meta(ge=0, le=1_000_000_000_000)] | None = None
    watermark: Moment | None = None

    def conflicts(self) -> Iterator[Problem]:
        yield from super().conflicts()
        if (self.contacts is None) != (self.watermark is None):
            yield Problem("watermark", "belongs to the contacts of a preview: pass both or neither")


def broadcast_view(row: BroadcastRow) -> BroadcastView:
    names = set(BroadcastView.__struct_fields__) - {"segment"}
    return BroadcastView(**{name: getattr(row, name) for name in names}, segment=row.segment or None)


async def preview(
    database: Database, keyring: Keyring, author: Author, automation_id: str, body: PreviewBody
) -> BroadcastPreview | Refusal:
    """Count the contacts that a broadcast would start now, and check whether messages reach them and have texts."""
    async with database.transaction() as tx:
        counted = await _count(tx, author, automation_id, body)
        row = await find_automation(tx, author.org_id, automation_id)
        version = row and await find_version(tx, author.org_id, automation_id, row.published_version or 0)
    if isinstance(counted, Refusal) or row is None:
        return counted
    specs = version or row
    warnings = await check_reach(database, author.org_id, specs, body.segment)
    keys = keyring.of(author.org_id)
    unreachable, sampled = await count_unreachable(database, author.org_id, keys, specs, body.segment)
    return msgspec.structs.replace(counted, warnings=tuple(warnings), unreachable=unreachable, sampled=sampled)


async def create(database: Database, author: Author, automation_id: str, body: BroadcastBody) -> BroadcastRow | Refusal:
    """Plan a broadcast; refused unless the automation is live and starts from broadcasts."""
    if body.at is not None and body.at < author.now:
        return invalid((Problem("at", "is in the past"),))
    async with database.transaction() as tx:
        counted = await _count(tx, author, automation_id, body)
        if isinstance(counted, Refusal):
            return counted
        automation = await store.find_broadcast_automation(tx, author.org_id, automation_id)
        if automation is None or not automation.active or automation.type != "broadcast":
            return conflict("publish and activate the automation first: its trigger must be a broadcast")
        contacts, watermark = counted.contacts, counted.watermark
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


async def _count(tx: Transaction, author: Author, automation_id: str, body: PreviewBody) -> BroadcastPreview | Refusal:
    if await store.find_broadcast_automation(tx, author.org_id, automation_id) is None:
        return unknown("automation")
    if body.segment is not None:
        segment = await find_segment(tx, author.org_id, body.segment)
        if segment is None:
            return invalid((Problem("segment", f"there is no segment {body.segment!r}"),))
        if segment.refreshed_at is None:
            return conflict("the audience is incomplete: further parts must be sent first", "segment")
    return await store.count_recipients(tx, author.org_id, body.segment or "", _SAMPLE_SIZE, author.now)


async def keep_sending(database: Database, clock: Clock) -> None:
    await asyncio.gather(
        every(PLAN_INTERVAL_S, "plan_runs", lambda: plan_runs(database, clock)),
        every(POLL_INTERVAL_S, "start_broadcasts", lambda: start_due(database, clock)),
        every(POLL_INTERVAL_S, "send_broadcasts", lambda: send_due(database, clock)),
    )


async def plan_runs(database: Database, clock: Clock) -> None:
    """Plan a broadcast for each schedule whose last run is due."""
    async with database.transaction() as tx:
        rows, now = await store.list_schedules(tx), clock.now()

    async def plan(row: ScheduleRow) -> None:
        next_run = _next_run(row.trigger_spec, row.planned_until)
        if next_run is None:
            return
        source, cron, next_at = next_run
        if next_at > now:
            return
        # Of several runs that were missed, only the last one counts.
        at = deque(takewhile(lambda at: at <= now, cron.times_after(row.planned_until)), maxlen=1)[0]
        async with database.transaction() as tx:
            if not await store.take_run(tx, row, at) or (source.missed == "skip" and now - at > MISSED_AFTER):
                return
            counted = await store.count_recipients(tx, row.org_id, source.segment or "", 0, now)
            ids = row.org_id, uuid7(to_us(now)), row.automation_id
            counts = counted.contacts, counted.watermark
            await store.insert_broadcast(tx, *ids, source.segment or "", at, *counts, now, None)

    await one_by_one("plan_runs", rows, plan)


@lru_cache(10_000)
def _next_run(trigger_spec: bytes, planned_until: datetime) -> tuple[StartSource, Cron, datetime] | None:
    """Return a schedule and its first run after a moment. This takes up to 5 ms, so it is not done each time."""
    trigger = read_trigger(decode(trigger_spec))
    source = trigger.source if isinstance(trigger, Trigger) else None
    if not isinstance(source, StartSource) or isinstance(cron := source.times(), str):
        return None
    next_at = next(cron.times_after(planned_until), None)
    return None if next_at is None else (source, cron, next_at)


async def start_due(database: Database, clock: Clock) -> None:
    """Fix the recipients of the broadcasts that are due."""
    async with database.transaction() as tx:
        due = await store.find_due_broadcasts(tx, "planned", clock.now())
    await one_by_one("start_broadcasts", due, lambda key: _start(database, clock, *key))


async def _start(database: Database, clock: Clock, org_id: int, broadcast_id: str) -> None:
    """Store the starts of a broadcast, in pages of one snapshot, in one transaction.

    The row of the broadcast is locked only at the end, so a stop does not wait.
    """
    async with database.transaction() as tx:
        if not await try_turn(tx, STARTING, org_id):
            return
        row, now = await store.find_broadcast(tx, org_id, broadcast_id), clock.now()
        if row is None or row.state != "planned" or await _find_automation(tx, row, now) is None:
            return
        pace = PACE * max(1, await count_engines(tx, now))
        first_at = now + timedelta(seconds=row.contacts / RATE)  # entries follow when all starts are stored
        total = entered = 0
        begun_ns = monotonic_ns()
        async for page in store.read_recipients(tx, row, PAGE_CONTACTS):
            contact_ids = [contact_id for contact_id, _ in page]
            await store.add_recipients(tx, row, _source(row), first_at, pace, total, contact_ids)
            total, entered = total + len(page), entered + sum(is_new for _, is_new in page)
            latest = await store.find_broadcast(tx, org_id, broadcast_id)
            if latest is None or latest.state != "planned":
                await tx.rollback()
                return
            await _rest(begun_ns)
            begun_ns = monotonic_ns()
        locked = await store.lock_broadcast(tx, org_id, broadcast_id)
        if locked is None or locked.state != "planned":
            await tx.rollback()
            return
        # Contacts of the organization are dated a moment before they are visible, so some may look older.
        entered = max(entered, total - row.contacts)
        departed = row.contacts + entered - total
        row = msgspec.structs.replace(row, state="running", entered=entered, departed=departed, started_at=now)
        await store.write_broadcast(tx, row)


async def send_due(database: Database, clock: Clock) -> None:
    """Continue the broadcasts that have started, a page of each in turn, until this process can continue none."""
    sent = True

    async def send_page(key: tuple[int, str]) -> None:
        nonlocal sent
        begun_ns = monotonic_ns()
        if await _send_page(database, clock, *key):
            sent = True
            await _rest(begun_ns)

    while sent:
        async with database.transaction() as tx:
            due = await store.find_due_broadcasts(tx, "running", clock.now())
        sent = False
        await one_by_one("send_broadcasts", due, send_page)


async def _send_page(database: Database, clock: Clock, org_id: int, broadcast_id: str) -> bool:
    """Make the next entries of a broadcast; False if another process does, or the automation takes none."""
    async with database.transaction() as tx:
        row, now = await store.claim_broadcast(tx, org_id, broadcast_id), clock.now()
        if row is None or (automation := await _find_automation(tx, row, now)) is None:
            return False
        start_ids = await store.list_next_starts(tx, row, PAGE_CONTACTS)
        if start_ids:
            row = msgspec.structs.replace(row, last_start=start_ids[-1])
        if len(start_ids) < PAGE_CONTACTS:
            start_ids += await store.list_separated_starts(tx, row)
            row = msgspec.structs.replace(row, state="done", ended_at=now)
        entries = await store.add_broadcast_entries(tx, row, start_ids, uuid7(to_us(now)), automation)
        await store.write_broadcast(tx, msgspec.structs.replace(row, entries=row.entries + entries))
        await run(tx, wake_engine())
    return True


async def _find_automation(tx: Transaction, row: BroadcastRow, now: datetime) -> BroadcastAutomation | None:
    """Return the automation of a broadcast; None if it is paused. If it takes no entries, stop the broadcast."""
    automation = await store.find_broadcast_automation(tx, row.org_id, row.automation_id)
    if automation is None or not automation.active or automation.type != _source(row) or automation.version is None:
        await store.write_broadcast(tx, msgspec.structs.replace(row, state="stopped", reason=INACTIVE, ended_at=now))
        return None
    return None if automation.paused else automation


def _source(row: BroadcastRow) -> str:
    return "schedule" if row.scheduled else "broadcast"


async def _rest(begun_ns: int) -> None:
    """Wait until a page that began then has taken as long as `RATE` asks: other work needs the database, too."""
    await asyncio.sleep(max(0.0, PAGE_CONTACTS / RATE - (monotonic_ns() - begun_ns) / 1e9))
