"""Simulations: what the engine would do with one event, step by step and drawn on the graph.

With a connection the server simulates, because it knows the stored contact and the configured retry schedule. Without
one, the same interpreter runs in this process. A `Simulation` never changes: `advance` and `send` simulate again from
the first event, up to a later time. So a simulation in parts cannot differ from a whole one.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display import words
from workbench.display.graph import RunPath, VerdictGroup, explanations, path_of, picture, run_page
from workbench.display.kinds import trigger_subject
from workbench.draft import Draft, JsonObject
from workbench.duration import seconds_of
from workbench.errors import InvalidArgumentError, usage_example
from workbench.event_json import EventFields, describe_event, refuse_keywords
from workbench.language.codec import encode, normalize, printable
from workbench.language.contact import ContactState
from workbench.language.event import Event, read_event
from workbench.language.filter import Verdict
from workbench.language.graph import Graph
from workbench.language.locales import read_locale
from workbench.language.onchain import log_sample, read_log_sample
from workbench.language.problem import Problem
from workbench.language.run import State
from workbench.language.simulate import (
    EARLIEST,
    LATEST,
    SIMULATED_ID,
    SimulatedAutomation,
    SimulationInput,
    Trace,
    in_locale,
    read_contact,
    read_scheduled_events,
    simulate,
)
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger, read_typed_sample

if TYPE_CHECKING:
    import polars as pl


class SimulationArguments(msgspec.Struct, frozen=True):
    """The arguments of a simulation, as the caller wrote them.

    `until` is how long after the event to stop; None: at the end of the entry. `automation_id` is the id of the saved
    automation, or None. Splits and holdouts derive a contact's branch from it. `locale`: as in `Automation.simulate`.
    """

    event: Mapping[str, Any]
    contact: Mapping[str, Any] | None = None
    now: datetime | None = None
    later: Sequence[Mapping[str, Any]] = ()
    until: timedelta | None = None
    automation_id: str | None = None
    locale: str | None = None


class SimulationSource(msgspec.Struct, frozen=True):
    """The inputs of a simulation; with them it can run again up to a later time. `email_from`: the server's sender."""

    draft: Draft
    arguments: SimulationArguments
    connection: Connection | None
    began_at: datetime
    email_from: str = ""

    @property
    def elapsed(self) -> timedelta:
        """The time from the event to the end of the simulation; zero before the first `advance` or `send`."""
        return self.arguments.until or timedelta()

    def run_until(self, elapsed: timedelta, note: str, *events: Mapping[str, Any]) -> "Simulation":
        """Simulate again up to `elapsed` after the first event, with more later events."""
        # Without `now` the first run took the time of the server or of this machine. Every further run begins at the
        # same time.
        later = [*self.arguments.later, *events]
        arguments = msgspec.structs.replace(self.arguments, now=self.began_at, until=elapsed, later=later)
        return simulate_draft(self.draft, arguments, self.connection, note)


