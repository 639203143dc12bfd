"""The interpreter: `advance(graph, run, facts, now) -> Decision`, one node at a time.

It decides and never does. The engine performs the effects and records the run; a simulation only lists them. Because
both call this, what the notebook predicts is what the engine does. What each kind of node does is in the table of `moves`;
here is what holds at every node: who is stopped before it, and which facts a run can look at.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec

from api.language.action import SendEmail
from api.language.decision import Decision, Failure, Here, die, end, fail, told
from api.language.facts import Facts, Past, after, named
from api.language.filter import matches
from api.language.graph import Graph, Node
from api.language.moves import TABLE, Need, decide
from api.language.run import Run, State
from api.language.settings import Reentry
from api.language.split import HOLDOUT, share

LOOP_WINDOW = timedelta(minutes=1)
LOOP_LIMIT = 100  # entries of one contact in one automation within that window; only where they can cause each other


class Needs(msgspec.Struct, frozen=True):
    """Which facts, beside event and contact, the next decisions on a run can look at. The others need not be read.

    `entries`: Past.entered_at and Past.running. `recent`: Past.recent. `messages`: Past.messages_at, this far back.
    `arrivals`: Facts.arrivals of these names: while the run waits, they are what wakes it before its time.
    `since`: only arrivals after this moment count; None: all after the event that started the entry.
    `unsubscribed`: Contact.opted_out has to tell of addresses that unsubscribed, too.
    """

    entries: bool = False
    recent: bool = False
    messages: timedelta | None = None
    arrivals: frozenset[str] = frozenset()
    since: datetime | None = None
    unsubscribed: bool = False


def advance(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Decision:
    """Take a running entry one node further. `graph` None: nothing is published."""
    if facts.cancelled is not None:
        return Decision(run.to(State.CANCELLED, outcome=facts.cancelled))
    if facts.paused:
        return Decision(run.to(State.PAUSED, attempt=max(run.attempt - 1, 0)))
    if graph is None:
        return Decision(run.to(State.COMPLETED, outcome="no_published_version"))
    node = _node_of(graph, run)
    if node is None:
        gone = f"node_missing: {run.node_id!r} is not in the graph"
        return Decision(run.to(State.DEAD, outcome="node_missing", error=gone))
    here = _here(graph, node, run, facts, now)
    return _stopped(here) or decide(here)


def walk(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Iterator[Decision]:
    """Yield decisions until the entry waits or ends, each seeing the effects of those before.

    Whoever performs effects outside does so before asking for the next decision: see `failed`.
    """
    while run.state is State.RUNNING:
        decision = advance(graph, run, facts, now)
        yield decision
        run, facts = decision.run, after(facts, decision.effects, now)


def failed(graph: Graph, run: Run, failure: Failure, facts: Facts, now: datetime) -> Decision:
    """Return what becomes of `run` when the effect outside that its last decision asked for did not happen.

    It takes the place of that decision, which is void.
    """
    node = _node_of(graph, run)
    assert node is not None, "a decision was made at this node"
    return fail(_here(graph, node, run, facts, now), failure)


def needs(graph: Graph | None, run: Run) -> Needs:
    """Return which facts, beside event and contact, a walk from here can look at."""
    if graph is None:
        return Needs()
    settings, begins = graph.settings, run.node_id is None
    wanted, node = _wanted(graph.actions), _node_of(graph, run)
    awaits = None if node is None else TABLE[type(node.action)].awaits
    awaited = {awaits(node.action)} if awaits is not None and node is not None else set()
    goal = {settings.goal.event} if settings.goal is not None else set()
    return Needs(
        entries=begins and settings.reentry.policy != "always",
        recent=begins and Need.ENTRIES in wanted,
        messages=settings.frequency_cap.period if settings.frequency_cap and Need.MESSAGES in wanted else None,
        arrivals=frozenset(awaited | goal),
        since=None if goal else run.since,
        unsubscribed=SendEmail in graph.actions,
    )


@lru_cache(maxsize=1_024)
def _wanted(actions: frozenset[type]) -> Need:
    wanted = Need.NOTHING
    for kind in actions:
        wanted |= TABLE[kind].needs
    return wanted


def _here(graph: Graph, node: Node, run: Run, facts: Facts, now: datetime) -> Here:
    return Here(graph, node, run, facts, now, TABLE[type(node.action)].channel)


def _node_of(graph: Graph, run: Run) -> Node | None:
    return graph.start if run.node_id is None else graph.by_id.get(run.node_id)


def _stopped(here: Here) -> Decision | None:
    """Return how the entry ends before its node is reached, if it does."""
    graph, run, facts = here.graph, here.run, here.facts
    if run.node_id is None and (turned_away := _refused(here) or _held_out(here)) is not None:
        return turned_away
    if run.attempt > 1 and run.attempt > facts.retries.most_attempts(here.channel):
        return die(here, "attempts_exhausted", "every attempt ended without an outcome")
    if run.step >= len(graph.nodes):  # more steps than nodes: a draft may hold a loop, a published graph never does
        return die(here, "loop", "the graph leads back to a node that was visited before")
    return _at_goal(here) if graph.settings.goal is not None else None


def _refused(here: Here) -> Decision | None:
    """Return how an entry ends that may not begin; it has taken no step then."""
    past, reentry = here.facts.past, here.graph.settings.reentry
    if past.recent >= LOOP_LIMIT and Need.ENTRIES in _wanted(here.graph.actions):
        step = told(here, "refused", detail={"cause": "loop_guard", "entries": past.recent})
        return end(here, State.CANCELLED, "loop_guard", step, steps=0)
    if not _is_once_too_often(reentry, past, here.now):
        return None
    step = told(here, "refused", detail={"cause": reentry.policy})
    return end(here, State.CANCELLED, "reentry", step, steps=0)


def _held_out(here: Here) -> Decision | None:
    """Return how the entry of a contact ends that is compared with the others. It counts as one that was let in."""
    percent, run = here.graph.settings.holdout, here.run
    if not percent:
        return None
    number = share(run.automation_id, HOLDOUT, here.facts.contact.id)
    if number >= percent:
        return None
    return end(here, State.COMPLETED, "holdout", told(here, "held_out", detail={"share": number}))


def _is_once_too_often(reentry: Reentry, past: Past, now: datetime) -> bool:
    match reentry.policy:
        case "always":
            return False
        case "once":
            return past.entered_at is not None
        case "once_per":
            return past.entered_at is not None and past.entered_at > now - timedelta(days=reentry.days)
        case "not_while_running":
            return past.running


def _at_goal(here: Here) -> Decision | None:
    goal = here.graph.settings.goal
    if goal is None:
        return None
    for arrival in here.facts.arrivals:
        if arrival.event == goal.event and matches(goal.filters, here.facts.context_of(arrival)):
            return end(here, State.EXITED, "goal", told(here, "goal", detail=named(arrival)), steps=0)
    return None
