"""Counts of events by hour and day: the catalog of millions of events is a sum of thousands of rows, exact at every
moment.

The catalog adds the counted hours, the notes of late events, and a count of the rows dated since `counted_until`.
An event is dated before it is committed, usually by less than a second, in an import by up to years. Hours that are
counted may therefore get further events. Hence:

1. Every minute a job closes the past: it advances `closed_until`. A transaction that reads the new value treats an
   event with an earlier date as late, and notes it in the transaction that stores it.
2. The job waits for transactions that read an older value. Every writer claims idempotency keys first, which takes a
   lock on that table. The lock conflicts with no other writer but is visible until the transaction ends, so the job
   can list the holders.
3. Then it counts, and removes the notes for the same time: one statement, so a reader sees both or neither.
4. An organization without recent events becomes idle: it is closed for all time, so every event is noted, and a note
   ends the idle state. Such an event may be noted and also counted as a row, since a note counts only for the time
   before `counted_until`. Idle organizations cost nothing.

Live ingest only adds notes. An import has its own notes, one per hour where whole hours are counted: otherwise there
would be thousands of notes. Writers do not wait for the job, except that an import may wait until one step for its
organization is done. The job may stop at any point, and several processes may run it: `counted_until` moves in the
transaction that counts.

Events are never deleted and keep name and date. If you change them by hand, delete the rows of the organization in
`event_counting`, `event_hours`, `event_days` and `late_events` while nothing is writing, and they are counted again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from api.clock import from_us, monotonic_ns, to_us
from api.jobs import one_by_one
from api.store import events as store
from api.store.database import Database, TooSlowError, TransactionConflictError
from api.store.events import SLOT_US, CountedUntil
from api.store.locks import COUNTING, try_turn
from api.store.query import Call

RETENTION = timedelta(days=31)  # the catalog looks back 30
_MINUTE, _SLOT, _HOUR = timedelta(minutes=1), timedelta(microseconds=SLOT_US), timedelta(hours=1)
_HOUR_US = _HOUR // timedelta(microseconds=1)
_SETTLED_AFTER = timedelta(seconds=10)  # most events are committed by then, and few have to be noted
_ALL_ORGANIZATIONS = 0  # no organization has this id
_WRITERS_TIMEOUT_S, _WRITERS_POLL_S = 30.0, 0.05
_QUICK_NS = 200_000_000  # after a faster step, the next one counts a period eight times as long

_log = logging.getLogger("workbench.catalog")

ImportSource = tuple[int, str | None]
"""An organization and the id of the import."""


async def count_events(database: Database, now: datetime) -> None:
    """Close and count the past of every organization."""
    async with database.transaction() as tx:
        if await try_turn(tx, COUNTING, _ALL_ORGANIZATIONS):
            await store.close_hours(tx, _hour(now - RETENTION), _slot(now - _SETTLED_AFTER))
            await store.wake_counting(tx, _slot(now - _SETTLED_AFTER))
    async with database.transaction() as tx:
        uncounted = await store.list_uncounted(tx)
    if not uncounted or not await _wait_for_writers(database):
        return

    async def count(organization: tuple[int, CountedUntil]) -> None:
        org_id, counting = organization
        await _count_organization(database, org_id, counting)

    await one_by_one("count_events", [*uncounted.items()], count)


async def delete_old_counts(database: Database, org_id: int, now: datetime) -> None:
    async with database.transaction() as tx:
        await store.delete_old_counts(tx, org_id, _hour(now - RETENTION))


def late_imported_events(
    source: ImportSource, events: Iterable[tuple[str, int]], counting: CountedUntil | None, now: datetime
) -> list[Call[None]]:
    """Return the calls that note the imported events, given as (name, microseconds), that are late and recent enough.

    `counting` has to be read after the batch claimed its keys.
    """
    if counting is None:
        return []
    oldest_us, hours_until_us = to_us(_hour(now - RETENTION)), to_us(_hour(counting.counted_until))
    closed_until_us = to_us(counting.closed_until)
    late = [(name, at_us) for name, at_us in events if oldest_us <= at_us < closed_until_us]
    # Events after the last completely counted hour are noted by slot, because counting ends at the end of a slot.
    hours = Counter((name, at_us // _HOUR_US) for name, at_us in late if at_us < hours_until_us)
    slots = Counter((name, at_us // SLOT_US) for name, at_us in late if hours_until_us <= at_us)
    org_id, import_id = source
    by_hour = {(org_id, name, hour * _HOUR_US): count for (name, hour), count in sorted(hours.items())}
    by_slot = {(org_id, name, slot * SLOT_US): count for (name, slot), count in slots.items()}
    notes = [store.note_late(by_hour, import_id)] if by_hour else []
    return notes + ([store.note_late(by_slot)] if by_slot else [])


async def _wait_for_writers(database: Database) -> bool:
    """Wait until all transactions that may be storing events now have ended; return False if that takes too long."""
    remaining: set[str] | None = None
    for _ in range(int(_WRITERS_TIMEOUT_S / _WRITERS_POLL_S)):
        async with database.transaction() as tx:
            writers = await store.list_writers(tx)
        remaining = writers if remaining is None else remaining & writers
        if not remaining:
            return True
        await asyncio.sleep(_WRITERS_POLL_S)
    _log.warning("counting_delayed", extra={"transactions": len(remaining or ())})
    return False


async def _count_organization(database: Database, org_id: int, counting: CountedUntil) -> None:
    """Count the closed time of an organization, in steps that grow while they are quick.

    A step that is too slow is halved, down to a slot. If that fails too, the next run tries again.
    """
    since, span = counting.counted_until, _HOUR  # there may be a month of unknown size to count
    # New, or idle until now: more events are likely, so it does not become idle yet.
    is_behind = counting.closed_until - since > _HOUR
    while since < counting.closed_until:
        until = min(_slot(since + span), counting.closed_until)
        began_ns = monotonic_ns()
        try:
            async with database.transaction() as tx:
                counted = await store.count_closed(tx, org_id, since, until)
                if counted is None:  # another process counts this organization
                    return
                if not counted and not is_behind:
                    await store.rest_counting(tx, org_id)
        except TooSlowError:
            _log.warning("counting_slow", extra={"org_id": org_id, "minutes": (until - since) // _MINUTE})
            if until - since <= _SLOT:
                return
            span = (until - since) / 2
            continue
        except TransactionConflictError:
            return  # for example with an import that adds to its notes; the next run tries again
        quick = monotonic_ns() - began_ns < _QUICK_NS
        since, span = until, span * 8 if quick else max(span / 8, min(span, _HOUR))


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _slot(moment: datetime) -> datetime:
    return from_us(to_us(moment) // SLOT_US * SLOT_US)
