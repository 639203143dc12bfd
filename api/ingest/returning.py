"""People of an import who were met before: most events of a history come from contacts that came a moment ago.

What is remembered of a contact is believed in two cases. Either its row has not been written since, which the store is asked within
the transaction; or nobody but this import has written anything at all since it was last known to be so, which two snapshots of the
database tell, and this import did not write that contact either. So it is as right as looking up every identifier anew, and needs
no care when identifiers change hands.
"""

from collections.abc import Iterable, Sequence

from api.ingest.directory import Directory
from api.ingest.past_arrival import PastArrival, Person
from api.language.identity import Key
from api.store import history
from api.store.calls import run
from api.store.database import Transaction
from api.store.history import Snapshot

_MOST_WRITTEN = 200_000  # contacts kept in mind


class Memory:
    """What an import knows of people it met; its transactions are counted from 1 (`Person.known_in`)."""

    def __init__(self, org_id: int) -> None:
        self._org_id = org_id
        self._number = self._alone_since = 0
        self._seen: Snapshot | None = None
        self._own: set[int] = set()
        self._wrote: dict[str, int] = {}

    async def recognise(self, tx: Transaction, directory: Directory, arrivals: Sequence[PastArrival]) -> None:
        """Give arrivals the contact that owns all they sent; the others are strangers, without a contact.

        Nothing may have been written to contacts in the transaction before.
        """
        await self._look(tx)
        await self._remember(tx, arrivals)
        asking = [each for each in arrivals if each.news]
        if asking:
            await self._ask(tx, directory, asking)

    def wrote(self, transaction_id: int, contact_ids: Iterable[str]) -> None:
        """Note which contacts that existed are written in the transaction, whatever becomes of it."""
        self._own.add(transaction_id)
        self._wrote.update(dict.fromkeys(contact_ids, self._number))

    async def _look(self, tx: Transaction) -> None:
        """Begin the next transaction: see whether others wrote since the last one began."""
        (seen,) = await run(tx, history.snapshot())
        self._number += 1
        alone = seen is not None and self._seen is not None and seen.only(self._own, self._seen)
        if not alone or len(self._wrote) > _MOST_WRITTEN:
            self._alone_since = self._number
            self._wrote.clear()
        self._seen = seen
        self._own.clear()

    async def _remember(self, tx: Transaction, arrivals: Sequence[PastArrival]) -> None:
        """Recognise those whose contact is as it was. What their attributes bring is the store's to say."""
        alone_since, wrote = self._alone_since, self._wrote
        doubted: dict[Person, None] = {}
        for each in arrivals:
            person = each.person
            each.contact_id = contact_id = person.contact_id
            each.news = not contact_id or bool(each.attributes)
            if not each.news and not alone_since <= person.known_in > wrote.get(contact_id, 0):
                doubted[person] = None
        if doubted and await self._have_changed(tx, list(doubted)):
            for each in arrivals:
                each.news = each.news or not each.person.contact_id

    async def _have_changed(self, tx: Transaction, people: list[Person]) -> bool:
        """Forget those whose contact was written since; return whether there are any."""
        ids, updated_us = [each.contact_id for each in people], [each.updated_us for each in people]
        (changed,) = await run(tx, history.find_changed_contacts(self._org_id, ids, updated_us))
        for each in people:
            each.known_in = self._number
        for position in changed:
            people[position].contact_id = ""
        return bool(changed)

    async def _ask(self, tx: Transaction, directory: Directory, arrivals: Sequence[PastArrival]) -> None:
        alike: dict[tuple[Key, str], list[PastArrival]] = {}
        for each in arrivals:
            each.contact_id = each.person.contact_id = ""
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