class Simulation:
    """The result of a simulation, displayed as headline, path, messages and steps.

    It runs to the end of the entry, as if the contact sent no other event. `.advance("7d")` and `.send("purchase")` go
    through the entry in parts instead: the first of them starts at the event, and each returns the entry as it is at
    that time. `note` is an additional remark, such as that the automation is off.

    `matched`: whether the event starts the automation. `steps`: in order, as the history of an entry has them. `path`:
    the ids of the nodes that the entry visits, in order, each once. `messages`: the in-app messages, emails and
    webhooks that would be sent, with all templates filled in. `tags`, `removed_tags`, `attributes`: what would be added
    to the contact, removed and set. `state`: the last state of the entry; None if the event does not start one.
    `outcome`: why the entry ended, in one word; None if it has not ended.
    """

    def __init__(
        self, source: SimulationSource, trigger: Trigger, graph: Graph, event: JsonObject, trace: Trace, note: str = ""
    ) -> None:
        self._source, self._trigger, self._graph = source, trigger, graph
        self.event = event
        self.trace = trace
        self.note = note
        self.matched, self.state, self.outcome = trace.matched, trace.state, trace.outcome
        self.steps, self.messages = trace.steps, trace.messages
        self.path = tuple(dict.fromkeys(step.node_id for step in trace.steps))
        self.tags, self.removed_tags, self.attributes = trace.tags, trace.removed_tags, trace.attributes

    # Advancing

    @usage_example('.advance("7d")')
    def advance(self, span: str | timedelta) -> "Simulation":
        """Let time pass, such as `"1h 30m"`, and return the simulation as it is then."""
        return self._source.run_until(self._source.elapsed + timedelta(seconds=seconds_of(span, "span")), self.note)

    @usage_example('.send("purchase") or .send("purchase", payload={"plan": "pro"}, after="2h")')
    def send(
        self, event: str | Mapping[str, Any], *, after: str | timedelta = "1s", **fields: Unpack[EventFields]
    ) -> "Simulation":
        """Let `after` pass, have the contact send an event then, and return the simulation as it is at that time."""
        described = describe_event(event, fields)
        if not isinstance(described.get("event"), str):
            raise InvalidArgumentError('the event has no name: write "purchase" or {"event": "purchase", …}')
        # At least a second passes, because a wait counts only events that come after it began.
        elapsed = self._source.elapsed + timedelta(seconds=seconds_of(after, "after"))
        name, or_joins = described["event"], " unless it joins this one" if self._graph.collects else ""
        second_entry = f"{name} also starts this automation{or_joins}; that entry is not part of this simulation."
        note = second_entry if described["event"].lower() in self._trigger.names else self.note
        return self._source.run_until(elapsed, note, {**described, "after": elapsed})

    @property
    def now(self) -> datetime:
        """The virtual time: where the last `advance` or `send` stopped; before them, the time of the last step."""
        if self._source.arguments.until is None and self.steps:
            return self.steps[-1].at
        return self._source.began_at + self._source.elapsed

    @property
    def waiting_at(self) -> str | None:
        """The id of the step at which the entry waits or will be retried, or None."""
        return self.steps[-1].node_id if self.steps and self.state in _UNFINISHED else None

    # Results

    def frame(self) -> "pl.DataFrame":
        """Return the steps as a polars frame: node_id, kind, at, outcome, attempt, handle."""
        import polars as pl

        columns = ("node_id", "kind", "at", "outcome", "attempt", "handle")
        return pl.DataFrame({name: [getattr(step, name) for step in self.steps] for name in columns}, strict=False)

    def headline(self) -> str:
        """Return one sentence with the effects."""
        if not self.matched:
            return "Nothing would happen"
        writes = words.ContactWrites(self.tags, self.removed_tags, tuple(self.attributes))
        if self._source.arguments.until is not None:  # these effects have happened, so without “would”
            effects = words.effects(len(self.messages), writes, done=True) or "nothing sent or changed yet"
            return f"After {words.duration(self._source.elapsed)}: {effects}"
        effects = words.effects(len(self.messages), writes, done=False)
        failure = "" if self.state in _SUCCESSFUL else "fail permanently"
        if not effects and not failure:
            return "Would neither send nor change anything"
        return f"Would {' and '.join(filter(None, (effects, failure)))}"

    def reason(self) -> str:
        """Return one sentence that says why the entry ended, where it waits, or why the event does not start it."""
        if self.matched and self.state is State.WAITING:
            return f"Waiting at {self.waiting_at} until {words.to_minute(self.steps[-1].detail['until'])} UTC."
        if self.matched:
            return words.ending(self.state, self.outcome, self.trace.error)
        if not self.trace.name_matched:
            return f"This automation starts on {trigger_subject(self._trigger)}, not on {self.event.get('event')}."
        return f"The trigger {_failed_filter(self.trace.verdicts)}."

    def why(self) -> str:
        """Return one line per filter of the trigger, the conditions and the waits, with the actual value."""
        lines: list[str] = []
        for title, verdicts in self._verdict_groups():
            lines.append(f"{title}:")
            lines += [
                f"  {'✓' if verdict.passed else '✗'} {words.condition(verdict)}: {words.actual_value(verdict)}"
                for verdict in verdicts
            ]
        return "\n".join(lines)

    def run_path(self) -> RunPath:
        """Return the path to draw on the graph. An event that does not start the automation stops at the trigger."""
        start = self._graph.start
        return path_of(self.steps) if self.matched or start is None else RunPath({start.id: "failed"})

    def __repr__(self) -> str:
        lines = [f"{self.headline()}. {self.reason()}", *([self.note] if self.note else [])]
        for number, step in enumerate(self.steps, 1):
            offset = words.offset(step.at - self.steps[0].at)
            outcome = words.outcome(step.outcome, step.kind)
            if step.outcome == "skipped":
                outcome += f", because {words.step_detail(step)}"
            elif step.outcome == "sent" and (locale := words.step_detail(step)):
                outcome += f" {locale}"
            lines.append(f"  {number}. {step.node_id}: {outcome}{f' ({offset})' if offset else ''}")
        lines += [f"  → {words.message_line(message)}" for message in self.messages]
        for missed in self.trace.missed:
            reason = _failed_filter(missed.verdicts)
            lines.append(f"  ✗ {missed.event} did not end the wait at {missed.node_id}, which {reason}")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        return run_page(
            self.state,
            headline=self.headline(),
            subtitle=f"{self._source.draft.name}: {self.reason()}",
            note=self.note,
            picture=picture(self._trigger, self._graph, self.run_path(), self._source.draft.positions()),
            receives="What the contact would receive",
            messages=self.messages,
            explanations=self._verdict_groups(),
            steps=self.steps,
            email_from=self._source.email_from,
        )

    def _verdict_groups(self) -> list[VerdictGroup]:
        # An event of another name never reaches the filters of the trigger, so their verdicts would mislead.
        groups = explanations(self.trace.verdicts if self.trace.name_matched else (), self.steps)
        for missed in self.trace.missed:
            groups.append((f"Why {missed.event} did not end the wait at {missed.node_id}", missed.verdicts))
        return groups


