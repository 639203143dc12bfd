"""Entries that start without an event, because contacts entered or left a segment.

They are written in the transaction that changes the members: a start for each contact, which is a row in the shape of
an event, and an entry for each automation whose filters the start passes. While no automation starts from a change,
nothing is written for it.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.clock import to_us, uuid7
from api.crypto import Keyring
from api.ingest.identity import ContactIdentifiers
from api.ingest.match import ActiveTrigger, trigger_context
from api.ingest.parse import IdentifiedEvent
from api.ingest.store import entry_rows
from api.store import starts as store
from api.store.contacts import find_contacts
from api.store.database import Transaction
from api.store.events import add_entries, list_active_automations, wake_engine
from api.store.query import run
from workbench.language.codec import decode, encode
from workbench.language.event import Event, Identifiers
from workbench.language.filter import matches
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger, read_trigger


class Starter(msgspec.Struct, frozen=True):
    """Starts the active automations of one source at a moment."""

    keyring: Keyring
    org_id: int
    source: StartSource
    at: datetime
    automations: Sequence[ActiveTrigger]

    async def start(self, tx: Transaction, contact_ids: Sequence[str]) -> None:
        """Write the starts of contacts, and the entries of the automations whose filters they pass."""
        if not self.automations or not contact_ids:
            return
        body = Event(self.source.type, Identifiers(), payload=encode(self.source.payload))
        events = [
            IdentifiedEvent(org_id=self.org_id, body=body, event_id=start_id, keys=())
            for start_id in sorted([uuid7(to_us(self.at)) for _ in contact_ids])
        ]
        contacts = {}
        if any(active.trigger.filters for active in self.automations):
            rows = await find_contacts(tx, self.org_id, contact_ids)
            contacts = {row.id: ContactIdentifiers(row.wallet_address, row.email, row.external_id) for row in rows}

        def passes(event: IdentifiedEvent, contact_id: str, trigger: Trigger) -> bool:
            if not trigger.filters:
                return True
            if contact_id not in contacts:  # erased since
                return False
            contact = contacts[contact_id]
            context = trigger_context(self.keyring, event, contact_id, contact, self.source.payload, [trigger])
            return matches(trigger.filters, context, self.at)

        entries = [
            (event, contact_id, active)
            for event, contact_id in zip(events, contact_ids, strict=True)
            for active in self.automations
            if passes(event, contact_id, active.trigger)
        ]
        start_ids = [event.event_id for event in events]
        add_starts = store.add_starts(self.org_id, start_ids, contact_ids, body.name, body.payload, self.at)
        if not entries:
            await run(tx, add_starts)
            return
        columns = zip(*entry_rows(entries, to_us(self.at)), strict=True)
        await run(tx, add_starts, add_entries(self.at, *columns), wake_engine())


async def find_starter(tx: Transaction, keyring: Keyring, org_id: int, source: StartSource, at: datetime) -> Starter:
    """Return what starts the automations of a source; it does nothing if none is active."""
    automations = []
    for row in await list_active_automations(tx, org_id, source.type, source.segment):
        trigger = read_trigger(decode(row.trigger_spec))
        if isinstance(trigger, Trigger):
            automations.append(ActiveTrigger(row.id, row.published_version, row.activation, trigger))
    return Starter(keyring, org_id, source, at, automations)
