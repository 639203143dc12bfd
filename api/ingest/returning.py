"""People of an import who were met before: most events of a history come from contacts that came a moment ago.

What is remembered is believed only while the contact's row has not been written since, which the store is asked within the
transaction. So it is as right as looking up every identifier anew, at a third of the price, and needs no care when identifiers
change hands.
"""

from api.ingest.arrival import Arrival
from api.ingest.directory import Directory
from api.language.event import Identifiers
from api.language.identity import Key
from api.store import history
from api.store.calls import run
from api.store.database import Transaction


class People:
    """The contacts of up to `most` combinations of identifiers."""

    def __init__(self, org_id: int, most: int = 200_000) -> None:
        self._org_id = org_id
        self._most = most
        self._contacts: dict[Identifiers, str] = {}
        self._updated_us: dict[str, int] = {}

    async def recognise(self, tx: Transaction, directory: Directory, arrivals: list[Arrival]) -> None:
        """Give arrivals the contact that owns all they sent; the others are strangers, without a contact."""
        await self._remember(tx, arrivals)
        asking = [each for each in arrivals if each.news]
        if asking:
            await self._ask(tx, directory, asking)

    async def _remember(self, tx: Transaction, arrivals: list[Arrival]) -> None:
        """Recognise those whose contact is as it was. What their attributes bring is the store's to say."""
        remembered = self._contacts.get
        seen: dict[str, int] = {}
        for each in arrivals:
            contact_id = remembered(each.event.identifiers, "")
            each.contact_id, each.news = contact_id, not contact_id or bool(each.attributes)
            if not each.news:
                seen[contact_id] = self._updated_us[contact_id]
        if not seen:
            return
        (changed,) = await run(tx, history.find_changed_contacts(self._org_id, seen))
        if changed:
            for each in arrivals:
                each.news = each.news or each.contact_id in changed

    async def _ask(self, tx: Transaction, directory: Directory, arrivals: list[Arrival]) -> None:
        alike: dict[tuple[Key, str], list[Arrival]] = {}
        for each in arrivals:
            each.contact_id = ""
            alike.setdefault((each.keys[0], each.attributes), []).append(each)
        kinds, digests = [int(key[0]) for key, _ in alike], [key[1] for key, _ in alike]
        asked = history.find_returning(self._org_id, kinds, digests, [attributes for _, attributes in alike])
        (found,) = await run(tx, asked)
        groups = list(alike.values())
        self._make_room(len(groups))
        for returning in found:
            for each in groups[returning.owner.position]:
                if directory.meet(each, returning.owner):
                    self._contacts[each.event.identifiers] = each.contact_id
                    self._updated_us[each.contact_id] = returning.updated_us

    def _make_room(self, count: int) -> None:
        if len(self._contacts) + count > self._most:
            self._contacts.clear()
            self._updated_us.clear()
