"""The rules of signing in: which pages may show messages, what a wallet signs, and which wallet signed it.

Origins: an organization lists the origins of the pages that may show its messages. Pages on the loopback interface are
always allowed: only the machine's own user can serve one there.

Messages: Sign-In with Ethereum (EIP-4361), written and parsed strictly. Text that the grammar of the EIP does not
allow is not a message: other line endings, another order of fields, an impossible date.

Signatures: EIP-191 `personal_sign` over secp256k1. Signatures of contracts (ERC-1271) are not accepted: checking one
takes a call to the chain.
"""

import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec

from api.auth import AccessError, keys
from api.auth.keys import operator_transaction
from api.store import messages as store

CLOCK_TOLERANCE = timedelta(minutes=5)  # between the clock of the page that wrote the message and ours

_ORIGIN = re.compile(r"https?://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)
_MAX_ORIGIN_CHARACTERS = 255
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
_SIGNATURE = re.compile(r"0x[0-9a-fA-F]{130}", re.ASCII)
_PARITIES = {0: 0, 1: 1, 27: 0, 28: 1}  # wallets write the recovery id either way


def parse_origin(text: str) -> str | None:
    """Return an origin in the form that browsers send, or None if the text is not one. A trailing slash is accepted."""
    origin = text.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(origin) or len(origin) > _MAX_ORIGIN_CHARACTERS:
        return None
    return origin.removesuffix(_DEFAULT_PORTS[origin.partition(":")[0]])


def is_loopback(origin: str) -> bool:
    return urlsplit(origin).hostname in _LOOPBACK_HOSTS


def is_origin_allowed(origin: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a page of this origin may show the messages of an organization that allows these origins."""
    return origin in allowed or is_loopback(origin)


def domain_of(origin: str) -> str:
    """Return the host and port of an origin: the `domain` of EIP-4361, which a wallet shows."""
    return origin.partition("://")[2]


async def list_origins(dsn: str, org_name: str) -> tuple[str, ...]:
    """Return the allowed origins of an organization; raise AccessError if it does not exist."""
    async with operator_transaction(dsn) as (tx, _):
        return await store.list_origins(tx, await keys.find_org_or_fail(tx, org_name))


async def add_origin(dsn: str, org_name: str, text: str) -> str:
    """Allow an origin; return it in its normal form. Raise AccessError."""
    origin = _parse_origin_or_fail(text)
    async with operator_transaction(dsn) as (tx, _):
        await store.add_origin(tx, await keys.find_org_or_fail(tx, org_name), origin)
    return origin


async def remove_origin(dsn: str, org_name: str, text: str) -> None:
    """Disallow an origin; its sockets end within 5 s. Raise AccessError if it was not allowed."""
    origin = _parse_origin_or_fail(text)
    async with operator_transaction(dsn) as (tx, _):
        if not await store.remove_origin(tx, await keys.find_org_or_fail(tx, org_name), origin):
            raise AccessError(f"{origin} is not among the origins of {org_name}; see: workbench origins list")


def _parse_origin_or_fail(text: str) -> str:
    origin = parse_origin(text)
    if origin is None:
        raise AccessError(f"{text!r} is not an origin; write it like https://app.example.com")
    return origin


_DATE = r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)"
_UNRESERVED = r"\-A-Za-z0-9._~"
_RESERVED = r":/?#\[\]@!$&'()*+,;="
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:[{_UNRESERVED}{_RESERVED}]|%[0-9A-Fa-f]{{2}})+"
_MESSAGE = re.compile(
    rf"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?(?P<domain>[{_UNRESERVED}:\[\]@!$&'()*+,;=%]+)"
    r" wants you to sign in with your Ethereum account:\n"
    r"(?P<address>0x[0-9A-Fa-f]{40})\n"
    r"\n"
    rf"(?:(?P<statement>[{_UNRESERVED}{_RESERVED} ]+)\n)?"
    r"\n"
    rf"URI: (?P<uri>{_URI})\n"
    r"Version: 1\n"
    r"Chain ID: (?P<chain_id>[0-9]{1,18})\n"
    r"Nonce: (?P<nonce>[A-Za-z0-9]{8,128})\n"
    rf"Issued At: (?P<issued_at>{_DATE})"
    rf"(?:\nExpiration Time: (?P<expires_at>{_DATE}))?"
    rf"(?:\nNot Before: (?P<not_before>{_DATE}))?"
    rf"(?:\nRequest ID: (?P<request_id>(?:[{_UNRESERVED}:@!$&'()*+,;=]|%[0-9A-Fa-f]{{2}})*))?"
    rf"(?:\nResources:(?P<resources>(?:\n- {_URI})*))?",
    re.ASCII,
)
_BELOW_MICROSECONDS = re.compile(r"(?<=\.\d{6})\d+")
_TIMES = ("issued_at", "expires_at", "not_before")


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """An EIP-4361 message: the wallet `address` signs in at `domain` and `uri`; `nonce` is that of the challenge."""

    domain: str
    address: str
    uri: str
    chain_id: int
    nonce: str
    issued_at: datetime
    expires_at: datetime | None = None
    not_before: datetime | None = None
    scheme: str | None = None
    statement: str | None = None
    request_id: str | None = None
    resources: tuple[str, ...] = ()

    def is_valid_at(self, now: datetime) -> bool:
        """Return whether the message was issued recently and is valid now."""
        return (
            abs(now - self.issued_at) <= CLOCK_TOLERANCE
            and (self.expires_at is None or now < self.expires_at)
            and (self.not_before is None or now >= self.not_before)
        )


def format_message(message: SignIn) -> str:
    scheme = f"{message.scheme}://" if message.scheme else ""
    lines = [f"{scheme}{message.domain} wants you to sign in with your Ethereum account:", message.address, ""]
    if message.statement is not None:
        lines.append(message.statement)
    lines += [
        "",
        f"URI: {message.uri}",
        "Version: 1",
        f"Chain ID: {message.chain_id}",
        f"Nonce: {message.nonce}",
        f"Issued At: {_format_time(message.issued_at)}",
    ]
    if message.expires_at is not None:
        lines.append(f"Expiration Time: {_format_time(message.expires_at)}")
    if message.not_before is not None:
        lines.append(f"Not Before: {_format_time(message.not_before)}")
    if message.request_id is not None:
        lines.append(f"Request ID: {message.request_id}")
    if message.resources:
        lines += ["Resources:", *(f"- {resource}" for resource in message.resources)]
    return "\n".join(lines)


def parse_message(text: str) -> SignIn | None:
    """Return the message in a text, or None for anything that the grammar of the EIP does not allow."""
    match = _MESSAGE.fullmatch(text)
    if match is None:
        return None
    fields: dict[str, Any] = match.groupdict()
    try:
        times = {
            name: datetime.fromisoformat(_BELOW_MICROSECONDS.sub("", fields[name].upper()))
            for name in _TIMES
            if fields[name] is not None
        }
    except ValueError:  # such as the 31st of June
        return None
    resources = tuple(line.removeprefix("- ") for line in (fields["resources"] or "").split("\n")[1:])
    return SignIn(**fields | times | {"chain_id": int(fields["chain_id"]), "resources": resources})


def _format_time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def recover_signer(text: str, signature: str) -> str | None:
    """Return the address, in lower case, of the wallet that signed the text; None if the signature is malformed."""
    from eth_hash.auto import keccak  # the eth packages take half a second to load
    from eth_keys.datatypes import Signature
    from eth_keys.exceptions import BadSignature
    from eth_utils.exceptions import ValidationError

    if not _SIGNATURE.fullmatch(signature):
        return None
    raw = bytes.fromhex(signature[2:])
    parity = _PARITIES.get(raw[64])
    if parity is None:
        return None
    message = text.encode()
    digest = keccak(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)
    try:
        key = Signature(raw[:64] + bytes([parity])).recover_public_key_from_msg_hash(digest)
    except (BadSignature, ValidationError, ValueError):
        return None
    return key.to_address()
