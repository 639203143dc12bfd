"""Every secret value derives from `WORKBENCH_SECRET` here: key hashes, blind indexes, email encryption, derived keys.

Webhook secrets are the exception: they can be rolled, so they are made by chance and kept sealed.

Derivation is HKDF-Expand (RFC 5869) by purpose and organization, so equal emails of two organizations share nothing.
Emails are sealed with AES-SIV (RFC 5297): deterministic, so equality and joins work in SQL on the sealed form.
"""

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

SEALED_PREFIX = "enc1_"


class Keyring:
    """The derived keys of one installation; organizations are cached as they are used."""

    def __init__(self, secret: str) -> None:
        self._root = hmac.digest(b"event-workbench/1", secret.encode(), "sha256")
        self._api_key = _expand(self._root, b"api-key")
        self._unsubscribe = _expand(self._root, b"unsubscribe")
        self._inapp_session = _expand(self._root, b"inapp-session")
        self._orgs: dict[int, OrgKeys] = {}

    def of(self, org_id: int) -> "OrgKeys":
        """Return the keys of one organization."""
        keys = self._orgs.get(org_id)
        if keys is None:
            keys = self._orgs[org_id] = OrgKeys(self._root, org_id)
        return keys

    def fingerprint(self) -> str:
        """Return 32 characters that the same secret gives again, and from which nobody learns it."""
        return _expand(self._root, b"fingerprint").hex()[:32]

    @lru_cache(maxsize=4_096)  # noqa: B019  a process has one keyring
    def api_key_hash(self, key: str) -> bytes:
        """Return the 32 bytes by which an API key is stored and looked up."""
        return hmac.digest(self._api_key, key.encode(), "sha256")

    def unsubscribe_mac(self, message: bytes) -> bytes:
        """Return the 16 bytes that prove an unsubscribe token to be ours."""
        return hmac.digest(self._unsubscribe, message, "sha256")[:16]

    def inapp_session_mac(self, message: bytes) -> bytes:
        """Return the 32 bytes that prove a token of an in-app session to be ours."""
        return hmac.digest(self._inapp_session, message, "sha256")

    def reader_password(self, role: str) -> str:
        """Return the password of an analyst login role; derived, so it is stored nowhere."""
        return _expand(self._root, b"reader/" + role.encode()).hex()

    def reader_role(self, org_id: int) -> str:
        """Return the opaque name of an organization's analyst login role."""
        return "wb_reader_" + _expand(self._root, b"reader-name/%d" % org_id).hex()[:20]

    def direct_role(self, org_id: int) -> str:
        """Return the opaque name of an organization's direct login role; its password is made by chance."""
        return "wb_direct_" + _expand(self._root, b"direct-name/%d" % org_id).hex()[:20]


class OrgKeys:
    """One organization's blind index, email sealing and derivation of idempotency keys."""

    def __init__(self, root: bytes, org_id: int) -> None:
        self._index = _expand(root, b"blind-index/%d" % org_id)
        self._derive = _expand(root, b"idempotency/%d" % org_id)
        self._siv = AESSIV(_expand(root, b"email/%d" % org_id) + _expand(root, b"email-mac/%d" % org_id))
        self._aad = [b"email/%d" % org_id]
        self._webhook = AESSIV(_expand(root, b"webhook/%d" % org_id) + _expand(root, b"webhook-mac/%d" % org_id))
        self._snapshot = AESSIV(_expand(root, b"snapshot/%d" % org_id) + _expand(root, b"snapshot-mac/%d" % org_id))

    def digest(self, kind: str, value: str) -> str:
        """Return the blind index of an identifier, 16 bytes in hex; `kind` keeps wallets, emails and external ids apart.

        BLAKE2b in its keyed mode (RFC 7693).
        """
        return hashlib.blake2b(f"{kind}\0{value}".encode(), digest_size=16, key=self._index).hexdigest()

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
        return SEALED_PREFIX + self._siv.encrypt(email.encode(), self._aad).hex()

    def open_email(self, sealed: str) -> str:
        """Decrypt what `seal_email` made; raise ValueError for anything else."""
        try:
            return self._siv.decrypt(bytes.fromhex(sealed.removeprefix(SEALED_PREFIX)), self._aad).decode()
        except (InvalidTag, ValueError):
            raise ValueError("not an email sealed for this organization") from None

    def seal_snapshot(self, snapshot: str, at: str) -> bytes:
        """Encrypt what a query saw, bound to its moment."""
        return self._snapshot.encrypt(snapshot.encode(), [at.encode()])

    def open_snapshot(self, sealed: bytes, at: str) -> str:
        """Decrypt what `seal_snapshot` made; raise ValueError for anything else."""
        try:
            return self._snapshot.decrypt(sealed, [at.encode()]).decode()
        except InvalidTag:
            raise ValueError("not a snapshot sealed for this organization") from None

    def seal_webhook_secret(self, secret: str) -> bytes:
        """Encrypt a webhook secret of the organization."""
        return self._webhook.encrypt(secret.encode(), None)

    def open_webhook_secret(self, sealed: bytes) -> str:
        """Decrypt what `seal_webhook_secret` made; raise ValueError for anything else."""
        try:
            return self._webhook.decrypt(sealed, None).decode()
        except InvalidTag:
            raise ValueError("not a webhook secret sealed for this organization") from None


def _expand(root: bytes, purpose: bytes) -> bytes:
    return hmac.digest(root, purpose + b"\x01", "sha256")
