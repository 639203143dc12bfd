"""The secrets of an installation, and everything that is derived from them.

WORKBENCH_SECRET holds a chain of secrets, oldest first:

    old                        one secret, used for everything
    old,next:new               rotation, phase 1: indexes are written with both secrets
    former:old,new             phase 2: everything is written with the new secret; older values stay readable
    retired:9f…,new            finished: only the index key of the old secret is left, which decrypts and proves nothing

Each secret is a generation with a number from 1. Values carry the number of their generation: sealed emails in their
prefix, blind indexes and key hashes in their first digit. Indexes are layered: the index of a generation is a MAC of
the index of the generation before, so a rotation computes it without knowing the value. That is why `retired:` keeps
the index key.

Key hashes, blind indexes, email encryption and other keys are derived by purpose and organization, so equal emails of
two organizations have nothing in common. Emails are sealed with AES-SIV (RFC 5297), which is deterministic, so that
equality and joins work in SQL on sealed values. Webhook secrets are random, because they can be rolled, and are stored
sealed.
"""

import hashlib
import hmac
import re
from functools import cache, lru_cache
from typing import Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from workbench.language.event import mask_email

MAX_GENERATIONS = 15  # the number of a generation is one hexadecimal digit of an index
INDEX = 32  # hexadecimal digits of a blind index
_ROLES = ("former", "next", "retired")
_SEALED = re.compile(r"enc([1-9][0-9]?)_((?:[0-9a-f]{2})+)")

Part = Literal["settled", "next", "former"]


class ChainError(Exception):
    """The text is not a valid chain of secrets."""


class Generation(msgspec.Struct, frozen=True):
    """One secret: its number from 1, and the root keys of its indexes and of everything else (None if retired)."""

    number: int
    indexes: bytes
    root: bytes | None


class SecretChain(msgspec.Struct, frozen=True):
    """Generations, oldest first. `current` is used for writing; `other` is its neighbour during a rotation."""

    generations: tuple[Generation, ...]
    current: Generation
    other: Generation | None

    def in_use(self) -> tuple[Generation, ...]:
        """Return the generations that stored values may have: the current one, then the other one of a rotation."""
        return (self.current,) if self.other is None else (self.current, self.other)

    @property
    def part(self) -> Part:
        """The phase of the rotation; "settled" if none is in progress."""
        if self.other is None:
            return "settled"
        return "next" if self.other.number > self.current.number else "former"

    def of(self, number: int) -> Generation | None:
        return self.generations[number - 1] if 0 < number <= len(self.generations) else None


@cache
def read_chain(text: str) -> SecretChain:
    """Parse a chain; raise ChainError. A text without roles is a single secret, even if it contains commas."""
    links = _links(text)
    generations = tuple(_generation(number, *link) for number, link in enumerate(links, 1))
    roles = [role for role, _ in links]
    at = roles.index("")
    if len(links) > MAX_GENERATIONS:
        raise ChainError(f"WORKBENCH_SECRET contains {len(links)} secrets; the maximum is {MAX_GENERATIONS}")
    if roles not in ([*["retired"] * at, ""], [*["retired"] * at, "", "next"], [*["retired"] * (at - 1), "former", ""]):
        raise ChainError("the order of the secrets must be: retired, former, in use, or: retired, in use, next")
    others = [generation for role, generation in zip(roles, generations, strict=True) if role in ("next", "former")]
    return SecretChain(generations, generations[at], others[0] if others else None)


def next_chain(text: str, new_secret: str) -> str:
    """Return the chain for the next phase of a rotation. `new_secret` is used if no rotation is in progress."""
    *before, last = [":".join(filter(None, link)) for link in _links(text)]
    match read_chain(text).part:
        case "settled":
            return ",".join([*before, last, f"next:{new_secret}"])
        case "next":
            *before, old = before
            return ",".join([*before, f"former:{old}", last.removeprefix("next:")])
        case "former":
            *before, old = before
            return ",".join([*before, f"retired:{_generation(1, *_link(old)).indexes.hex()}", last])


def min_secret_length(text: str) -> int:
    """Return the length of the shortest secret of a chain, in characters; raise ChainError."""
    return min(len(secret) for _, secret in _links(text))


