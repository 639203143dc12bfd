"""Explain why an automation did or did not start for events of a contact, or would start for a hypothetical event.

Each event is judged as of the moment when it was received: whether the automation was active, the trigger of the
version that was published, and the contact as it was.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.automations.automations import Author, Refusal, invalid, log_bug, unknown
from api.automations.body import read_specs
from api.automations.views import without_email
from api.clock import to_us
from api.crypto import EmailDisplay
from api.engine.facts import past_of
from api.store import automations, contacts
from api.store.automations import AutomationRow, VersionRow
from api.store.contacts import ContactKey
from api.store.database import Database, Transaction
from api.store.events import EventRow
from api.store.merges import find_kept_contact
from workbench.language.body import Body, Id, ShortName
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState, contact_before, merge_identifiers
from workbench.language.event import Event
from workbench.language.explain import (
    AutomationState,
    ExplanationView,
    MatchExplanation,
    ObservedEvent,
    StartedEntry,
    active_since,
    explain_simulated_event,
    explain_stored_event,
    was_active_at,
)
from workbench.language.live import ActivationChange
from workbench.language.problem import Problem, Problems
from workbench.language.simulate import SimulatedAutomation, SimulationInput, simulate
from workbench.language.trigger import Trigger, flat_context, read_sample, read_trigger

_MAX_VERSIONS = 10_000


class ExplainBody(Body, frozen=True, rename="camel"):
    """The automation, and a stored event (`eventId`) or a hypothetical `event`; by default the newest events."""

    automation_id: ShortName
    event_id: Id | None = None
    event: dict[str, Any] | None = None
    limit: Annotated[int, Meta(ge=1, le=contacts.MAX_EVENTS)] = 20

    def conflicts(self) -> Iterator[Problem]:
        if self.event is not None and self.event_id is not None:
            yield Problem("event", "cannot be combined with eventId: pass one of them")


class ExplainedView(msgspec.Struct, frozen=True, rename="camel"):
    """The explanations for events of a contact in one automation, newest first."""

    automation_id: str
    automation: str
    active: bool
    explanations: tuple[ExplanationView, ...]


class ExplainReader(msgspec.Struct, frozen=True):
    author: Author
    show: EmailDisplay

    def masked(self, view: ExplanationView, *addresses: str | None) -> ExplanationView:
        """Return the view as the caller may see it: with these addresses in clear, or masked."""
        for address in addresses:
            if address is not None and not self.show.clear:
                view = without_email(view, address)
        return view


class _History(msgspec.Struct, frozen=True):
    row: AutomationRow
    versions: Sequence[VersionRow]
    switches: Sequence[ActivationChange]
    contact: ContactState
    draft: Trigger

    def state_at(self, at: datetime) -> AutomationState:
        archived = self.row.archived_at is not None and self.row.archived_at <= at
        active = was_active_at(self.switches, at, now=self.row.active)
        published = self.published_at(at)
        return AutomationState(
            self.row.created_at <= at, active, archived, None if published is None else published.version
        )

    def trigger_at(self, at: datetime) -> Trigger:
        """Return the trigger that was live at a moment; the draft's if nothing was published."""
        # Drafts have no history, so before the first publication the current draft decides.
        published = self.published_at(at)
        trigger = self.draft if published is None else read_trigger(decode(published.trigger_spec))
        return trigger if isinstance(trigger, Trigger) else self.draft

    def live_since(self, at: datetime) -> datetime:
        """Return the start of the period up to `at` in which the automation was active with the same contract event."""
        trigger, began = self.trigger_at(at), self.row.created_at
        for version in self.versions:
            if version.published_at <= at:
                earlier = read_trigger(decode(version.trigger_spec))
                if not isinstance(earlier, Trigger) or not trigger.continues(earlier):
                    break
                began = version.published_at
        return max(began, active_since(self.switches, at) or began)

    def published_at(self, at: datetime) -> VersionRow | None:
        return next((version for version in self.versions if version.published_at <= at), None)


