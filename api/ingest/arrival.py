"""From bytes to a valid event with its keys: the part of ingest that needs no database."""

import hashlib

import msgspec

from api.clock import Clock, uuid7
from api.ingest.identifiers import idempotency_key, keys_of
from api.keyring import OrgKeys
from api.language.event import Event, read_event
from api.language.identity import Key
from api.language.problem import Problems


class Arrival(msgspec.Struct):
    """A valid event on its way into the store. Digests are 32 hex digits; `email` is sealed."""

    org_id: int
    event: Event
    event_id: str
    idempotency_key: str
    key_digest: str
    body_digest: str
    occurred_us: int
    keys: tuple[Key, ...]
    email: str | None
    dry: bool
    contact_id: str = ""


class Reader:
    """Reads events for one process; its nonce keeps keyless events of two processes apart."""

    def __init__(self, clock: Clock, nonce: str) -> None:
        self._clock = clock
        self._nonce = nonce

    def read(self, org_id: int, org_keys: OrgKeys, raw: bytes, test_key: bool) -> Arrival | Problems:
        """Return the arrival of the event in the JSON text `raw`, or what is wrong with it."""
        now_us = self._clock.unique_now_us()
        event = read_event(raw, now_us)
        if isinstance(event, tuple):
            return event
        nonce = self._nonce if event.occurred_at_us is None else None
        occurred_us = now_us if event.occurred_at_us is None else event.occurred_at_us
        key = idempotency_key(org_keys, event, occurred_us, nonce)
        email = event.identifiers.email
        return Arrival(
            org_id,
            event,
            uuid7(now_us),
            key,
            org_keys.key_digest(key),
            hashlib.blake2b(raw, digest_size=16).hexdigest(),
            occurred_us,
            keys_of(org_keys, event.identifiers),
            None if email is None else org_keys.seal_email(email),
            test_key or event.test,
        )
