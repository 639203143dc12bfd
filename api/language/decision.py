"""What a step decides, and the five ways it can end: go on, wait, fail for now, fail for good, end the entry."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from api.language.action import Way
from api.language.effect import Effect
from api.language.facts import Facts
from api.language.graph import Graph, Node
from api.language.retry import Channel, delay_after
from api.language.run import Run, State, Step

MOST_ASKED_FOR = timedelta(days=1)


class Here(msgspec.Struct, frozen=True):
    """One run at one node: everything that its move may look at. `channel` has the node's schedule of retries."""

    graph: Graph
    node: Node
    run: Run
    facts: Facts
    now: datetime
    channel: Channel


class Decision(msgspec.Struct, frozen=True):
    """What happened at the node, what is to be done about it, and where the run stands then."""

    run: Run
    step: Step | None = None
    effects: tuple[Effect, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """Why an effect outside did not happen.

    `for_good`: no later try can help. `not_before`: how long the receiver asked to be left alone, honoured up to a day.
    """

    cause: str
    why: str
    for_good: bool = False
    not_before: timedelta = timedelta()


def told(here: Here, outcome: str, handle: Way = None, detail: dict[str, Any] | None = None) -> Step:
    """Return the record of what happened here."""
    return Step(here.node.id, here.node.kind, here.now, outcome, here.run.attempt, handle, detail or {})


def go_on(here: Here, step: Step, *effects: Effect) -> Decision:
    """Follow the edge of the step's handle; where there is none, the entry has come to its end."""
    run, node = here.run, here.node
    following = here.graph.following.get((node.id, step.handle))
    if following is not None:
        return Decision(run.at(following), step, effects)
    ended = run.to(State.COMPLETED, outcome="completed", node_id=node.id, step=run.step + 1, error=None, since=None)
    return Decision(ended, step, effects)


def wait(here: Here, until: datetime, cause: str) -> Decision:
    """Stay at this node until a moment. The wait is told once, when it begins; it does not use up an attempt."""
    run = here.run
    waiting = run.to(
        State.WAITING,
        node_id=here.node.id,
        attempt=max(run.attempt - 1, 0),
        due_at=until,
        since=run.since or here.now,
    )
    if run.since is not None:
        return Decision(waiting)
    return Decision(waiting, told(here, "waiting", detail={"cause": cause, "until": written(until)}))


def fail(here: Here, failure: Failure) -> Decision:
    """Try the node again by its channel's schedule; when no try is left, or none can help, the entry is dead."""
    run = here.run
    delay = delay_after(here.facts.retries.delays(here.channel), run.attempt, run.entry_id)
    if failure.for_good or delay is None:
        return die(here, failure.cause, failure.why)
    due_at = here.now + max(delay, min(failure.not_before, MOST_ASKED_FOR))
    error = f"{failure.cause}: {failure.why}"
    retrying = run.to(State.RETRYING, node_id=here.node.id, error=error, due_at=due_at, since=None)
    return Decision(retrying, _failed(here, failure.cause, failure.why))


def die(here: Here, cause: str, why: str) -> Decision:
    """End the entry as one that failed for good; it can be replayed from this node."""
    dead = here.run.to(State.DEAD, outcome=cause, node_id=here.node.id, error=f"{cause}: {why}", since=None)
    return Decision(dead, _failed(here, cause, why))


def end(here: Here, state: State, outcome: str, step: Step, *, steps: int = 1) -> Decision:
    """End the entry for a reason of its own; `steps`: how many it has taken with this one."""
    run = here.run
    ended = run.to(state, outcome=outcome, node_id=here.node.id, step=run.step + steps, error=None, since=None)
    return Decision(ended, step)


def written(moment: datetime) -> str:
    """Return a moment as JSON has it: `2026-11-23T08:00:00Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _failed(here: Here, cause: str, why: str) -> Step:
    return told(here, "failed", detail={"cause": cause, "error": why})
