"""A trace of what leaves no event behind: refusals and duplicates, for whoever asks why an event did not arrive.

Best effort by design: no answer waits for it and no event depends on it. Noting only appends to a buffer of this process;
twice a second what has gathered is redacted and written with one statement, on the database's ordinary connections. Every
organization has a share of the buffer, so that one that floods pushes out nobody else's notices, and a flush stores no more
of each than that. While the database is away the newest notices wait. What finds no room is lost and counted; so is what
waits in a process that is killed, uncounted.
"""

import asyncio
import contextlib
import logging
from collections import deque

import msgspec

from api.clock import Clock, monotonic_ns, uuid7
from api.ingest.arrival import Arrival
from api.ingest.meters import refused_at
from api.ingest.outcome import DryRun, Duplicate, Outcome, Rejected
from api.ingest.redaction import Excerpt, excerpt, readable
from api.language.problem import Problem, Problems
from api.meters import Tally
from api.store.database import ConflictError, Database, UnavailableError
from api.store.recent import NoticeRows, add_notices

SHARE = 100  # notices of one organization that wait, or that one flush stores
MOST_WAITING = 2_000
MOST_BODY = 32_768  # bytes, twice a valid payload; of a larger body only the reason is kept
MOST_BODIES = 8_388_608  # bytes of all that wait
FLUSH_SECONDS = 0.5
RETRY_SECONDS = 5.0
LOG_SECONDS = 60
_SLICE = 16  # notices; redacting so many takes a few milliseconds at most

_log = logging.getLogger("workbench.notices")


class _Notice(msgspec.Struct, frozen=True):
    """An event that was refused (`problem`) or had come before; what is known of it, or its text as it came."""

    received_us: int
    problem: Problem | None
    known: Excerpt = Excerpt()
    raw: bytes = b""


_Shares = dict[int, deque[_Notice]]


class Notices:
    """The notices of one API process. Since it started, `dropped` were lost; `refused` counts what was refused, by field."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.dropped = 0
        self.refused = Tally("field")
        self._database = database
        self._clock = clock
        self._shares: _Shares = {}
        self._waiting = 0
        self._bytes = 0
        self._stopped = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._told = 0
        self._quiet_until_ns = 0

    async def start(self) -> None:
        """Begin to write what gathers."""
        self._flusher = asyncio.create_task(self._flush_until_stopped())

    async def stop(self) -> None:
        """Write what is waiting, then stop."""
        self._stopped.set()
        if self._flusher is not None:
            await self._flusher

    def note_rejected(self, org_id: int, raw: bytes, problems: Problems) -> None:
        """Note that a body was refused, and why: the first problem is kept."""
        fits = len(raw) <= MOST_BODY and self._bytes + len(raw) <= MOST_BODIES
        self._note(org_id, _Notice(self._clock.now_us(), problems[0], raw=raw if fits else b""))

    def note_outcome(self, arrival: Arrival, outcome: Outcome) -> None:
        """Note what became of a valid event, where it came again or the store refused it."""
        match outcome:
            case Duplicate() | DryRun(deduplicated=True):
                problem = None
            case Rejected(problems=problems):
                problem = problems[0]
            case _:
                return
        known = Excerpt(arrival.event.name, arrival.idempotency_key)
        self._note(arrival.org_id, _Notice(self._clock.now_us(), problem, known))

    def _note(self, org_id: int, notice: _Notice) -> None:
        if notice.problem is not None:
            self.refused.add(refused_at(notice.problem.field))
        self._hold(org_id, notice)

    def _hold(self, org_id: int, notice: _Notice) -> None:
        share = self._shares.get(org_id)
        if share is None:
            share = self._shares[org_id] = deque()
        share.append(notice)
        self._waiting += 1
        self._bytes += len(notice.raw)
        if len(share) > SHARE or self._waiting > MOST_WAITING:
            self._waiting -= 1
            self._bytes -= len(share.popleft().raw)
            self.dropped += 1

    async def _flush_until_stopped(self) -> None:
        failure: str | None = None
        stopped = False
        while not stopped:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), FLUSH_SECONDS if failure is None else RETRY_SECONDS)
            stopped = self._stopped.is_set()
            failure = await self._flush()
            self._tell(failure)

    async def _flush(self) -> str | None:
        """Write what is waiting; return why it has to wait longer, if it has."""
        shares, waiting = self._empty()
        try:
            rows = await self._redacted(shares)
            if rows.ids:
                async with self._database.transaction() as tx:
                    await add_notices(tx, rows)
        except (UnavailableError, ConflictError) as error:
            self._put_back(shares)
            return str(error)
        except Exception:  # noqa: BLE001  the edge of the flusher: a bug costs these notices, not those to come
            _log.exception("notices_failed", extra={"notices": waiting})
            self.dropped += waiting
        return None

    def _empty(self) -> tuple[_Shares, int]:
        taken = self._shares, self._waiting
        self._shares, self._waiting, self._bytes = {}, 0, 0
        return taken

    def _put_back(self, shares: _Shares) -> None:
        newer, _ = self._empty()
        for each in (shares, newer):
            for org_id, share in each.items():
                for notice in share:
                    self._hold(org_id, notice)

    async def _redacted(self, shares: _Shares) -> NoticeRows:
        rows = NoticeRows()
        for org_id, share in shares.items():
            for notice in share:
                if len(rows.ids) % _SLICE == 0:
                    await asyncio.sleep(0)  # lets requests have their turn
                self._add(rows, org_id, notice)
        return rows

    def _add(self, rows: NoticeRows, org_id: int, notice: _Notice) -> None:
        problem = notice.problem
        kept = excerpt(notice.raw) if notice.raw else notice.known
        rows.org_ids.append(org_id)
        rows.ids.append(uuid7(self._clock.unique_now_us()))
        rows.outcomes.append("deduplicated" if problem is None else "rejected")
        rows.events.append(kept.event)
        rows.idempotency_keys.append(kept.idempotency_key)
        rows.fields.append(readable(problem.field) if problem is not None and problem.field else None)
        rows.reasons.append(None if problem is None else problem.reason)
        rows.bodies.append(kept.body)
        rows.received_us.append(notice.received_us)

    def _tell(self, failure: str | None) -> None:
        """Say what was lost and what waits, once in a while."""
        lost = self.dropped - self._told
        if (lost or failure) and monotonic_ns() >= self._quiet_until_ns:
            _log.warning("notices_behind", extra={"dropped": lost, "waiting": self._waiting, "reason": failure})
            self._told = self.dropped
            self._quiet_until_ns = monotonic_ns() + LOG_SECONDS * 1_000_000_000
