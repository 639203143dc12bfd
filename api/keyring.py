"""Every secret value derives from `WORKBENCH_SECRET` here: key hashes, blind indexes, email encryption, derived keys.

Webhook secrets are the exception: they can be rolled, so they are made by chance and kept sealed.

Derivation is by purpose and organization, so equal emails of two organizations share nothing. Emails are sealed with AES-SIV
(RFC 5297): deterministic, so equality and joins work in SQL on the sealed form.

While a secret is rotated (`api.keychain`), what was made with another generation is still read, and tells its generation: sealed emails by
their prefix, indexes by their first digit. Indexes are layered: that of a generation is made of the one before, so it can be made without
knowing the value.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from api.keychain import Chain, Generation, expand, read_chain

_SEALED = re.compile(r"enc([1-9][0-9]?)_((?:[0-9a-f]{2})+)")
INDEX = 32
"""Hexadecimal digits of a blind index."""


class Keyring:
    """The derived keys of one installation; organizations are cached as they are used."""

    def __init__(self, secret: str) -> None:
        """Raise ChainError when the text is no chain of secrets."""
        self.chain = read_chain(secret)
        self._roots = [each.root for each in _newest_first(self.chain) if each.root is not None]
        self._orgs: dict[int, OrgKeys] = {}

    def of(self, org_id: int) -> "OrgKeys":
        """Return the keys of one organization."""
        keys = self._orgs.get(org_id)
        if keys is None:
            keys = self._orgs[org_id] = OrgKeys(self.chain, org_id)
        return keys

    def fingerprint(self) -> str:
        """Return 32 characters that the same secret gives again, and from which nobody learns it."""
        return _fingerprint(self._roots[0])

    def knows(self, fingerprint: str) -> bool:
        """Return whether it is that of one of the secrets."""
        return fingerprint in map(_fingerprint, self._roots)

    def mark(self) -> str:
        """Return eight characters that processes have in common which hold the same secrets in the same way."""
        return expand(self._roots[0], b"mark/%d/%b" % (self.chain.current.number, self.chain.part.encode())).hex()[:8]

    @lru_cache(maxsize=4_096)  # noqa: B019  a process has one keyring
    def api_key_hashes(self, key: str) -> tuple[bytes, ...]:
        """Return the 32 bytes by which an API key is stored and looked up; those of the other generation after them."""
        found = [hmac.digest(self._api_key(self.chain.generations[0]), key.encode(), "sha256")]
        found[0] = bytes([1 << 4 | found[0][0] & 15]) + found[0][1:]
        for _ in self.chain.generations[1:]:
            found.append(self.risen_key_hash(found[-1]))
        return tuple(found[each.number - 1] for each in (self.chain.current, self.chain.other) if each is not None)

    def risen_key_hash(self, key_hash: bytes) -> bytes:
        """Return the hash of the same key one generation later."""
        later = self.chain.generations[key_hash[0] >> 4]
        made = hmac.digest(self._api_key(later), key_hash, "sha256")
        return bytes([later.number << 4 | made[0] & 15]) + made[1:]

    def unsubscribe_mac(self, message: bytes, index: str) -> bytes:
        """Return the 16 bytes that prove an unsubscribe token to be ours, by the generation of its index."""
        made_with = self.chain.of(int(index[0], 16)) or self.chain.current
        return hmac.digest(expand(made_with.indexes, b"unsubscribe"), message, "sha256")[:16]

    def inapp_session_mac(self, message: bytes) -> bytes:
        """Return the 32 bytes that prove a token of an in-app session to be ours."""
        return _inapp_session_mac(self._roots[0], message)

    def is_inapp_session_mac(self, mac: bytes, message: bytes) -> bool:
        """Return whether a token of an in-app session is ours."""
        return any(hmac.compare_digest(mac, _inapp_session_mac(root, message)) for root in self._roots)

    def reader_password(self, role: str) -> str:
        """Return the password of an analyst login role; derived, so it is stored nowhere."""
        return expand(self._roots[0], b"reader/" + role.encode()).hex()

    def reader_role(self, org_id: int) -> str:
        """Return the opaque name of an organization's analyst login role."""
        return _reader_role(self._roots[0], org_id)

    def former_reader_role(self, org_id: int) -> str | None:
        """Return the name of the role that it had under the former secret."""
        return _reader_role(self._roots[1], org_id) if self.chain.part == "former" else None

    def direct_role(self, org_id: int) -> str:
        """Return the opaque name of an organization's direct login role; its password is made by chance."""
        return "wb_direct_" + expand(self.chain.generations[0].indexes, b"direct-name/%d" % org_id).hex()[:20]

    def _api_key(self, generation: Generation) -> bytes:
        return expand(generation.indexes, b"api-key")


