"""What the store knows an event by: the blind indexes of its identifiers, and its idempotency key.

Live ingest and the import of history both take them from here: an event is the same event by either road.
"""

from collections.abc import Sequence
from hashlib import blake2b

from api.keyring import OrgKeys
from api.language.event import Event, Identifiers
from api.language.identity import Key, Kind

PEOPLE_REMEMBERED = 32_768


class People:
    """The keys and sealed email of identifiers, remembered: the same people come again and again."""

    def __init__(self, most: int = PEOPLE_REMEMBERED) -> None:
        self._most = most
        self._known: dict[tuple[int, Identifiers], tuple[tuple[Key, ...], tuple[str, ...]]] = {}

    def indexed(self, org_id: int, org_keys: OrgKeys, who: Identifiers) -> tuple[tuple[Key, ...], tuple[str, ...]]:
        """Return the keys (see `keys_of`) and the email of somebody, as it may be sealed (see `seal_emails`)."""
        known = self._known.get((org_id, who))
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            sealed = () if who.email is None else org_keys.seal_emails(who.email)
            known = self._known[org_id, who] = keys_of(org_keys, who), sealed
        return known


def keys_of(org_keys: OrgKeys, identifiers: Identifiers) -> tuple[Key, ...]:
    """Return the keys of the identifiers that were sent, in the order in which they decide; digests as `OrgKeys.digests` has them."""
    keys: list[Key] = []
    if identifiers.wallet is not None:
        keys.append((Kind.WALLET, org_keys.digests("wallet", identifiers.wallet)))
    if identifiers.email is not None:
        keys.append((Kind.EMAIL, org_keys.digests("email", identifiers.email)))
    if identifiers.external_id is not None:
        keys.append((Kind.EXTERNAL_ID, org_keys.digests("external_id", identifiers.external_id)))
    return tuple(keys)


def body_digest(raw: bytes) -> str:
    """Return 16 bytes, in hex, by which a body that comes again is told from another one."""
    return blake2b(raw, digest_size=16).hexdigest()


def raw_body_digests(raws: Sequence[bytes]) -> list[bytes]:
    """Return the same 16 bytes, as they are, for each of many bodies."""
    return [blake2b(raw, digest_size=16).digest() for raw in raws]


def idempotency_key(org_keys: OrgKeys, event: Event, occurred_at_us: int, nonce: str | None) -> str:
    """Return the key in effect: the sent one, or one derived from name, identifiers and moment.

    `nonce` sets apart events that were sent without `occurredAt`, whose moment is only ours; None for all others.
    """
    if event.idempotency_key is not None:
        return event.idempotency_key
    return derived_key(org_keys, event.name, event.identifiers, occurred_at_us, *(() if nonce is None else (nonce,)))


def derived_key(org_keys: OrgKeys, name: str, who: Identifiers, occurred_at_us: int, *nonce: str) -> str:
    """Return the idempotency key of an event that was sent without one."""
    return org_keys.derive_key(name, who.wallet, who.email, who.external_id, str(occurred_at_us), *nonce)
