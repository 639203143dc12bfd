"""The interpreter: `advance(graph, run, facts, now) -> Decision`, one node at a time.

It decides and never does. The engine performs the effects and records the run; a simulation only lists them. Because
both call this, what the notebook predicts is what the engine does.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from api.language.codec import Json
from api.language.event import Identifiers, mask_email
from api.language.filter import Verdict, explain
from api.language.graph import KINDS, AddTag, Condition, Entered, Exit, Graph, Invalid, Node, SendInapp
from api.language.retry import DEFAULT_POLICY, RetryPolicy, delay_after
from api.language.run import Run, State, Step, message_id
from api.language.template import TemplateError, render
from api.language.trigger import flat_context, known_identifiers


class Contact(msgspec.Struct, frozen=True):
    """What is known of the contact when a step runs."""

    id: str
    identifiers: Identifiers = Identifiers()
    attributes: dict[str, Json] = {}
    tags: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True, dict=True):
    """Everything a decision may depend on, besides graph, run and time.

    `cancelled`: the reason why the automation no longer runs, if it does not.
    """

    event: str
    sent: Identifiers
    payload: dict[str, Json]
    contact: Contact
    cancelled: str | None = None
    retries: RetryPolicy = DEFAULT_POLICY

    @cached_property
    def context(self) -> dict[str, Any]:
        """What conditions and texts see."""
        return full_context(self)


class InappMessage(msgspec.Struct, frozen=True, rename="camel"):
    """Effect: a message stored for a wallet, pushed to its sockets."""

    id: str
    node_id: str
    wallet_address: str
    title: str
    body: str
    data: dict[str, Any] | None = None


class TagAdded(msgspec.Struct, frozen=True):
    """Effect: the contact carries the tag."""

    tag: str


Effect: TypeAlias = InappMessage | TagAdded


class Decision(msgspec.Struct, frozen=True):
    """What happened at the node, what is to be done about it, and where the run stands then."""

    run: Run
    step: Step | None = None
    effects: tuple[Effect, ...] = ()


def advance(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Decision:
    """Take a running entry one node further. `graph` None: nothing is published."""
    if facts.cancelled is not None:
        return Decision(run.to(State.CANCELLED, outcome=facts.cancelled))
    if graph is None:
        return Decision(run.to(State.COMPLETED, outcome="no_published_version"))
    node = graph.start if run.node_id is None else graph.by_id.get(run.node_id)
    if node is None:
        gone = f"node_missing: {run.node_id!r} is not in the graph"
        return Decision(run.to(State.DEAD, outcome="node_missing", error=gone))
    if run.attempt > facts.retries.most_attempts:
        return _dead(node, run, "attempts_exhausted", "every attempt ended without an outcome", now)
    if run.step >= len(graph.nodes):  # more steps than nodes: a draft may hold a loop, a published graph never does
        return _dead(node, run, "loop", "the graph leads back to a node that was visited before", now)
    return _at_node(graph, node, run, facts, now)


def walk(graph: Graph | None, run: Run, facts: Facts, now: datetime) -> Iterator[Decision]:
    """Yield decisions until the entry waits or ends, each seeing the effects of those before."""
    while run.state is State.RUNNING:
        decision = advance(graph, run, facts, now)
        yield decision
        run, facts = decision.run, after(facts, decision.effects)


def after(facts: Facts, effects: tuple[Effect, ...]) -> Facts:
    """Return the facts as the effects leave them: the same object when nothing that is seen has changed."""
    for effect in effects:
        match effect:
            case TagAdded(tag=tag) if tag not in facts.contact.tags:
                contact = msgspec.structs.replace(facts.contact, tags=(*facts.contact.tags, tag))
                facts = msgspec.structs.replace(facts, contact=contact)
            case _:
                continue
    return facts


def wallet_of(facts: Facts) -> str | None:
    """Return the wallet a message goes to: the event's own, otherwise the contact's (contract §4.7.5)."""
    return facts.sent.wallet or facts.contact.identifiers.wallet


def identifiers_of(sent: Identifiers, contact: Identifiers) -> Identifiers:
    """Return who an event is about as filters and texts see it: what it carried, completed from the contact."""
    return Identifiers(
        sent.wallet or contact.wallet, sent.email or contact.email, sent.external_id or contact.external_id
    )


def full_context(facts: Facts) -> dict[str, Any]:
    """Return what conditions and texts see: the flat context, plus `payload` and `contact` (always the real ones)."""
    contact = facts.contact
    who = identifiers_of(facts.sent, contact.identifiers)
    context = flat_context(facts.event, contact.id, who, facts.payload)
    context["payload"] = facts.payload
    context["contact"] = contact_context(contact)
    return context


def contact_context(contact: Contact) -> dict[str, Any]:
    """Return what is seen as `contact`: its attributes, and over them the identifiers it has, id, tags and segments."""
    return {
        **contact.attributes,
        **known_identifiers(contact.identifiers),
        "id": contact.id,
        "tags": list(contact.tags),
        "segments": list(contact.segments),
    }


def _at_node(graph: Graph, node: Node, run: Run, facts: Facts, now: datetime) -> Decision:
    match node.action:
        case SendInapp() as action:
            return _send_inapp(graph, node, action, run, facts, now)
        case AddTag(tag=tag):
            return _on(
                graph,
                node,
                run,
                Step(node.id, node.kind, now, "tagged", run.attempt, detail={"tag": tag}),
                (TagAdded(tag),),
            )
        case Condition(filters=filters):
            verdicts = explain(filters, facts.context)
            handle = "true" if all(verdict.passed for verdict in verdicts) else "false"
            detail = {"verdicts": _noted(verdicts)}
            return _on(graph, node, run, Step(node.id, node.kind, now, "branched", run.attempt, handle, detail))
        case Exit():
            step = Step(node.id, node.kind, now, "exited", run.attempt)
            return Decision(run.to(State.EXITED, outcome="exit", node_id=node.id, step=run.step + 1), step)
        case Entered():
            return _on(graph, node, run, Step(node.id, node.kind, now, "entered", run.attempt))
        case Invalid(problems=problems):
            return _invalid(graph, node, run, str(problems[0]), now)


def _invalid(graph: Graph, node: Node, run: Run, reason: str, now: datetime) -> Decision:
    """Pass a first node of a kind of its own, which stands in for a missing trigger (contract §4.7.8); else a dead end."""
    if node is graph.start and node.kind not in KINDS:
        return _on(graph, node, run, Step(node.id, node.kind, now, "entered", run.attempt))
    return _dead(node, run, "node_invalid", reason, now)


def _noted(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return verdicts as they are kept with the step: what was compared, but no clear email address."""
    return [
        {
            "path": verdict.path,
            "operator": verdict.operator,
            "value": verdict.value,
            "passed": verdict.passed,
            "present": verdict.present,
            "actual": _masked(verdict.actual) if verdict.path in _ADDRESSES else verdict.actual,
        }
        for verdict in verdicts
    ]


