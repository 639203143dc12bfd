"""Dry runs: what the engine would do with one event, shown on the graph.

The server knows contacts as they are stored and how often it retries, so it is asked when there is one; without, the same
interpreter runs here.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display import words
from workbench.display.graph import RunPath, path_of, picture
from workbench.display.layout import Point
from workbench.display.run import RunPage, VerdictGroup, explanations
from workbench.draft import Draft, JsonObject
from workbench.duration import seconds_of
from workbench.errors import InvalidArgumentError, usage_example
from workbench.language.codec import Json, encode, normalise
from workbench.language.contact import ContactState
from workbench.language.event import Event, read_event
from workbench.language.graph import Graph
from workbench.language.onchain import LogSource, read_log_sample
from workbench.language.problem import Problem
from workbench.language.run import Message, State, Step
from workbench.language.simulate import (
    EARLIEST,
    LATEST,
    SIMULATED_ID,
    MissedEvent,
    ScheduledEvent,
    SimulatedAutomation,
    SimulationInput,
    Trace,
    read_contact,
    read_scheduled_events,
    simulate,
)
from workbench.language.trigger import Trigger

if TYPE_CHECKING:
    import polars as pl


class Simulation:
    """What would happen, step by step. Shows itself; `messages`, `tags`, `steps`, `state` and `outcome` are for code.

    It tells the whole life of the entry, as it goes when nothing else comes. `.advance("7d")` and `.send("purchase")` go
    through it instead: they begin at the event, each returns the run as it stands then, and the next goes on from there.
    `note`: what else to know, such as that the automation is off now. `chosen`: where somebody put the nodes.
    """

    def __init__(self, name: str, trigger: Trigger, graph: Graph, event: JsonObject, trace: Trace) -> None:
        self._name, self._trigger, self._graph = name, trigger, graph
        self._course: Course | None = None
        self.event = event
        self.trace = trace
        self.note = ""
        self.chosen: Mapping[str, Point] | None = None

    # Going on

    @usage_example('.advance("7d")')
    def advance(self, span: str | timedelta) -> "Simulation":
        """Let time pass, and return the run as it stands then."""
        course = self._underway()
        return course.at(course.elapsed + timedelta(seconds=seconds_of(span, "span")), self.note)

    @usage_example('.send("purchase") or .send({"event": "purchase", "payload": {"plan": "pro"}}, after="2h")')
    def send(self, event: str | Mapping[str, Any], *, after: str | timedelta = "1s") -> "Simulation":
        """Let the contact send an event, a second later or `after` a longer span, and return the run as it stands then."""
        course, written = self._underway(), _named(event)
        at = course.elapsed + timedelta(seconds=seconds_of(after, "after"))
        twice = f"{written['event']} starts this automation, too: an entry of its own, which this run does not follow."
        note = twice if written["event"].lower() in self._trigger.names else self.note
        return course.with_later({**written, "after": at}).at(at, note)

    @property
    def now(self) -> datetime:
        """The moment at which it is looked at: of the last step, when its whole life is told."""
        course = self._underway()
        if course.looked_at:
            return course.began_at + course.elapsed
        return self.steps[-1].at if self.steps else course.began_at

    @property
    def waiting_at(self) -> str | None:
        """The id of the step at which it waits or will try again; None when it does neither."""
        return self.steps[-1].node_id if self.steps and self.state in _STANDING else None

    def _underway(self) -> "Course":
        if self._course is None:
            raise InvalidArgumentError("this run cannot go on: make one with .simulate(event)")
        return self._course

    @property
    def matched(self) -> bool:
        """Whether the event starts the automation at all."""
        return self.trace.matched

    @property
    def steps(self) -> tuple[Step, ...]:
        """What would happen, in order, in the words of an entry's own history."""
        return self.trace.steps

    @property
    def path(self) -> tuple[str, ...]:
        """The ids of the nodes that would be visited."""
        return tuple(dict.fromkeys(step.node_id for step in self.trace.steps))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The in-app messages, emails and webhooks that would be sent, with their texts filled in."""
        return self.trace.messages

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that would be added."""
        return self.trace.tags

    @property
    def removed_tags(self) -> tuple[str, ...]:
        """The tags that would be taken off."""
        return self.trace.removed_tags

    @property
    def attributes(self) -> dict[str, Json]:
        """The attributes of the contact that would be written."""
        return self.trace.attributes

    @property
    def state(self) -> State | None:
        """The state that the entry would end in; None when nothing would start."""
        return self.trace.state

    @property
    def outcome(self) -> str | None:
        """Why it would end there, in one word."""
        return self.trace.outcome

    def frame(self) -> "pl.DataFrame":
        """Return the steps as a polars frame."""
        import polars as pl

        columns = ("node_id", "kind", "at", "outcome", "attempt", "handle")
        return pl.DataFrame({name: [getattr(step, name) for step in self.steps] for name in columns}, strict=False)

    def headline(self) -> str:
        """Say in one sentence what would happen."""
        if not self.matched:
            return "Nothing would happen"
        written = words.ContactWrites(self.tags, self.removed_tags, tuple(self.attributes))
        if self._course is not None and self._course.looked_at:
            done = words.effects(len(self.messages), written, done=True) or "nothing sent or changed yet"
            return f"After {words.duration(self._course.elapsed)}: {done}"
        deeds = words.effects(len(self.messages), written, done=False)
        fails = "" if self.state in _FINE else "fail for good"
        return (
            f"Would {' and '.join(filter(None, (deeds, fails)))}"
            if deeds or fails
            else "Would neither send nor change anything"
        )

    def reason(self) -> str:
        """Say why it ends as it does, or why it does not start."""
        if self.matched and self.state is State.WAITING:
            return f"Waiting at {self.waiting_at}{words.waiting_until(self.steps[-1])}."
        if self.matched:
            return words.ending(self.state, self.outcome, self.trace.error)
        if not self.trace.name_matched:
            return f"This automation starts on {words.event_names(self._trigger)}, not on {self.event.get('event')}."
        failed = next(each for each in self.trace.verdicts if not each.passed)
        return f"It asks whether {words.condition(failed)}; {words.actual_value(failed)}."

    def why(self) -> str:
        """Return why the trigger, each condition and each wait went as they did, filter by filter, with what was found."""
        lines: list[str] = []
        for title, verdicts in self._whys():
            lines.append(f"{title}:")
            lines += [
                f"  {'✓' if each.passed else '✗'} {words.condition(each)}: {words.actual_value(each)}"
                for each in verdicts
            ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        lines = [f"{self.headline()}. {self.reason()}", *([self.note] if self.note else [])]
        lines += [
            f"  {number}. {step.node_id}: {words.outcome(step.outcome)}{self._later(step)}"
            for number, step in enumerate(self.steps, 1)
        ]
        lines += [f"  → {words.message_line(message)}" for message in self.messages]
        lines += [
            f"  ✗ {each.event} came while it waited at {each.node_id}: {_why(each)}" for each in self.trace.missed
        ]
        return "\n".join(lines)

    def _later(self, step: Step) -> str:
        offset = words.offset(step.at - self.steps[0].at)
        return f" ({offset})" if offset else ""

    def run_path(self) -> RunPath:
        """Return the path; an event that does not start it stops at the trigger."""
        start = self._graph.start
        return path_of(self.steps) if self.matched or start is None else RunPath({start.id: "failed"})

    def _repr_html_(self) -> str:
        return RunPage(
            headline=self.headline(),
            subtitle=f"{self._name}: {self.reason()}",
            note=self.note,
            state=self.state,
            picture=picture(self._trigger, self._graph, self.run_path(), self.chosen),
            receives="What the contact would receive",
            messages=self.messages,
            explanations=self._whys(),
            steps=self.steps,
            email_from=self._course.email_from if self._course is not None else "",
        ).html()

    def _whys(self) -> list[VerdictGroup]:
        missed = [
            (f"Why {each.event} did not end the wait at {each.node_id}", each.verdicts) for each in self.trace.missed
        ]
        return [*explanations(self.trace.verdicts if self.trace.name_matched else (), self.steps), *missed]


_FINE = frozenset({State.COMPLETED, State.EXITED, State.WAITING})
_STANDING = frozenset({State.WAITING, State.RETRYING, State.PENDING})


def _named(event: object) -> Mapping[str, Any]:
    written = {"event": event} if isinstance(event, str) else event
    if isinstance(written, Mapping) and isinstance(written.get("event"), str):
        return written
    raise InvalidArgumentError('an event is written like "purchase" or {"event": "purchase", "payload": {…}}')


def _why(missed: MissedEvent) -> str:
    failed = next(each for each in missed.verdicts if not each.passed)
    return f"it asks whether {words.condition(failed)}; {words.actual_value(failed)}"


_EVENT = frozenset({"event", "contact", "attributes", "payload", "idempotencyKey", "occurredAt", "test"})
_CONTACT = frozenset({"id", "email", "walletAddress", "externalId", "attributes", "tags", "segments", "optedOut"})


class SimulationArguments(msgspec.Struct, frozen=True):
    """What is tried: an event as a caller writes it, of whom it is, when it comes, and which of its contact's come later.

    `automation_id`: of one that is saved; by it contacts are divided.
    """

    event: Mapping[str, Any]
    contact: Mapping[str, Any] | None = None
    now: datetime | None = None
    later: Sequence[Mapping[str, Any]] = ()
    until: timedelta | None = None
    automation_id: str | None = None


class Course(msgspec.Struct, frozen=True):
    """How a run came to be, so that it can go on: the interpreter goes through it anew each time, a little further."""

    draft: Draft
    trial: SimulationArguments
    connection: Connection | None
    began_at: datetime
    email_from: str = ""

    @property
    def looked_at(self) -> bool:
        """Whether it is looked at at a moment, not from its end."""
        return self.trial.until is not None

    @property
    def elapsed(self) -> timedelta:
        """How long after the event it is looked at."""
        return self.trial.until or timedelta()

    def with_later(self, event: Mapping[str, Any]) -> "Course":
        """Return the course with one more event."""
        trial = msgspec.structs.replace(self.trial, later=[*self.trial.later, event])
        return msgspec.structs.replace(self, trial=trial)

    def at(self, elapsed: timedelta, note: str) -> Simulation:
        """Return the run as it stands so long after the event."""
        trial = msgspec.structs.replace(self.trial, now=self.began_at, until=elapsed)
        simulation = simulated(self.draft, trial, self.connection)
        simulation.note = note
        return simulation


def simulated(draft: Draft, trial: SimulationArguments, connection: Connection | None) -> Simulation:
    """Return what would happen, from the server when there is one, otherwise from here."""
    trigger, graph = draft.language()
    at = _moment(trial.now)
    described = _described(trial.contact)
    whole = completed(trial.event, trigger, trial.contact)
    later = [_coming(each, whole) for each in trial.later]
    given = SimulationInput(later=_read_later(later, at), until=None if trial.until is None else at + trial.until)
    email_from = ""
    if connection is not None:
        trace, email_from = _asked(connection, draft, whole, trial, later)
    else:
        automation = SimulatedAutomation(trigger, graph, trial.automation_id or SIMULATED_ID)
        trace = simulate(automation, read_tried(whole, trigger, at), described, at, given)
    simulation = Simulation(draft.name, trigger, graph, whole, trace)
    simulation.chosen = draft.positions()
    began_at = trace.steps[0].at if trace.steps else at
    simulation._course = Course(draft, trial, connection, began_at, email_from)
    return simulation


def _moment(now: object) -> datetime:
    if now is None:
        return environment.now()
    if not isinstance(now, datetime) or now.tzinfo is None:
        raise InvalidArgumentError("now is a moment with a time zone: now=datetime(…, tzinfo=UTC)")
    if not EARLIEST <= now <= LATEST:
        raise InvalidArgumentError(f"now is a moment from {EARLIEST.year} to {LATEST.year}")
    return now


def _coming(event: object, first: JsonObject) -> JsonObject:
    """Return a later event as the server takes it; it is about the same contact unless it says otherwise."""
    if not isinstance(event, Mapping) or "after" not in event or "event" not in event:
        raise InvalidArgumentError('a later event is written like {"event": "purchase", "after": "2h", "payload": {…}}')
    seconds = seconds_of(event["after"], "after")
    rest = {name: each for name, each in event.items() if name != "after"}
    contact = first.get("contact", {"externalId": "simulated"})  # of a log it is the wallet in it
    return {"afterSeconds": seconds, "event": {"contact": contact} | rest}


def _read_later(later: Sequence[JsonObject], now: datetime) -> tuple[ScheduledEvent, ...]:
    problems: list[Problem] = []
    found = read_scheduled_events(_written(later), round(now.timestamp() * 1_000_000), "events", problems)
    if problems:
        raise InvalidArgumentError("these events would be refused: " + "; ".join(map(str, problems)))
    return found


def _written(value: object) -> Any:
    """Return a value as JSON has it; raise InvalidArgumentError when it cannot be written so."""
    try:
        return normalise(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"this event cannot be written as JSON: {error}") from None


def _described(contact: Mapping[str, Any] | None) -> ContactState:
    """Return the contact as the language reads it; raise InvalidArgumentError naming the field that is wrong."""
    unknown = sorted(map(str, contact.keys() - _CONTACT)) if isinstance(contact, Mapping) else []
    if unknown:
        raise InvalidArgumentError(
            f'contact.{unknown[0]}: what is known of a contact stands in "attributes": {{"{unknown[0]}": …}}'
        )
    read = read_contact(contact)
    if isinstance(read, ContactState):
        return read
    raise InvalidArgumentError("; ".join(map(str, read)))


def completed(event: Mapping[str, Any], trigger: Trigger, contact: Mapping[str, Any] | None) -> JsonObject:
    """Fill in what goes without saying: the event's name when only one is meant, and the contact given beside it."""
    if not isinstance(event, Mapping):
        raise InvalidArgumentError(
            'an event is written like {"contact": {"walletAddress": "0x…"}, "payload": {"amountUsd": 100}}'
        )
    whole = dict(event)
    if trigger.source is not None:
        return _sample(whole, trigger.source)
    beside = sorted(map(str, whole.keys() - _EVENT))
    if beside and "payload" not in whole:
        raise InvalidArgumentError(
            f'{beside[0]} is no part of an event: its values stand in "payload": {{"{beside[0]}": …}}'
        )
    if "event" not in whole and len(trigger.names) == 1:
        whole["event"] = next(iter(trigger.names))
    if "event" not in whole:
        raise InvalidArgumentError(
            f'which event? Write {{"event": "deposit", …}}; this automation starts on {words.event_names(trigger)}'
        )
    if "contact" not in whole and contact is not None:
        given = {name: contact[name] for name in ("walletAddress", "email", "externalId") if contact.get(name)}
        whole["contact"] = given or {"externalId": "simulated"}
    if "contact" not in whole:
        raise InvalidArgumentError(
            'who is it about? Add "contact": {"walletAddress": "0x…"} to the event, or contact={…}'
        )
    return whole


def _sample(log: JsonObject, source: LogSource) -> JsonObject:
    """Return a log as the server takes it, from its parameters alone or with what is around them."""
    sample = {"type": "onchain_event"} | (log if "args" in log else {"args": log})
    found = read_log_sample(_written(sample), source)
    if isinstance(found, tuple):
        raise InvalidArgumentError("no contract would log this: " + "; ".join(map(str, found)))
    return sample


def _asked(
    connection: Connection, draft: Draft, event: JsonObject, trial: SimulationArguments, later: list[JsonObject]
) -> tuple[Trace, str]:
    """Return the server's answer, and the address that its emails come from."""
    payload = draft.payload()
    until = trial.now + trial.until if trial.now is not None and trial.until is not None else None
    given = (
        ("contact", trial.contact),
        ("now", trial.now),
        ("events", later or None),
        ("until", until),
        ("automationId", trial.automation_id),
    )
    beside = {name: value for name, value in given if value is not None}
    body = {"triggerSpec": payload["triggerSpec"], "graph": payload["graph"], "event": event} | beside
    answer = connection.post("/simulate", body)
    return msgspec.convert(answer, Trace), answer.get("emailFrom", "")


def read_tried(event: JsonObject, trigger: Trigger, now: datetime) -> Event:
    """Return an event to try as the language reads it, a log for a trigger on chain; raise InvalidArgumentError when it would be refused."""
    sample = read_log_sample(_written(event), trigger.source) if trigger.source is not None else None
    read = sample or read_event(encode(_written(event)), round(now.timestamp() * 1_000_000))
    if isinstance(read, tuple):
        raise InvalidArgumentError("this event would be refused: " + "; ".join(map(str, read)))
    return read
