"""Why an automation did or did not take the events of a contact, or would take one that has not happened.

Each event is judged by what the automation was at its moment: switched on or off, and the trigger of the version that was published
then. The contact is the one of today: what it was called at that moment is not kept.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.authoring.automations import Author
from api.authoring.draft import read_specs
from api.authoring.masking import without_email
from api.authoring.refusal import Refusal, invalid, unknown
from api.clock import to_us
from api.keyring import OrgKeys
from api.language.codec import decode, encode
from api.language.contact import Contact, identifiers_of
from api.language.event import Event, Identifiers, read_event
from api.language.facts import Past
from api.language.filter import Verdict
from api.language.onchain import PLACE, is_sample, payload_of, read_sample, wallet_in
from api.language.problem import Problem, Problems
from api.language.simulate import Automation, Given, simulate
from api.language.trigger import Trigger, flat_context, read_trigger
from api.language.why import Came, Change, Entered, Reason, Standing, Why, active_at, on_since, why_imagined, why_stored
from api.store import authoring, care
from api.store import explain as store
from api.store.authoring import AutomationRow, VersionRow
from api.store.calls import run
from api.store.database import Database, Transaction
from api.store.engine import Claim
from api.store.erasure import Subject
from api.store.explain import EventRow, LogRow
from api.store.facts import read_entered
from api.store.merging import survivor

_MOST_VERSIONS = 10_000
_IMAGINED = "00000000-0000-8000-8000-000000000000"


class Asked(msgspec.Struct, frozen=True):
    """Which events are asked about: one of the contact's by its id, one that has not happened, or the newest ones."""

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
    """The answer for one event. `wants`: the names that the trigger means (none: any), of a contract's event with its address.

    `version`: the one that was published then.
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
    """The answers for events of a contact in one automation, the newest first."""

    automation_id: str
    automation: str
    active: bool
    explanations: tuple[ExplanationView, ...]


class Reader(msgspec.Struct, frozen=True):
    """Who asks; without `clear` it sees no addresses."""

    author: Author
    keys: OrgKeys
    clear: bool

    def sees(self, view: ExplanationView, *addresses: str | None) -> ExplanationView:
        """Return what it sees of a view in which these addresses may stand."""
        for address in addresses:
            if address is not None and not self.clear:
                view = without_email(view, address)
        return view

    def opened(self, sealed: str | None) -> str | None:
        """Return an address in clear, for the judgement."""
        return None if sealed is None else self.keys.open_email(sealed)


class _Known(msgspec.Struct, frozen=True):
    """All that was read of an automation and a contact."""

    row: AutomationRow
    versions: Sequence[VersionRow]
    switches: Sequence[Change]
    contact: Contact
    draft: Trigger

    def standing_at(self, at: datetime) -> Standing:
        """Return where the automation stood at a moment."""
        archived = self.row.archived_at is not None and self.row.archived_at <= at
        active = active_at(self.switches, at, now=self.row.active)
        published = self.published_at(at)
        return Standing(self.row.created_at <= at, active, archived, None if published is None else published.version)

    def trigger_at(self, at: datetime) -> Trigger:
        """Return the trigger that was live at a moment: of the draft, when nothing was published."""
        published = self.published_at(at)
        found = self.draft if published is None else read_trigger(decode(published.trigger_spec))
        return found if isinstance(found, Trigger) else self.draft

    def live_since(self, at: datetime) -> datetime:
        """Return from when on, as it was at a moment, logs start it: it was switched on, and published with the event that it has then."""
        source, began = self.trigger_at(at).source, self.row.created_at
        for version in self.versions:
            if source is not None and version.published_at <= at:
                trigger = read_trigger(decode(version.trigger_spec))
                if not isinstance(trigger, Trigger) or trigger.source is None or trigger.source.key != source.key:
                    break
                began = version.published_at
        return max(began, on_since(self.switches, at) or began)

    def published_at(self, at: datetime) -> VersionRow | None:
        """Return the version that was live at a moment."""
        return next((version for version in self.versions if version.published_at <= at), None)


async def explain(database: Database, reader: Reader, contact_id: str, asked: Asked) -> ExplainedView | Refusal:
    """Return why."""
    async with database.transaction() as tx:
        who = Subject(reader.author.org_id, await survivor(tx, reader.author.org_id, contact_id))
        known = await _known(tx, who, reader, asked.automation_id)
        if isinstance(known, Refusal):
            return known
        if asked.imagined is not None:
            found = await _imagined(tx, who, reader, known, asked.imagined)
        else:
            found = await _stored(tx, who, reader, known, asked)
    if isinstance(found, Refusal):
        return found
    row = known.row
    return ExplainedView(row.id, row.name, row.active and row.archived_at is None, tuple(found))


async def _known(tx: Transaction, who: Subject, reader: Reader, automation_id: str) -> _Known | Refusal:
    contact = await care.find_contact(tx, who.org_id, who.contact_id)
    if contact is None:
        return unknown("contact")
    row = await authoring.find_automation(tx, who.org_id, automation_id)
    if row is None:
        return unknown("automation")
    draft = read_trigger(decode(row.trigger_spec))
    return _Known(
        row,
        await authoring.list_versions(tx, who.org_id, automation_id, _MOST_VERSIONS),
        await store.switches(tx, who.org_id, automation_id),
        _contact(contact, reader),
        draft if isinstance(draft, Trigger) else Trigger(),
    )


def _contact(row: care.ContactRow, reader: Reader) -> Contact:
    identifiers = Identifiers(row.wallet_address, reader.opened(row.email), row.external_id, row.wallet_raw)
    attributes = decode(row.attributes)
    return Contact(row.id, identifiers, attributes, tuple(row.tags), tuple(row.segments), tuple(row.opted_out))


async def _stored(
    tx: Transaction, who: Subject, reader: Reader, known: _Known, asked: Asked
) -> list[ExplanationView] | Refusal:
    if asked.event_id is None:
        events = await store.recent_events(tx, who, asked.most)
    elif not (events := await store.one_event(tx, who, asked.event_id)):
        return unknown("event of this contact")
    entries = await store.entries_of_events(tx, who.org_id, known.row.id, [event.id for event in events])
    return [_of_stored(reader, known, event, entries.get(event.id)) for event in events]


def _of_stored(reader: Reader, known: _Known, event: EventRow, entry: Entered | None) -> ExplanationView:
    at, own = event.created_at, known.contact.identifiers
    trigger, standing = known.trigger_at(at), known.standing_at(at)
    sent = Identifiers(event.wallet, reader.opened(event.email), event.external_id)
    payload, named, removed, early = decode(event.payload), trigger.names_event(event.event), False, False
    if event.log is not None:
        named, removed = _is_meant(trigger, event.log, payload, own.wallet), event.log.removed
        early = named and event.log.block_time < known.live_since(at).replace(microsecond=0)
        declared = None if trigger.source is None else trigger.source.declared
        payload = payload_of(dict(zip(PLACE, event.log.place, strict=True)), payload, declared)
    context = flat_context(event.event, known.contact.id, identifiers_of(sent, own), payload)
    why = why_stored(trigger, standing, Came(named, context, event.dry, removed, early), entry)
    which = _Named(event.id, event.event, at)
    return reader.sees(_view(which, trigger, standing, why, entry), sent.email, own.email)


def _is_meant(trigger: Trigger, log: LogRow, args: dict[str, Any], wallet: str | None) -> bool:
    """Return whether a trigger means this log, and that it is about this wallet."""
    source = trigger.source
    if source is None or not source.means(*log.place[:2], log.signature):
        return False
    return wallet_in(source, args) == wallet


async def _imagined(
    tx: Transaction, who: Subject, reader: Reader, known: _Known, described: dict[str, Any]
) -> list[ExplanationView] | Refusal:
    now = reader.author.now
    event = _event(described, known.contact, known.trigger_at(now), now)
    if not isinstance(event, Event):
        return invalid(event)
    standing, past = known.standing_at(now), await _past(tx, who, known.row.id, now)
    trace = simulate(_automation(known, now), event, known.contact, now, Given(past))
    named, why = _Named(None, event.name, now), why_imagined(standing, trace)
    return [reader.sees(_view(named, known.trigger_at(now), standing, why, None), known.contact.identifiers.email)]


def _automation(known: _Known, now: datetime) -> Automation:
    """Return what runs now; like the engine, an unpublished automation has the draft's trigger and no graph."""
    published = known.published_at(now)
    found = None if published is None else read_specs(published.trigger_spec, published.graph)
    graph = None if found is None or isinstance(found, tuple) else found.graph
    return Automation(known.trigger_at(now), graph, known.row.id)


