"""From bytes to a valid event with its keys: the part of ingest that needs no database."""

import msgspec

from api.clock import Clock, uuid7
from api.ingest.identifiers import People, body_digest, idempotency_key
from api.keyring import OrgKeys
from api.language.codec import encode
from api.language.event import Event, read_event
from api.language.identity import Key
from api.language.problem import Problems


class Arrival(msgspec.Struct, gc=False):
    """A valid event on its way into the store. Digests are 32 hex digits, or twice as many in `keys`; `email` is sealed.

    `emails`: the texts as which it may be stored, `email` first (a secret is being rotated).

    `attributes`: their JSON text, or empty; `news`: whether its contact may lack any of them; `request_id`: what brought it.
    """

    org_id: int
    event: Event
    event_id: str
    idempotency_key: str
    key_digest: str
    body_digest: str
    occurred_us: int
    keys: tuple[Key, ...]
    emails: tuple[str, ...]
    attributes: str
    dry: bool
    contact_id: str = ""
    news: bool = True
    request_id: str | None = None

    def new_contact_id(self, at_us: int) -> str:
        """Return the id of a contact that is made for this event at a moment."""
        return uuid7(at_us)

    @property
    def email(self) -> str | None:
        """The email as it is stored from now on."""
        return self.emails[0] if self.emails else None


class Reader:
    """Reads events for one process; its nonce keeps keyless events of two processes apart."""

    def __init__(self, clock: Clock, nonce: str) -> None:
        self._clock = clock
        self._nonce = nonce
        self._people = People()

    def read(
        self, org_id: int, org_keys: OrgKeys, raw: bytes, test_key: bool, request_id: str | None = None
    ) -> Arrival | Problems:
        """Return the arrival of the event in the JSON text `raw`, or what is wrong with it."""
        now_us = self._clock.unique_now_us()
        event = read_event(raw, now_us)
        if isinstance(event, tuple):
            return event
        nonce = self._nonce if event.occurred_at_us is None else None
        occurred_us = now_us if event.occurred_at_us is None else event.occurred_at_us
        key = event.idempotency_key or idempotency_key(org_keys, event, occurred_us, nonce)
        keys, emails = self._people.indexed(org_id, org_keys, event.identifiers)
        return Arrival(
            org_id,
            event,
            uuid7(now_us),
            key,
            org_keys.key_digest(key),
            body_digest(raw),
            occurred_us,
            keys,
            emails,
            encode(event.attributes).decode() if event.attributes else "",
            test_key or event.test,
            request_id=request_id,
        )