_SUCCESSFUL = frozenset({State.COMPLETED, State.EXITED, State.WAITING})
_UNFINISHED = frozenset({State.WAITING, State.RETRYING, State.PENDING})
_EVENT_KEYS = frozenset({"event", "contact", "attributes", "payload", "idempotencyKey", "occurredAt", "test"})
_CONTACT_KEYS = frozenset(
    {"id", "email", "walletAddress", "externalId", "attributes", "tags", "segments", "optedOut", "declined"}
)
_UNNAMED_CONTACT: JsonObject = {"externalId": "simulated"}  # an event is valid only with an identifier


def _failed_filter(verdicts: Iterable[Verdict]) -> str:
    failed = next(verdict for verdict in verdicts if not verdict.passed)
    return f"requires that {words.condition(failed)}, but {words.actual_value(failed)}"


def simulate_draft(
    draft: Draft, arguments: SimulationArguments, connection: Connection | None, note: str = ""
) -> Simulation:
    """Return the simulation of a draft, on the server if there is a connection.

    Arguments are checked here in both cases, so that a mistake reads the same with and without a server. Raises
    InvalidArgumentError for an event, contact or time that is not valid.
    """
    trigger, graph = draft.language()
    if arguments.locale is not None:
        graph = in_locale(graph, checked_locale(arguments.locale))
    now: object = environment.now() if arguments.now is None else arguments.now
    if not isinstance(now, datetime) or now.tzinfo is None:
        raise InvalidArgumentError("now must be a datetime with a time zone: now=datetime(…, tzinfo=UTC)")
    if not EARLIEST <= now <= LATEST:
        raise InvalidArgumentError(f"now must be from {EARLIEST.year} to {LATEST.year}")
    # `read_contact` ignores unknown keys. In a notebook they are most likely attributes in the wrong place.
    described = arguments.contact
    unknown = sorted(map(str, described.keys() - _CONTACT_KEYS)) if isinstance(described, Mapping) else []
    if unknown:
        raise InvalidArgumentError(
            f'contact.{unknown[0]} is not a field of a contact: put it into "attributes": {{"{unknown[0]}": …}}'
        )
    contact = read_contact(described)
    if not isinstance(contact, ContactState):
        raise InvalidArgumentError("; ".join(map(str, contact)))
    event = complete_event(arguments.event, trigger, described)
    # A sample of a log names no contact, and any identifier will do: a later event counts as the same contact's.
    sender = event.get("contact", _UNNAMED_CONTACT)
    later_arguments: Sequence[object] = arguments.later  # a notebook does not enforce the annotation
    later: list[JsonObject] = []
    for item in later_arguments:
        if not isinstance(item, Mapping) or "after" not in item or "event" not in item:
            example = '{"event": "purchase", "after": "2h", "payload": {…}}'
            raise InvalidArgumentError(f"a later event is written like {example}")
        later_event = {"contact": sender} | {name: value for name, value in item.items() if name != "after"}
        later.append({"afterSeconds": seconds_of(item["after"], "after", least=0), "event": later_event})
    problems: list[Problem] = []
    later_events = read_scheduled_events(_to_json(later), round(now.timestamp() * 1_000_000), "events", problems)
    if problems:
        raise InvalidArgumentError("these events would be refused: " + "; ".join(map(str, problems)))

    email_from = ""
    if connection is not None:
        trace, email_from = _simulate_on_server(connection, draft, event, arguments, later)
    else:
        automation = SimulatedAutomation(trigger, graph, arguments.automation_id or SIMULATED_ID)
        until = None if arguments.until is None else now + arguments.until
        input_ = SimulationInput(later=later_events, until=until, report_bug=_log_bug)
        trace = simulate(automation, read_sample_event(event, trigger, now), contact, now, input_)
    began_at = trace.steps[0].at if trace.steps else now  # the clock of the server, if it simulated
    source = SimulationSource(draft, arguments, connection, began_at, email_from)
    return Simulation(source, trigger, graph, event, trace, note)


