"""The interpreter: `advance(graph, run, facts, now) -> Decision`, one node at a time.

It decides and performs nothing. The engine performs the effects and records the run; a simulation only lists them.
Because both call this function, what the notebook predicts is what the engine does. The behaviour of each kind of node
is in `nodes`; this module has what holds at every node: the reasons to stop an entry before its node is run, and which
facts a run can read.

`max_duration` bounds how long an entry takes by itself: delays, waits for events, quiet hours, and retries by schedule.
It does not include what cannot be known beforehand: a pause, an engine that is behind, a receiver that asks for a
longer delay, or a contact that changes its time zone during its quiet hours.
"""

from collections.abc import Iterator
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
from workbench.language.facts import Facts, apply_effects, event_reference
from workbench.language.filter import matches
from workbench.language.graph import Graph, Node
from workbench.language.nodes import HANDLERS, HOLDOUT_NODE_ID, Need, bucket, run_node
from workbench.language.run import DEFAULT_POLICY, JITTER, RetryPolicy, Run, State

LOOP_WINDOW = timedelta(minutes=1)
LOOP_LIMIT = 100  # entries of one contact in one automation within the window; only for automations that can cause them

ATTRIBUTION_TAIL = timedelta(days=7)
MAX_CLOCK_SETBACK = timedelta(hours=7)  # the largest step back of any zone's clocks since 1970


class RequiredFacts(msgspec.Struct, frozen=True):
    """The facts, besides event and contact, that the next decisions on a run can read. The others need not be loaded.

    `entries`: ContactHistory.entered_at and running. `recent`: ContactHistory.recent. `messages`:
    ContactHistory.messages_at, for this period. `later_events`: Facts.later_events with these names; while the run
    waits, they wake it early.
    `since`: only later events after this time are needed; None: all since the event that started the entry.
    `unsubscribed`: ContactState.opted_out must include addresses that unsubscribed.
    """

    entries: bool = False
    recent: bool = False
    messages: timedelta | None = None
    later_events: frozenset[str] = frozenset()
    since: datetime | None = None
    unsubscribed: bool = False


