"""Trials: the simulation of an automation with an event. Nothing is written; the interpreter is the engine's own.

A trial has no entry, so the contact's history is read here as the engine reads it for a new entry at that moment.
"""

import asyncio
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from api.automations.automations import Refusal, invalid, unknown
from api.automations.body import Fields, read_fields, read_spec, read_specs
from api.automations.views import without_email
from api.clock import to_us
from api.crypto import OrgKeys
from api.store import automations as store
from api.store.automations import AutomationRow, VersionRow
from api.store.contacts import find_contact_state
from api.store.database import Database, Transaction
from api.store.entries import Claim, count_recent_entries, read_message_times, read_other_entries
from api.store.query import run as read_together
from workbench.language.advance import LOOP_LIMIT, LOOP_WINDOW, required_facts
from workbench.language.contact import ContactState
from workbench.language.event import Event, read_event
from workbench.language.facts import ContactHistory
from workbench.language.graph import Graph, read_graph
from workbench.language.onchain import is_log_sample, read_log_sample
from workbench.language.problem import Problem, Problems
from workbench.language.run import DEFAULT_POLICY, RetryPolicy, Run, uniform_policy
from workbench.language.simulate import (
    EARLIEST,
    LATEST,
    SIMULATED_ID,
    ScheduledEvent,
    SimulatedAutomation,
    SimulationInput,
    Trace,
    contact_from,
    read_contact,
    read_scheduled_events,
    simulate,
)
from workbench.language.trigger import Trigger, read_trigger

Version = int | Literal["draft", "published"]


class SampleLog(msgspec.Struct, frozen=True):
    """The description of a log; its meaning depends on the trigger."""

    value: dict[str, Any]


class Trial(msgspec.Struct, frozen=True):
    """An event to try at `now`, and later events. `contact` None: the stored contact with the event's identifiers.

    `until`: the time to stop at; None: when the entry has ended.
    """

    event: Event | SampleLog
    contact: ContactState | None
    now: datetime
    version: Version = "draft"
    later: tuple[ScheduledEvent, ...] = ()
    until: datetime | None = None


class UnsavedTrial(msgspec.Struct, frozen=True):
    trial: Trial
    automation: SimulatedAutomation


class PreparedTrial(msgspec.Struct, frozen=True):
    automation: SimulatedAutomation
    contact: ContactState
    event: Event
    history: ContactHistory = ContactHistory()


class TrialContext(msgspec.Struct, frozen=True):
    """The organization and the caller's rights. Without `shows_email` only addresses that the caller sent are clear."""

    org_id: int
    keys: OrgKeys
    retries: RetryPolicy
    shows_email: bool


class TrialView(Trace, frozen=True, rename="camel", kw_only=True):
    """The result of a simulation, and the address that emails would come from."""

    email_from: str


def trial_view(trace: Trace, email_from: str) -> TrialView:
    return TrialView(**{name: getattr(trace, name) for name in Trace.__struct_fields__}, email_from=email_from)


def retry_policy(delays: tuple[float, ...] | None) -> RetryPolicy:
    """Return the retry policy for the setting WORKBENCH_RETRY_DELAYS."""
    return DEFAULT_POLICY if delays is None else uniform_policy(delays)


def read_trial(body: bytes, now: datetime) -> Trial | Problems:
    """Return the trial in a body, at `now` unless it names another time, or all its problems."""
    fields = read_fields(body)
    return fields if isinstance(fields, tuple) else trial_in(fields, now)