_ADDRESSES = ("email", "contact.email")


def _masked(address: Any) -> Any:
    return mask_email(address) if isinstance(address, str) else address


def _send_inapp(graph: Graph, node: Node, action: SendInapp, run: Run, facts: Facts, now: datetime) -> Decision:
    wallet = wallet_of(facts)
    if wallet is None:
        return _failed(
            node, run, "no_wallet", "neither the event nor the contact has a wallet", facts.retries.in_app, now
        )
    try:
        title, body = render(action.title, facts.context), render(action.body, facts.context)
    except TemplateError as error:
        return _dead(node, run, "template_error", str(error), now)
    message = InappMessage(message_id(run.entry_id, node.id), node.id, wallet, title, body, action.data)
    step = Step(node.id, node.kind, now, "sent", run.attempt, detail={"messageId": message.id})
    return _on(graph, node, run, step, (message,))


def _on(graph: Graph, node: Node, run: Run, step: Step, effects: tuple[Effect, ...] = ()) -> Decision:
    following = graph.following.get((node.id, step.handle))
    if following is not None:
        return Decision(run.at(following), step, effects)
    return Decision(run.to(State.COMPLETED, outcome="completed", node_id=node.id, step=run.step + 1), step, effects)


def _failed(node: Node, run: Run, cause: str, why: str, delays: tuple[float, ...], now: datetime) -> Decision:
    delay = delay_after(delays, run.attempt, run.entry_id)
    if delay is None:
        return _dead(node, run, cause, why, now)
    step = Step(node.id, node.kind, now, "failed", run.attempt, detail={"cause": cause, "error": why})
    return Decision(run.to(State.RETRYING, node_id=node.id, error=f"{cause}: {why}", due_at=now + delay), step)


def _dead(node: Node, run: Run, cause: str, why: str, now: datetime) -> Decision:
    step = Step(node.id, node.kind, now, "failed", run.attempt, detail={"cause": cause, "error": why})
    return Decision(run.to(State.DEAD, outcome=cause, node_id=node.id, error=f"{cause}: {why}"), step)