def advance(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Decision:
    """Take a running entry one node further. `graph` None: no version is published."""
    if facts.cancelled is not None:
        return Decision(run.to(State.CANCELLED, outcome=facts.cancelled))
    if facts.paused:
        return Decision(run.to(State.PAUSED, attempt=max(run.attempt - 1, 0)))
    if graph is None:
        return Decision(run.to(State.COMPLETED, outcome="no_published_version"))
    node = _current_node(graph, run)
    if node is None:
        error = f"node_missing: {run.node_id!r} is not in the graph"
        return Decision(run.to(State.DEAD, outcome="node_missing", error=error))
    ctx = StepContext(graph, node, run, facts, now, HANDLERS[type(node.action)].channel)
    if run.node_id is None:
        refused = _refuse(ctx) or _hold_out(ctx)
        if refused is not None:
            return refused
    if run.attempt > 1 and run.attempt > facts.retries.max_attempts(ctx.channel):
        return fail_permanently(ctx, "attempts_exhausted", "every attempt ended without an outcome")
    if run.step >= len(graph.nodes):  # only a draft can have a loop; publishing refuses one
        return fail_permanently(ctx, "loop", "the graph leads back to a node that was visited before")
    goal = graph.settings.goal
    if goal is not None:
        for event in facts.later_events:
            if event.event == goal.event and matches(goal.filters, facts.context_of(event)):
                step = record_step(ctx, "goal", detail=event_reference(event))
                return end_entry(ctx, State.EXITED, "goal", step, steps=0)
    return run_node(ctx)


def walk(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Iterator[Decision]:
    """Yield decisions until the entry waits or ends, each based on the effects of those before.

    A caller that performs external effects does so before it asks for the next decision; see `effect_failed`.
    """
    while run.state is State.RUNNING:
        decision = advance(graph, run, facts, now)
        yield decision
        run, facts = decision.run, apply_effects(facts, decision.effects, now)


def effect_failed(graph: Graph, run: Run, failure: Failure, facts: Facts, now: datetime) -> Decision:
    """Return the decision after the external effect of the last decision on `run` failed; it replaces that decision."""
    node = _current_node(graph, run)
    assert node is not None, "the last decision was made at this node"
    return fail(StepContext(graph, node, run, facts, now, HANDLERS[type(node.action)].channel), failure)


def required_facts(graph: Graph | None, run: Run) -> RequiredFacts:
    """Return the facts, besides event and contact, that the decisions from here to the next wait can read."""
    if graph is None:
        return RequiredFacts()
    settings, is_new = graph.settings, run.node_id is None
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
        since=None if settings.goal is not None else run.since,
        unsubscribed=SendEmail in graph.actions,
    )


def attribution_window(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return how long after an entry the contact's actions count as its effect: its longest duration and seven days."""
    return max_duration(graph, retries) + ATTRIBUTION_TAIL


def max_duration(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return the longest total wait on any path through the graph. A loop, which only drafts have, counts once."""
    if graph.start is None:
        return timedelta()
    targets: dict[str, list[str]] = {}
    for edge in graph.edges:
        targets.setdefault(edge.source, []).append(edge.target)
    longest: dict[str, timedelta] = {}
    for node_id in _leaves_first(graph, graph.start.id, targets):
        rest = max((longest.get(target, timedelta()) for target in targets.get(node_id, ())), default=timedelta())
        longest[node_id] = rest + _max_wait(graph, node_id, retries)
    return longest[graph.start.id]


def _current_node(graph: Graph, run: Run) -> Node | None:
    return graph.start if run.node_id is None else graph.by_id.get(run.node_id)


@lru_cache(maxsize=1_024)
def _needs(actions: frozenset[type]) -> Need:
    needs = Need.NOTHING
    for action in actions:
        needs |= HANDLERS[action].needs
    return needs


def _refuse(ctx: StepContext) -> Decision | None:
    """Return how an entry ends that is not admitted. It has taken no step then, so it does not count for reentry."""
    history, reentry = ctx.facts.history, ctx.graph.settings.reentry
    if history.recent >= LOOP_LIMIT and Need.ENTRIES in _needs(ctx.graph.actions):
        step = record_step(ctx, "refused", detail={"cause": "loop_guard", "entries": history.recent})
        return end_entry(ctx, State.CANCELLED, "loop_guard", step, steps=0)
    entered_at = history.entered_at
    match reentry.policy:
        case "always":
            return None
        case "once" if entered_at is None:
            return None
        case "once_per" if entered_at is None or entered_at <= ctx.now - timedelta(days=reentry.days):
            return None
        case "not_while_running" if not history.running:
            return None
        case "once" | "once_per" | "not_while_running":
            step = record_step(ctx, "refused", detail={"cause": reentry.policy})
            return end_entry(ctx, State.CANCELLED, "reentry", step, steps=0)


def _hold_out(ctx: StepContext) -> Decision | None:
    """Return how the entry of a contact in the holdout ends. Unlike a refused one, it counts for reentry."""
    percent = ctx.graph.settings.holdout
    if not percent:
        return None
    number = bucket(ctx.run.automation_id, HOLDOUT_NODE_ID, ctx.facts.contact.id)
    if number >= percent:
        return None
    return end_entry(ctx, State.COMPLETED, "holdout", record_step(ctx, "held_out", detail={"share": number}))


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


def _leaves_first(graph: Graph, start: str, targets: dict[str, list[str]]) -> list[str]:
    """Return the nodes that can be reached from `start`, each after all its targets. Not recursive: a path has up to
    1,000 nodes.
    """
    order, visited = [], {start}
    stack = [(start, iter(targets.get(start, ())))]
    while stack:
        node_id, rest = stack[-1]
        target = next((target for target in rest if target in graph.by_id and target not in visited), None)
        if target is None:
            order.append(node_id)
            stack.pop()
        else:
            visited.add(target)
            stack.append((target, iter(targets.get(target, ()))))
    return order
