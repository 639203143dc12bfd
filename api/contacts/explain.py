"""Explanations why an automation did or did not start for events of a contact, or would start for a hypothetical event.

Each event is judged by the state of the automation when it was received: active or not, and the trigger of the version
that was published then. The contact is as it is now: its earlier identifiers are not stored.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.automations.automations import Author, Refusal, invalid, unknown
from api.automations.body import read_specs
from api.automations.views import without_email
from api.clock import to_us
from api.crypto import OrgKeys
from api.store import automations, contacts
from api.store.automations import AutomationRow, VersionRow
from api.store.contacts import ContactKey, ExplainedEventRow
from api.store.database import Database, Transaction
from api.store.entries import Claim, read_other_entries
from api.store.merges import find_survivor
from api.store.query import run
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState, merge_identifiers
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.explain import (
    ActivationChange,
    AutomationState,
    MatchExplanation,
    ObservedEvent,
    Reason,
    StartedEntry,
    active_since,
    explain_simulated_event,
    explain_stored_event,
    was_active_at,
)
from workbench.language.facts import ContactHistory
from workbench.language.filter import Verdict
from workbench.language.onchain import LOCATION_FIELDS, is_log_sample, log_payload, log_wallet, read_log_sample
from workbench.language.problem import Problem, Problems
from workbench.language.simulate import SimulatedAutomation, SimulationInput, simulate
from workbench.language.trigger import Trigger, flat_context, read_trigger

_MAX_VERSIONS = 10_000
_HYPOTHETICAL_ID = "00000000-0000-8000-8000-000000000000"


class ExplainRequest(msgspec.Struct, frozen=True):
    """The events to explain: a stored one by its id, a hypothetical one (`imagined`), or the newest ones."""

    automation_id: str
    event_id: str | None = None
    imagined: dict[str, Any] | None = None
    most: int = 20


class StartedView(msgspec.Struct, frozen=True):
    """The entry that an event started."""

    id: str
    state: str
    outcome: str | None


class ExplanationView(msgspec.Struct, frozen=True, rename="camel"):
    """The explanation for one event.

    `wants`: the event names of the trigger, empty if it starts on any event; a contract's event has the contract's
    address. `version`: the version that was published when the event was received.
    """

    event_id: str | None
    event: str
    at: datetime
    matched: bool
    reasons: tuple[Reason, ...]
    cause: str | None
    wants: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    version: int | None
    entry: StartedView | None


class ExplainedView(msgspec.Struct, frozen=True, rename="camel"):
    """The explanations for events of a contact in one automation, newest first."""

    automation_id: str
    automation: str
    active: bool
    explanations: tuple[ExplanationView, ...]


class ExplainReader(msgspec.Struct, frozen=True):
    """The caller. Without `clear` it may not see email addresses."""

    author: Author
    keys: OrgKeys
    clear: bool

    def masked(self, view: ExplanationView, *addresses: str | None) -> ExplanationView:
        """Return the view as the caller may see it: without these addresses, unless `clear`."""
        for address in addresses:
            if address is not None and not self.clear:
                view = without_email(view, address)
        return view

    def opened(self, sealed: str | None) -> str | None:
        """Return an address in clear, to evaluate conditions with."""
        return None if sealed is None else self.keys.open_email(sealed)


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
        # Drafts have no history, so before the first publication today's draft decides.
        published = self.published_at(at)
        trigger = self.draft if published is None else read_trigger(decode(published.trigger_spec))
        return trigger if isinstance(trigger, Trigger) else self.draft

    def live_since(self, at: datetime) -> datetime:
        """Return the start of the period up to `at` in which the automation was active with the same contract event."""
        source, began = self.trigger_at(at).source, self.row.created_at
        for version in self.versions:
            if source is not None and version.published_at <= at:
                trigger = read_trigger(decode(version.trigger_spec))
                if not isinstance(trigger, Trigger) or trigger.source is None or trigger.source.key != source.key:
                    break
                began = version.published_at
        return max(began, active_since(self.switches, at) or began)

    def published_at(self, at: datetime) -> VersionRow | None:
        return next((version for version in self.versions if version.published_at <= at), None)


async def explain(
    database: Database, reader: ExplainReader, contact_id: str, request: ExplainRequest
) -> ExplainedView | Refusal:
    """Return the explanations; a refusal if the contact, the automation or the event does not exist."""
    async with database.transaction() as tx:
        contact_key = ContactKey(reader.author.org_id, await find_survivor(tx, reader.author.org_id, contact_id))
        history = await _read_history(tx, contact_key, reader, request.automation_id)
        if isinstance(history, Refusal):
            return history
        row = history.row
        if request.imagined is not None:
            explanation = await _explain_hypothetical(tx, contact_key, reader, history, request.imagined)
            if isinstance(explanation, Refusal):
                return explanation
            explanations = [explanation]
        else:
            if request.event_id is None:
                events = await contacts.list_recent_events(tx, contact_key, request.most)
            elif not (events := await contacts.find_event_of_contact(tx, contact_key, request.event_id)):
                return unknown("event of this contact")
            ids = [event.id for event in events]
            entries = await contacts.find_entries_of_events(tx, contact_key.org_id, row.id, ids)
            explanations = [_explain_stored(reader, history, event, entries.get(event.id)) for event in events]
    return ExplainedView(row.id, row.name, row.active and row.archived_at is None, tuple(explanations))


async def _read_history(
    tx: Transaction, contact_key: ContactKey, reader: ExplainReader, automation_id: str
) -> _History | Refusal:
    contact = await contacts.find_contact(tx, contact_key.org_id, contact_key.contact_id)
    if contact is None:
        return unknown("contact")
    row = await automations.find_automation(tx, contact_key.org_id, automation_id)
    if row is None:
        return unknown("automation")
    identifiers = Identifiers(
        contact.wallet_address, reader.opened(contact.email), contact.external_id, contact.wallet_raw
    )
    texts = tuple(contact.tags), tuple(contact.segments), tuple(contact.opted_out)
    draft = read_trigger(decode(row.trigger_spec))
    return _History(
        row,
        await automations.list_versions(tx, contact_key.org_id, automation_id, _MAX_VERSIONS),
        await contacts.list_activation_changes(tx, contact_key.org_id, automation_id),
        ContactState(contact.id, identifiers, decode(contact.attributes), *texts),
        draft if isinstance(draft, Trigger) else Trigger(),
    )


def _explain_stored(
    reader: ExplainReader, history: _History, event: ExplainedEventRow, entry: StartedEntry | None
) -> ExplanationView:
    at, own = event.created_at, history.contact.identifiers
    trigger, state = history.trigger_at(at), history.state_at(at)
    sent = Identifiers(event.wallet, reader.opened(event.email), event.external_id)
    payload, is_named, removed, is_early = decode(event.payload), trigger.matches_event(event.event), False, False
    if (log := event.log) is not None:
        # A log is matched by chain, contract and signature, and by the wallet that it concerns.
        source, removed = trigger.source, log.removed
        is_named = (
            source is not None
            and source.matches_log(*log.place[:2], log.signature)
            and log_wallet(source, payload) == own.wallet
        )
        # Blocks are dated to the second.
        is_early = is_named and log.block_time < history.live_since(at).replace(microsecond=0)
        declared = None if source is None else source.abi_event
        payload = log_payload(dict(zip(LOCATION_FIELDS, log.place, strict=True)), payload, declared)
    context = flat_context(event.event, history.contact.id, merge_identifiers(sent, own), payload)
    observed = ObservedEvent(is_named, context, event.dry, removed, is_early)
    explanation = explain_stored_event(trigger, state, observed, entry)
    ref = _EventRef(event.id, event.event, at)
    return reader.masked(_view(ref, trigger, state, explanation, entry), sent.email, own.email)


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
    # The contact's other entries are those that an entry created now would see.
    entry_id = event_id = _HYPOTHETICAL_ID
    contact_id = contact_key.contact_id
    claim = Claim(entry_id, history.row.id, None, event_id, now, contact_id, None, 0, 1, 0, now, None, 0)
    (entered,) = await run(tx, read_other_entries(contact_key.org_id, [claim]))
    others = entered.get(entry_id)
    past = ContactHistory() if others is None else ContactHistory(others.at, others.running)
    trace = simulate(automation, event, history.contact, now, SimulationInput(past))
    explanation = explain_simulated_event(state, trace)
    view = _view(_EventRef(None, event.name, now), trigger, state, explanation, None)
    return reader.masked(view, history.contact.identifiers.email)


def _read_event(described: dict[str, Any], contact: ContactState, trigger: Trigger, now: datetime) -> Event | Problems:
    """Return an event as posted for the contact, or a log about it; identifiers default to the contact's."""
    identifiers = contact.identifiers
    if is_log_sample(described):
        source, args = trigger.source, described.get("args")
        if source is None:
            return (Problem("event.type", "this automation does not start from a chain"),)
        own_args = {} if identifiers.wallet is None else {source.wallet_arg: identifiers.wallet}
        return read_log_sample(described | {"args": own_args | args} if isinstance(args, dict) else described, source)
    own = {"walletAddress": identifiers.wallet, "email": identifiers.email, "externalId": identifiers.external_id}
    if not any(own.values()):
        own = {"externalId": contact.id}
    event = read_event(encode({"contact": own} | described), to_us(now))
    if isinstance(event, Event):
        return event
    return tuple(Problem(f"event.{problem.field}" if problem.field else "event", problem.reason) for problem in event)


class _EventRef(msgspec.Struct, frozen=True):
    """An event; a hypothetical one has no id."""

    id: str | None
    name: str
    at: datetime


def _view(
    event: _EventRef,
    trigger: Trigger,
    state: AutomationState,
    explanation: MatchExplanation,
    entry: StartedEntry | None,
) -> ExplanationView:
    source = trigger.source
    return ExplanationView(
        event.id,
        event.name,
        event.at,
        explanation.matched,
        explanation.reasons,
        explanation.cause,
        tuple(sorted(trigger.names)) if source is None else (f"{source.contract}:{source.abi_event.name}",),
        explanation.verdicts,
        state.version,
        None if entry is None else StartedView(entry.id, entry.state, entry.outcome),
    )
