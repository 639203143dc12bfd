"""The contacts of an import: most events of a history come from contacts that also sent one of the previous events.

A cached contact is trusted in two cases. Either its row has not been written since, which one statement of the
transaction checks. Or only this import has written anything to the database since the last check, which two snapshots
show, and this import did not write that contact. Both are as safe as looking up every identifier again, even when
identifiers move to another contact.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import msgspec

from api.clock import to_us
from api.imports.rows import Identity, PastEvent, PastEvents
from api.ingest.identity import assign_owner
from api.store import imports
from api.store.database import Transaction
from api.store.imports import ImportSnapshot
from api.store.query import run
from workbench.language.contact import IdentifierKey

_MAX_WRITTEN = 200_000  # contacts written by this import; with more, all cached contacts are checked again


class CachedResolution(msgspec.Struct):
    """The contact of each event by position (empty: unknown), and the events to resolve, by position."""

    contact_ids: list[str]
    events: dict[int, PastEvent]

    def include(self, columns: PastEvents, contact_ids: Collection[str]) -> None:
        """Add the events of some contacts: resolution may change these contacts, so their events take part in it."""
        if contact_ids:
            added = {
                position: columns.event(position, contact_id)
                for position, contact_id in enumerate(self.contact_ids)
                if contact_id in contact_ids and position not in self.events
            }
            self.events = dict(sorted((self.events | added).items()))

    def take_over(self) -> None:
        """Copy the contacts to which the events were resolved."""
        for position, event in self.events.items():
            self.contact_ids[position] = event.contact_id
            if event.contact_id != event.identity.expected_id:
                event.identity.expected_id = ""


class ContactCache:
    """The contacts of one import. Its transactions are numbered from 1 (`Identity.checked_in`).

    `expects_new`: identities without a cached identifier are expected to be new contacts; False once that was wrong.
    """

    def __init__(self, org_id: int) -> None:
        self.expects_new = True
        self._org_id = org_id
        self._number = self._alone_since = 0
        self._snapshot: ImportSnapshot | None = None
        self._own_transactions: set[int] = set()
        self._written_in: dict[str, int] = {}

    def begin(self, transaction_id: int, snapshot: ImportSnapshot | None) -> None:
        """Begin the next transaction. Compares its snapshot with the last one, to see if others wrote in between."""
        self._number += 1
        self._own_transactions.add(transaction_id)
        # Without other writers since the last snapshot, cached contacts need no check, which saves a statement.
        alone = (
            snapshot is not None
            and self._snapshot is not None
            and snapshot.only(self._own_transactions, self._snapshot)
        )
        if not alone or len(self._written_in) > _MAX_WRITTEN:
            self._alone_since = self._number
            self._written_in.clear()
        self._snapshot = snapshot
        if snapshot is not None:
            self._own_transactions = {
                number for number in self._own_transactions if number >= snapshot.next or number in snapshot.running
            }
        self._own_transactions.add(transaction_id)

    async def recognise(self, tx: Transaction, columns: PastEvents) -> CachedResolution:
        """Find the contacts of events as far as one contact owns all identifiers that an event carries.

        Call it before the transaction writes to contacts.
        """
        await self._drop_changed(tx, columns.identities)
        contact_ids = [identity.contact_id for identity in columns.identities]
        events = {
            position: columns.event(position)
            for position, (contact_id, attributes) in enumerate(zip(contact_ids, columns.attributes, strict=True))
            if attributes or not contact_id
        }
        uncertain = [
            event
            for event in events.values()
            if event.identity.contact_id or not (self.expects_new and event.identity.expected_id)
        ]
        if uncertain:
            await self._look_up(tx, uncertain)
        return CachedResolution(contact_ids, events)

    def expected(self, identities: Iterable[Identity]) -> list[str]:
        """Return the contact that each identity is expected to have, empty for none."""
        if self.expects_new:
            return [identity.contact_id or identity.expected_id for identity in identities]
        return [identity.contact_id for identity in identities]

    def note_own(self, transaction_ids: Iterable[int]) -> None:
        """Note transactions of this import that wrote nothing to contacts."""
        self._own_transactions.update(transaction_ids)

    def note_written(self, contact_ids: Iterable[str]) -> None:
        """Note existing contacts that the transaction writes, whether or not it commits."""
        self._written_in.update(dict.fromkeys(contact_ids, self._number))

    def add(self, events: Iterable[PastEvent], at: datetime) -> None:
        """Add the contacts that a committed transaction created at `at`; each owns all identifiers of its event."""
        at_us = to_us(at)
        for event in events:
            identity = event.identity
            identity.contact_id, identity.updated_us, identity.checked_in = event.contact_id, at_us, self._number
            identity.expected_id = ""

    async def _drop_changed(self, tx: Transaction, identities: Sequence[Identity]) -> None:
        """Remove the contacts from the cache that were written since they were cached."""
        alone_since, written_in = self._alone_since, self._written_in
        # Trusted without a check: looked up since only this import writes, and not written by this import since then.
        uncertain = [
            identity
            for identity in set(identities)
            if identity.contact_id and not alone_since <= identity.checked_in > written_in.get(identity.contact_id, 0)
        ]
        if not uncertain:
            return
        ids = [identity.contact_id for identity in uncertain]
        updated_us = [identity.updated_us for identity in uncertain]
        (changed,) = await run(tx, imports.find_changed_contacts(self._org_id, ids, updated_us))
        for identity in uncertain:
            identity.checked_in = self._number
        for position in changed:
            uncertain[position].contact_id = ""

    async def _look_up(self, tx: Transaction, events: Sequence[PastEvent]) -> None:
        groups: dict[tuple[IdentifierKey, str], list[PastEvent]] = {}  # asked once for equal identifiers and attributes
        for event in events:
            event.identity.contact_id = ""
            groups.setdefault((event.keys[0], event.attributes), []).append(event)
        kinds, digests = [int(key[0]) for key, _ in groups], [key[1] for key, _ in groups]
        attributes = [text for _, text in groups]
        (owners,) = await run(tx, imports.find_existing_owners(self._org_id, kinds, digests, attributes))
        by_position = list(groups.values())
        for existing in owners:
            for event in by_position[existing.owner.position]:
                if assign_owner(event, existing.owner):
                    identity = event.identity
                    identity.contact_id, identity.updated_us = event.contact_id, existing.updated_us
                    identity.checked_in = self._number