def expand(root: bytes, purpose: bytes) -> bytes:
    """Return the 32 bytes derived for a purpose."""
    return HKDFExpand(SHA256(), 32, purpose).derive(root)


def _links(text: str) -> list[tuple[str, str]]:
    links = [_link(part.strip()) for part in text.split(",")]
    if not any(role for role, _ in links):
        return [("", text)]
    if sum(not role for role, _ in links) != 1 or not all(secret for _, secret in links):
        raise ChainError("exactly one secret must have no role before it: the one in use")
    return links


def _link(text: str) -> tuple[str, str]:
    role, colon, secret = text.partition(":")
    return (role, secret) if colon and role in _ROLES else ("", text)


def _generation(number: int, role: str, secret: str) -> Generation:
    if role == "retired":
        try:
            indexes = bytes.fromhex(secret)
        except ValueError:
            indexes = b""
        if len(indexes) != 32:
            raise ChainError(
                "the value after `retired:` is not valid; use the text that `workbench secret rotate` printed"
            )
        return Generation(number, indexes, None)
    root = HKDF.extract(SHA256(), b"event-workbench/1", secret.encode())
    return Generation(number, expand(root, b"indexes"), root)


class Keyring:
    """The derived keys of one installation; the keys of an organization are derived on first use and cached."""

    def __init__(self, secret: str) -> None:
        """Parse the chain of secrets; raise ChainError."""
        self.chain = read_chain(secret)
        # Sealed with the first; opened with any, because values move to a new secret page by page.
        self._roots = [generation.root for generation in _newest_first(self.chain) if generation.root is not None]
        self._orgs: dict[int, OrgKeys] = {}

    def of(self, org_id: int) -> "OrgKeys":
        keys = self._orgs.get(org_id)
        if keys is None:
            keys = self._orgs[org_id] = OrgKeys(self.chain, org_id)
        return keys

    def fingerprint(self) -> str:
        """Return 32 characters that identify the chain and its phase without revealing a secret."""
        root = HKDF.extract(SHA256(), b"event-workbench/1", b"".join(item.indexes for item in self.chain.generations))
        return expand(root, b"fingerprint/%d/%b" % (self.chain.current.number, self.chain.part.encode())).hex()[:32]

    def tag(self) -> str:
        """Return the beginning of the fingerprint, which processes have in the names of their connections."""
        return self.fingerprint()[:8]

    @lru_cache(maxsize=4_096)  # noqa: B019  a process has one keyring
    def api_key_hashes(self, key: str) -> tuple[bytes, ...]:
        """Return the 32-byte hashes by which an API key is looked up: of the current generation, then of the other."""
        first = hmac.digest(self._api_key(self.chain.generations[0]), key.encode(), "sha256")
        hashes = [bytes([1 << 4 | first[0] & 15]) + first[1:]]  # the upper four bits are the generation
        for _ in self.chain.generations[1:]:
            hashes.append(self.next_key_hash(hashes[-1]))
        return tuple(hashes[generation.number - 1] for generation in self.chain.in_use())

    def next_key_hash(self, key_hash: bytes) -> bytes:
        """Return the hash of the same key one generation later."""
        later = self.chain.generations[key_hash[0] >> 4]
        digest = hmac.digest(self._api_key(later), key_hash, "sha256")
        return bytes([later.number << 4 | digest[0] & 15]) + digest[1:]

    def link_mac(self, purpose: bytes, message: bytes, number: int) -> bytes:
        """Return the 16-byte MAC of a token in a link, made with the generation of this number."""
        generation = self.chain.of(number) or self.chain.current
        return hmac.digest(expand(generation.indexes, purpose), message, "sha256")[:16]

    def inapp_session_mac(self, message: bytes) -> bytes:
        """Return the 32-byte MAC of an in-app session token."""
        return _inapp_session_mac(self._roots[0], message)

    def is_inapp_session_mac(self, mac: bytes, message: bytes) -> bool:
        """Return whether `mac` authenticates an in-app session token, made with any secret that is not retired."""
        return any(hmac.compare_digest(mac, _inapp_session_mac(root, message)) for root in self._roots)

    def reader_password(self, role: str) -> str:
        """Return the password of an analyst login role; it is derived and not stored."""
        return expand(self._roots[0], b"reader/" + role.encode()).hex()

    def reader_role(self, org_id: int) -> str:
        """Return the opaque name of an organization's analyst login role; every role of a server can list all names."""
        return _reader_role(self._roots[0], org_id)

    def former_reader_role(self, org_id: int) -> str | None:
        """Return the name of that role under the former secret, or None if no rotation is in its second phase."""
        return _reader_role(self._roots[1], org_id) if self.chain.part == "former" else None

    def direct_role(self, org_id: int) -> str:
        """Return the opaque name of an organization's direct login role; its password is random."""
        # Derived from the first generation: the name is in the customer's own tools and must survive a rotation.
        return "wb_direct_" + expand(self.chain.generations[0].indexes, b"direct-name/%d" % org_id).hex()[:20]

    def _api_key(self, generation: Generation) -> bytes:
        return expand(generation.indexes, b"api-key")


