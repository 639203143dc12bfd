"""From a row of history to a valid event with its keys: as `arrival`, with no bound on its age and with its own moment.

What is stored of it is put into bytes at once, while Postgres is busy with those before.
"""

from collections.abc import Iterator, Sequence

import msgspec

from api.clock import uuid7s
from api.ingest.arrival import Arrival
from api.ingest.identifiers import body_digest, idempotency_key, keys_of
from api.keyring import OrgKeys
from api.language.codec import encode
from api.language.event import Event, Identifiers, read_events
from api.language.identity import Key
from api.language.problem import Problem, Problems
from api.store.past_rows import event_row, key_row, who_fields

PEOPLE_REMEMBERED = 200_000  # in a history many come again


class Person(msgspec.Struct, eq=False, gc=False):
    """A combination of identifiers: their keys, the email as it may be sealed, and the fields of an event that carries them.

    `contact_id`: the contact that owned all of them when that was last asked (empty: nobody, as far as is known), whose row had
    last been written at `updated_us` then; `known_in`: the transaction that asked (see `returning`).
    """

    keys: tuple[Key, ...]
    emails: tuple[str, ...]
    fields: bytes
    contact_id: str = ""
    updated_us: int = 0
    known_in: int = 0


class PastArrival(Arrival, kw_only=True, gc=False):
    """A valid event of history: who sent it, and the rows of its idempotency key and of itself (see `store.past_rows`)."""

    person: Person
    key_row: bytes
    event_row: bytes


class PastReader:
    """Reads the events of one organization's history."""

    def __init__(self, org_id: int, org_keys: OrgKeys) -> None:
        self._org_id, self._org_keys = org_id, org_keys
        self._people: dict[Identifiers, Person] = {}

    def read(self, raws: Sequence[bytes], now_us: int) -> list[PastArrival | Problems]:
        """Return the arrivals of the events in JSON texts, judged at `now_us`, or what is wrong with each."""
        judged = [_as_history(each) for each in read_events(raws, now_us, history=True)]
        events = [each for each in judged if isinstance(each, Event)]
        if len(events) == len(raws):
            return list(self._arrivals(raws, events))
        texts = [raw for raw, each in zip(raws, judged, strict=True) if isinstance(each, Event)]
        arrivals = self._arrivals(texts, events)
        return [next(arrivals) if isinstance(each, Event) else each for each in judged]

    def _arrivals(self, raws: Sequence[bytes], events: Sequence[Event]) -> Iterator[PastArrival]:
        org_id, people = self._org_id, self._people
        ats_us = [event.occurred_at_us or 0 for event in events]
        keys = [self._key(event) for event in events]
        key_digests = list(map(self._org_keys.key_digest, keys))
        ids = uuid7s([max(at_us, 0) for at_us in ats_us])
        for event, at_us, key, key_digest, body, event_id in zip(
            events, ats_us, keys, key_digests, map(body_digest, raws), ids, strict=True
        ):
            person = people.get(event.identifiers) or self._meet(event.identifiers)
            yield PastArrival(
                org_id,
                event,
                event_id.hex(),
                key,
                key_digest,
                body,
                at_us,
                person.keys,
                person.emails,
                encode(event.attributes).decode() if event.attributes else "",
                False,
                person=person,
                key_row=key_row(org_id, bytes.fromhex(key_digest), event_id, bytes.fromhex(body)),
                event_row=event_row(org_id, event_id, event, at_us, key, person.fields),
            )

    def _key(self, event: Event) -> str:
        return event.idempotency_key or idempotency_key(self._org_keys, event, event.occurred_at_us or 0, None)

    def _meet(self, who: Identifiers) -> Person:
        if len(self._people) >= PEOPLE_REMEMBERED:
            self._people.clear()
        emails = () if who.email is None else self._org_keys.seal_emails(who.email)
        fields = who_fields(who.wallet, emails[0] if emails else None, who.external_id)
        person = Person(keys_of(self._org_keys, who), emails, fields)
        self._people[who] = person
        return person


def _as_history(event: Event | Problems) -> Event | Problems:
    """Return the event, or what keeps it from being history."""
    if isinstance(event, tuple):
        return event
    if event.occurred_at_us is None:
        return (Problem("occurredAt", "is required in an import"),)
    return (Problem("test", "a dry run is not history"),) if event.test else event
