"""Sign-In with Ethereum (EIP-4361), pure: the text a wallet signs, written and read strictly.

What the grammar of the EIP does not allow is no message: other line ends, other orders, a date that is none.
"""

import re
from datetime import datetime, timedelta
from typing import Any

import msgspec

TOLERANCE = timedelta(minutes=5)  # between the clock of whoever wrote the message and ours

_DATE = r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)"
_UNRESERVED = r"\-A-Za-z0-9._~"
_RESERVED = r":/?#\[\]@!$&'()*+,;="
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:[{_UNRESERVED}{_RESERVED}]|%[0-9A-Fa-f]{{2}})+"
_FORM = re.compile(
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
_FINER = re.compile(r"(?<=\.\d{6})\d+")  # than Python's microseconds
_MOMENTS = ("issued_at", "expires_at", "not_before")


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """A message: who (`address`) signs in where (`domain`, `uri`), when, and for which challenge (`nonce`)."""

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

    def holds(self, now: datetime) -> bool:
        """Whether the message was written lately and is meant for this moment."""
        return (
            abs(now - self.issued_at) <= TOLERANCE
            and (self.expires_at is None or now < self.expires_at)
            and (self.not_before is None or now >= self.not_before)
        )


def write(message: SignIn) -> str:
    """Return the text to sign."""
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
        f"Issued At: {_written(message.issued_at)}",
    ]
    if message.expires_at is not None:
        lines.append(f"Expiration Time: {_written(message.expires_at)}")
    if message.not_before is not None:
        lines.append(f"Not Before: {_written(message.not_before)}")
    if message.request_id is not None:
        lines.append(f"Request ID: {message.request_id}")
    if message.resources:
        lines += ["Resources:", *(f"- {each}" for each in message.resources)]
    return "\n".join(lines)


def read(text: str) -> SignIn | None:
    """Return the message that a text is, or None when it is none."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    fields: dict[str, Any] = match.groupdict()
    try:
        moments = {name: _moment(fields[name]) for name in _MOMENTS}
    except ValueError:
        return None
    resources = tuple(each.removeprefix("- ") for each in (fields["resources"] or "").split("\n")[1:])
    return SignIn(**fields | moments | {"chain_id": int(fields["chain_id"]), "resources": resources})


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(_FINER.sub("", text.upper()))


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
