"""Trials: what an automation would do with an event. Nothing is written; the interpreter is the engine's own."""

import asyncio
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from api.authoring.draft import read_spec, read_specs
from api.authoring.fields import Fields, read_fields
from api.authoring.masking import without_email
from api.authoring.past import past_of
from api.authoring.refusal import Refusal, invalid, unknown
from api.clock import to_us
from api.keyring import OrgKeys
from api.language.contact import Contact
from api.language.described import SIMULATED, Later, contact_of, read_contact, read_later
from api.language.event import Event, read_event
from api.language.facts import Past
from api.language.graph import Graph, read_graph
from api.language.onchain import is_sample, read_sample
from api.language.problem import Problem, Problems
from api.language.retry import DEFAULT_POLICY, RetryPolicy, uniform
from api.language.simulate import EARLIEST, LATEST, Automation, Given, Trace, simulate
from api.language.trigger import Trigger, read_trigger
from api.store import authoring as store
from api.store.authoring import AutomationRow, VersionRow
from api.store.contacts import stored_contact
from api.store.database import Database, Transaction

Version = int | Literal["draft", "published"]


class Sample(msgspec.Struct, frozen=True):
    """A described log; what it means depends on the trigger."""

    value: dict[str, Any]


class Trial(msgspec.Struct, frozen=True):
    """An event to try at a moment, and those that come later; `contact` None: whoever the store knows by its identifiers.

    `until`: the moment at which to look; None: when the entry has ended.
    """

    event: Event | Sample
    contact: Contact | None
    now: datetime
    version: Version = "draft"
    later: tuple[Later, ...] = ()
    until: datetime | None = None


class WholeTrial(msgspec.Struct, frozen=True):
    """A trial that brings its automation along."""

    trial: Trial
    automation: Automation


class TrialView(Trace, frozen=True, rename="camel", kw_only=True):
    """What would happen, and the address that emails would come from."""

    email_from: str


class Surroundings(msgspec.Struct, frozen=True):
    """For whom a trial runs. Without `shows_email` the caller may not see emails it did not send itself."""

    org_id: int
    keys: OrgKeys
    retries: RetryPolicy
    shows_email: bool


def trial_view(trace: Trace, email_from: str) -> TrialView:
    """Return what callers see of a trial."""
    return TrialView(**{name: getattr(trace, name) for name in Trace.__struct_fields__}, email_from=email_from)


def policy_of(delays: tuple[float, ...] | None) -> RetryPolicy:
    """Return the retry policy of an installation."""
    return DEFAULT_POLICY if delays is None else uniform(delays)


def read_trial(body: bytes, now: datetime) -> Trial | Problems:
    """Return the trial in a body, at `now` unless it says otherwise, or everything that is wrong with it."""
    fields = read_fields(body)
    return fields if isinstance(fields, tuple) else trial_in(fields, now)


