"""Emails as bytes: a fixed set of headers, a text part, and an HTML part if the body is HTML.

Text that could end a header, or be decoded into one that does, is rejected, not repaired: it comes from outside, and no
honest sender writes it.
"""

import re
import unicodedata
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import format_datetime, parseaddr
from html.parser import HTMLParser
from typing import Any

from api.channels.outcome import TEST_HEADER, Delivery
from workbench.language.event import normalize_email

_ENCODED_WORD = re.compile(r"=\?[^?\s]*\?[bq]\?", re.IGNORECASE)
_LINE_BREAKING = frozenset({"Cc", "Cs", "Zl", "Zp"})  # controls, lone surrogates, line and paragraph separators
# The library folds a long word into encoded words, and mail programs do not find an address in those.
_NEVER_FOLDED = frozenset({"To", "Message-ID", "List-Unsubscribe"})
_INVISIBLE_TAGS = frozenset({"head", "script", "style", "title"})
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCK_TAGS = _HEADINGS | {"address", "blockquote", "br", "div", "hr", "li", "ol", "p", "table", "tr", "ul"}


class HeaderError(ValueError):
    """A header value contains a line break or an encoded word."""


class AddressError(ValueError):
    """Not a valid email address."""


def sender_address(text: str) -> Address:
    """Return the sender in `Name <name@domain>` or `name@domain`; raise AddressError or HeaderError."""
    _check_header(text)
    name, spec = parseaddr(text)
    return _address(spec, name)


def recipient_address(delivery: Delivery) -> Address:
    """Return the address of the recipient; raise AddressError, also if it is not all ASCII (SMTPUTF8 is not used)."""
    normalized = normalize_email(delivery.address)
    if normalized is None:
        raise AddressError
    return _address(normalized)


def compose(delivery: Delivery, sender: Address) -> bytes:
    """Return an email as it is sent, with CRLF; raise HeaderError or AddressError."""
    for text in (delivery.id, delivery.address, delivery.subject, delivery.unsubscribe_url):
        _check_header(text)
    message = EmailMessage(policy=_WIRE_POLICY)
    message["From"] = sender
    message["To"] = recipient_address(delivery)
    message["Subject"] = delivery.subject
    # Date, Message-ID and boundary are the same in every attempt, so that a repeated email can be recognised.
    message["Date"] = format_datetime(delivery.created_at)
    message["Message-ID"] = f"<{delivery.id}@{sender.domain}>"
    if delivery.unsubscribe_url:
        message["List-Unsubscribe"] = f"<{delivery.unsubscribe_url}>"
        message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    message["Auto-Submitted"] = "auto-generated"
    if delivery.test:
        message[TEST_HEADER] = "true"
    message.set_content(plain_text(delivery.body) if delivery.html else delivery.body, cte="quoted-printable")
    if delivery.html:
        message.add_alternative(delivery.body, subtype="html", cte="quoted-printable")
        message.set_boundary(f"=_{delivery.id}")  # the library's own is random
    if (file := delivery.attachment) is not None:
        content = file.html.encode()
        message.add_attachment(
            content, maintype="text", subtype="html", filename=file.name, params={"charset": "utf-8"}
        )
        message.set_boundary(f"=_mixed_{delivery.id}")  # must not begin with the boundary of the part inside
    return message.as_bytes()


def is_header_value(text: str) -> bool:
    """Return whether a text can be the value of a header, such as a subject."""
    try:
        _check_header(text)
    except HeaderError:
        return False
    return True


def plain_text(html: str) -> str:
    """Return roughly the text that a reader of the HTML sees: text, line breaks at blocks, and the targets of links."""
    parser = _TextParser()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


class _WirePolicy(EmailPolicy):
    """The library's SMTP policy, except that machine-readable headers are never folded."""

    def fold_binary(self, name: str, value: Any) -> bytes:
        if name in _NEVER_FOLDED:
            return f"{name}: {value}\r\n".encode("ascii")
        return super().fold_binary(name, value)


_WIRE_POLICY = _WirePolicy(linesep="\r\n")


def _address(spec: str, name: str = "") -> Address:
    try:
        address = Address(name, addr_spec=spec)
    except (ValueError, HeaderParseError):
        raise AddressError from None
    if not (spec.isascii() and address.username and address.domain):
        raise AddressError
    return address


def _check_header(text: str) -> None:
    if any(unicodedata.category(character) in _LINE_BREAKING for character in text) or _ENCODED_WORD.search(text):
        raise HeaderError


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._invisible_depth = 0
        self._link: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _INVISIBLE_TAGS:
            self._invisible_depth += 1
        elif tag in _BLOCK_TAGS:
            self.pieces.append("\n")
        elif tag == "a":
            self._link = dict(attrs).get("href")

    def handle_endtag(self, tag: str) -> None:
        if tag in _INVISIBLE_TAGS:
            self._invisible_depth = max(self._invisible_depth - 1, 0)
        elif tag in _BLOCK_TAGS:
            self.pieces.append("\n")
        elif tag == "a" and self._link:
            self.pieces.append(f" ({self._link})")
            self._link = None

    def handle_data(self, data: str) -> None:
        if not self._invisible_depth:
            self.pieces.append(" ".join(data.split("\n")))