def _event(described: dict[str, Any], contact: Contact, trigger: Trigger, now: datetime) -> Event | Problems:
    """Return an event as it would be posted for the contact, or a log about it; its identifiers may be left out."""
    who = contact.identifiers
    if is_sample(described):
        return _log(described, who.wallet, trigger)
    own = {"walletAddress": who.wallet, "email": who.email, "externalId": who.external_id}
    if not any(own.values()):
        own = {"externalId": contact.id}
    found = read_event(encode({"contact": own} | described), to_us(now))
    if isinstance(found, Event):
        return found
    return tuple(Problem(f"event.{each.field}" if each.field else "event", each.reason) for each in found)


def _log(described: dict[str, Any], wallet: str | None, trigger: Trigger) -> Event | Problems:
    source, args = trigger.source, described.get("args")
    if source is None:
        return (Problem("event.type", "this automation does not start from a chain"),)
    own = {} if wallet is None else {source.wallet_arg: wallet}
    return read_sample(described | {"args": own | args} if isinstance(args, dict) else described, source)


async def _past(tx: Transaction, who: Subject, automation_id: str, now: datetime) -> Past:
    """Return what an entry of this moment would see of those before it."""
    claim = Claim(_IMAGINED, automation_id, None, _IMAGINED, now, who.contact_id, None, 0, 1, 0, now, None, 0)
    (entered,) = await run(tx, read_entered(who.org_id, [claim]))
    before = entered.get(_IMAGINED)
    return Past() if before is None else Past(before.at, before.running)


class _Named(msgspec.Struct, frozen=True):
    """Which event, and when; no id: it did not happen."""

    id: str | None
    name: str
    at: datetime


def _view(event: _Named, trigger: Trigger, standing: Standing, why: Why, entry: Entered | None) -> ExplanationView:
    return ExplanationView(
        event.id,
        event.name,
        event.at,
        why.matched,
        why.reasons,
        why.cause,
        _wants(trigger),
        why.verdicts,
        standing.version,
        None if entry is None else StartedView(entry.id, entry.state, entry.outcome),
    )


def _wants(trigger: Trigger) -> tuple[str, ...]:
    source = trigger.source
    return tuple(sorted(trigger.names)) if source is None else (f"{source.contract}:{source.declared.name}",)
