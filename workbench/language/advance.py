"""The interpreter: `advance(graph, run, facts, now) -> Decision`, one node at a time.

It decides and performs nothing. The engine performs the effects and records the run; a simulation only lists them.
Both call this function, so the notebook predicts exactly what the engine does. `nodes` has the behaviour of each kind
of node; this module has the rules for every node: the reasons to stop an entry before its node is run, and the facts
that a run can read.
"""

from datetime import datetime, time, timedelta
from functools import lru_cache

import msgspec

from workbench.language.actions import Delay, SendEmail, SendInapp, SendWebhook, WaitForEvent
from workbench.language.decision import (
    Decision,
    Failure,
    StepContext,
    end_entry,
    fail,
    fail_permanently,
    record_step,
)
from workbench.language.facts import Facts, event_reference
from workbench.language.filter import matches
from workbench.language.graph import Graph, Node
from workbench.language.nodes import HANDLERS, HOLDOUT_NODE_ID, Need, bucket, run_node
from workbench.language.run import DEFAULT_POLICY, JITTER, RetryPolicy, Run, State

LOOP_WINDOW = timedelta(minutes=1)
LOOP_LIMIT = 100  # entries of one contact in one automation within the window

ATTRIBUTION_TAIL = timedelta(days=7)
MAX_CLOCK_SETBACK = timedelta(hours=7)  # the largest step back of any zone's clocks since 1970


class RequiredFacts(msgspec.Struct, frozen=True):
    """The facts, in addition to event and contact, that the next decisions on a run can read.

    `entries`: ContactHistory.entered_at and running. `recent`: ContactHistory.recent. `messages`:
    ContactHistory.messages_at, for this period. `later_events`: Facts.later_events with these names, which also wake
    the run while it waits. `since`: only later events after this time are needed; None: all since the event that
    started the entry. `unsubscribed`: ContactState.opted_out must include addresses that unsubscribed.
    """

    entries: bool = False
    recent: bool = False
    messages: timedelta | None = None
    later_events: frozenset[str] = frozenset()
    since: datetime | None = None
    unsubscribed: bool = False


