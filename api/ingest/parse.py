"""From the bytes of an event to a valid event with its keys: the part of ingest that needs no database.

The store finds identifiers by blind indexes (keyed digests) and recognizes a repeated event by its idempotency key.
Live ingest and the import of history derive both here, so an event has the same keys whether it arrives live or in a
file.

Every event of a request gets exactly one of the outcomes at the end.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from api.clock import Clock, uuid7
from api.crypto import OrgKeys
from workbench.language.codec import encode
from workbench.language.contact import IdentifierKey, IdentifierKind
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.problem import Problems

MAX_CACHED_IDENTIFIERS = 32_768  # contacts; deriving keys costs most of the CPU time of reading an event


class ParsedEvent(msgspec.Struct, gc=False):
    """A valid event on its way into the store.

    Digests are 32 hex digits, those in `keys` twice as many while a secret is rotated. `emails`: the sealed texts under
    which the address may be stored, the current one first. `attributes`: their JSON text, or empty. `dry`: a dry run.

    Identity resolution sets `contact_id` and `attributes_changed`, which is False if the contact has all attributes of
    the event.
    """

    org_id: int
    body: Event
    event_id: str
    idempotency_key: str
    key_digest: str
    body_digest: str
    occurred_us: int
    keys: tuple[IdentifierKey, ...]
    emails: tuple[str, ...]
    attributes: str
    dry: bool
    request_id: str | None = None
    contact_id: str = ""
    attributes_changed: bool = True

    def new_contact_id(self, at_us: int) -> str:
        return uuid7(at_us)

    @property
    def email(self) -> str | None:
        """The email address, sealed with the current secret."""
        return self.emails[0] if self.emails else None


class EventReader:
    """Reads events for one process. `nonce` is different in every process (see `idempotency_key`)."""

    def __init__(self, clock: Clock, nonce: str) -> None:
        self._clock = clock
        self._nonce = nonce
        self._identifiers = IdentifierCache()

    def read(
        self, org_id: int, org_keys: OrgKeys, raw: bytes, test_key: bool, request_id: str | None = None
    ) -> ParsedEvent | Problems:
        """Return the event in the JSON text `raw`, or the reasons for which it is not valid."""
        now_us = self._clock.unique_now_us()
        body = read_event(raw, now_us)
        if isinstance(body, tuple):
            return body
        nonce = self._nonce if body.occurred_at_us is None else None
        occurred_us = now_us if body.occurred_at_us is None else body.occurred_at_us
        key = body.idempotency_key or idempotency_key(org_keys, body, occurred_us, nonce)
        keys, emails = self._identifiers.get(org_id, org_keys, body.identifiers)
        return ParsedEvent(
            org_id,
            body,
            uuid7(now_us),
            key,
            org_keys.key_digest(key),
            body_digest(raw),
            occurred_us,
            keys,
            emails,
            encode(body.attributes).decode() if body.attributes else "",
            test_key or body.test,
            request_id,
        )


class IdentifierCache:
    """Keys and sealed email addresses of recent identifiers."""

    def __init__(self, capacity: int = MAX_CACHED_IDENTIFIERS) -> None:
        self._capacity = capacity
        self._cached: dict[tuple[int, Identifiers], tuple[tuple[IdentifierKey, ...], tuple[str, ...]]] = {}

    def get(
        self, org_id: int, org_keys: OrgKeys, identifiers: Identifiers
    ) -> tuple[tuple[IdentifierKey, ...], tuple[str, ...]]:
        """Return the keys (`keys_of`) and the sealed texts of the email address (`OrgKeys.seal_emails`)."""
        cached = self._cached.get((org_id, identifiers))
        if cached is None:
            if len(self._cached) >= self._capacity:
                self._cached.clear()
            emails = () if identifiers.email is None else org_keys.seal_emails(identifiers.email)
            cached = self._cached[org_id, identifiers] = keys_of(org_keys, identifiers), emails
        return cached


def keys_of(org_keys: OrgKeys, identifiers: Identifiers) -> tuple[IdentifierKey, ...]:
    """Return the keys of the identifiers that were sent, in the order in which they decide (docs/contract.md 4.5)."""
    keys: list[IdentifierKey] = []
    if identifiers.wallet is not None:
        keys.append((IdentifierKind.WALLET, org_keys.digests("wallet", identifiers.wallet)))
    if identifiers.email is not None:
        keys.append((IdentifierKind.EMAIL, org_keys.digests("email", identifiers.email)))
    if identifiers.external_id is not None:
        keys.append((IdentifierKind.EXTERNAL_ID, org_keys.digests("external_id", identifiers.external_id)))
    return tuple(keys)


def idempotency_key(org_keys: OrgKeys, body: Event, occurred_at_us: int, nonce: str | None) -> str:
    """Return the key that was sent, or one derived from name, identifiers and time (docs/contract.md 4.6).

    Pass a `nonce` for events sent without `occurredAt`: their time is that of receipt, so two processes may derive
    equal keys.
    """
    if body.idempotency_key is not None:
        return body.idempotency_key
    return derived_key(org_keys, body.name, body.identifiers, occurred_at_us, *(() if nonce is None else (nonce,)))


def derived_key(org_keys: OrgKeys, name: str, identifiers: Identifiers, occurred_at_us: int, *nonce: str) -> str:
    """Return the idempotency key of an event that was sent without one."""
    return org_keys.derive_key(
        name, identifiers.wallet, identifiers.email, identifiers.external_id, str(occurred_at_us), *nonce
    )


def body_digest(raw: bytes) -> str:
    """Return 16 bytes in hex, which distinguish a repeated body from another body with the same idempotency key."""
    return blake2b(raw, digest_size=16).hexdigest()


def raw_body_digests(raws: Sequence[bytes]) -> list[bytes]:
    """Return the same digests as raw bytes."""
    return [blake2b(raw, digest_size=16).digest() for raw in raws]


class AcceptedEvent(msgspec.Struct, frozen=True, tag="stored"):
    """Stored. `entries`: the number of automations that it entered."""

    idempotency_key: str
    entries: int = 0


class Duplicate(msgspec.Struct, frozen=True, tag="duplicate"):
    """An event with this idempotency key is stored already; nothing was done."""

    idempotency_key: str


class DryRun(msgspec.Struct, frozen=True, tag="dry_run"):
    """Matched like a live event, without entries. `matched`: automations that a live event would have entered."""

    idempotency_key: str
    matched: int
    deduplicated: bool


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """Not valid; nothing is stored."""

    problems: Problems


class RateLimited(msgspec.Struct, frozen=True, tag="rate_limited"):
    """Over the rate limit of the organization; nothing is stored."""


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """The commit was not acknowledged: the caller retries with the same key."""

    reason: str


Accepted: TypeAlias = AcceptedEvent | Duplicate | DryRun
Refused: TypeAlias = Rejected | RateLimited | Unavailable
Outcome: TypeAlias = Accepted | Refused
