"""From a row of history to a valid event with its keys: as `arrival`, with no bound on its age and with its own moment."""

from api.clock import uuid7
from api.ingest.arrival import Arrival
from api.ingest.identifiers import People, body_digest, idempotency_key
from api.keyring import OrgKeys
from api.language.codec import encode
from api.language.event import read_event
from api.language.problem import Problem, Problems

PEOPLE_REMEMBERED = 200_000  # in a history many come again


class PastReader:
    """Reads the events of one organization's history."""

    def __init__(self, org_id: int, org_keys: OrgKeys) -> None:
        self._org_id, self._org_keys = org_id, org_keys
        self._people = People(PEOPLE_REMEMBERED)

    def read(self, raw: bytes, now_us: int) -> Arrival | Problems:
        """Return the arrival of the event in the JSON text `raw`, judged at `now_us`, or what is wrong with it."""
        event = read_event(raw, now_us, history=True)
        if isinstance(event, tuple):
            return event
        occurred_us = event.occurred_at_us
        if occurred_us is None:
            return (Problem("occurredAt", "is required in an import"),)
        if event.test:
            return (Problem("test", "a dry run is not history"),)
        key = event.idempotency_key or idempotency_key(self._org_keys, event, occurred_us, None)
        keys, email = self._people.indexed(self._org_id, self._org_keys, event.identifiers)
        return Arrival(
            self._org_id,
            event,
            uuid7(max(occurred_us, 0)),
            key,
            self._org_keys.key_digest(key),
            body_digest(raw),
            occurred_us,
            keys,
            email,
            encode(event.attributes).decode() if event.attributes else "",
            dry=False,
        )