def read_whole_trial(body: bytes, now: datetime) -> WholeTrial | Problems:
    """Return the trial in a body that brings its automation along. Compiles templates."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("triggerSpec")
    fields.require("graph")
    trigger_spec, spec = read_spec(fields, "triggerSpec")
    graph, value = read_spec(fields, "graph")
    trigger = read_trigger(spec) if trigger_spec is not None else ()
    shape = read_graph(value) if graph is not None else ()
    for found in (trigger, shape):
        fields.problems.extend(found if isinstance(found, tuple) else ())
    automation_id = _automation_id(fields)
    trial = trial_in(fields, now)
    if isinstance(trial, Trial) and isinstance(trigger, Trigger) and isinstance(shape, Graph):
        return WholeTrial(trial, Automation(trigger, shape, automation_id))
    return tuple(fields.problems)


class Prepared(msgspec.Struct, frozen=True):
    """What is tried, on whom, with which event; `past`: what the automation knows of a stored contact."""

    automation: Automation
    contact: Contact
    event: Event
    past: Past = Past()


async def try_stored(database: Database, around: Surroundings, automation_id: str, trial: Trial) -> Trace | Refusal:
    """Return what the draft, or the version the trial names, would do."""
    return await _tried(await prepare(database, around, automation_id, trial), around, trial)


async def try_given(database: Database, around: Surroundings, automation: Automation, trial: Trial) -> Trace | Refusal:
    """Return what an automation that is stored nowhere would do."""
    return await _tried(await _prepare(database, around, automation, trial), around, trial)


async def prepare(database: Database, around: Surroundings, automation_id: str, trial: Trial) -> Prepared | Refusal:
    """Return the draft, or the version the trial names, with its event and the contact that this is about."""
    async with database.transaction() as tx:
        row = await store.find_automation(tx, around.org_id, automation_id)
        if row is None:
            return unknown("automation")
        source = await _source(tx, row, trial.version)
    if isinstance(source, Refusal):
        return source
    automation = await asyncio.to_thread(_automation, row, source)
    return automation if isinstance(automation, Refusal) else await _prepare(database, around, automation, trial)


async def _prepare(
    database: Database, around: Surroundings, automation: Automation, trial: Trial
) -> Prepared | Refusal:
    event = _started_by(automation.trigger, trial)
    if isinstance(event, Refusal):
        return event
    async with database.transaction() as tx:
        contact = await _contact(tx, around, trial, event)
        if trial.contact is not None or contact.id == SIMULATED:
            return Prepared(automation, contact, event)
        return Prepared(automation, contact, event, await past_of(tx, around.org_id, automation, contact.id, trial.now))


def _started_by(trigger: Trigger, trial: Trial) -> Event | Refusal:
    if isinstance(trial.event, Event):
        return trial.event
    if trigger.source is None:
        return invalid((Problem("event.type", "this automation does not start from a chain"),))
    found = read_sample(trial.event.value, trigger.source)
    return found if isinstance(found, Event) else invalid(found)


async def _tried(prepared: Prepared | Refusal, around: Surroundings, trial: Trial) -> Trace | Refusal:
    return prepared if isinstance(prepared, Refusal) else await asyncio.to_thread(run, prepared, around, trial)


def run(prepared: Prepared, around: Surroundings, trial: Trial) -> Trace:
    """Simulate with what is true, as the engine would, and tell what the caller may see.

    An address that the caller has sent itself is no secret.
    """
    contact, email = prepared.contact, prepared.contact.identifiers.email
    given = Given(prepared.past, trial.later, around.retries, until=trial.until)
    if email is None or around.shows_email or trial.contact is not None or email == prepared.event.identifiers.email:
        return simulate(prepared.automation, prepared.event, contact, trial.now, given)
    given = msgspec.structs.replace(given, seen_as=without_email(contact, email))
    return without_email(simulate(prepared.automation, prepared.event, contact, trial.now, given), email)


async def _source(tx: Transaction, row: AutomationRow, version: Version) -> AutomationRow | VersionRow | Refusal | None:
    """Return what runs: the draft, a version, or None for `published` when nothing is."""
    if version == "draft":
        return row
    number = row.published_version if version == "published" else version
    found = None if number is None else await store.find_version(tx, row.org_id, row.id, number)
    if found is None and version != "published":
        return invalid((Problem("version", f"there is no version {version}"),))
    return found


def _automation(row: AutomationRow, source: AutomationRow | VersionRow | None) -> Automation | Refusal:
    """Return the automation to run; like the engine, an unpublished one has the draft's trigger and no graph."""
    chosen = source or row
    found = read_specs(chosen.trigger_spec, chosen.graph)
    if isinstance(found, tuple):
        return invalid(found)
    return Automation(found.trigger, found.graph if source is not None else None, row.id)


async def _contact(tx: Transaction, around: Surroundings, trial: Trial, event: Event) -> Contact:
    if trial.contact is not None:
        return trial.contact
    return await stored_contact(tx, around.org_id, around.keys, event.identifiers) or contact_of(None)


def trial_in(fields: Fields, now: datetime) -> Trial | Problems:
    """Return the trial among the fields of a body, or everything that is wrong with it."""
    given = fields.moment("now") or now
    if not EARLIEST <= given <= LATEST:
        fields.refuse("now", f"must be from {EARLIEST.year} to {LATEST.year}")
        given = now
    event = _event(fields, given)
    contact = _described(fields)
    version = _version(fields)
    later = read_later(fields.value("events"), to_us(given), "events", fields.problems)
    until = fields.moment("until")
    if fields.problems or event is None:
        return tuple(fields.problems)
    return Trial(event, contact, given, version, later, until)


def _automation_id(fields: Fields) -> str:
    """Return the id of the automation whose draft is brought along: by it contacts are divided, and it knows who was in before."""
    text = fields.text("automationId", 36)
    try:
        return SIMULATED if text is None else str(UUID(text))
    except ValueError:
        fields.refuse("automationId", "must be the id of an automation")
        return SIMULATED


def _event(fields: Fields, now: datetime) -> Event | Sample | None:
    raw = fields.raw("event")
    if raw is None:
        fields.refuse("event", "is required")
        return None
    if b'"onchain_event"' in raw and is_sample(described := fields.value("event")):
        return Sample(described)
    found = read_event(raw, to_us(now))
    if isinstance(found, Event):
        return found
    for problem in found:
        fields.refuse(f"event.{problem.field}" if problem.field else "event", problem.reason)
    return None


def _version(fields: Fields) -> Version:
    match fields.value("version"):
        case None | "draft":
            return "draft"
        case "published":
            return "published"
        case int() as number if not isinstance(number, bool) and 1 <= number < 2**31:
            return number
        case _:
            fields.refuse("version", 'must be a version number, "published" or "draft"')
            return "draft"


def _described(fields: Fields) -> Contact | None:
    value = fields.value("contact")
    if value is None:
        return None
    found = read_contact(value)
    if isinstance(found, Contact):
        return found
    for problem in found:
        fields.refuse(problem.field, problem.reason)
    return None
