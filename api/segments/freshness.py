"""Keeping segments fresh: whoever looks first takes what is due, under a lease that others respect.

One segment of an organization at a time, and the organization whose last turn is longest ago first, so neither many segments of one nor
slow ones hold up the others. Whatever goes wrong is said in the segment, which keeps its members, and so is what a late one waits for; a
refresh that was cut short (kill -9) has left no trace, and is begun anew when its lease ends. The lease only saves work: two that refresh
one segment take turns at its row.
"""

import asyncio
import logging
import re
from datetime import datetime, timedelta

from api.authoring.refusal import Refusal
from api.chores import every
from api.clock import Clock
from api.query.run import BusyError, ReaderError, StatementError, TooLargeError, TooLongError, UnfitError
from api.segments.finding import Desk
from api.segments.segments import interval, refresh
from api.store import segments as store
from api.store.database import ConflictError, UnavailableError
from api.store.segments import SegmentRow

LOOK_SECONDS = 5.0
WORKERS = 3
PATIENCE_SECONDS = 90.0
LEASE = timedelta(minutes=4)  # one that takes longer may be begun a second time: then the later one counts
BUSY = timedelta(seconds=30)
BROKEN = "the database broke off, or took too long"

_RAREST = timedelta(hours=6)  # between two tries of a segment that goes on failing, unless its own interval is longer
_DATA_ERRORS = "22"  # their messages hold values of the data: after ": ", or in quotes
_QUOTED = re.compile('".*"')  # up to the last quote, as the value may hold some

_log = logging.getLogger("workbench.segments")


async def keep_fresh(desk: Desk, clock: Clock) -> None:
    """Refresh what is due, until cancelled."""
    await asyncio.gather(
        *(every(LOOK_SECONDS, "refresh_segments", lambda: refresh_due(desk, clock)) for _ in range(WORKERS))
    )


async def refresh_due(desk: Desk, clock: Clock) -> int:
    """Refresh segments until none is due that nobody else has; return how many."""
    done = 0
    while (row := await _claim(desk, clock.now())) is not None:
        await _refresh(desk, row, clock)
        done += 1
    return done


async def _claim(desk: Desk, now: datetime) -> SegmentRow | None:
    async with desk.database.transaction() as tx:
        for org_id in await store.organizations_due(tx, now):
            row = await store.claim_due(tx, org_id, now, now + LEASE)
            if row is not None:
                return row
    return None


async def _refresh(desk: Desk, row: SegmentRow, clock: Clock) -> None:
    try:
        filled = await refresh(desk, row, clock.now())
        if isinstance(filled, Refusal):
            await _put_off(desk, row, clock.now())
    except (BusyError, ConflictError) as error:
        await _put_off(desk, row, clock.now(), said(error))
    except asyncio.CancelledError:  # this process ends: others need not wait for the lease to do so
        await _put_off(desk, row, clock.now())
        raise
    except (StatementError, UnfitError, TooLongError, TooLargeError, ReaderError) as error:
        _log.info("segment_failed", extra={"org_id": row.org_id, "segment": row.id, "reason": type(error).__name__})
        await _fail(desk, row, said(error), clock.now(), interval(row))
    except UnavailableError as error:
        _log.warning("segment_broken_off", extra={"org_id": row.org_id, "segment": row.id, "reason": str(error)})
        await _fail(desk, row, said(error), clock.now(), BUSY)


async def _put_off(desk: Desk, row: SegmentRow, now: datetime, sentence: str | None = None) -> None:
    late = row.refreshed_at is not None and now - row.refreshed_at > 2 * interval(row)
    async with desk.database.transaction() as tx:
        await store.put_off(tx, row, now, now + BUSY, sentence if late else None)


async def _fail(desk: Desk, row: SegmentRow, sentence: str, now: datetime, pause: timedelta) -> None:
    """Note a failure; the pause before the next try grows with each. Raise UnavailableError: the database is away for this, too."""
    longer = min(pause * 2 ** min(row.failures, 10), max(interval(row), _RAREST))
    async with desk.database.transaction() as tx:
        await store.record_failure(tx, row, sentence, now, now + longer)


def said(error: Exception) -> str:
    """Say why a query failed, without values of contacts: the sentence is kept."""
    match error:
        case StatementError(reason=reason, sqlstate=state, position=position, hint=hint):
            plain = _QUOTED.sub("…", reason.partition(": ")[0]) if state.startswith(_DATA_ERRORS) else reason
            where = "" if position is None else f" (character {position})"
            return f"{plain}{where}{'' if hint is None else f'. Hint: {hint}'}"
        case UnfitError(problem=problem):
            return str(problem)
        case UnavailableError():
            return BROKEN
        case ConflictError():
            return "its contacts are being changed all the time"
        case _:
            return str(error)
