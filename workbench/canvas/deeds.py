"""What can be asked from a canvas: choices, samples, previews, simulations, and what a publication would meet."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from api.language.action import Entered
from api.language.catalog import events_of
from api.language.codec import decode
from api.language.contact import identifiers_of
from api.language.described import SIMULATED
from api.language.effect import EmailMessage, Message
from api.language.event import Event
from api.language.filter import explain
from api.language.onchain import TYPE as ONCHAIN_EVENT
from api.language.trigger import flat_context
from workbench import surroundings
from workbench.author import Draft, JsonObject
from workbench.canvas.drawn import Drawn, Place
from workbench.canvas.exact import to_browser
from workbench.canvas.known import Known
from workbench.canvas.logs import log_samples, parameters
from workbench.canvas.preview import Preview, preview, verdicts
from workbench.canvas.samples import Person, event_of, person, samples
from workbench.canvas.sheet import Sheet
from workbench.canvas.shown import Read, laid_out, read
from workbench.display import words
from workbench.display.run import LOOKS, whys
from workbench.impact import Impact
from workbench.publish import Record, unchanged
from workbench.simulate import read_tried


class Tried(msgspec.Struct, frozen=True):
    """What a view tries: an event by name and payload (JSON that somebody wrote), and of whom (as `person` takes it)."""

    event: str
    payload: str = "{}"
    person: str = ""


class Question(msgspec.Struct, frozen=True):
    """What a view asks, and the automation at that moment. `key`: of a node; `wanted`: a contact by whatever identifies it."""

    automation: Drawn
    known: Known
    draft: Draft
    sheet: Sheet
    content: Mapping[str, Any]

    @property
    def place(self) -> Place:
        """Where the automation lives."""
        place: Place = self.automation._place
        return place

    def trial(self) -> tuple[JsonObject, Person]:
        """Return the event that is tried as it would be posted, and whose it is."""
        tried = msgspec.convert(self.content["tried"], Tried)
        who = person(self.place.connection, tried.person)
        source = read(self.draft).trigger.source
        return event_of(tried.event, tried.payload, who, source), who


def _choices(asked: Question) -> JsonObject:
    """Return what can be chosen while this draft is written."""
    seen, trigger = read(asked.draft), asked.sheet.trigger
    offered = asked.known.choices(events_of(seen.trigger, seen.graph))
    if trigger.get("type") == ONCHAIN_EVENT:
        offered["paths"][trigger.get("signature", "")] = parameters(asked.known, trigger, seen.trigger.source)
    return offered


def _samples(asked: Question) -> list[JsonObject]:
    """Return events to try the draft with."""
    trigger = read(asked.draft).trigger
    found = (
        samples(asked.known, sorted(trigger.names))
        if trigger.source is None
        else log_samples(asked.known, trigger.source)
    )
    return [msgspec.to_builtins(each) for each in found]


def _person(asked: Question) -> JsonObject:
    """Return a contact to try the draft with: id, label, and what is known of it."""
    who = person(asked.place.connection, asked.content["wanted"])
    return {"id": who.id, "label": who.label, "described": to_browser(who.described)}


def _preview(asked: Question) -> Any:
    """Return what one node makes of an event."""
    seen = read(asked.draft)
    node = dict(zip(asked.sheet.nodes, seen.graph.nodes, strict=False))[asked.content["key"]]
    described, who = asked.trial()
    now = surroundings.now()
    event = read_tried(described, seen.trigger, now)
    if isinstance(node.action, Entered):
        return msgspec.to_builtins(_starting(seen, event, who))
    record = asked.place.record
    return msgspec.to_builtins(preview(node, event, who, now, record.id if record else SIMULATED))


def _starting(seen: Read, event: Event, who: Person) -> Preview:
    contact = who.contact()
    identifiers = identifiers_of(event.identifiers, contact.identifiers)
    asked = explain(seen.trigger.filters, flat_context(event.name, contact.id, identifiers, decode(event.payload)))
    starts = seen.trigger.names_event(event.name, on_chain=event.on_chain) and all(each.passed for each in asked)
    says = "This event starts it." if starts else "This event does not start it."
    return Preview(says=says, asked=verdicts(asked))


def _simulate(asked: Question) -> JsonObject:
    """Return what would happen, with the path by key."""
    event, who = asked.trial()
    simulation = asked.automation.simulate(event, who.described if who.hidden or not who.id else None)
    taken, keys = simulation.taken(), asked.sheet.keys()
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
        "whys": [{"title": title, "asked": verdicts(each)} for title, each in whys(verdicts_on, simulation.steps)],
        "steps": [
            {
                "key": keys.get(step.node_id),
                "node": step.node_id,
                "says": words.outcome(step.outcome),
                "detail": words.detail(step),
                "offset": words.offset(step.at - simulation.steps[0].at),
            }
            for step in simulation.steps
        ],
    }


def _message(sent: Message) -> JsonObject:
    title, body, where = words.message(sent)
    return {"title": title, "body": body, "where": where, "html": isinstance(sent, EmailMessage) and sent.html}


def _impact(asked: Question) -> JsonObject:
    """Return what publishing would change: which version it makes, and whom it meets on the way."""
    record, connection = asked.place.record, asked.place.connection
    if record is None or connection is None:
        return {"says": _FIRST, "headline": "", "columns": [], "rows": []}
    met = msgspec.convert(connection.get(f"/automations/{record.id}/impact")["impact"], Impact)
    columns, rows = met.table()
    return {
        "says": _replaced(record, same=unchanged(asked.draft, record)),
        "headline": met.headline() if met.entries else "Nobody is on the way through it.",
        "columns": [each.title for each in columns],
        "rows": [[*row] for row in rows],
    }


_FIRST = "This is its first version. From then on, events start it."


def _replaced(record: Record, *, same: bool) -> str:
    on = "" if record.active else " It is off now; publishing switches it on."
    before = record.published_version
    if before is None:
        return _FIRST
    if same:
        return f"It is saved as it is here: a new version is made only where it differs from version {before}.{on}"
    return f"Version {before + 1} takes the place of version {before} for whoever enters from then on.{on}"


def _arrange(asked: Question) -> JsonObject:
    """Return a position for every node, by key."""
    corners = laid_out(asked.draft)
    return {
        key: {"x": round(corners[node["id"]][0]), "y": round(corners[node["id"]][1])}
        for key, node in asked.sheet.nodes.items()
    }


QUESTIONS: dict[str, Callable[[Question], Any]] = {
    "choices": _choices,
    "samples": _samples,
    "person": _person,
    "preview": _preview,
    "simulate": _simulate,
    "impact": _impact,
    "arrange": _arrange,
}
"""What a view can ask that changes nothing."""