async def explain(
    database: Database, reader: ExplainReader, contact_id: str, automation_id: str, body: ExplainBody
) -> ExplainedView | Refusal:
    """Return the explanations; a refusal if the contact, the automation or the event does not exist."""
    async with database.transaction() as tx:
        contact_key = ContactKey(reader.author.org_id, await find_kept_contact(tx, reader.author.org_id, contact_id))
        contact = await contacts.find_contact(tx, contact_key.org_id, contact_key.contact_id)
        if contact is None:
            return unknown("contact")
        row = await automations.find_automation(tx, contact_key.org_id, automation_id)
        if row is None:
            return unknown("automation")
        draft = read_trigger(decode(row.trigger_spec))
        history = _History(
            row,
            await automations.list_versions(tx, contact_key.org_id, automation_id, _MAX_VERSIONS),
            await contacts.list_activation_changes(tx, contact_key.org_id, automation_id),
            contacts.contact_state(contact, reader.show.keys.open_email),
            draft if isinstance(draft, Trigger) else Trigger(),
        )
        if body.event is not None:
            explanation = await _explain_hypothetical(tx, contact_key, reader, history, body.event)
            if isinstance(explanation, Refusal):
                return explanation
            explanations = [explanation]
        else:
            if body.event_id is None:
                events = await contacts.list_recent_events(tx, contact_key, row.id, body.limit)
            elif not (events := await contacts.find_event_of_contact(tx, contact_key, body.event_id)):
                return unknown("event of this contact")
            ids = [event.id for event in events]
            entries = await contacts.find_entries_of_events(tx, contact_key.org_id, row.id, ids)
            began = min((event.created_at for event in events), default=reader.author.now)
            changes = await contacts.list_changes_since(
                tx, contact_key.org_id, reader.show.keys, contact_key.contact_id, began
            )
            explanations = []
            for event in events:
                # As the trigger saw it, which is after the changes of the event itself.
                later = [change for change in changes if change.at > event.created_at and change.event_id != event.id]
                then = msgspec.structs.replace(history, contact=contact_before(history.contact, later))
                explanations.append(_explain_stored(reader, then, event, entries.get(event.id)))
    return ExplainedView(row.id, row.name, row.active and row.archived_at is None, tuple(explanations))


def _explain_stored(
    reader: ExplainReader, history: _History, event: EventRow, entry: StartedEntry | None
) -> ExplanationView:
    at, own = event.created_at, history.contact.identifiers
    trigger, state = history.trigger_at(at), history.state_at(at)
    sent = contacts.identifiers_of(event, reader.show.keys.open_email)
    payload = decode(event.payload)
    is_named = trigger.matches_event(event.event, event.source) and trigger.concerns(payload, own.wallet)
    # Blocks are dated to the second.
    live_since = history.live_since(at).replace(microsecond=0)
    is_early = is_named and trigger.log_source is not None and event.occurred_at < live_since
    shown_payload = trigger.payload_of(payload, event.source)
    context = flat_context(event.event, history.contact.id, merge_identifiers(sent, own), shown_payload)
    observed = ObservedEvent(is_named, context, at, event.dry, event.removed, is_early)
    explanation = explain_stored_event(trigger, state, observed, entry)
    return reader.masked(_view((event.id, event.event, at), trigger, state, explanation, entry), sent.email, own.email)


async def _explain_hypothetical(
    tx: Transaction, contact_key: ContactKey, reader: ExplainReader, history: _History, described: dict[str, Any]
) -> ExplanationView | Refusal:
    now = reader.author.now
    trigger, state = history.trigger_at(now), history.state_at(now)
    event = _read_event(described, history.contact, trigger, now)
    if not isinstance(event, Event):
        return invalid(event)
    # As in the engine, an automation that is not published has the draft's trigger and no graph.
    published = history.published_at(now)
    specs = None if published is None else read_specs(published.trigger_spec, published.graph)
    graph = specs.graph if isinstance(specs, SimulatedAutomation) else None
    automation = SimulatedAutomation(trigger, graph, history.row.id)
    past = await past_of(tx, contact_key.org_id, automation.id, graph, contact_key.contact_id, now)
    owners = await contacts.find_owners(tx, contact_key.org_id, reader.show.keys, [event.identifiers])
    circumstances = SimulationInput(past, report_bug=log_bug, owners=owners)
    trace = simulate(automation, event, history.contact, now, circumstances)
    explanation = explain_simulated_event(state, trace)
    view = _view((None, event.name, now), trigger, state, explanation, None)
    return reader.masked(view, history.contact.identifiers.email)


def _read_event(described: dict[str, Any], contact: ContactState, trigger: Trigger, now: datetime) -> Event | Problems:
    """Return an event as posted for the contact; identifiers default to the contact's."""
    identifiers = contact.identifiers
    own = {"walletAddress": identifiers.wallet, "email": identifiers.email, "externalId": identifiers.external_id}
    if not any(own.values()):
        own = {"externalId": contact.id}
    return read_sample(encode({"contact": own} | described), trigger, to_us(now))


def _view(
    event: tuple[str | None, str, datetime],
    trigger: Trigger,
    state: AutomationState,
    explanation: MatchExplanation,
    entry: StartedEntry | None,
) -> ExplanationView:
    """Return the view of an event: its id (None: hypothetical), its name and its time."""
    return ExplanationView(
        *event,
        explanation.matched,
        explanation.reasons,
        explanation.cause,
        trigger.shown_names,
        explanation.verdicts,
        state.version,
        entry,
    )