class OrgKeys:
    """The keys of one organization: blind indexes, sealing, and derivation of idempotency keys."""

    def __init__(self, chain: SecretChain, org_id: int) -> None:
        self._chain = chain
        self._indexes = [expand(generation.indexes, b"blind-index/%d" % org_id) for generation in chain.generations]
        # Derived from the first generation: if a rotation changed these keys, a repeated event would be stored again.
        self._derive = expand(chain.generations[0].indexes, b"idempotency/%d" % org_id)
        self._emails = {
            generation.number: _siv(generation.root, b"email", org_id)
            for generation in chain.generations
            if generation.root
        }
        self._aad = [b"email/%d" % org_id]
        roots = [generation.root for generation in _newest_first(chain) if generation.root is not None]
        self._webhooks = [_siv(root, b"webhook", org_id) for root in roots]
        self._connections = [_siv(root, b"connection", org_id) for root in roots]
        self._snapshots = [_siv(root, b"snapshot", org_id) for root in roots]
        self.email_prefix = f"enc{chain.current.number}_"

    def digest(self, kind: str, value: str) -> str:
        """Return the blind index of an identifier: keyed BLAKE2b (RFC 7693), 16 bytes in hex.

        The first digit is the generation. `kind` separates wallets, emails and external ids.
        """
        return self.digests(kind, value)[:INDEX]

    def digests(self, kind: str, value: str) -> str:
        """Return the current blind index of an identifier, and during a rotation that of the other generation."""
        indexes = [_numbered(1, f"{kind}\0{value}".encode(), self._indexes[0])]
        for _ in self._indexes[1:]:
            indexes.append(self.next_digest(indexes[-1]))
        return self._used(indexes)

    def next_digest(self, digest: str) -> str:
        """Return the blind index of the same value one generation later."""
        number = int(digest[0], 16) + 1
        return _numbered(number, bytes.fromhex(digest), self._indexes[number - 1])

    def digests_from(self, digest: str) -> str:
        """Return the result of `digests` as far as it follows from the index of one generation: older ones do not."""
        number, indexes = int(digest[0], 16), [digest]
        for _ in self._indexes[number:]:
            indexes.append(self.next_digest(indexes[-1]))
        return self._used([""] * (number - 1) + indexes) or digest

    def list_digests_from(self, digest: str) -> list[str]:
        indexes = self.digests_from(digest)
        return [indexes[start : start + INDEX] for start in range(0, len(indexes), INDEX)]

    def derive_key(self, *fields: str | None) -> str:
        """Return the derived idempotency key of an event's fields: HMAC over length-prefixed parts, version 1."""
        parts = b"".join(b"-" if field is None else b"%d:%b" % (len(raw := field.encode()), raw) for field in fields)
        return "d1_" + hmac.digest(self._derive, parts, "sha256").hex()

    def key_digest(self, idempotency_key: str) -> str:
        """Return the 16 bytes, in hex, under which an idempotency key is stored."""
        return hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]

    def seal_email(self, email: str) -> str:
        """Encrypt a normalized address; equal addresses of one organization give equal texts."""
        return self._seal(self._chain.current, email)

    def seal_emails(self, email: str) -> tuple[str, ...]:
        """Return every sealed form in which the address may be stored, the form of `seal_email` first."""
        return tuple(self._seal(generation, email) for generation in self._chain.in_use())

    def open_email(self, sealed: str) -> str:
        """Decrypt a sealed address; raise ValueError if it was not sealed for this organization."""
        match = _SEALED.fullmatch(sealed)
        siv = None if match is None else self._emails.get(int(match[1]))
        try:
            if match is not None and siv is not None:
                return siv.decrypt(bytes.fromhex(match[2]), self._aad).decode()
        except (InvalidTag, ValueError):
            pass
        raise ValueError("not an email sealed for this organization")

    def reseal(self, text: str) -> str:
        """Return the text with every sealed address in it sealed with the current secret."""

        def replace(match: re.Match[str]) -> str:
            sealed = match[0]
            if sealed.startswith(self.email_prefix):
                return sealed
            try:
                return self.seal_email(self.open_email(sealed))
            except ValueError:  # it only looks like a sealed address, for example in a payload
                return sealed

        return _SEALED.sub(replace, text)

    def seal_snapshot(self, snapshot: str, at: str) -> bytes:
        """Encrypt the snapshot of a query, bound to its time."""
        return self._snapshots[0].encrypt(snapshot.encode(), [at.encode()])

    def open_snapshot(self, sealed: bytes, at: str) -> str:
        """Decrypt a snapshot; raise ValueError if it was not sealed for this organization and time."""
        return _opened(self._snapshots, sealed, [at.encode()], "a snapshot")

    def seal_webhook_secret(self, secret: str) -> bytes:
        return self._webhooks[0].encrypt(secret.encode(), None)

    def open_webhook_secret(self, sealed: bytes) -> str:
        """Decrypt a webhook secret; raise ValueError if it was not sealed for this organization."""
        return _opened(self._webhooks, sealed, None, "a webhook secret")

    def seal_connection(self, secrets: str, name: str) -> bytes:
        """Encrypt the secrets of a connection, bound to its name."""
        return self._connections[0].encrypt(secrets.encode(), [name.encode()])

    def open_connection(self, sealed: bytes, name: str) -> str:
        """Decrypt the secrets of a connection; raise ValueError if they were not sealed for it."""
        return _opened(self._connections, sealed, [name.encode()], "the secrets of a connection")

    def _used(self, indexes: list[str]) -> str:
        return "".join([indexes[generation.number - 1] for generation in self._chain.in_use()])

    def _seal(self, generation: Generation, email: str) -> str:
        return f"enc{generation.number}_" + self._emails[generation.number].encrypt(email.encode(), self._aad).hex()


