"""One node with one event: what the engine's own interpreter makes of it.

What can be asked from a canvas: choices, samples, previews, simulations, and what a publication would meet.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from workbench import environment
from workbench.canvas.document import Read, Sheet, laid_out, read, to_browser
from workbench.canvas.protocol import CanvasRecord, Drawn
from workbench.canvas.suggestions import SampleContact, Suggestions, event_of, log_samples, parameters, person, samples
from workbench.display import words
from workbench.display.run import LOOKS, explanations
from workbench.draft import Draft, JsonObject
from workbench.language.actions import InvalidAction, TriggerNode
from workbench.language.advance import advance
from workbench.language.check import events_of
from workbench.language.codec import decode
from workbench.language.contact import apply_event, merge_identifiers
from workbench.language.decision import Decision
from workbench.language.event import Event
from workbench.language.facts import Facts
from workbench.language.filter import Verdict, explain
from workbench.language.graph import Graph, Node
from workbench.language.onchain import ONCHAIN_EVENT as ONCHAIN_EVENT
from workbench.language.run import (
    ContactUpdated,
    Effect,
    EmailMessage,
    InappMessage,
    Message,
    Run,
    State,
    TagAdded,
    TagRemoved,
    WebhookMessage,
)
from workbench.language.simulate import SIMULATED_ID
from workbench.language.trigger import flat_context
from workbench.publish import AutomationRecord, Impact, unchanged
from workbench.simulate import read_sample_event

_STAND_INS = {"no_wallet": {"walletAddress": "0x…"}, "no_email": {"email": "someone@example.com"}}


class NodePreview(msgspec.Struct, frozen=True):
    """What becomes of one event at one node.

    `title`, `body`, `where`: the message, as it would be received; `html`: its body is HTML. `says`: what else happens. `asked`: the
    verdict on each filter. `error`: why it would fail; `note`: what is not quite as it would be.
    """

    title: str = ""
    body: str = ""
    where: str = ""
    html: bool = False
    says: str = ""
    asked: tuple[JsonObject, ...] = ()
    error: str = ""
    note: str = ""


def preview(
    node: Node, event: Event, who: SampleContact, now: datetime, automation_id: str = SIMULATED_ID
) -> NodePreview:
    """Return what the node does with an event of a contact, whatever came before it; by its id a split knows who goes where."""
    if isinstance(node.action, InvalidAction):
        return NodePreview(says="Fix the errors above to see a preview.")
    run = Run(SIMULATED_ID, automation_id, State.RUNNING, node.id, attempt=1)
    decision = _decided(node, run, event, who, now)
    cause = _cause(decision)
    if cause not in _STAND_INS:
        return _shown(decision)
    known = msgspec.structs.replace(who, described=who.described | _STAND_INS[cause])
    shown = _shown(_decided(node, run, event, known, now))
    return msgspec.structs.replace(shown, note=f"{words.outcome(cause)}: it would not be delivered".capitalize())


def _decided(node: Node, run: Run, event: Event, who: SampleContact, now: datetime) -> Decision:
    contact = msgspec.structs.replace(apply_event(who.contact(), event), opted_out=())
    facts = Facts(event.name, event.identifiers, decode(event.payload), contact)
    return advance(Graph((node,)), run, facts, now)


def _cause(decision: Decision) -> str:
    step = decision.step
    return str(step.detail.get("cause", "")) if step is not None and step.outcome == "failed" else ""


def _shown(decision: Decision) -> NodePreview:
    step = decision.step
    if step is not None and step.outcome == "failed":
        return NodePreview(error=str(step.detail["error"]))
    if decision.effects:
        return _done(decision.effects[0])
    if step is None:
        return NodePreview()
    noted = msgspec.convert(step.detail.get("verdicts", ()), tuple[Verdict, ...])
    return NodePreview(says=_said(step.outcome, step.handle, step.detail), asked=verdicts(noted))


def _done(effect: Effect) -> NodePreview:
    match effect:
        case InappMessage() | EmailMessage() | WebhookMessage():
            title, body, where = words.message_parts(effect)
            return NodePreview(title, body, where, isinstance(effect, EmailMessage) and effect.html)
        case ContactUpdated(attributes=attributes):
            return NodePreview(says=f"Sets {words.assignments(attributes)}.")
        case TagAdded(tag=tag):
            return NodePreview(says=f"Adds the tag {words.value(tag)}.")
        case TagRemoved(tag=tag):
            return NodePreview(says=f"Removes the tag {words.value(tag)}.")


def _said(outcome: str, handle: str | None, detail: dict[str, Any]) -> str:
    if outcome == "branched":
        return f"Continues at “{words.HANDLE_WORDS.get(handle or '', handle or '')}”."
    if outcome == "waiting":
        limit = " for the event" if detail["cause"] == "event" else ""
        return f"Waits{limit} until {words.to_minute(detail['until'])} UTC."
    return f"{words.outcome(outcome)}.".capitalize()


def verdicts(given: Iterable[Verdict]) -> tuple[JsonObject, ...]:
    """Return verdicts on filters in words: `passed`, what was `asked`, what was `found`."""
    return tuple(
        {"passed": each.passed, "asked": words.condition(each), "found": words.actual_cell(each)} for each in given
    )


class Tried(msgspec.Struct, frozen=True):
    """What a view tries: an event by name and payload (JSON that somebody wrote), and of whom (as `person` takes it)."""

    event: str
    payload: str = "{}"
    person: str = ""


class NodePreviewRequest(msgspec.Struct, frozen=True):
    """What a view asks, and the automation at that moment. `key`: of a node; `wanted`: a contact by whatever identifies it."""

    automation: Drawn
    known: Suggestions
    draft: Draft
    sheet: Sheet
    content: Mapping[str, Any]

    @property
    def place(self) -> CanvasRecord:
        """Where the automation lives."""
        place: CanvasRecord = self.automation._server
        return place

    def trial(self) -> tuple[JsonObject, SampleContact]:
        """Return the event that is tried as it would be posted, and whose it is."""
        tried = msgspec.convert(self.content["tried"], Tried)
        who = person(self.place.connection, tried.person)
        source = read(self.draft).trigger.source
        return event_of(tried.event, tried.payload, who, source), who


def _choices(asked: NodePreviewRequest) -> JsonObject:
    """Return what can be chosen while this draft is written."""
    seen, trigger = read(asked.draft), asked.sheet.trigger
    offered = asked.known.choices(events_of(seen.trigger, seen.graph))
    if trigger.get("type") == ONCHAIN_EVENT:
        offered["paths"][trigger.get("signature", "")] = parameters(asked.known, trigger, seen.trigger.source)
    return offered


def _samples(asked: NodePreviewRequest) -> list[JsonObject]:
    """Return events to try the draft with."""
    trigger = read(asked.draft).trigger
    found = (
        samples(asked.known, sorted(trigger.names))
        if trigger.source is None
        else log_samples(asked.known, trigger.source)
    )
    return [msgspec.to_builtins(each) for each in found]


def _person(asked: NodePreviewRequest) -> JsonObject:
    """Return a contact to try the draft with: id, label, and what is known of it."""
    who = person(asked.place.connection, asked.content["wanted"])
    return {"id": who.id, "label": who.label, "described": to_browser(who.described)}


def _preview(asked: NodePreviewRequest) -> Any:
    """Return what one node makes of an event."""
    seen = read(asked.draft)
    node = dict(zip(asked.sheet.nodes, seen.graph.nodes, strict=False))[asked.content["key"]]
    described, who = asked.trial()
    now = environment.now()
    event = read_sample_event(described, seen.trigger, now)
    if isinstance(node.action, TriggerNode):
        return msgspec.to_builtins(_starting(seen, event, who))
    record = asked.place.record
    return msgspec.to_builtins(preview(node, event, who, now, record.id if record else SIMULATED_ID))


def _starting(seen: Read, event: Event, who: SampleContact) -> NodePreview:
    contact = who.contact()
    identifiers = merge_identifiers(event.identifiers, contact.identifiers)
    asked = explain(seen.trigger.filters, flat_context(event.name, contact.id, identifiers, decode(event.payload)))
    starts = seen.trigger.matches_event(event.name, on_chain=event.on_chain) and all(each.passed for each in asked)
    says = "This event starts the automation." if starts else "This event does not start the automation."
    return NodePreview(says=says, asked=verdicts(asked))


def _simulate(asked: NodePreviewRequest) -> JsonObject:
    """Return what would happen, with the path by key."""
    event, who = asked.trial()
    simulation = asked.automation.simulate(event, who.described if who.hidden or not who.id else None)
    taken, keys = simulation.run_path(), asked.sheet.keys()
    verdicts_on = simulation.trace.verdicts if simulation.trace.name_matched else ()
    return {
        "headline": simulation.headline(),
        "reason": simulation.reason(),
        "note": simulation.note,
        "state": simulation.state.value if simulation.state else "not started",
        "look": LOOKS.get(simulation.state, "busy"),
        "marks": {keys[node_id]: mark for node_id, mark in taken.marks.items() if node_id in keys},
        "ways": [{"key": keys[node_id], "handle": way} for node_id, way in taken.ways if node_id in keys],
        "offsets": {keys[node_id]: words.offset(span) for node_id, span in taken.offsets.items() if node_id in keys},
        "messages": [_message(each) for each in simulation.messages],
        "whys": [
            {"title": title, "asked": verdicts(each)} for title, each in explanations(verdicts_on, simulation.steps)
        ],
        "steps": [
            {
                "key": keys.get(step.node_id),
                "node": step.node_id,
                "says": words.outcome(step.outcome),
                "detail": words.step_detail(step),
                "offset": words.offset(step.at - simulation.steps[0].at),
            }
            for step in simulation.steps
        ],
    }


def _message(sent: Message) -> JsonObject:
    title, body, where = words.message_parts(sent)
    return {"title": title, "body": body, "where": where, "html": isinstance(sent, EmailMessage) and sent.html}


def _impact(asked: NodePreviewRequest) -> JsonObject:
    """Return what publishing would change: which version it makes, and whom it meets on the way."""
    record, connection = asked.place.record, asked.place.connection
    if record is None or connection is None:
        return {"says": _FIRST, "headline": "", "columns": [], "rows": []}
    met = msgspec.convert(connection.get(f"/automations/{record.id}/impact")["impact"], Impact)
    columns, rows = met.table()
    return {
        "says": _replaced(record, same=unchanged(asked.draft, record)),
        "headline": met.headline() if met.entries else "No entries are in progress.",
        "columns": [each.title for each in columns],
        "rows": [[*row] for row in rows],
    }


_FIRST = "This publishes version 1. New events start it immediately."


def _replaced(record: AutomationRecord, *, same: bool) -> str:
    on = "" if record.active else " It is off; publishing switches it on."
    before = record.published_version
    if before is None:
        return _FIRST
    if same:
        return f"Publishing creates a new version only if the draft differs from version {before}.{on}"
    return f"Version {before + 1} replaces version {before} for new entries.{on}"


def _arrange(asked: NodePreviewRequest) -> JsonObject:
    """Return a position for every node, by key."""
    corners = laid_out(asked.draft)
    return {
        key: {"x": round(corners[node["id"]][0]), "y": round(corners[node["id"]][1])}
        for key, node in asked.sheet.nodes.items()
    }


QUESTIONS: dict[str, Callable[[NodePreviewRequest], Any]] = {
    "choices": _choices,
    "samples": _samples,
    "person": _person,
    "preview": _preview,
    "simulate": _simulate,
    "impact": _impact,
    "arrange": _arrange,
}
"""What a view can ask that changes nothing."""
