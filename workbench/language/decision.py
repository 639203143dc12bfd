"""The result of a step, and the ways in which it can end: continue, wait, retry, fail permanently, end the entry."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from workbench.language.actions import Handle
from workbench.language.codec import utc_text
from workbench.language.facts import Facts
from workbench.language.graph import Graph, Node
from workbench.language.run import Effect, Run, State, Step, delay_after

# Texts by the reasons in api/channels/outcome.py; the engine writes them into the errors of entries.
DELIVERY_ERRORS: Mapping[str, str] = {
    "busy": "too many deliveries are waiting for this endpoint",
    "unreachable": "could not connect",
    "tls_failed": "TLS failed: the certificate is not valid, or the server does not speak TLS",
    "refused": "rejected by the receiver",
    "not_signed_in": "the mail server rejected the user name or password",
    "no_answer": "no response: the message may have arrived",
    "gone": "the address or endpoint no longer exists",
    "invalid_header": "a header contains a line break or an encoded word",
    "invalid_address": "not a valid address",
    "no_connection": "the connection does not exist any more",
    "invalid_request": "the request of the connection cannot be made from the fields of this message",
}
MAX_RETRY_AFTER = timedelta(days=1)  # a receiver must not postpone an entry without bound


class StepContext(msgspec.Struct, frozen=True, gc=False):
    """One run at one node: everything that a node handler may read."""

    graph: Graph
    node: Node
    run: Run
    facts: Facts
    now: datetime


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The run after a step, the record of the step (None: nothing to record), and the effects to perform."""

    run: Run
    step: Step | None = None
    effects: tuple[Effect, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """A failed external effect.

    `permanent`: no retry can succeed. `retry_after`: the delay that the receiver asked for.
    """

    cause: str
    reason: str
    permanent: bool = False
    retry_after: timedelta = timedelta()


def record_step(ctx: StepContext, outcome: str, handle: Handle = None, detail: dict[str, Any] | None = None) -> Step:
    """Return the record of the current node."""
    return Step(ctx.node.id, ctx.node.kind, ctx.now, outcome, ctx.run.attempt, handle, detail or {})


def follow_edge(ctx: StepContext, step: Step, *effects: Effect) -> Decision:
    """Continue along the edge of the step's handle; without such an edge the entry is completed."""
    run, node = ctx.run, ctx.node
    next_node_id = ctx.graph.next_node_ids.get((node.id, step.handle))
    if next_node_id is not None:
        return Decision(run.at(next_node_id), step, effects)
    completed = run.to(State.COMPLETED, outcome="completed", node_id=node.id, step=run.step + 1, error=None, since=None)
    return Decision(completed, step, effects)


def wait(ctx: StepContext, until: datetime, cause: str) -> Decision:
    """Stay at this node until the given time."""
    run = ctx.run
    attempt = max(run.attempt - 1, 0)  # the claim counted one, but waiting uses up no attempt
    waiting = run.to(State.WAITING, node_id=ctx.node.id, attempt=attempt, due_at=until, since=run.since or ctx.now)
    if run.since is not None:  # claimed before the wait ended: the step was recorded when the wait began
        return Decision(waiting)
    return Decision(waiting, record_step(ctx, "waiting", detail={"cause": cause, "until": utc_text(until)}))


def fail(ctx: StepContext, failure: Failure) -> Decision:
    """Retry the node on the schedule of its channel; fail permanently when no attempt is left or none can succeed."""
    run = ctx.run
    delay = delay_after(ctx.facts.retries.delays(ctx.node.action.channel), run.attempt, run.jitter_key)
    if failure.permanent or delay is None:
        return fail_permanently(ctx, failure.cause, failure.reason)
    due_at = ctx.facts.real_time(ctx.now) + max(delay, min(failure.retry_after, MAX_RETRY_AFTER))
    error = f"{failure.cause}: {failure.reason}"
    retrying = run.to(State.RETRYING, node_id=ctx.node.id, error=error, due_at=due_at, since=None, since_id=None)
    step = record_step(ctx, "failed", detail={"cause": failure.cause, "error": failure.reason})
    return Decision(retrying, step)


def fail_permanently(ctx: StepContext, cause: str, reason: str) -> Decision:
    """End the entry as dead; it can be replayed from this node."""
    dead = ctx.run.to(State.DEAD, outcome=cause, node_id=ctx.node.id, error=f"{cause}: {reason}", since=None)
    return Decision(dead, record_step(ctx, "failed", detail={"cause": cause, "error": reason}))


def end_entry(ctx: StepContext, state: State, outcome: str, step: Step, *, steps: int = 1) -> Decision:
    """End the entry with the given outcome. `steps` 0: the node was not run, so the entry's count stays."""
    run = ctx.run
    ended = run.to(state, outcome=outcome, node_id=ctx.node.id, step=run.step + steps, error=None, since=None)
    return Decision(ended, step)