def advance(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Decision:
    """Take a running entry one node further. `graph` None: no version is published.

    External effects are assumed to succeed; if one fails, `effect_failed` returns the decision that replaces this one.
    """
    if facts.cancelled is not None:
        return Decision(run.to(State.CANCELLED, outcome=facts.cancelled))
    if facts.paused:
        # The claim counted an attempt; a pause must not use it up.
        return Decision(run.to(State.PAUSED, attempt=max(run.attempt - 1, 0)))
    if graph is None:
        return Decision(run.to(State.COMPLETED, outcome="no_published_version"))
    node = _current_node(graph, run)
    if node is None:
        error = f"node_missing: {run.node_id!r} is not in the graph"
        return Decision(run.to(State.DEAD, outcome="node_missing", error=error))
    ctx = StepContext(graph, node, run, facts, now, HANDLERS[type(node.action)].channel)
    if run.node_id is None and (refusal := _refuse_admission(ctx)) is not None:
        return refusal
    # A worker that dies during an attempt leaves no outcome, so the attempts are also counted here.
    if run.attempt > 1 and run.attempt > facts.retries.max_attempts(ctx.channel):
        return fail_permanently(ctx, "attempts_exhausted", "every attempt ended without an outcome")
    if run.step >= len(graph.nodes):  # only a draft can have a loop; publishing refuses one
        return fail_permanently(ctx, "loop", "the graph leads back to a node that was visited before")
    # A goal that was reached ends the entry before its node is run, however late the engine is (docs/decisions/0018).
    goal = graph.settings.goal
    if goal is not None:
        for event in facts.later_events:
            if event.event == goal.event and matches(goal.filters, facts.context_of(event)):
                step = record_step(ctx, "goal", detail=event_reference(event))
                return end_entry(ctx, State.EXITED, "goal", step, steps=0)
    return run_node(ctx)


def effect_failed(graph: Graph, run: Run, failure: Failure, facts: Facts, now: datetime) -> Decision:
    """Return the decision after the external effect of the last decision on `run` failed; it replaces that decision."""
    node = _current_node(graph, run)
    assert node is not None, "the last decision was made at this node"
    return fail(StepContext(graph, node, run, facts, now, HANDLERS[type(node.action)].channel), failure)


def required_facts(graph: Graph | None, run: Run) -> RequiredFacts:
    """Return the facts that the decisions from here to the next wait can read, so that the others are not loaded."""
    if graph is None:
        return RequiredFacts()
    settings, is_new = graph.settings, run.node_id is None
    # Needs are those of the whole graph, not of the current node: one claim can run several nodes.
    needs, node = _needs(graph.actions), _current_node(graph, run)
    events = set() if settings.goal is None else {settings.goal.event}
    awaits = None if node is None else HANDLERS[type(node.action)].awaits
    if node is not None and awaits is not None:
        events.add(awaits(node.action))
    return RequiredFacts(
        entries=is_new and settings.reentry.policy != "always",
        recent=is_new and Need.ENTRIES in needs,
        messages=settings.frequency_cap.period if settings.frequency_cap and Need.MESSAGES in needs else None,
        later_events=frozenset(events),
        # A wait ignores events before it began; a goal may have been reached before.
        since=None if settings.goal is not None else run.since,
        unsubscribed=SendEmail in graph.actions,
    )


def attribution_window(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return how long after an entry the contact's actions count as its effect: its longest duration and seven days."""
    return max_duration(graph, retries) + ATTRIBUTION_TAIL


def max_duration(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return the longest total wait on any path through the graph: delays, waits, quiet hours, scheduled retries.

    A loop, which only drafts have, counts once. Waits that the graph does not determine are not included: a pause, an
    engine that is behind, a longer delay that a receiver asks for, a contact that changes its time zone.
    """
    if graph.start is None:
        return timedelta()
    targets: dict[str, list[str]] = {}
    for edge in graph.edges:
        targets.setdefault(edge.source, []).append(edge.target)
    longest: dict[str, timedelta] = {}
    # A depth-first search with its own stack: a path has up to 1,000 nodes, which is Python's recursion limit.
    visited = {graph.start.id}
    stack = [(graph.start.id, iter(targets.get(graph.start.id, ())))]
    while stack:
        node_id, rest = stack[-1]
        target = next((target for target in rest if target in graph.by_id and target not in visited), None)
        if target is not None:
            visited.add(target)
            stack.append((target, iter(targets.get(target, ()))))
            continue
        stack.pop()
        after = max((longest.get(target, timedelta()) for target in targets.get(node_id, ())), default=timedelta())
        longest[node_id] = after + _max_wait(graph, node_id, retries)
    return longest[graph.start.id]


def _current_node(graph: Graph, run: Run) -> Node | None:
    return graph.start if run.node_id is None else graph.by_id.get(run.node_id)


@lru_cache(maxsize=1_024)
def _needs(actions: frozenset[type]) -> Need:
    needs = Need.NOTHING
    for action in actions:
        needs |= HANDLERS[action].needs
    return needs


def _refuse_admission(ctx: StepContext) -> Decision | None:
    """Return the outcome of an entry that is not admitted (loop guard, reentry or holdout); None if it is admitted.

    These are entries too, because the contract promises one per event and active automation (docs/decisions/0017).
    """
    history, settings = ctx.facts.history, ctx.graph.settings
    # Only a webhook can make a backend send the event that starts the automation again.
    if history.recent >= LOOP_LIMIT and Need.ENTRIES in _needs(ctx.graph.actions):
        step = record_step(ctx, "refused", detail={"cause": "loop_guard", "entries": history.recent})
        return end_entry(ctx, State.CANCELLED, "loop_guard", step, steps=0)
    admitted, entered_at = True, history.entered_at
    match settings.reentry.policy:
        case "always":
            pass
        case "once":
            admitted = entered_at is None
        case "once_per":
            admitted = entered_at is None or entered_at <= ctx.now - timedelta(days=settings.reentry.days)
        case "not_while_running":
            admitted = not history.running
    if not admitted:
        # `steps=0`: an entry without a step does not count for reentry.
        step = record_step(ctx, "refused", detail={"cause": settings.reentry.policy})
        return end_entry(ctx, State.CANCELLED, "reentry", step, steps=0)
    # Decided after reentry (docs/decisions/0037). Unlike a refused entry, a held-out one has a step and counts for it.
    number = bucket(ctx.run.automation_id, HOLDOUT_NODE_ID, ctx.facts.contact.id) if settings.holdout else 100
    if number < settings.holdout:
        return end_entry(ctx, State.COMPLETED, "holdout", record_step(ctx, "held_out", detail={"share": number}))
    return None


def _max_wait(graph: Graph, node_id: str, retries: RetryPolicy) -> timedelta:
    action = graph.by_id[node_id].action
    match action:
        case Delay(wait=wait):
            return wait
        case WaitForEvent(timeout=timeout):
            return timeout
        case SendInapp() | SendEmail() | SendWebhook():
            channel = HANDLERS[type(action)].channel
            between_attempts = timedelta(seconds=sum(retries.delays(channel)) * (1 + JITTER))
            hours = graph.settings.quiet_hours
            if hours is None or isinstance(action, SendWebhook):
                return between_attempts
            quiet = (_since_midnight(hours.end) - _since_midnight(hours.start)) % timedelta(days=1) + MAX_CLOCK_SETBACK
            return between_attempts + retries.max_attempts(channel) * quiet  # each attempt can fall into quiet hours
        case _:
            return timedelta()


def _since_midnight(clock: time) -> timedelta:
    return timedelta(hours=clock.hour, minutes=clock.minute)