def _simulate_on_server(
    connection: Connection, draft: Draft, event: JsonObject, arguments: SimulationArguments, later: list[JsonObject]
) -> tuple[Trace, str]:
    """Return the server's trace, and the address that its emails come from."""
    payload, now, until = draft.payload(), arguments.now, arguments.until
    options = {
        "contact": arguments.contact,
        "now": now,
        "events": later or None,
        "until": now + until if now is not None and until is not None else None,
        "automationId": arguments.automation_id,
        "locale": arguments.locale,
    }
    body = {"triggerSpec": payload["triggerSpec"], "graph": payload["graph"], "event": event}
    body |= {name: value for name, value in options.items() if value is not None}  # without a contact: the stored one
    answer = connection.post("/simulate", body)
    return msgspec.convert(answer, Trace), answer.get("emailFrom", "")


def checked_locale(locale: object) -> str:
    """Return a locale in its normal form; raise InvalidArgumentError for a text that is not a locale."""
    tag = read_locale(locale, "locale")
    if isinstance(tag, str):
        return tag
    raise InvalidArgumentError("; ".join(map(str, tag)))


def complete_event(event: Mapping[str, Any], trigger: Trigger, contact: Mapping[str, Any] | None) -> JsonObject:
    """Return the event in the form that the API accepts.

    The name of the event may be omitted if the trigger has one name, and its contact if `contact` is given. For a
    trigger on a contract's logs the event is a sample of a log: its parameters alone, or
    `{"args": {…}, "blockNumber": …}`. For a start it is `{"contact": {…}}`. Raises InvalidArgumentError for anything
    else.
    """
    if not isinstance(event, Mapping):
        raise InvalidArgumentError(
            'an event is written like {"contact": {"walletAddress": "0x…"}, "payload": {"amountUsd": 100}}'
        )
    described = dict(event)
    if isinstance(trigger.source, StartSource):
        if unknown := sorted(map(str, described.keys() - {"type", "contact", "segment"})):
            raise InvalidArgumentError(f'{unknown[0]} is not a field of a start: write {{"contact": {{…}}}}')
        if "contact" not in described and contact is None:
            raise InvalidArgumentError('a start has a contact: pass contact={"walletAddress": "0x…"}')
        return {"type": trigger.type} | described
    if trigger.log_source is not None:
        sample = log_sample(described) | (described if "args" in described else {})
        log = read_log_sample(_to_json(sample), trigger.log_source)
        if isinstance(log, tuple):
            raise InvalidArgumentError("the contract cannot log this: " + "; ".join(map(str, log)))
        return sample
    refuse_keywords(described)
    unknown = sorted(map(str, described.keys() - _EVENT_KEYS))
    if unknown and "payload" not in described:
        raise InvalidArgumentError(
            f'{unknown[0]} is not a field of an event: put it into "payload": {{"{unknown[0]}": …}}'
        )
    if "event" not in described and len(trigger.names) == 1:
        described["event"] = next(iter(trigger.names))
    if "event" not in described:
        raise InvalidArgumentError(
            'the event has no name: write {"event": "deposit", …}. '
            f"This automation starts on {trigger_subject(trigger)}"
        )
    if "contact" not in described and contact is not None:
        identifiers = {name: contact[name] for name in ("walletAddress", "email", "externalId") if contact.get(name)}
        described["contact"] = identifiers or _UNNAMED_CONTACT
    if "contact" not in described:
        raise InvalidArgumentError(
            'the event has no contact: add "contact": {"walletAddress": "0x…"} to it, or pass contact={…}'
        )
    return described


def read_sample_event(event: JsonObject, trigger: Trigger, now: datetime) -> Event:
    """Return an event, or a sample of a log or a start, as the interpreter reads it.

    Raises InvalidArgumentError if it is invalid.
    """
    body, now_us = _to_json(event), round(now.timestamp() * 1_000_000)
    result = read_event(encode(body), now_us) if trigger.source is None else read_typed_sample(body, trigger)
    if isinstance(result, tuple):
        raise InvalidArgumentError("this event would be refused: " + "; ".join(map(str, result)))
    return result


def _log_bug(automation_id: str, error: Exception) -> None:
    logging.getLogger("workbench").error("The simulation of automation %s failed", automation_id, exc_info=error)


def _to_json(value: object) -> Any:
    try:
        return normalize(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"this event cannot be written as JSON: {error}") from None
