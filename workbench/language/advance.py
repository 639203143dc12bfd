"""The interpreter: `advance(graph, run, facts, now) -> Decision`, one node at a time.

It decides and performs nothing. The engine performs the effects and records the run; a simulation only lists them.
Both call this function, so the notebook predicts exactly what the engine does. `nodes` has the behaviour of each kind
of node; this module has the rules for every node: the reasons to stop an entry before its node is run, and the facts
that a run can read.
"""

from collections.abc import Iterator
from datetime import datetime, time, timedelta
from functools import lru_cache

import msgspec

from workbench.language.actions import Action, longest_wait
from workbench.language.channel import DEFAULT_POLICY, RetryPolicy
from workbench.language.decision import Decision, Failure, StepContext, end_entry, fail, fail_permanently, record_step
from workbench.language.facts import Facts, apply_effects, event_reference
from workbench.language.graph import Graph, Node, search_depth_first, targets_by_source
from workbench.language.local_time import MAX_CLOCK_SETBACK
from workbench.language.nodes import HOLDOUT_NODE_ID, bucket, join_entry, run_node
from workbench.language.run import JITTER, Run, State

LOOP_WINDOW = timedelta(minutes=1)
LOOP_LIMIT = 100  # entries of one contact in one automation within the window

ATTRIBUTION_TAIL = timedelta(days=7)


class RequiredFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts, in addition to event and contact, that the next decisions on a run can read.

    `entries`: ContactHistory.entered_at and running. `recent`: ContactHistory.recent. `messages`:
    ContactHistory.messages_at, for this period. `later_events`: Facts.later_events with these names, which also wake
    the run while it waits. `since`, `since_id`: only later events after them (`LaterEvent.follows`) are needed; None:
    all since the event that started the entry. `attributes`: those of the contact that can move the end of a wait when
    they change, which wakes the run. `collecting`: ContactHistory.collecting. `joined`: Facts.joined; that of a new
    entry is empty. `unsubscribed`: ContactState.opted_out must include addresses that unsubscribed.
    `topics`: those of which ContactState.declined must have the declined ones.
    """

    entries: bool = False
    recent: bool = False
    messages: timedelta | None = None
    later_events: frozenset[str] = frozenset()
    since: datetime | None = None
    since_id: str | None = None
    attributes: frozenset[str] = frozenset()
    collecting: bool = False
    joined: bool = False
    unsubscribed: bool = False
    topics: frozenset[str] = frozenset()


def advance(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Decision:
    """Take a running entry one node further. `graph` None: no version is published.

    External effects are assumed to succeed; if one fails, `decide_failure` replaces this decision.
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
    ctx = StepContext(graph, node, run, facts, now)
    if run.node_id is None:
        # First of all: an event that joins an entry does not count for the rules on new entries (docs/decisions/0068).
        refusal = join_entry(ctx) or _refuse_admission(ctx)
        if refusal is not None:
            return refusal
    # A worker that dies during an attempt leaves no outcome, so the attempts are also counted here.
    if run.attempt > 1 and run.attempt > facts.retries.max_attempts(node.action.channel):
        return fail_permanently(ctx, "attempts_exhausted", "every attempt ended without an outcome")
    if run.step >= len(graph.nodes):  # only a draft can have a loop; publishing refuses one
        return fail_permanently(ctx, "loop", "the graph leads back to a node that was visited before")
    # A goal that was reached ends the entry before its node is run, however late the engine is (docs/decisions/0018).
    goal = graph.settings.goal
    if goal is not None:
        for event in facts.later_events:
            if event.event == goal.event and goal.accepts(facts.context_of(event), event.at):
                step = record_step(ctx, "goal", detail=event_reference(event))
                return end_entry(ctx, State.EXITED, "goal", step, steps=0)
    return run_node(ctx)


