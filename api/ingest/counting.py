"""Events counted once, by hour and day, so that the catalog of millions is a sum of thousands; and exactly, at every moment.

What the catalog answers is the hours counted, and what was noted as late, and a count of all rows dated since `counted_until`. Events
are dated before they are committed, by the second in a batch and by years in an import, so a count of the past may come too early. Hence:

1. Every few minutes a chore closes what is past: who reads `closed_until` from then on knows that an event dated before is late,
   and notes it in the transaction that stores it.
2. Who has read it before is waited for. Every writer claims idempotency keys first, which locks that table against nobody, but
   visibly, until its transaction ends; so the chore looks who holds such a lock, and waits until all of them have ended.
3. Then it counts, and takes what was noted for the same time out of the notes: one statement, so both or neither are seen.
4. An organization for which nothing came lately is closed for ever: whatever comes is noted, and what is noted wakes it. It may be noted and
   counted as a row, since a note counts only for what lies before `counted_until`. So those that are idle cost nothing.

Live ingest only adds notes. An import adds to its own, of hours that are counted: there would be thousands of them otherwise.
Nobody waits for the chore, but imports of the same organization for one step of it. It may stop anywhere, and several may run:
`counted_until` moves in the transaction that counts.
Events are stored and never deleted, and keep their name and their date; whoever changes that by hand deletes the rows of the
organization in `event_counting`, `event_hours`, `event_days` and `late_events`, with nobody writing, and they are counted again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from api.chores import one_by_one
from api.clock import from_us, monotonic_ns, to_us
from api.store import counting as store
from api.store.calls import Call
from api.store.counting import Late, Reached
from api.store.database import ConflictError, Database, TooSlowError
from api.store.locks import COUNTING, try_turn

KEPT = timedelta(days=31)  # the catalog looks back 30
_MINUTE, _SLOT, _HOUR = timedelta(minutes=1), timedelta(minutes=5), timedelta(hours=1)
_SLOT_US, _HOUR_US = _SLOT // timedelta(microseconds=1), _HOUR // timedelta(microseconds=1)
_SETTLED = timedelta(seconds=10)
_EVERYBODY = 0  # no organization has this id
_WAIT_SECONDS, _LOOK_SECONDS = 30.0, 0.05
_QUICK_NS = 200_000_000

_log = logging.getLogger("workbench.counting")

Dated = tuple[str, int]
"""An event's name, and its date in microseconds."""

Importer = tuple[int, str | None]
"""An organization, and the id of the import that stores its past."""


async def count_events(database: Database, now: datetime) -> None:
    """Close what is past by `now`, in every organization, and count it."""
    async with database.transaction() as tx:
        if await try_turn(tx, COUNTING, _EVERYBODY):
            await store.close_hours(tx, _hour(now - KEPT), _slot(now - _SETTLED))
            await store.wake(tx, _slot(now - _SETTLED))
    async with database.transaction() as tx:
        due = await store.uncounted(tx)
    if not due or not await _writers_have_ended(database):
        return

    async def count(each: tuple[int, Reached]) -> None:
        org_id, reached = each
        await _count(database, org_id, reached)

    await one_by_one("count_events", due, count)


async def forget_counts(database: Database, org_id: int, now: datetime) -> None:
    """Delete the counts of an organization that nobody asks for any more."""
    async with database.transaction() as tx:
        await store.forget_counts(tx, org_id, _hour(now - KEPT))


def stragglers(stored: Iterable[tuple[int, str]], at: datetime, closed: dict[int, datetime]) -> list[Call[None]]:
    """Return what notes the (organization, event)s of a batch dated `at`, if they are late.

    `closed` was read after the batch had claimed its keys.
    """
    late = {org_id for org_id, until in closed.items() if at < until}
    if not late:
        return []
    slot = _slot_us(to_us(at))
    return _notes(Counter((org_id, event, slot) for org_id, event in stored if org_id in late))


def past_notes(importer: Importer, stored: Iterable[Dated], reached: Reached | None, now: datetime) -> list[Call[None]]:
    """Return what notes the events of an import that are late, and not too old to matter; `reached` was read like `closed` above.

    By the hour, where all of that is counted, and by the slot otherwise: what is counted ends at a slot's end.
    """
    if reached is None:
        return []
    oldest, whole, until = (
        to_us(each) for each in (_hour(now - KEPT), _hour(reached.counted_until), reached.closed_until)
    )
    late = [(event, at) for event, at in stored if oldest <= at < until]
    hours = Counter((event, at // _HOUR_US) for event, at in late if at < whole)
    slots = Counter((event, at // _SLOT_US) for event, at in late if whole <= at)
    org_id, source = importer
    counted = {(org_id, event, hour * _HOUR_US): count for (event, hour), count in sorted(hours.items())}
    closed = {(org_id, event, slot * _SLOT_US): count for (event, slot), count in slots.items()}
    return [*_notes(counted, source), *_notes(closed)]


def _notes(late: Mapping[Late, int], source: str | None = None) -> list[Call[None]]:
    return [store.note_late(late, source)] if late else []


async def _writers_have_ended(database: Database) -> bool:
    """Wait until whoever may be storing events now has ended; False when that takes too long."""
    left: set[str] | None = None
    for _ in range(int(_WAIT_SECONDS / _LOOK_SECONDS)):
        async with database.transaction() as tx:
            seen = await store.writers(tx)
        left = seen if left is None else left & seen
        if not left:
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    _log.warning("counting_delayed", extra={"transactions": len(left or ())})
    return False


async def _count(database: Database, org_id: int, reached: Reached) -> None:
    """Count what is closed, in steps that grow as long as they are quick: the first ones are a month of an unknown size.

    One that takes too long is tried again with less, down to a slot. Whatever is in the way, it is the others' turn then.
    """
    since, span = reached.counted_until, _HOUR
    behind = reached.closed_until - since > _HOUR  # who is new, or just woke, may be about to send more
    while since < reached.closed_until:
        until = min(_slot(since + span), reached.closed_until)
        began = monotonic_ns()
        try:
            async with database.transaction() as tx:
                found = await store.count_closed(tx, org_id, since, until)
                if found is None:
                    return
                if not found and not behind:
                    await store.rest(tx, org_id)
        except TooSlowError:
            _log.warning("counting_slow", extra={"org_id": org_id, "minutes": (until - since) // _MINUTE})
            if until - since <= _SLOT:
                return
            span = (until - since) / 2
            continue
        except ConflictError:
            return  # with an import, say, that is adding to its notes: next time
        quick = monotonic_ns() - began < _QUICK_NS
        since, span = until, span * 8 if quick else max(span / 8, min(span, _HOUR))


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _slot(moment: datetime) -> datetime:
    return from_us(_slot_us(to_us(moment)))


def _slot_us(at_us: int) -> int:
    return at_us - at_us % _SLOT_US
