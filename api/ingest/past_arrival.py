"""From rows of history to valid events with their keys: as `arrival`, with no bound on their age and with their own moments.

They are kept in columns, and what is stored of them is put into bytes at once, while Postgres is busy with those before: most
events of a history need nothing else. Those whose contact has to be looked for become arrivals.
"""

from collections.abc import Sequence
from typing import Self

import msgspec

from api.clock import uuid7s
from api.ingest.arrival import Arrival
from api.ingest.identifiers import idempotency_key, keys_of, raw_body_digest
from api.keyring import OrgKeys
from api.language.codec import encode
from api.language.event import Event, Identifiers, read_events
from api.language.identity import Key
from api.language.problem import Problem, Problems
from api.store.past_rows import event_rows, key_rows, who_fields

PEOPLE_REMEMBERED = 200_000  # in a history many come again


class Person(msgspec.Struct, eq=False, gc=False):
    """A combination of identifiers: their keys, the sealed email, and the fields of an event that carries them.

    `contact_id`: the contact that owned all of them when that was last asked (empty: nobody, as far as is known), whose row had
    last been written at `updated_us` then; `known_in`: the transaction that asked (see `returning`).
    """

    keys: tuple[Key, ...]
    email: str | None
    fields: bytes
    contact_id: str = ""
    updated_us: int = 0
    known_in: int = 0


class PastArrival(Arrival, kw_only=True, gc=False):
    """A valid event of history whose contact is looked for."""

    person: Person


class PastEvents(msgspec.Struct):
    """Valid events of an organization's history in columns, in the order of their file.

    Digests of idempotency keys and ids of events have 16 bytes, moments are microseconds since the epoch; `key_rows` and
    `event_rows` are those of `store.past_rows`.
    """

    org_id: int
    events: list[Event] = []
    people: list[Person] = []
    ats_us: list[int] = []
    keys: list[bytes] = []
    key_digests: list[bytes] = []
    ids: list[bytes] = []
    key_rows: list[bytes] = []
    event_rows: list[bytes] = []

    def __len__(self) -> int:
        return len(self.events)

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
        event, person = self.events[position], self.people[position]
        return PastArrival(
            self.org_id,
            event,
            self.ids[position].hex(),
            self.keys[position].decode(),
            self.key_digests[position].hex(),
            self.key_rows[position][-16:].hex(),
            self.ats_us[position],
            person.keys,
            person.email,
            encode(event.attributes).decode() if event.attributes else "",
            False,
            contact_id,
            person=person,
        )


_COLUMNS = PastEvents.__struct_fields__[1:]


class PastReader:
    """Reads the events of one organization's history."""

    def __init__(self, org_id: int, org_keys: OrgKeys) -> None:
        self._org_id, self._org_keys = org_id, org_keys
        self._people: dict[Identifiers, Person] = {}
        self._same: dict[int, tuple[Identifiers, Person]] = {}

    def read(self, raws: Sequence[bytes], now_us: int) -> tuple[PastEvents, dict[int, Problems]]:
        """Return the valid events among JSON texts, judged at `now_us`, and what is wrong with the others, by position."""
        judged = [_as_history(each) for each in read_events(raws, now_us, history=True)]
        events = [each for each in judged if isinstance(each, Event)]
        if len(events) == len(raws):
            return self._columns(raws, events), {}
        texts = [raw for raw, each in zip(raws, judged, strict=True) if isinstance(each, Event)]
        problems = {position: each for position, each in enumerate(judged) if isinstance(each, tuple)}
        return self._columns(texts, events), problems

    def _columns(self, raws: Sequence[bytes], events: list[Event]) -> PastEvents:
        org_id, org_keys = self._org_id, self._org_keys
        ats_us = [event.occurred_at_us or 0 for event in events]
        keys = [
            (event.idempotency_key or idempotency_key(org_keys, event, at_us, None)).encode()
            for event, at_us in zip(events, ats_us, strict=True)
        ]
        key_digests = [org_keys.raw_key_digest(key) for key in keys]
        ids = uuid7s([max(at_us, 0) for at_us in ats_us])
        return PastEvents(
            org_id,
            events,
            [self._person(event.identifiers) for event in events],
            ats_us,
            keys,
            key_digests,
            ids,
            key_rows(org_id, key_digests, ids, list(map(raw_body_digest, raws))),
            event_rows(org_id, ids, ats_us, events, keys),
        )

    def _person(self, who: Identifiers) -> Person:
        """Return the person of some identifiers; the same object comes again and again, and is told by its address."""
        same = self._same.get(id(who))
        if same is not None:
            return same[1]
        person = self._people.get(who) or self._meet(who)
        if len(self._same) >= PEOPLE_REMEMBERED:
            self._same.clear()
        self._same[id(who)] = who, person
        return person

    def _meet(self, who: Identifiers) -> Person:
        if len(self._people) >= PEOPLE_REMEMBERED:
            self._people.clear()
            self._same.clear()
        email = None if who.email is None else self._org_keys.seal_email(who.email)
        person = Person(keys_of(self._org_keys, who), email, who_fields(who.wallet, email, who.external_id))
        self._people[who] = person
        return person


def _as_history(event: Event | Problems) -> Event | Problems:
    """Return the event, or what keeps it from being history."""
    if isinstance(event, tuple):
        return event
    if event.occurred_at_us is None:
        return (Problem("occurredAt", "is required in an import"),)
    return (Problem("test", "a dry run is not history"),) if event.test else event