def walk(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Iterator[tuple[Decision, Facts]]:
    """Yield the decisions on a claimed run until it waits or ends, each with the facts after its effects."""
    while run.state is State.RUNNING:
        decision = advance(graph, run, facts, now)
        run, facts = decision.run, apply_effects(facts, decision.effects, now) if decision.effects else facts
        yield decision, facts


def decide_failure(graph: Graph, run: Run, failure: Failure, facts: Facts, now: datetime) -> Decision:
    """Return the decision that replaces the last one on `run`, because its external effect failed."""
    node = _current_node(graph, run)
    assert node is not None, "the last decision was made at this node"
    return fail(StepContext(graph, node, run, facts, now), failure)


def required_facts(graph: Graph | None, run: Run) -> RequiredFacts:
    """Return the facts that the decisions from here to the next wait can read, so that the others are not loaded."""
    if graph is None:
        return RequiredFacts()
    settings, is_new = graph.settings, run.node_id is None
    # Those of the whole graph, not of the current node: one claim can run several nodes.
    to_contacts, to_systems, to_subscribers = _receivers(graph.actions)
    node = _current_node(graph, run)
    events = set() if settings.goal is None else {settings.goal.event}
    if node is not None and node.id in graph.waits:
        events.add(graph.waits[node.id])
    return RequiredFacts(
        entries=is_new and settings.reentry.policy != "always",
        recent=is_new and to_systems,
        messages=settings.frequency_cap.period if settings.frequency_cap and to_contacts else None,
        later_events=frozenset(events),
        # A wait ignores events before it began; a goal may have been reached before.
        since=None if settings.goal is not None else run.since,
        since_id=None if settings.goal is not None or run.since is None else run.since_id,
        attributes=graph.followed_attributes,
        collecting=graph.collects,
        joined=graph.collects and not is_new,
        unsubscribed=to_subscribers,
        topics=graph.topics,
    )


def attribution_window(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return how long after an entry the contact's actions count as its effect: its longest duration and seven days."""
    return max_duration(graph, retries) + ATTRIBUTION_TAIL


def max_duration(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return the longest total wait on any path through the graph: delays, waits, quiet hours, scheduled retries.

    A loop, which only drafts have, counts once. Waits that the graph does not determine are not included: a pause, a
    late engine, a longer delay that a receiver asks for, a change of the contact's time zone.
    """
    if graph.start is None:
        return timedelta()
    targets = targets_by_source(link for link in graph.links if link[1] in graph.by_id)
    longest: dict[str, timedelta] = {}
    for node_id in search_depth_first([graph.start.id], targets)[0]:
        after = max((longest.get(target, timedelta()) for target in targets.get(node_id, ())), default=timedelta())
        action, hours = graph.by_id[node_id].action, graph.settings.quiet_hours
        channel, wait = action.channel, longest_wait(action)
        if channel is not None:
            wait += timedelta(seconds=sum(retries.delays(channel)) * (1 + JITTER))
            if hours is not None and channel.to_contact:
                quiet = (_since_midnight(hours.end) - _since_midnight(hours.start)) % timedelta(days=1)
                # Each attempt can fall into quiet hours.
                wait += retries.max_attempts(channel) * (quiet + MAX_CLOCK_SETBACK)
        longest[node_id] = after + wait
    return longest[graph.start.id]


def _current_node(graph: Graph, run: Run) -> Node | None:
    return graph.start if run.node_id is None else graph.by_id.get(run.node_id)


@lru_cache(maxsize=1_024)
def _receivers(actions: frozenset[type[Action]]) -> tuple[bool, bool, bool]:
    """Return whether these actions send to contacts, to systems, and to addresses that can unsubscribe."""
    channels = [action.channel for action in actions if action.channel is not None]
    to_contacts = [channel.to_contact for channel in channels]
    return any(to_contacts), not all(to_contacts), any(channel.unsubscribes for channel in channels)


def _refuse_admission(ctx: StepContext) -> Decision | None:
    """Return the outcome of an entry that is not admitted (loop guard, reentry or holdout); None if it is admitted.

    These are entries too, because the contract promises one per event and active automation (docs/decisions/0017).
    """
    history, settings = ctx.facts.history, ctx.graph.settings
    _, to_systems, _ = _receivers(ctx.graph.actions)
    if history.recent >= LOOP_LIMIT and to_systems:
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
    if settings.holdout:
        number = bucket(ctx.run.automation_id, HOLDOUT_NODE_ID, ctx.facts.contact.id)
        if number < settings.holdout:
            return end_entry(ctx, State.COMPLETED, "holdout", record_step(ctx, "held_out", detail={"share": number}))
    return None


def _since_midnight(clock: time) -> timedelta:
    return timedelta(hours=clock.hour, minutes=clock.minute)
