"""People of an import who were met before: most events of a history come from contacts that came a moment ago.

What is remembered is believed only while the contact's row has not been written since, which the store is asked within the
transaction. So it is as right as looking up every identifier anew, at a third of the price, and needs no care when identifiers
change hands.
"""

from collections.abc import Sequence

from api.ingest.directory import Directory
from api.ingest.past_arrival import PastArrival
from api.language.identity import Key
from api.store import history
from api.store.calls import run
from api.store.database import Transaction


async def recognise(tx: Transaction, org_id: int, directory: Directory, arrivals: Sequence[PastArrival]) -> None:
    """Give arrivals the contact that owns all they sent; the others are strangers, without a contact."""
    await _remember(tx, org_id, arrivals)
    asking = [each for each in arrivals if each.news]
    if asking:
        await _ask(tx, org_id, directory, asking)


async def _remember(tx: Transaction, org_id: int, arrivals: Sequence[PastArrival]) -> None:
    """Recognise those whose contact is as it was. What their attributes bring is the store's to say."""
    for each in arrivals:
        each.contact_id = contact_id = each.person.contact_id
        each.news = not contact_id or bool(each.attributes)
    people = list(dict.fromkeys([each.person for each in arrivals if not each.news]))
    if not people:
        return
    ids, updated_us = [each.contact_id for each in people], [each.updated_us for each in people]
    (changed,) = await run(tx, history.find_changed_contacts(org_id, ids, updated_us))
    for position in changed:
        people[position].contact_id = ""
    if changed:
        for each in arrivals:
            each.news = each.news or not each.person.contact_id


async def _ask(tx: Transaction, org_id: int, directory: Directory, arrivals: Sequence[PastArrival]) -> None:
    alike: dict[tuple[Key, str], list[PastArrival]] = {}
    for each in arrivals:
        each.contact_id = each.person.contact_id = ""
        alike.setdefault((each.keys[0], each.attributes), []).append(each)
    kinds, digests = [int(key[0]) for key, _ in alike], [key[1] for key, _ in alike]
    (found,) = await run(tx, history.find_returning(org_id, kinds, digests, [attributes for _, attributes in alike]))
    groups = list(alike.values())
    for returning in found:
        for each in groups[returning.owner.position]:
            if directory.meet(each, returning.owner):
                each.person.contact_id, each.person.updated_us = each.contact_id, returning.updated_us
