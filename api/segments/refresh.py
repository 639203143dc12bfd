"""The job that refreshes segments when they are due.

Each engine process claims due segments under a lease: one segment of an organization at a time, and first the
organization that was refreshed longest ago, so neither many segments of one organization nor slow ones delay the
others. A failure is stored in the segment, which keeps its members. If a segment is late by its own interval, the
reason for the delay is stored, too. A refresh that is killed leaves no trace and is repeated when its lease ends. The
lease only saves work: two refreshes of one segment exclude each other by its row lock.
"""

import asyncio
import logging
from datetime import datetime, timedelta

from api.automations.automations import Refusal
from api.clock import Clock
from api.jobs import every
from api.query.gateway import QUERY_FAILURES, describe_failure
from api.segments.candidates import SegmentServices
from api.segments.segments import interval, refresh
from api.store import segments as store
from api.store.analyst import TooManyQueriesError
from api.store.database import DatabaseUnavailableError, TransactionConflictError
from api.store.segments import SegmentRow

POLL_INTERVAL_S = 5.0
WORKERS = 3  # per engine, so that a slow query does not hold up the segments of other organizations
QUERY_TIMEOUT_S = 90.0
LEASE = timedelta(minutes=4)  # a refresh that takes longer may be started a second time; then the later one counts
RETRY_DELAY = timedelta(seconds=30)  # after a lack of slots, a conflict, or a lost connection

_MAX_RETRY_DELAY = timedelta(hours=6)  # for a segment that keeps failing, unless its own interval is longer

_log = logging.getLogger("workbench.segments")


async def keep_fresh(services: SegmentServices, clock: Clock) -> None:
    workers = (every(POLL_INTERVAL_S, "refresh_segments", lambda: refresh_due(services, clock)) for _ in range(WORKERS))
    await asyncio.gather(*workers)


async def refresh_due(services: SegmentServices, clock: Clock) -> int:
    """Refresh due segments until no more can be claimed; return how many were refreshed."""
    count = 0
    while True:
        row, now = None, clock.now()
        async with services.database.transaction() as tx:
            for org_id in await store.find_organizations_due(tx, now):
                row = await store.claim_due_segment(tx, org_id, now, now + LEASE)
                if row is not None:
                    break
        if row is None:
            return count
        try:
            result = await refresh(services, row, clock.now())
            if isinstance(result, Refusal):
                await _postpone(services, row, clock.now())
        except TransactionConflictError:
            reason = "the members of the segment were changed by others at every attempt"
            await _postpone(services, row, clock.now(), reason)
        except TooManyQueriesError as error:
            await _postpone(services, row, clock.now(), describe_failure(error))
        except asyncio.CancelledError:
            # This process stops. Release the lease, so that another process need not wait until it expires.
            await _postpone(services, row, clock.now())
            raise
        except QUERY_FAILURES as error:
            _log.info("segment_failed", extra={"org_id": row.org_id, "segment": row.id, "reason": type(error).__name__})
            await _record_failure(services, row, describe_failure(error), clock.now(), interval(row))
        except DatabaseUnavailableError as error:
            _log.warning("segment_interrupted", extra={"org_id": row.org_id, "segment": row.id, "reason": str(error)})
            await _record_failure(services, row, describe_failure(error), clock.now(), RETRY_DELAY)
        except Exception:  # noqa: BLE001 - a defect: it must not hold up other segments until the lease ends
            _log.exception("segment_failed", extra={"org_id": row.org_id, "segment": row.id})
            await _record_failure(services, row, "internal error; the log has it", clock.now(), interval(row))
        count += 1


async def _postpone(services: SegmentServices, row: SegmentRow, now: datetime, reason: str | None = None) -> None:
    # A segment that waits for a slot is late by up to its interval before users see a reason.
    is_late = row.refreshed_at is not None and now - row.refreshed_at > 2 * interval(row)
    async with services.database.transaction() as tx:
        await store.postpone_refresh(tx, row, now, now + RETRY_DELAY, reason if is_late else None)


async def _record_failure(
    services: SegmentServices, row: SegmentRow, message: str, now: datetime, delay: timedelta
) -> None:
    """Store a failure; the delay before the next try doubles with each. Raises DatabaseUnavailableError."""
    next_delay = min(delay * 2 ** min(row.failures, 10), max(interval(row), _MAX_RETRY_DELAY))
    async with services.database.transaction() as tx:
        await store.record_failure(tx, row, message, now, now + next_delay)