def read_unsaved_trial(body: bytes, now: datetime) -> UnsavedTrial | Problems:
    """Return the trial in a body that brings its automation along, or all its problems. Compiles templates."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("triggerSpec")
    fields.require("graph")
    trigger_spec, spec = read_spec(fields, "triggerSpec")
    graph_spec, value = read_spec(fields, "graph")
    trigger = read_trigger(spec) if trigger_spec is not None else ()
    graph = read_graph(value) if graph_spec is not None else ()
    for part in (trigger, graph):
        fields.problems.extend(part if isinstance(part, tuple) else ())
    # The id decides to which branch of a split a contact belongs, and which entries count for re-entry rules.
    automation_id = SIMULATED_ID
    text = fields.text("automationId", 36)
    try:
        automation_id = automation_id if text is None else str(UUID(text))
    except ValueError:
        fields.refuse("automationId", "must be the id of an automation")
    trial = trial_in(fields, now)
    if isinstance(trial, Trial) and isinstance(trigger, Trigger) and isinstance(graph, Graph):
        return UnsavedTrial(trial, SimulatedAutomation(trigger, graph, automation_id))
    return tuple(fields.problems)


def trial_in(fields: Fields, now: datetime) -> Trial | Problems:
    """Return the trial among the fields of a body, or all problems of the body."""
    at = fields.moment("now") or now
    if not EARLIEST <= at <= LATEST:
        fields.refuse("now", f"must be from {EARLIEST.year} to {LATEST.year}")
        at = now
    event = _read_event(fields, at)
    contact: ContactState | None = None  # the stored one
    if (described := fields.value("contact")) is not None:
        parsed = read_contact(described)
        if isinstance(parsed, ContactState):
            contact = parsed
        else:
            for problem in parsed:
                fields.refuse(problem.field, problem.reason)
    version: Version = "draft"
    match fields.value("version"):
        case None | "draft":
            pass
        case "published":
            version = "published"
        case int() as number if not isinstance(number, bool) and 1 <= number < 2**31:
            version = number
        case _:
            fields.refuse("version", 'must be a version number, "published" or "draft"')
    later = read_scheduled_events(fields.value("events"), to_us(at), "events", fields.problems)
    until = fields.moment("until")
    if fields.problems or event is None:
        return tuple(fields.problems)
    return Trial(event, contact, at, version, later, until)


async def simulate_stored(
    database: Database, context: TrialContext, automation_id: str, trial: Trial
) -> Trace | Refusal:
    """Simulate the draft, or the version that the trial names."""
    prepared = await prepare(database, context, automation_id, trial)
    return prepared if isinstance(prepared, Refusal) else await asyncio.to_thread(run, prepared, context, trial)


async def simulate_unsaved(database: Database, context: TrialContext, unsaved: UnsavedTrial) -> Trace | Refusal:
    prepared = await _prepare(database, context, unsaved.automation, unsaved.trial)
    return prepared if isinstance(prepared, Refusal) else await asyncio.to_thread(run, prepared, context, unsaved.trial)


async def prepare(
    database: Database, context: TrialContext, automation_id: str, trial: Trial
) -> PreparedTrial | Refusal:
    """Load the draft, or the version that the trial names, and the contact with its history."""
    async with database.transaction() as tx:
        row = await store.find_automation(tx, context.org_id, automation_id)
        if row is None:
            return unknown("automation")
        source: AutomationRow | VersionRow | None = row
        if trial.version != "draft":
            number = row.published_version if trial.version == "published" else trial.version
            source = None if number is None else await store.find_version(tx, row.org_id, row.id, number)
            if source is None and trial.version != "published":
                return invalid((Problem("version", f"version {trial.version} not found"),))
    specs = source or row
    parsed = await asyncio.to_thread(read_specs, specs.trigger_spec, specs.graph)
    if isinstance(parsed, tuple):
        return invalid(parsed)
    # Like in the engine, an automation that is not published has the draft's trigger and no graph.
    automation = SimulatedAutomation(parsed.trigger, parsed.graph if source is not None else None, row.id)
    return await _prepare(database, context, automation, trial)


async def _prepare(
    database: Database, context: TrialContext, automation: SimulatedAutomation, trial: Trial
) -> PreparedTrial | Refusal:
    event: Event | Problems
    if isinstance(trial.event, Event):
        event = trial.event
    elif automation.trigger.source is None:
        return invalid((Problem("event.type", "this automation does not start from on-chain events"),))
    else:
        event = read_log_sample(trial.event.value, automation.trigger.source)
    if isinstance(event, tuple):
        return invalid(event)
    async with database.transaction() as tx:
        if trial.contact is not None:
            return PreparedTrial(automation, trial.contact, event)
        contact = await find_contact_state(tx, context.org_id, context.keys, event.identifiers)
        if contact is None:
            return PreparedTrial(automation, contact_from(None), event)
        history = await _read_history(tx, context.org_id, automation, contact.id, trial.now)
        return PreparedTrial(automation, contact, event, history)


def run(prepared: PreparedTrial, context: TrialContext, trial: Trial) -> Trace:
    """Simulate with the true values, as the engine would, and return what the caller may see of the result."""
    contact, email = prepared.contact, prepared.contact.identifiers.email
    simulation = SimulationInput(prepared.history, trial.later, context.retries, until=trial.until)
    was_sent_by_caller = trial.contact is not None or email == prepared.event.identifiers.email
    if email is None or context.shows_email or was_sent_by_caller:
        return simulate(prepared.automation, prepared.event, contact, trial.now, simulation)
    # Decided with the true address, shown with the masked one (docs/decisions/0040).
    simulation = msgspec.structs.replace(simulation, visible_contact=without_email(contact, email))
    return without_email(simulate(prepared.automation, prepared.event, contact, trial.now, simulation), email)


async def _read_history(
    tx: Transaction, org_id: int, automation: SimulatedAutomation, contact_id: str, now: datetime
) -> ContactHistory:
    """Return the contact's history up to `now`, as the engine would read it for the first decision of a new entry."""
    required = required_facts(automation.graph, Run(SIMULATED_ID, automation.id))
    claim = Claim(SIMULATED_ID, automation.id, None, SIMULATED_ID, now, contact_id, None, 0, 1, 0, now, None, 0)
    since = () if required.messages is None else ((claim, now - required.messages),)
    other_entries, recent_entries, message_times = await read_together(
        tx,
        read_other_entries(org_id, [claim] if required.entries else []),
        count_recent_entries(org_id, [claim] if required.recent else [], LOOP_WINDOW, LOOP_LIMIT),
        read_message_times(org_id, since),
    )
    previous = other_entries.get(SIMULATED_ID)
    if previous is not None and previous.at > now:
        previous = None
    return ContactHistory(
        None if previous is None else previous.at,
        previous is not None and previous.running,
        recent_entries.get(SIMULATED_ID, 0),
        tuple(at for at in message_times.get(SIMULATED_ID, ()) if at <= now),
    )


def _read_event(fields: Fields, now: datetime) -> Event | SampleLog | None:
    raw = fields.raw("event")
    if raw is None:
        fields.refuse("event", "is required")
        return None
    # Searching the bytes first avoids decoding an event, the common case, twice.
    if b'"onchain_event"' in raw and is_log_sample(described := fields.value("event")):
        return SampleLog(described)
    event = read_event(raw, to_us(now))
    if isinstance(event, Event):
        return event
    for problem in event:
        fields.refuse(f"event.{problem.field}" if problem.field else "event", problem.reason)
    return None
