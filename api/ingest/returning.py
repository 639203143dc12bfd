"""People of an import who were met before: most events of a history come from contacts that came a moment ago.

What is remembered of a contact is believed in two cases. Either its row has not been written since, which the store is asked within
the transaction; or nobody but this import has written anything at all since it was last known to be so, which two snapshots of the
database tell, and this import did not write that contact either. So it is as right as looking up every identifier anew, and needs
no care when identifiers change hands.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import msgspec

from api.clock import to_us
from api.ingest.directory import Directory
from api.ingest.past_arrival import PastArrival, PastEvents, Person
from api.language.identity import Key
from api.store import history
from api.store.calls import run
from api.store.database import Transaction
from api.store.history import Snapshot

_MOST_WRITTEN = 200_000  # contacts kept in mind


class Met(msgspec.Struct):
    """The contact of each event (empty: of a stranger), those events that the store was asked for, and who is who among them."""

    contact_ids: list[str]
    asked: dict[int, PastArrival]
    directory: Directory

    def ask_for(self, events: PastEvents, contact_ids: Collection[str]) -> None:
        """Take in the events of certain contacts as well."""
        if contact_ids:
            more = {
                position: events.arrival(position, contact_id)
                for position, contact_id in enumerate(self.contact_ids)
                if contact_id in contact_ids and position not in self.asked
            }
            self.asked = dict(sorted((self.asked | more).items()))

    def note(self) -> None:
        """Take over the contacts that were found for those who were asked for."""
        for position, each in self.asked.items():
            self.contact_ids[position] = each.contact_id
            if each.contact_id != each.person.new_id:
                each.person.new_id = ""


class Memory:
    """What an import knows of people it met; its transactions are counted from 1 (`Person.known_in`).

    `expects_new`: whether people nobody of whose identifiers came before are expected to be new, as they are until one is not.
    """

    def __init__(self, org_id: int) -> None:
        self.expects_new = True
        self._org_id = org_id
        self._number = self._alone_since = 0
        self._seen: Snapshot | None = None
        self._own: set[int] = set()
        self._wrote: dict[str, int] = {}

    async def recognise(self, tx: Transaction, events: PastEvents) -> Met:
        """Tell whom events are about, as far as contacts own all they carry: the others are strangers, without a contact.

        Nothing may have been written to contacts in the transaction before.
        """
        await self._doubt(tx, events)
        contact_ids = [person.contact_id for person in events.people]
        asked = {
            position: events.arrival(position)
            for position, (contact_id, attributes) in enumerate(zip(contact_ids, events.attributes, strict=True))
            if attributes or not contact_id
        }
        met = Met(contact_ids, asked, Directory(asked.values()))
        if unsure := [each for each in asked.values() if each.person.contact_id or not self._seems_new(each.person)]:
            await self._ask(tx, met.directory, unsure)
        return met

    def expected(self, people: Iterable[Person]) -> list[str]:
        """Return the contact that each is expected to be, empty where none is."""
        if self.expects_new:
            return [person.contact_id or person.new_id for person in people]
        return [person.contact_id for person in people]

    def _seems_new(self, person: Person) -> bool:
        return self.expects_new and bool(person.new_id)

    def begin(self, transaction_id: int, seen: Snapshot | None) -> None:
        """Begin the next transaction, which has this id, after the one before has ended: see whether others wrote since that began."""
        self._number += 1
        self._own.add(transaction_id)
        alone = seen is not None and self._seen is not None and seen.only(self._own, self._seen)
        if not alone or len(self._wrote) > _MOST_WRITTEN:
            self._alone_since = self._number
            self._wrote.clear()
        self._seen = seen
        if seen is not None:
            self._own = {each for each in self._own if each >= seen.next or each in seen.running}
        self._own.add(transaction_id)

    def own(self, transaction_ids: Iterable[int]) -> None:
        """Take transactions for the import's own that wrote nothing to contacts."""
        self._own.update(transaction_ids)

    def wrote(self, contact_ids: Iterable[str]) -> None:
        """Note which contacts that existed are written in the transaction, whatever becomes of it."""
        self._wrote.update(dict.fromkeys(contact_ids, self._number))

    def keep(self, new: Iterable[PastArrival], at: datetime) -> None:
        """Remember contacts that the transaction made at a moment, which has been committed: they own all that was sent."""
        at_us = to_us(at)
        for each in new:
            person = each.person
            person.contact_id, person.updated_us, person.known_in = each.contact_id, at_us, self._number
            person.new_id = ""

    async def _doubt(self, tx: Transaction, events: PastEvents) -> None:
        """Forget those whose contact is not as it was."""
        alone_since, wrote = self._alone_since, self._wrote
        doubted = [
            each
            for each in set(events.people)
            if each.contact_id and not alone_since <= each.known_in > wrote.get(each.contact_id, 0)
        ]
        if doubted:
            await self._forget_changed(tx, doubted)

    async def _forget_changed(self, tx: Transaction, people: list[Person]) -> None:
        ids, updated_us = [each.contact_id for each in people], [each.updated_us for each in people]
        (changed,) = await run(tx, history.find_changed_contacts(self._org_id, ids, updated_us))
        for each in people:
            each.known_in = self._number
        for position in changed:
            people[position].contact_id = ""

    async def _ask(self, tx: Transaction, directory: Directory, arrivals: Sequence[PastArrival]) -> None:
        alike: dict[tuple[Key, str], list[PastArrival]] = {}
        for each in arrivals:
            each.person.contact_id = ""
            alike.setdefault((each.keys[0], each.attributes), []).append(each)
        kinds, digests = [int(key[0]) for key, _ in alike], [key[1] for key, _ in alike]
        asked = history.find_returning(self._org_id, kinds, digests, [attributes for _, attributes in alike])
        (found,) = await run(tx, asked)
        groups = list(alike.values())
        for returning in found:
            for each in groups[returning.owner.position]:
                if directory.meet(each, returning.owner):
                    person = each.person
                    person.contact_id, person.updated_us = each.contact_id, returning.updated_us
                    person.known_in = self._number
