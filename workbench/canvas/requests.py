"""Requests of a view that edit nothing: choices, samples, previews, simulations, the impact of publishing, displays.

Previews and simulations are computed by the engine's own interpreter. `CanvasAutomation` is the part of an automation
that the canvas uses: `workbench.automation` imports the canvas, not the reverse.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Protocol

import msgspec

from workbench import environment
from workbench import publish as publishing
from workbench.broadcasts import SendPreview
from workbench.canvas.document import DraftPieces, arranged, parse_draft, to_browser
from workbench.canvas.suggestions import (
    SampleContact,
    Suggestions,
    declared_paths,
    event_of,
    find_contact,
    sample_events,
)
from workbench.connection import Connection
from workbench.display import words
from workbench.display.graph import LOOKS, explanations
from workbench.display.html import moment
from workbench.display.kinds import handle_words
from workbench.draft import Draft, JsonObject
from workbench.language.actions import InvalidAction, TriggerNode
from workbench.language.channel import CHANNELS, EMAIL, Message
from workbench.language.check import Diagnostic, events_of
from workbench.language.codec import normalize
from workbench.language.event import Event
from workbench.language.filter import Verdict
from workbench.language.graph import DEFAULT_SETTINGS, AutomationSettings, Graph, Node
from workbench.language.simulate import SIMULATED_ID, SimulatedAutomation, SimulationInput, Trace, in_locale
from workbench.language.simulate import simulate as run_simulation
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger, read_trigger
from workbench.moves import MoveArgument, MoveResult
from workbench.publish import SavedAutomation, Stopped, unchanged
from workbench.simulate import Simulation, read_sample_event
from workbench.snippets import with_pins

# What a preview assumes for a contact without a wallet or an email address, so that the message can still be shown.
_RECIPIENTS = [channel.recipient for channel in CHANNELS.values() if channel.recipient is not None]
_STAND_INS = {recipient.cause: recipient.example for recipient in _RECIPIENTS}


class CanvasAutomation(Protocol):
    """An automation that a canvas can edit, simulate, save and publish. `Automation` documents the methods."""

    _draft: Draft
    _server: SavedAutomation

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    def simulate(
        self, event: Mapping[str, Any], contact: Mapping[str, Any] | None = None, *, locale: str | None = None
    ) -> Simulation: ...

    def save(self, *, overwrite: bool = False) -> object: ...

    def publish(
        self,
        *,
        move: MoveArgument = "none",
        overwrite: bool = False,
        accept_dropped: bool = False,
        every_event: bool = False,
    ) -> object: ...

    def preview_move(self, move: MoveArgument = "safe") -> MoveResult: ...

    def backtest(self, *args: Any, **during: Any) -> Any: ...

    def send_test(self, event: Any, *, to: Any, locale: Any = None) -> Any: ...

    def versions(self) -> Any: ...

    def preview_send(self, segment: Any = None, *, everyone: bool = False) -> SendPreview: ...

    def activate(self) -> object: ...

    def deactivate(self) -> object: ...

    def pause(self) -> object: ...

    def resume(self) -> object: ...

    @property
    def moves(self) -> MoveResult | None: ...

    @property
    def stopped(self) -> Stopped | None: ...

    def _connected(self) -> Connection: ...

    def _status_pills(self) -> list[tuple[str, str]]: ...

    def _archive_remarks(self) -> list[Diagnostic]: ...

    def _repr_html_(self) -> str: ...


class NodePreview(msgspec.Struct, frozen=True):
    """The result of one event at one node.

    `title`, `body` and `destination`: the message as it would be received; `html`: its body is HTML. `text`: the locale
    of its texts, or an effect other than a message. `verdicts`: the result of each filter. `error`: the reason why it
    would fail or be skipped. `note`: the difference from a real run.
    """

    title: str = ""
    body: str = ""
    destination: str = ""
    html: bool = False
    text: str = ""
    verdicts: tuple[JsonObject, ...] = ()
    error: str = ""
    note: str = ""


_UNREADABLE = NodePreview(text="Fix the errors above to see a preview.")


def preview_node(
    node: Node,
    event: Event,
    contact: SampleContact,
    now: datetime,
    automation_id: str = SIMULATED_ID,
    settings: AutomationSettings = DEFAULT_SETTINGS,
) -> NodePreview:
    """Return what the node does with an event of a contact, regardless of the steps before it.

    A split chooses a branch by the id of the automation, so with the real id it shows the branch that the contact
    would take. Of the settings, only those of locales apply.
    """
    if isinstance(node.action, InvalidAction):
        return _UNREADABLE
    locales = AutomationSettings(
        locale_attribute=settings.locale_attribute,
        default_locale=settings.default_locale,
        preview_locale=settings.preview_locale,
    )
    # The graph contains only this node, so that other nodes cannot change the preview.
    graph = Graph((node,), settings=locales)
    trace = _run_node(graph, event, contact, now, automation_id)
    cause = str(trace.steps[-1].detail.get("cause", "")) if trace.steps else ""
    if cause not in _STAND_INS:
        return _describe(trace)
    reachable = msgspec.structs.replace(contact, described=contact.described | _STAND_INS[cause])
    shown = _describe(_run_node(graph, event, reachable, now, automation_id))
    return msgspec.structs.replace(shown, note=f"{words.outcome(cause)}: it would not be delivered".capitalize())


def _run_node(graph: Graph, event: Event, contact: SampleContact, now: datetime, automation_id: str) -> Trace:
    # Opt-outs are removed, so that it shows the message even if this contact would not get it.
    state = msgspec.structs.replace(contact.contact(), opted_out=(), declined=())
    automation = SimulatedAutomation(Trigger(), graph, automation_id)
    # Without a name or a filter in the trigger, every custom event starts the automation.
    custom_event = msgspec.structs.replace(event, source=None)
    return run_simulation(automation, custom_event, state, now, SimulationInput(until=now))


def _describe(trace: Trace) -> NodePreview:
    if trace.error is not None:
        return NodePreview(error=str(trace.steps[-1].detail["error"]))
    for message in trace.messages:
        locale = words.step_detail(trace.steps[-1])
        return NodePreview(**_message(message), text=f"Sent {locale}." if locale else "")
    texts = [f"Removes the tag {words.value(tag)}." for tag in trace.removed_tags]
    texts += [f"Adds the tag {words.value(tag)}." for tag in trace.tags]
    if trace.attributes:
        texts.append(f"Sets {words.assignments(trace.attributes)}.")
    if texts:
        return NodePreview(text=" ".join(texts))
    step = trace.steps[-1]
    if step.outcome == "skipped":
        return NodePreview(error=f"Skipped: {words.step_detail(step)}")
    if step.outcome == "branched":
        text = f"Continues at “{handle_words(step.handle)}”."
    elif step.outcome == "waiting":
        limit = " for the event" if step.detail["cause"] == "event" else ""
        text = f"Waits{limit} until {words.to_minute(step.detail['until'])} UTC."
    else:
        text = f"{words.outcome(step.outcome, step.kind)}.".capitalize()
    verdicts = msgspec.convert(step.detail.get("verdicts", ()), tuple[Verdict, ...])
    return NodePreview(text=text, verdicts=describe_verdicts(verdicts))


def _message(message: Message) -> JsonObject:
    title, body, destination = words.message_parts(message)
    html = getattr(message, "html", False)  # only emails have it
    return {"title": title, "body": body, "destination": destination, "html": html}


def describe_verdicts(verdicts: Iterable[Verdict]) -> tuple[JsonObject, ...]:
    """Return the results of filters in words: whether each `passed`, its `condition`, and the `actual` value."""
    return tuple(
        {"passed": verdict.passed, "condition": words.condition(verdict), "actual": words.actual_cell(verdict)}
        for verdict in verdicts
    )


class SampleInput(msgspec.Struct, frozen=True):
    """The input of a test: the name of an event, its payload as JSON that a user may have edited, and a contact.

    `contact` is what `find_contact` takes. `locale`: that of the texts; empty: the contact's.
    """

    event: str
    payload: str = "{}"
    contact: str = ""
    locale: str = ""


class CanvasRequest(msgspec.Struct, frozen=True):
    """A request of a view, with the automation as it was when the request arrived."""

    automation: CanvasAutomation
    suggestions: Suggestions
    draft: Draft
    pieces: DraftPieces
    content: Mapping[str, Any]

    @property
    def server(self) -> SavedAutomation:
        """The server of the automation."""
        return self.automation._server

    def sample(self) -> tuple[JsonObject, SampleContact, str | None]:
        """Return the event to test, as a backend would send it, its contact, and the locale if it is not that of it."""
        sample = msgspec.convert(self.content["sample"], SampleInput)
        contact = find_contact(self.server.connection, sample.contact)
        event = event_of(sample.event, sample.payload, contact, parse_draft(self.draft).trigger)
        return event, contact, sample.locale or None


def choices(request: CanvasRequest) -> JsonObject:
    """Return the suggestions for the fields of the draft."""
    parsed, trigger = parse_draft(request.draft), request.pieces.trigger
    suggested = request.suggestions.choices(events_of(parsed.trigger, parsed.graph))
    suggested["paths"] |= declared_paths(request.suggestions, trigger, parsed.trigger)
    suggested["channels"] = [{"address": channel.receiver, "noun": channel.plural} for channel in CHANNELS.values()]
    return suggested


def samples(request: CanvasRequest) -> list[JsonObject]:
    """Return events to test the draft with."""
    events = sample_events(request.suggestions, parse_draft(request.draft).trigger)
    return [msgspec.to_builtins(event) for event in events]


def contact(request: CanvasRequest) -> JsonObject:
    """Return the contact that a `query` identifies: its id, label and description."""
    match = find_contact(request.server.connection, request.content["query"])
    return {"id": match.id, "label": match.label, "described": to_browser(match.described)}


def preview(request: CanvasRequest) -> Any:
    """Return what one node does with an event."""
    if not isinstance(read_trigger(normalize(request.draft.trigger)), Trigger):
        return msgspec.to_builtins(_UNREADABLE)
    parsed = parse_draft(with_pins(request.draft, request.server.connection))
    node = dict(zip(request.pieces.nodes, parsed.graph.nodes, strict=False))[request.content["key"]]
    described, sample, locale = request.sample()
    now = environment.now()
    event = read_sample_event(described, parsed.trigger, now)
    if not isinstance(node.action, TriggerNode) and node is not parsed.graph.stand_in:
        record, graph = request.server.record, parsed.graph if locale is None else in_locale(parsed.graph, locale)
        automation_id = record.id if record else SIMULATED_ID
        shown = preview_node(node, event, sample, now, automation_id, graph.settings)
        if sample.suppressed and node.action.channel is EMAIL:
            reason = sample.suppressed.replace("_", " ")
            note = f"Emails to this contact are suppressed ({reason}): it would not be sent"
            shown = msgspec.structs.replace(shown, note=note)
        return msgspec.to_builtins(shown)
    trace = run_simulation(SimulatedAutomation(parsed.trigger, None), event, sample.contact(), now)
    source = parsed.trigger.source
    starts = "starts the automation" if trace.matched else "does not start the automation"
    text = f"This {'contact' if isinstance(source, StartSource) else 'event'} {starts}."
    if isinstance(source, StartSource) and source.type == "schedule":
        text = _next_runs(source, now) or text
    return msgspec.to_builtins(NodePreview(text=text, verdicts=describe_verdicts(trace.verdicts)))


def _next_runs(source: StartSource, now: datetime) -> str:
    """Return when a schedule runs next; empty if its expression is not valid."""
    times = source.times()
    if isinstance(times, str):
        return ""
    runs = [at.astimezone(times.zone).strftime("%a %Y-%m-%d %H:%M") for at in islice(times.times_after(now), 3)]
    return f"Next runs: {', '.join(runs)} ({source.timezone})."


def simulate(request: CanvasRequest) -> JsonObject:
    """Return the simulation of an event, with its path by node key."""
    event, sample, locale = request.sample()
    # The server looks the contact up by the event's identifiers, unless the key cannot read them or the contact is new.
    described = sample.described if sample.hidden or not sample.id else None
    simulation = request.automation.simulate(event, described, locale=locale)
    path, keys = simulation.run_path(), request.pieces.keys()
    trigger_verdicts = simulation.trace.verdicts if simulation.trace.name_matched else ()
    return {
        "headline": simulation.headline(),
        "reason": simulation.reason(),
        "note": simulation.note,
        "state": simulation.state.value if simulation.state else "not started",
        "look": LOOKS.get(simulation.state, "busy"),
        "marks": {keys[node_id]: mark for node_id, mark in path.marks.items() if node_id in keys},
        "path": [{"key": keys[node_id], "handle": handle} for node_id, handle in path.ways if node_id in keys],
        "offsets": {keys[node_id]: words.offset(span) for node_id, span in path.offsets.items() if node_id in keys},
        "messages": [_message(message) for message in simulation.messages],
        "explanations": [
            {"title": title, "verdicts": describe_verdicts(verdicts)}
            for title, verdicts in explanations(trigger_verdicts, simulation.steps)
        ],
        "steps": [
            {
                "key": keys.get(step.node_id),
                "node": step.node_id,
                "outcome": words.outcome(step.outcome, step.kind),
                "detail": words.step_detail(step),
                "offset": words.offset(step.at - simulation.steps[0].at),
            }
            for step in simulation.steps
        ],
    }


_FIRST_VERSION = "This publishes version 1. New events start it immediately."


def impact(request: CanvasRequest) -> JsonObject:
    """Return what publishing would change: the new version, and the entries in progress by step."""
    record, connection = request.server.record, request.server.connection
    if record is None or connection is None:
        return {"summary": _FIRST_VERSION, "headline": "", "columns": [], "rows": []}
    publication = publishing.impact(connection, record)
    version = record.published_version
    if version is None:
        summary = _FIRST_VERSION
    elif unchanged(request.draft, record):
        summary = f"Publishing creates a new version only if the draft differs from version {version}."
    else:
        summary = f"Version {version + 1} replaces version {version} for new entries."
    if record.state == "off":
        summary += " It is off; publishing switches it on."
    columns, rows = publication.table()
    return {
        "summary": summary,
        "headline": publication.headline() if publication.entries else "No entries are in progress.",
        "columns": [column.title for column in columns],
        "rows": [[*row] for row in rows],
    }


def moves(request: CanvasRequest) -> JsonObject:
    """Return what publishing would do with entries of earlier versions that can continue on the new one."""
    previewed = request.automation.preview_move()
    return {
        "movable": previewed.moved,
        "headline": previewed.headline(),
        "tables": [
            {"title": title, "columns": [column.title for column in columns], "rows": [[*row] for row in rows]}
            for title, columns, rows in previewed.tables()
        ],
    }


def stop(request: CanvasRequest) -> JsonObject:
    """Return what is stopped, or what a stop would stop."""
    stopped = publishing.read_stop(request.automation._connected())
    if stopped.stopped_at is None:
        text = f"This stops {stopped.counts()}, until everything is resumed. A message being sent may still arrive."
    else:
        since = moment(stopped.stopped_at)
        text = f"Stopped since {since} UTC: {stopped.counts()}. What was paused or off before stays so."
    return {"stopped": stopped.stopped_at is not None, "text": text}


def recipients(request: CanvasRequest) -> JsonObject:
    """Return how many contacts a broadcast to a `segment` (empty: to all) would start, in words, with warnings."""
    segment = request.content["segment"]
    counted = request.automation.preview_send(segment or None, everyone=not segment)
    return {
        "text": f"{words.quantity(counted.contacts, 'contact')}, as of {moment(counted.watermark)} UTC.",
        "warnings": counted.notes(),
        "counted": {"contacts": counted.contacts, "watermark": counted.watermark.isoformat()},
    }


def arrange(request: CanvasRequest) -> JsonObject:
    """Return a position for every node, by key."""
    # By key, because two nodes of a draft may have the same id; both get the position of the id.
    corners = arranged(request.draft)
    return {
        key: {"x": round(corners[node["id"]][0]), "y": round(corners[node["id"]][1])}
        for key, node in request.pieces.nodes.items()
    }


def display(request: CanvasRequest) -> Any:
    """Return the HTML of what a notebook would display: a backtest, the results of a test send, or a list."""
    automation, content, connection = request.automation, request.content, request.server.connection
    shown: Any
    match content["of"]:
        case "backtest":
            shown = automation.backtest(days=content["days"], against=content["against"])
        case "send_test":
            event, _, locale = request.sample()
            shown = automation.send_test(event, to=content["to"], locale=locale)
        case "automations" if connection is not None:
            shown = publishing.list_automations(connection)
        case _:
            shown = automation.versions()
    return shown._repr_html_()


READ_REQUESTS: dict[str, Callable[[CanvasRequest], Any]] = {
    "choices": choices,
    "samples": samples,
    "contact": contact,
    "preview": preview,
    "simulate": simulate,
    "impact": impact,
    "moves": moves,
    "stop": stop,
    "recipients": recipients,
    "arrange": arrange,
    "display": display,
}