class EmailDisplay(msgspec.Struct, frozen=True):
    """Shows sealed addresses of an organization to a caller: in clear (with `pii:read`), or masked."""

    keys: OrgKeys
    clear: bool

    def __call__(self, sealed: str) -> str:
        """Return the address; raise ValueError if it was not sealed for this organization."""
        address = self.keys.open_email(sealed)
        return address if self.clear else mask_email(address)


def is_sealed(text: str) -> bool:
    return _SEALED.fullmatch(text) is not None


def _newest_first(chain: SecretChain) -> list[Generation]:
    return [chain.current, *(item for item in reversed(chain.generations) if item is not chain.current)]


def _numbered(number: int, value: bytes, key: bytes) -> str:
    return f"{number:x}" + hashlib.blake2b(value, digest_size=16, key=key).hexdigest()[1:]


def _siv(root: bytes, purpose: bytes, org_id: int) -> AESSIV:
    return AESSIV(expand(root, b"%b/%d" % (purpose, org_id)) + expand(root, b"%b-mac/%d" % (purpose, org_id)))


def _opened(sivs: list[AESSIV], sealed: bytes, associated: list[bytes] | None, kind: str) -> str:
    for siv in sivs:
        try:
            return siv.decrypt(sealed, associated).decode()
        except InvalidTag:
            continue
    raise ValueError(f"not {kind} sealed for this organization")


def _inapp_session_mac(root: bytes, message: bytes) -> bytes:
    return hmac.digest(expand(root, b"inapp-session"), message, "sha256")


def _reader_role(root: bytes, org_id: int) -> str:
    return "wb_reader_" + expand(root, b"reader-name/%d" % org_id).hex()[:20]
