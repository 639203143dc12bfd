"""Trials: the simulation of an automation with an event. Nothing is written; the interpreter is the engine's own.

A trial has no entry, so what the contact did before is read here as the engine reads it for a new entry at that moment.
The contact has the values that it had then.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.automations.automations import Refusal, invalid, log_bug, unknown
from api.automations.body import GraphText, TriggerText, read_specs
from api.automations.pins import pin
from api.automations.views import without_email
from api.clock import to_us
from api.crypto import EmailDisplay
from api.engine.facts import past_of
from api.store import automations as store
from api.store.automations import AutomationRow, VersionRow
from api.store.consents import list_topics
from api.store.contacts import find_contact_state, find_owners, list_changes_since
from api.store.database import Database, Transaction
from api.store.messages import find_suppressed
from workbench.language.body import Body, Id, Moment, Number
from workbench.language.channel import EMAIL, RetryPolicy
from workbench.language.contact import ContactState, IdentifierKey, contact_before
from workbench.language.event import LOG_NAME, Event
from workbench.language.facts import ContactHistory
from workbench.language.locales import read_locale
from workbench.language.problem import Problem, Problems, problems_in
from workbench.language.simulate import (
    EARLIEST,
    LATEST,
    MAX_AFTER_S,
    MAX_LATER_EVENTS,
    NOT_LATER_EVENTS,
    SIMULATED_ID,
    ContactDescription,
    ScheduledEvent,
    SimulatedAutomation,
    SimulationInput,
    Trace,
    in_locale,
    read_scheduled_events,
    simulate,
)
from workbench.language.trigger import SAMPLE_SCHEMA, check_sample, read_sample


def _check_event(value: Any, path: str) -> Any:
    """Return the event, or its problems other than its age, which depends on the time of the trial."""
    if not isinstance(value, dict):
        return (Problem(path, "must be an object"),)
    return problems_in(path, check_sample(value, to_us(LATEST))) or value


_LATER_LOG_SCHEMA = {"required": ["event"], "properties": {"event": {"pattern": f"^{LOG_NAME.pattern}$"}}}
# `read_scheduled_events` names the item that is not valid.
_EVENTS_SCHEMA = {
    "type": "array",
    "description": "Later events of the contact.",
    "items": {
        "type": "object",
        "properties": {
            "afterSeconds": {"type": "number", "minimum": 0, "maximum": MAX_AFTER_S},
            "event": {"anyOf": [{"$ref": "#/components/schemas/EventBody"}, _LATER_LOG_SCHEMA]},
        },
        "required": ["afterSeconds", "event"],
    },
    "maxItems": MAX_LATER_EVENTS,
}
Version = Number | Literal["draft", "published"]


class TrialBody(Body, frozen=True):
    """An event to simulate. Without `contact`, the stored contact of the event is used, as it was at `now`.

    `now`: the time of the event, by default the present. `until`: the time at which the simulation stops; by default
    when the entry ends. `version`: a number, the `published` version, or the `draft`. `locale`: the locale that texts
    are chosen for, in place of that of the contact; `default` for the default texts.
    """

    event: Annotated[bytes, Meta(extra={"read": _check_event, "schema": SAMPLE_SCHEMA})]
    contact: ContactDescription | None = None
    now: Moment | None = None
    until: Moment | None = None
    events: Annotated[list[Any], Meta(extra={"schema": _EVENTS_SCHEMA, "reason": NOT_LATER_EVENTS})] | None = None
    version: Version = "draft"
    locale: Annotated[str, Meta(extra={"read": read_locale})] | None = None


class UnsavedTrialBody(TrialBody, frozen=True, rename="camel", kw_only=True):
    """A simulation of an unsaved automation.

    With `automationId`, splits and the holdout divide contacts as that automation does, and re-entry rules count its
    entries.
    """

    trigger_spec: TriggerText
    graph: GraphText
    automation_id: Id | None = None


class Trial(msgspec.Struct, frozen=True):
    """An event to try at `now`, and later events. `contact` None: the stored contact with the event's identifiers.

    `event`: its description as JSON; the trigger decides how it is read. `until`: the time to stop at; None: when the
    entry has ended. `locale`: as in `TrialBody`. `is_stored_event`: the caller did not send the event, so its addresses
    are as those of the stored contact.
    """

    event: bytes
    contact: ContactState | None
    now: datetime
    version: Version = "draft"
    later: tuple[ScheduledEvent, ...] = ()
    until: datetime | None = None
    locale: str | None = None
    is_stored_event: bool = False


class PreparedTrial(msgspec.Struct, frozen=True):
    automation: SimulatedAutomation
    contact: ContactState
    event: Event
    history: ContactHistory = ContactHistory()
    owners: Mapping[IdentifierKey, str] = {}


class TrialContext(msgspec.Struct, frozen=True):
    """The organization, and what the caller sees of contacts that it did not describe.

    `decides_by_masks`: conditions and texts get the masked address, too, so that no series of trials spells an address
    out. `reads_contacts`: without it, the contact of an event is a new one.
    """

    org_id: int
    show: EmailDisplay
    retries: RetryPolicy
    decides_by_masks: bool = False
    reads_contacts: bool = True


class TrialView(Trace, frozen=True, rename="camel", kw_only=True):
    """The result of a simulation, and the address that emails would come from."""

    email_from: str


def trial_view(trace: Trace, email_from: str) -> TrialView:
    return TrialView(**{name: getattr(trace, name) for name in Trace.__struct_fields__}, email_from=email_from)


def trial_of(body: TrialBody, now: datetime) -> Trial | Problems:
    """Return the trial that a body describes, at `now` unless it names another time, or its problems."""
    problems: list[Problem] = []
    at = body.now or now
    if not EARLIEST <= at <= LATEST:
        problems.append(Problem("now", f"must be from {EARLIEST.year} to {LATEST.year}"))
        at = now
    later = read_scheduled_events(body.events, to_us(at), "events", problems)
    if problems:
        return tuple(problems)
    contact = None if body.contact is None else body.contact.state
    return Trial(body.event, contact, at, body.version, later, body.until, body.locale)


async def simulate_trial(
    database: Database, context: TrialContext, source: str | UnsavedTrialBody, trial: Trial
) -> Trace | Refusal:
    """Simulate an automation: the one in a body, or a stored one by its id."""
    prepared = await prepare(database, context, source, trial)
    return prepared if isinstance(prepared, Refusal) else await asyncio.to_thread(run, prepared, context, trial)


async def prepare(
    database: Database, context: TrialContext, source: str | UnsavedTrialBody, trial: Trial
) -> PreparedTrial | Refusal:
    """Load the automation, in the version that the trial names, and the contact with its history."""
    is_published = True
    if isinstance(source, UnsavedTrialBody):
        specs: AutomationRow | VersionRow | UnsavedTrialBody = source
        # The id decides to which branch of a split a contact belongs, and which entries count for re-entry rules.
        automation_id = source.automation_id or SIMULATED_ID
    else:
        automation_id = source
        async with database.transaction() as tx:
            row = await store.find_automation(tx, context.org_id, automation_id)
            if row is None:
                return unknown("automation")
            specs = row
            if trial.version != "draft":
                number = row.published_version if trial.version == "published" else trial.version
                version = None if number is None else await store.find_version(tx, row.org_id, row.id, number)
                if version is None and trial.version != "published":
                    return invalid((Problem("version", f"version {trial.version} not found"),))
                specs, is_published = version or row, version is not None
    text = bytes(specs.graph)
    if not isinstance(specs, VersionRow):
        async with database.transaction() as tx:
            text = await pin(tx, context.org_id, text)
    parsed = await asyncio.to_thread(read_specs, specs.trigger_spec, text)
    if isinstance(parsed, tuple):
        return invalid(parsed)
    # As in the engine, an automation that is not published has the draft's trigger and no graph.
    graph = parsed.graph if is_published else None
    if graph is not None and trial.locale is not None:
        graph = in_locale(graph, trial.locale)
    automation = SimulatedAutomation(parsed.trigger, graph, automation_id)
    event = read_sample(trial.event, automation.trigger, to_us(trial.now))
    if isinstance(event, tuple):
        return invalid(event)
    if trial.contact is not None:
        return PreparedTrial(automation, trial.contact, event)
    async with database.transaction() as tx:
        contact = None
        if context.reads_contacts:
            contact = await find_contact_state(tx, context.org_id, context.show.keys, event.identifiers)
        sent = [event.identifiers, *(item.event.identifiers for item in trial.later)]
        owners = await find_owners(tx, context.org_id, context.show.keys, sent)
        if contact is None:
            topics = [] if graph is None else await list_topics(tx, context.org_id, sorted(graph.topics))
            unconfirmed = tuple(topic.name for topic in topics if topic.opt_in == "double")
            new = ContactState(SIMULATED_ID, declined=unconfirmed)
            if context.reads_contacts:
                new = await _without_closed_address(tx, context, event, new)
            return PreparedTrial(automation, new, event, owners=owners)
        changes = await list_changes_since(tx, context.org_id, context.show.keys, contact.id, trial.now)
        contact = await _without_closed_address(tx, context, event, contact_before(contact, changes))
        history = await past_of(tx, context.org_id, automation.id, automation.graph, contact.id, trial.now)
        return PreparedTrial(automation, contact, event, history, owners)


async def _without_closed_address(
    tx: Transaction, context: TrialContext, event: Event, contact: ContactState
) -> ContactState:
    """Return the contact, opted out of emails if the address in the event is suppressed, whoever had it before."""
    email = event.identifiers.email
    if email is None or EMAIL.name in contact.opted_out:
        return contact
    digest = context.show.keys.digest(EMAIL.name, email)
    if not await find_suppressed(tx, context.org_id, EMAIL.name, [digest]):
        return contact
    return msgspec.structs.replace(contact, opted_out=(*contact.opted_out, EMAIL.name))


def run(prepared: PreparedTrial, context: TrialContext, trial: Trial) -> Trace:
    """Simulate with the true values, as the engine would, and return what the caller may see of the result.

    For a caller that decides by masks, simulate with the masked values alone.
    """
    contact, email = prepared.contact, prepared.contact.identifiers.email
    simulation = SimulationInput(
        prepared.history, trial.later, context.retries, until=trial.until, report_bug=log_bug, owners=prepared.owners
    )
    was_sent_by_caller = trial.contact is not None or (
        email == prepared.event.identifiers.email and not trial.is_stored_event
    )
    if context.decides_by_masks and not context.show.clear and not was_sent_by_caller:
        event = prepared.event
        for address in (email, event.identifiers.email if trial.is_stored_event else None):
            if address is not None:
                event = without_email(event, address) if trial.is_stored_event else event
                contact = without_email(contact, address)
        return simulate(prepared.automation, event, contact, trial.now, simulation)
    if email is None or context.show.clear or was_sent_by_caller:
        return simulate(prepared.automation, prepared.event, contact, trial.now, simulation)
    # Decided with the true address, shown with the masked one (docs/decisions/0040).
    simulation = msgspec.structs.replace(simulation, visible_contact=without_email(contact, email))
    return without_email(simulate(prepared.automation, prepared.event, contact, trial.now, simulation), email)
