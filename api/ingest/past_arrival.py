"""From rows of history to valid events with their keys: as `arrival`, with no bound on their age and with their own moments.

They are kept in columns, and what is stored of them is put into bytes at once, while Postgres is busy with those before: most
events of a history need nothing else. Those whose contact has to be looked for become arrivals.
"""

from collections.abc import Sequence
from typing import Self, cast

import msgspec

from api.clock import uuid7, uuid7s
from api.ingest.arrival import Arrival
from api.ingest.identifiers import derived_key, keys_of, raw_body_digests
from api.keyring import OrgKeys
from api.language.codec import Json, encode
from api.language.event import Event, Identifiers
from api.language.history import History, read_history
from api.language.identity import Key
from api.language.problem import Problems
from api.store.past_rows import event_heads, event_tails, key_rows, who_fields

PEOPLE_REMEMBERED = 200_000  # in a history many come again


class Person(msgspec.Struct, eq=False, gc=False):
    """A combination of identifiers: their keys, the email as it may be sealed, and the fields of an event that carries them.

    `contact_id`: the contact that owned all of them when that was last asked (empty: nobody, as far as is known), whose row had
    last been written at `updated_us` then; `known_in`: the transaction that asked (see `returning`).

    `new_id`: the id of their contact, should it be new (empty: they are not expected to be new).
    """

    keys: tuple[Key, ...]
    emails: tuple[str, ...]
    fields: bytes
    contact_id: str = ""
    updated_us: int = 0
    known_in: int = 0
    new_id: str = ""


class PastArrival(Arrival, kw_only=True, gc=False):
    """A valid event of history whose contact is looked for."""

    person: Person

    def new_contact_id(self, at_us: int) -> str:
        """Return the id that was meant for the contact, if one was."""
        return self.person.new_id or uuid7(at_us)


class PastEvents(msgspec.Struct):
    """Valid events of an organization's history in columns, in the order of their file.

    Digests of idempotency keys and ids of events have 16 bytes, moments are microseconds since the epoch; `key_rows`, `heads` and
    `tails` are those of `store.past_rows`.
    """

    org_id: int
    people: list[Person] = []
    names: list[str] = []
    identifiers: list[Identifiers] = []
    attributes: list[dict[str, Json]] = []
    payloads: list[bytes] = []
    ats_us: list[int] = []
    keys: list[bytes] = []
    key_digests: list[bytes] = []
    ids: list[bytes] = []
    key_rows: list[bytes] = []
    heads: list[bytes] = []
    tails: list[bytes] = []

    def __len__(self) -> int:
        return len(self.people)

    def extend(self, more: Self) -> None:
        """Add events behind these."""
        for name in _COLUMNS:
            getattr(self, name).extend(getattr(more, name))

    def span(self, start: int, stop: int) -> Self:
        """Return the events from one position up to another, or to the end if there are fewer."""
        return type(self)(self.org_id, **{name: getattr(self, name)[start:stop] for name in _COLUMNS})

    def at(self, positions: Sequence[int]) -> Self:
        """Return the events at these positions."""
        if len(positions) == len(self):
            return self
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return type(self)(self.org_id, **{name: [of[each] for each in positions] for name, of in columns.items()})

    def arrival(self, position: int, contact_id: str = "") -> PastArrival:
        """Return one of the events as an arrival, with its contact if that is known."""
        person, attributes, key = self.people[position], self.attributes[position], self.keys[position].decode()
        return PastArrival(
            self.org_id,
            Event(self.names[position], self.identifiers[position], attributes, self.payloads[position], key),
            self.ids[position].hex(),
            key,
            self.key_digests[position].hex(),
            self.key_rows[position][-16:].hex(),
            self.ats_us[position],
            person.keys,
            person.emails,
            encode(attributes).decode() if attributes else "",
            False,
            contact_id,
            person=person,
        )


_COLUMNS = PastEvents.__struct_fields__[1:]


class PastReader:
    """Reads the events of one organization's history."""

    def __init__(self, org_id: int, org_keys: OrgKeys) -> None:
        self.org_id, self._org_keys = org_id, org_keys
        self._people: dict[Identifiers, Person] = {}
        self._met = set[Key]()  # identifiers of all people so far
        self._forgot = False  # some of the people
        self._same: dict[int, Person] = {}  # by the address of identifiers, which are kept
        self._kept: list[Identifiers] = []

    def read(self, raws: Sequence[bytes], now_us: int) -> tuple[PastEvents, dict[int, Problems]]:
        """Return the valid events among JSON texts, judged at `now_us`, and what is wrong with the others, by position."""
        found, problems = read_history(raws, now_us)
        if problems:
            raws = [raw for position, raw in enumerate(raws) if position not in problems]
        return self._columns(raws, found, now_us), problems

    def _columns(self, raws: Sequence[bytes], found: History, now_us: int) -> PastEvents:
        org_id, ats_us, payloads = self.org_id, found.ats_us, found.payloads
        keys = self._keys(found)
        digests = self._org_keys.raw_key_digests(keys)
        ids = uuid7s([max(at_us, 0) for at_us in ats_us])
        return PastEvents(
            org_id,
            self._people_of(found.identifiers, now_us),
            found.names,
            found.identifiers,
            found.attributes,
            payloads,
            ats_us,
            keys,
            digests,
            ids,
            key_rows(org_id, digests, ids, raw_body_digests(raws)),
            event_heads(org_id, ids, ats_us, payloads),
            event_tails(keys, found.names),
        )

    def _keys(self, found: History) -> list[bytes]:
        """Return the idempotency keys in effect."""
        if None not in found.idempotency_keys:
            return [key.encode() for key in found.idempotency_keys if key is not None]
        fields = zip(found.idempotency_keys, found.names, found.identifiers, found.ats_us, strict=True)
        return [(key or derived_key(self._org_keys, name, who, at_us)).encode() for key, name, who, at_us in fields]

    def _people_of(self, identifiers: Sequence[Identifiers], now_us: int) -> list[Person]:
        """Return who has these identifiers. Mostly the very same ones come again, and are told by their addresses."""
        people = list(map(self._same.get, map(id, identifiers)))
        if all(people):
            return cast("list[Person]", people)
        return [person or self._person(who, now_us) for person, who in zip(people, identifiers, strict=True)]

    def _person(self, who: Identifiers, now_us: int) -> Person:
        person = self._people.get(who) or self._meet(who, now_us)
        if len(self._kept) >= PEOPLE_REMEMBERED:
            self._kept.clear()
            self._same.clear()
        self._same[id(who)] = person
        self._kept.append(who)
        return person

    def _meet(self, who: Identifiers, now_us: int) -> Person:
        if len(self._people) >= PEOPLE_REMEMBERED:
            self._people.clear()
            self._met.clear()
            self._forgot = True
        emails = () if who.email is None else self._org_keys.seal_emails(who.email)
        fields = who_fields(who.wallet, emails[0] if emails else None, who.external_id)
        keys = keys_of(self._org_keys, who)
        expected = not self._forgot and self._met.isdisjoint(keys)
        self._met.update(keys)
        person = Person(keys, emails, fields, new_id=uuid7(now_us) if expected else "")
        self._people[who] = person
        return person
