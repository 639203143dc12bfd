"""From the bytes of an event to a valid event with its keys: the part of ingest that needs no database.

The store finds identifiers by blind indexes (keyed digests) and recognises a repeated event by its idempotency key.
Live ingest and the import of history derive both here, so an event has the same keys whether it arrives live or in a
file.

Every event of a request gets exactly one of the outcomes defined at the end of this module.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from api.clock import Clock, uuid7
from api.crypto import OrgKeys
from workbench.language.codec import encode
from workbench.language.contact import IdentifierKey, IdentifierKind
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.problem import Problem, Problems

MAX_CACHED_IDENTIFIERS = 32_768  # contacts; deriving keys costs most of the CPU time of reading an event


class IdentifiedEvent(msgspec.Struct, kw_only=True, gc=False):
    """An event, sent or made from a log, with what is needed to resolve its contact and to start entries.

    `keys`: digests of 32 hex digits, twice as many while a secret is rotated. `emails`: the sealed texts under which
    the address may be stored, the current one first. `attributes`: their JSON text, or empty.
    """

    org_id: int
    body: Event
    event_id: str
    keys: tuple[IdentifierKey, ...]
    emails: tuple[str, ...] = ()
    attributes: str = ""
    request_id: str | None = None


class ParsedEvent(IdentifiedEvent, kw_only=True, gc=False):
    """A valid event on its way into the store. Its digests are 32 hex digits. `dry`: a dry run.

    `body_digest` distinguishes a repeated body from another body with the same idempotency key.
    """

    idempotency_key: str
    key_digest: str
    body_digest: str
    occurred_us: int
    dry: bool


class EventReader:
    """Reads events for one process. `nonce` is different in every process (see `idempotency_key`)."""

    def __init__(self, clock: Clock, nonce: str, cached_contacts: int = MAX_CACHED_IDENTIFIERS) -> None:
        self._clock = clock
        self._nonce = nonce
        self._identify = lru_cache(cached_contacts)(identify)

    def read(
        self,
        org_id: int,
        org_keys: OrgKeys,
        raw: bytes,
        test_key: bool = False,
        request_id: str | None = None,
        *,
        past: bool = False,
        strict: bool = False,
    ) -> ParsedEvent | Problems:
        """Return the event in the JSON text `raw`, or the reasons for which it is not valid.

        `past`: an event of any age for an import; its id begins with the time at which it occurred. `strict`: unknown
        fields are not valid.
        """
        now_us = self._clock.unique_now_us()
        body = read_event(raw, now_us, history=past, strict=strict)
        if isinstance(body, tuple):
            return body
        if past and body.occurred_at_us is None:
            return (Problem("occurredAt", "is required in an import"),)
        if past and body.test:
            return (Problem("test", "a dry run cannot be imported"),)
        occurred_us, nonce = (now_us, (self._nonce,)) if body.occurred_at_us is None else (body.occurred_at_us, ())
        key = idempotency_key(org_keys, body, occurred_us, *nonce)
        keys, emails = self._identify(org_keys, body.identifiers)
        return ParsedEvent(
            org_id=org_id,
            body=body,
            event_id=uuid7(max(occurred_us, 0) if past else now_us),
            keys=keys,
            emails=emails,
            attributes=encode(body.attributes).decode() if body.attributes else "",
            request_id=request_id,
            idempotency_key=key,
            key_digest=org_keys.key_digest(key),
            body_digest=blake2b(raw, digest_size=16).hexdigest(),
            occurred_us=occurred_us,
            dry=test_key or body.test,
        )


def identify(org_keys: OrgKeys, identifiers: Identifiers) -> tuple[tuple[IdentifierKey, ...], tuple[str, ...]]:
    """Return the keys of the identifiers that were sent, and the sealed texts of the email (`OrgKeys.seal_emails`).

    The keys are in the order in which they decide (docs/contract.md 4.5).
    """
    values = zip(IdentifierKind, (identifiers.wallet, identifiers.email, identifiers.external_id), strict=True)
    keys = tuple((kind, org_keys.digests(kind.name.lower(), value)) for kind, value in values if value is not None)
    return keys, () if identifiers.email is None else org_keys.seal_emails(identifiers.email)


def idempotency_key(org_keys: OrgKeys, body: Event, occurred_us: int, *nonce: str) -> str:
    """Return the key that was sent, or one derived from name, identifiers and time (docs/contract.md 4.6).

    Pass a nonce for events sent without `occurredAt`: their time is that of receipt, so two processes may derive equal
    keys.
    """
    if body.idempotency_key is not None:
        return body.idempotency_key
    sent = body.identifiers
    return org_keys.derive_key(body.name, sent.wallet, sent.email, sent.external_id, str(occurred_us), *nonce)


class AcceptedEvent(msgspec.Struct, frozen=True, tag="stored"):
    """The event was stored. `entries`: the number of entries that it started. `warnings`: what was left out of it."""

    idempotency_key: str
    entries: int = 0
    warnings: Problems = ()


class Duplicate(msgspec.Struct, frozen=True, tag="duplicate"):
    """An event with this idempotency key is stored already; nothing was done."""

    idempotency_key: str
    warnings: Problems = ()


class DryRun(msgspec.Struct, frozen=True, tag="dry_run"):
    """Matched like a live event, without entries. `matched`: automations in which a live event would start an entry."""

    idempotency_key: str
    matched: int
    deduplicated: bool
    warnings: Problems = ()


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