class OrgKeys:
    """One organization's blind index, email sealing and derivation of idempotency keys."""

    def __init__(self, chain: Chain, org_id: int) -> None:
        self._chain = chain
        self._indexes = [expand(each.indexes, b"blind-index/%d" % org_id) for each in chain.generations]
        self._derive = expand(chain.generations[0].indexes, b"idempotency/%d" % org_id)
        self._emails = {each.number: _siv(each.root, b"email", org_id) for each in chain.generations if each.root}
        self._aad = [b"email/%d" % org_id]
        roots = [each.root for each in _newest_first(chain) if each.root is not None]
        self._webhooks = [_siv(root, b"webhook", org_id) for root in roots]
        self._snapshots = [_siv(root, b"snapshot", org_id) for root in roots]
        self.email_prefix = f"enc{chain.current.number}_"

    def digest(self, kind: str, value: str) -> str:
        """Return the blind index of an identifier, 16 bytes in hex; `kind` keeps wallets, emails and external ids apart.

        BLAKE2b in its keyed mode (RFC 7693); its first digit is the generation.
        """
        return self.digests(kind, value)[:INDEX]

    def digests(self, kind: str, value: str) -> str:
        """Return the blind index by which an identifier is looked up, and after it the other one, by which it has to be found, too."""
        found = [_numbered(1, f"{kind}\0{value}".encode(), self._indexes[0])]
        for _ in self._indexes[1:]:
            found.append(self.risen(found[-1]))
        return self._written(found)

    def risen(self, digest: str) -> str:
        """Return the blind index of the same value one generation later."""
        number = int(digest[0], 16) + 1
        return _numbered(number, bytes.fromhex(digest), self._indexes[number - 1])

    def all_of(self, digest: str) -> str:
        """Return what `digests` does, as far as it follows from an index of any generation."""
        found = [digest]
        while int(found[-1][0], 16) < len(self._indexes):
            found.append(self.risen(found[-1]))
        return self._written([""] * (int(digest[0], 16) - 1) + found) or digest

    def all_of_each(self, digest: str) -> list[str]:
        """Return the same one by one."""
        found = self.all_of(digest)
        return [found[at : at + INDEX] for at in range(0, len(found), INDEX)]

    def derive_key(self, *fields: str | None) -> str:
        """Return the derived idempotency key of an event's fields: HMAC over length-prefixed parts, version 1."""
        parts = b"".join(b"-" if field is None else b"%d:%b" % (len(raw := field.encode()), raw) for field in fields)
        return "d1_" + hmac.digest(self._derive, parts, "sha256").hex()

    def key_digest(self, idempotency_key: str) -> str:
        """Return the 16 bytes, in hex, under which an idempotency key is remembered for ever."""
        return hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]

    def raw_key_digests(self, idempotency_keys: Sequence[bytes]) -> list[bytes]:
        """Return the same 16 bytes, as they are, for each of many keys in UTF-8."""
        sha256 = hashlib.sha256
        return [sha256(key).digest()[:16] for key in idempotency_keys]

    def seal_email(self, email: str) -> str:
        """Encrypt a normalised address; equal addresses of one organization give equal text."""
        return self._seal(self._chain.current, email)

    def seal_emails(self, email: str) -> tuple[str, ...]:
        """Return every text as which the address may be stored now, that of `seal_email` first."""
        return tuple(self._seal(each, email) for each in (self._chain.current, self._chain.other) if each is not None)

    def open_email(self, sealed: str) -> str:
        """Decrypt what `seal_email` made; raise ValueError for anything else."""
        found = _SEALED.fullmatch(sealed)
        siv = None if found is None else self._emails.get(int(found[1]))
        try:
            if found is not None and siv is not None:
                return siv.decrypt(bytes.fromhex(found[2]), self._aad).decode()
        except (InvalidTag, ValueError):
            pass
        raise ValueError("not an email sealed for this organization")

    def resealed(self, text: str) -> str:
        """Return a text in which every address is sealed with the secret in use."""
        return _SEALED.sub(lambda found: self._resealed(found[0]), text)

    def seal_snapshot(self, snapshot: str, at: str) -> bytes:
        """Encrypt what a query saw, bound to its moment."""
        return self._snapshots[0].encrypt(snapshot.encode(), [at.encode()])

    def open_snapshot(self, sealed: bytes, at: str) -> str:
        """Decrypt what `seal_snapshot` made; raise ValueError for anything else."""
        return _opened(self._snapshots, sealed, [at.encode()], "a snapshot")

    def seal_webhook_secret(self, secret: str) -> bytes:
        """Encrypt a webhook secret of the organization."""
        return self._webhooks[0].encrypt(secret.encode(), None)

    def open_webhook_secret(self, sealed: bytes) -> str:
        """Decrypt what `seal_webhook_secret` made; raise ValueError for anything else."""
        return _opened(self._webhooks, sealed, None, "a webhook secret")

    def _written(self, found: list[str]) -> str:
        chosen = [each.number - 1 for each in (self._chain.current, self._chain.other) if each is not None]
        return "".join([found[at] for at in chosen])

    def _seal(self, generation: Generation, email: str) -> str:
        return f"enc{generation.number}_" + self._emails[generation.number].encrypt(email.encode(), self._aad).hex()

    def _resealed(self, sealed: str) -> str:
        if sealed.startswith(self.email_prefix):
            return sealed
        try:
            return self.seal_email(self.open_email(sealed))
        except ValueError:  # looks like one and is none
            return sealed


