"""Identity of a whole micro-batch: what the store knew, what the events in order make of it, and what is to be written.

`language.identity.resolve` decides event by event; this module keeps the working state between decisions.
"""

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from api.clock import uuid7
from api.ingest.arrival import Arrival
from api.language.codec import Json, encode
from api.language.identity import Conflict, Key, Kind, Resolution, resolve
from api.store.database import RefusedDataError
from api.store.ingest import OVERFULL, ConflictRows, ContactRows, IdentifierRows, Owner

MOST_ATTRIBUTES = 1_000  # of one contact, as in `merge_attributes`
MOST_ATTRIBUTES_TEXT = 262_144  # bytes of JSON


class Known(msgspec.Struct):
    """Identifiers of a contact; `email` is sealed. `raw_wallet` and `email_domain` only for what this batch brings."""

    wallet: str | None = None
    email: str | None = None
    external_id: str | None = None
    raw_wallet: str | None = None
    email_domain: str | None = None

    def kinds(self) -> frozenset[Kind]:
        """Return which kinds of identifier are there."""
        return _KINDS[self.wallet is not None, self.email is not None, self.external_id is not None]


_KINDS = {
    there: frozenset(kind for kind, has in zip(Kind, there, strict=True) if has)
    for there in itertools.product((False, True), repeat=3)
}


class _Organization:
    """One organization's part of the directory."""

    def __init__(self) -> None:
        self.owners: dict[Key, str] = {}
        self.known: dict[str, Known] = {}
        self.has: dict[str, frozenset[Kind]] = {}
        self.created: dict[str, Known] = {}
        self.gained: dict[str, Known] = {}
        self.lost: set[str] = set()
        self.owned: dict[Key, str] = {}
        self.attributes: dict[str, dict[str, Json]] = {}


