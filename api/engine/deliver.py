"""Deliver: send emails and webhooks, and record the outcomes.

Each delivery is a task of its own, so that an endpoint that hangs delays nothing else. It sends one message outside any
transaction, records the outcome together with the entry's next state, and lets the entry continue. The lease of the
entry is renewed during the delivery. Sending never starts once another engine may have claimed the entry.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from api import process
from api.channels.outcome import Delivery, DeliveryOutcome, Failed, MayLeave, NotSent, Retry, Sent, Unknown
from api.channels.outgoing import OUTGOING, Transports
from api.clock import Clock, monotonic_ns
from api.crypto import Keyring
from api.engine.claims import Claims
from api.engine.facts import Graphs
from api.engine.progress import EntryProgress, progress_of
from api.engine.record import EngineCounts, OutgoingMessage, address_digests, address_of, record_delivery
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError
from api.store.entries import Claim
from api.store.messages import AttemptResult, settle_outgoing
from api.store.query import Call
from workbench.language.advance import decide_failure
from workbench.language.decision import DELIVERY_ERRORS, Decision, Failure
from workbench.language.graph import Graph
from workbench.language.run import State

MAX_DELIVERIES = 256  # under way, of one organization in one engine: each keeps a task and a lease
BUSY_DELAY = timedelta(seconds=5)
DATABASE_RETRY_S = 0.5

_log = logging.getLogger("workbench.engine")


class DeliveryContext(msgspec.Struct, frozen=True):
    database: Database
    keyring: Keyring
    clock: Clock
    transports: Transports
    claims: Claims
    graphs: Graphs
    counts: EngineCounts


class Deliveries:
    """The deliveries of one engine. `resume` continues an entry after its delivery."""

    def __init__(self, context: DeliveryContext, resume: Callable[[int, Claim], Awaitable[None]]) -> None:
        self._context = context
        self._resume = resume
        self._tasks: dict[int, set[asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        """Return the number of emails and webhooks that are being sent."""
        return sum(map(len, self._tasks.values()))

    def room(self, org_id: int) -> int:
        """Return how many more entries of an organization may be claimed."""
        return max(MAX_DELIVERIES - len(self._tasks.get(org_id, ())), 0)

    @property
    def is_saturated(self) -> bool:
        """Whether an organization has no room, so that its due entries are not claimed."""
        return any(len(tasks) >= MAX_DELIVERIES for tasks in self._tasks.values())

    def start(self, org_id: int, messages: Sequence[OutgoingMessage]) -> None:
        """Deliver messages, each in a task of its own."""
        for message in messages:
            task = asyncio.create_task(self._deliver(org_id, message))
            self._tasks.setdefault(org_id, set()).add(task)
            task.add_done_callback(lambda done: self._discard(org_id, done))

    async def stop(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until no delivery is under way, including those of continued entries, then cancel.

        A cancelled message is sent again, under the same id, once its lease has expired.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.gather(*(task for tasks in list(self._tasks.values()) for task in tasks))

    def _discard(self, org_id: int, task: asyncio.Task[None]) -> None:
        tasks = self._tasks[org_id]
        tasks.discard(task)
        if not tasks:
            del self._tasks[org_id]

    async def _deliver(self, org_id: int, message: OutgoingMessage) -> None:
        """One delivery from the lease check to the continued entry."""
        claim = message.progress.claim
        next_claim = None
        try:
            next_claim = await self._send_and_record(org_id, message)
            if next_claim is not None:
                await self._resume(org_id, next_claim)
        except (DatabaseUnavailableError, TransactionConflictError) as error:
            _log.warning("delivery_not_recorded", extra={"entry_id": claim.entry_id, "reason": str(error)})
        except Exception:  # noqa: BLE001  a bug that one delivery triggers must not stop the others
            _log.exception("delivery_failed", extra={"entry_id": claim.entry_id})
        finally:
            if next_claim is None:  # otherwise `resume` has released it
                self._context.claims.release(org_id, [claim])

    async def _send_and_record(self, org_id: int, message: OutgoingMessage) -> Claim | None:
        """Send a message and record the outcome; return the claim to continue with, or None."""
        context, claim = self._context, message.progress.claim
        if not context.claims.is_valid(org_id, claim):
            context.counts.add_lost(org_id, 1)
            return None
        started_ns = monotonic_ns()
        # Checked again at the last moment: waiting for a slot or a connection may take longer than a lease, and a
        # pause within a third of a lease keeps what still waits.
        may_leave = lambda: context.claims.may_leave(org_id, claim)  # noqa: E731
        outcome = await attempt(context, org_id, message, may_leave)

        now = context.clock.now()
        graph = context.graphs.of(org_id, claim)
        assert graph is not None, "an entry without a graph sends nothing"
        decision, result = judge(message, graph, outcome, now)
        progress = progress_of(claim, message.progress.run, graph, [decision])
        stored, message_calls = message.stored, []
        if stored is not None and result is not None:
            message_calls.append(settle_outgoing(org_id, stored.id, claim.token, result, now))
            close = OUTGOING[stored.channel].close
            if close is not None and result.reason == "gone":
                keys = context.keyring.of(org_id)
                message_calls.append(close(org_id, address_digests(keys, stored), address_of(keys, stored), now))
        recorded = await self._record(org_id, progress, message_calls, now)

        span = {"request_id": claim.request_id, "entry_id": claim.entry_id, "node_id": message.pending.effect.node_id}
        process.record("deliver", started_ns, span | {"outcome": type(outcome).__name__.lower()})
        if recorded is None or recorded.run.state is not State.RUNNING:
            return None
        run = recorded.run
        # It continues at the moment of the decision, so the claim keeps its due time.
        return msgspec.structs.replace(
            claim, node_id=run.node_id, step=run.step, attempt=run.attempt, since=run.since, since_id=run.since_id
        )

    async def _record(
        self, org_id: int, progress: EntryProgress, message_calls: Sequence[Call[None]], at: datetime
    ) -> EntryProgress | None:
        """Write the outcome of an attempt; return the progress as written, or None if the lease was lost."""
        context = self._context
        while True:
            try:
                async with context.database.transaction() as tx:
                    recorded = await record_delivery(tx, org_id, progress, message_calls, at)
            except (DatabaseUnavailableError, TransactionConflictError):
                # The message may have left: give up only once another engine can have claimed the entry.
                if not context.claims.is_valid(org_id, progress.claim):
                    raise
                await asyncio.sleep(DATABASE_RETRY_S)
                continue
            if recorded is None:
                context.counts.add_lost(org_id, 1)
            else:
                context.counts.add(org_id, [recorded])
            return recorded


async def attempt(
    context: DeliveryContext, org_id: int, message: OutgoingMessage, may_leave: MayLeave
) -> DeliveryOutcome:
    """Send a message once, if it should be sent and `may_leave` still allows it when its turn comes."""
    stored = message.stored
    if stored is None:
        return NotSent("already_sent")
    if stored.opted_out:
        return NotSent("skipped", "opted_out")
    if stored.declined:
        return NotSent("skipped", "declined_topic")
    if message.closed:
        return OUTGOING[stored.channel].closed
    keyring = context.keyring
    texts = (address_of(keyring.of(org_id), stored), stored.subject or "", stored.body, stored.html)
    content = (org_id, stored.id, stored.created_at, *texts)
    delivery = Delivery(
        *content,
        secrets=message.secrets,
        track_clicks=stored.track_clicks,
        contact_id=stored.contact_id,
        topic=stored.topic,
    )
    return await context.transports.send(stored.channel, context.database, keyring, delivery, context.clock, may_leave)


def judge(
    message: OutgoingMessage, graph: Graph, outcome: DeliveryOutcome, now: datetime
) -> tuple[Decision, AttemptResult | None]:
    """Return the decision on the entry, and the result for its message (None: the message does not change)."""
    run, decision = message.progress.run, message.pending.decision
    match outcome:
        case Sent():
            return decision, AttemptResult("sent", "sent")
        case NotSent("already_sent"):
            return _with_outcome(decision, "already_sent"), None
        case NotSent(_, cause):
            detail = {"cause": cause} | ({"topic": message.pending.topic} if cause == "declined_topic" else {})
            return _with_outcome(decision, "skipped", detail), AttemptResult("skipped", "skipped", cause)
        case Retry("busy", after_seconds):
            # Nothing was sent, so this does not count as an attempt.
            delay = BUSY_DELAY if after_seconds is None else timedelta(seconds=after_seconds)
            error, due_at = f"busy: {DELIVERY_ERRORS['busy']}", now + delay
            retrying = run.to(State.RETRYING, attempt=run.attempt - 1, due_at=due_at, error=error, since=None)
            return Decision(retrying), AttemptResult("queued", None)
        case Retry() | Failed() | Unknown():
            error = DELIVERY_ERRORS[outcome.reason]
            if outcome.detail:
                error = f"{error} ({outcome.detail})"
            after_s = (outcome.after_seconds or 0) if isinstance(outcome, Retry) else 0
            permanent = isinstance(outcome, Failed)
            failure = Failure(outcome.reason, error, permanent=permanent, retry_after=timedelta(seconds=after_s))
            instead = decide_failure(graph, run, failure, message.pending.facts, now)
            if isinstance(outcome, Unknown):
                return instead, AttemptResult("unknown", "unknown", outcome.reason)
            if instead.run.state is State.RETRYING:
                return instead, AttemptResult("queued", "retrying", outcome.reason)
            return instead, AttemptResult("failed", "failed", outcome.reason)


def _with_outcome(decision: Decision, outcome: str, detail: dict[str, Any] | None = None) -> Decision:
    """Return the decision with another outcome of its step: the decision was made as if the message had been sent."""
    assert decision.step is not None, "a message is sent by a step"
    step = msgspec.structs.replace(decision.step, outcome=outcome, detail=detail or decision.step.detail)
    return msgspec.structs.replace(decision, step=step)