def is_sealed(text: str) -> bool:
    """Return whether a text looks like a sealed email."""
    return _SEALED.fullmatch(text) is not None


def _newest_first(chain: Chain) -> list[Generation]:
    """Return the generation in use, then all others."""
    return [chain.current, *(each for each in reversed(chain.generations) if each is not chain.current)]


def _numbered(number: int, value: bytes, key: bytes) -> str:
    return f"{number:x}" + hashlib.blake2b(value, digest_size=16, key=key).hexdigest()[1:]


def _siv(root: bytes, purpose: bytes, org_id: int) -> AESSIV:
    return AESSIV(expand(root, b"%b/%d" % (purpose, org_id)) + expand(root, b"%b-mac/%d" % (purpose, org_id)))


def _opened(ways: list[AESSIV], sealed: bytes, associated: list[bytes] | None, what: str) -> str:
    for siv in ways:
        try:
            return siv.decrypt(sealed, associated).decode()
        except InvalidTag:
            continue
    raise ValueError(f"not {what} sealed for this organization")


def _fingerprint(root: bytes) -> str:
    return expand(root, b"fingerprint").hex()[:32]


def _inapp_session_mac(root: bytes, message: bytes) -> bytes:
    return hmac.digest(expand(root, b"inapp-session"), message, "sha256")


def _reader_role(root: bytes, org_id: int) -> str:
    return "wb_reader_" + expand(root, b"reader-name/%d" % org_id).hex()[:20]