class Directory:
    """Who is who for the events of one micro-batch."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._orgs = {org_id: _Organization() for org_id in {arrival.org_id for arrival in arrivals}}
        self._conflicts: list[tuple[Arrival, Conflict]] = []
        self._recognised: dict[str, Owner] = {}

    def recognise(self, arrivals: Sequence[Arrival], owners: list[Owner]) -> None:
        """Give arrivals the contact that owns all they sent; `owners`: of their leading identifiers.

        The others are strangers (no contact yet): `place` is for them, once what they sent is locked and known.
        """
        for arrival in arrivals:
            arrival.contact_id, arrival.news = "", True
        for owner in owners:
            self.meet(arrivals[owner.position], owner)

    def meet(self, arrival: Arrival, owner: Owner) -> bool:
        """Give an arrival the owner of its leading identifier, if that owns all it sent; return whether it does."""
        if not _has_all(owner, arrival):
            return False
        arrival.contact_id, arrival.news = owner.contact_id, not owner.knows
        self._recognised[owner.contact_id] = owner
        return True

    def involved(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """Return, in order, the strangers and those recognised on a contact that strangers may change."""
        touched = self.touched()
        for contact_id in touched:
            self._recognised.pop(contact_id, None)
        found = [each for each in arrivals if not each.contact_id or each.contact_id in touched]
        for arrival in found:
            if arrival.contact_id:
                arrival.news = True  # whoever owns it in the end need not know its attributes
                owners = self._orgs[arrival.org_id].owners
                for key in arrival.keys:
                    owners.setdefault(key, arrival.contact_id)
        return found

    def touched(self) -> set[str]:
        """Return the contacts that strangers may change."""
        return {contact_id for org in self._orgs.values() for contact_id in org.known}

    def learn(self, owners: list[Owner], keys: list[tuple[int, Key]]) -> None:
        """Note who owns `keys`; those no owner speaks of belong to nobody."""
        for owner in owners:
            org_id, key = keys[owner.position]
            org = self._orgs[org_id]
            org.owners[key] = owner.contact_id
            if owner.contact_id not in org.known:
                known = org.known[owner.contact_id] = Known(owner.wallet, owner.email, owner.external_id)
                org.has[owner.contact_id] = known.kinds()

    def unclear(self, arrivals: Sequence[Arrival]) -> list[tuple[int, Key]]:
        """Return the keys that still have to be looked up, once the leading key of every arrival is known.

        A contact owns the identifiers in its columns, so one that has all that was sent needs no further look.
        """
        keys: dict[tuple[int, Key], None] = {}
        for arrival in arrivals:
            org, others = self._orgs[arrival.org_id], arrival.keys[1:]
            contact_id = org.owners.get(arrival.keys[0])
            if contact_id is not None and _has_all(org.known[contact_id], arrival):
                org.owners.update(dict.fromkeys(others, contact_id))
            else:
                keys.update(((arrival.org_id, key), None) for key in others)
        return list(keys)

    def known(self, arrival: Arrival) -> Known | Owner:
        """Return the identifiers of the contact an arrival was placed on (none for one that a dry run imagines)."""
        contact_id = arrival.contact_id
        return self._recognised.get(contact_id) or self._orgs[arrival.org_id].known.get(contact_id) or Known()

    def place(self, arrivals: Sequence[Arrival], at_us: int) -> None:
        """Give each arrival its contact, in order, noting what has to be written."""
        for arrival in arrivals:
            org = self._orgs[arrival.org_id]
            resolution = resolve(arrival.keys, org.owners, org.has)
            contact_id = resolution.contact_id
            if contact_id is None:
                contact_id = _create(org, arrival.new_contact_id(at_us))
            arrival.contact_id = contact_id
            if resolution.gained:
                _gain(org, arrival, resolution)
            self._conflicts += [(arrival, conflict) for conflict in resolution.conflicts]

    def fold(self, arrivals: Sequence[Arrival]) -> None:
        """Note the attributes to write: those of every arrival on a contact to which one brings something new, in order."""
        written = {arrival.contact_id for arrival in arrivals if arrival.news}
        if not written:
            return
        for arrival in arrivals:
            if arrival.contact_id in written and arrival.event.attributes:
                attributes = self._orgs[arrival.org_id].attributes
                attributes.setdefault(arrival.contact_id, {}).update(arrival.event.attributes)

    def imagine(self, arrivals: Sequence[Arrival], at_us: int) -> None:
        """Give dry runs the contact they would have; nothing is noted."""
        for arrival in arrivals:
            org = self._orgs[arrival.org_id]
            arrival.contact_id = resolve(arrival.keys, org.owners, org.has).contact_id or uuid7(at_us)

    def created(self) -> ContactRows:
        """Return the new contacts, with their attributes; raise RefusedDataError(OVERFULL) when the events brought too many."""
        rows = ContactRows()
        for org_id, org in self._orgs.items():
            for contact_id, known in org.created.items():
                _contact_row(rows, org_id, contact_id, known)
                rows.attributes.append(_bounded(org.attributes.get(contact_id, {})))
        return rows

    def gained(self) -> ContactRows:
        """Return what contacts that existed gained."""
        rows = ContactRows()
        for org_id, org in self._orgs.items():
            for contact_id, known in org.gained.items():
                _contact_row(rows, org_id, contact_id, known)
        return rows

    def lost(self) -> list[tuple[int, str]]:
        """Return (org, contact) of those whose address moved away; what they gained after that is in `gained`."""
        return [(org_id, contact_id) for org_id, org in self._orgs.items() for contact_id in org.lost]

    def owned(self) -> IdentifierRows:
        """Return the identifiers with a new owner."""
        rows = IdentifierRows()
        for org_id, org in self._orgs.items():
            for (kind, digest), contact_id in sorted(org.owned.items()):
                rows.org_ids.append(org_id)
                rows.kinds.append(int(kind))
                rows.digests.append(digest)
                rows.contact_ids.append(contact_id)
        return rows

    def attributes(self) -> list[tuple[int, str, str]]:
        """Return (org, contact, JSON object) of attributes to merge into contacts that existed."""
        return [
            (org_id, contact_id, encode(attributes).decode())
            for org_id, org in self._orgs.items()
            for contact_id, attributes in org.attributes.items()
            if contact_id not in org.created
        ]

    def changed(self) -> set[str]:
        """Return the contacts that existed and will be written."""
        return {
            contact_id
            for org in self._orgs.values()
            for contact_id in (*org.gained, *org.lost, *org.attributes)
            if contact_id not in org.created
        }

    def has_created(self, arrival: Arrival) -> bool:
        """Return whether the contact of an arrival is new and has all that was sent."""
        created = self._orgs[arrival.org_id].created.get(arrival.contact_id)
        return created is not None and _has_all(created, arrival)

    def conflicts(self, at_us: int) -> ConflictRows:
        """Return the identifiers that pointed elsewhere."""
        rows = ConflictRows()
        for arrival, conflict in self._conflicts:
            rows.org_ids.append(arrival.org_id)
            rows.ids.append(uuid7(at_us))
            rows.event_ids.append(arrival.event_id)
            rows.contact_ids.append(arrival.contact_id)
            rows.other_contact_ids.append(conflict.other_contact_id)
            rows.kinds.append(int(conflict.key[0]))
            rows.digests.append(conflict.key[1])
            rows.outcomes.append(conflict.outcome)
        return rows


def _bounded(attributes: dict[str, Json]) -> str:
    text = encode(attributes)
    if len(attributes) > MOST_ATTRIBUTES or len(text) > MOST_ATTRIBUTES_TEXT:
        raise RefusedDataError(OVERFULL)
    return text.decode()


def _has_all(known: Known | Owner, arrival: Arrival) -> bool:
    who = arrival.event.identifiers
    return (
        (who.wallet is None or who.wallet == known.wallet)
        and (not arrival.emails or known.email in arrival.emails)
        and (who.external_id is None or who.external_id == known.external_id)
    )


def _create(org: _Organization, contact_id: str) -> str:
    org.known[contact_id] = org.created[contact_id] = Known()
    org.has[contact_id] = frozenset()
    return contact_id


def _gain(org: _Organization, arrival: Arrival, resolution: Resolution) -> None:
    contact_id = arrival.contact_id
    news = org.created.get(contact_id) or org.gained.setdefault(contact_id, Known())
    who = arrival.event.identifiers
    for key in resolution.gained:
        match key[0]:
            case Kind.WALLET:
                news.wallet, news.raw_wallet = who.wallet, who.wallet_raw
            case Kind.EMAIL:
                news.email = arrival.email
                news.email_domain = (who.email or "").rpartition("@")[2]
                _lose(org, org.owners.get(key), arrival.emails)
            case Kind.EXTERNAL_ID:
                news.external_id = who.external_id
        org.owners[key] = org.owned[key] = contact_id
    known = org.known[contact_id]
    merged = Known(news.wallet or known.wallet, news.email or known.email, news.external_id or known.external_id)
    if contact_id not in org.created:
        org.known[contact_id] = merged
    org.has[contact_id] = merged.kinds()


def _lose(org: _Organization, former: str | None, emails: tuple[str, ...]) -> None:
    if former is None or org.known[former].email not in emails:
        return  # of an address that had been replaced, only the identifier moves
    for known in (org.known[former], org.gained.get(former), org.created.get(former)):
        if known is not None:
            known.email = known.email_domain = None
    org.has[former] -= {Kind.EMAIL}
    if former not in org.created:
        org.lost.add(former)


def _contact_row(rows: ContactRows, org_id: int, contact_id: str, known: Known) -> None:
    rows.org_ids.append(org_id)
    rows.ids.append(contact_id)
    rows.emails.append(known.email)
    rows.email_domains.append(known.email_domain)
    rows.wallets.append(known.wallet)
    rows.raw_wallets.append(known.raw_wallet)
    rows.external_ids.append(known.external_id)
