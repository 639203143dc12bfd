"""Emails as bytes: the headers we mean and no other, a text part, and an HTML part where the body is HTML.

What could end a header or be decoded into one is refused, not repaired: it came from outside, and nobody writes it in good faith.
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

from api.delivery.mail import Mail
from api.delivery.outcome import TEST_HEADER
from api.language.email import normal_email

_ENCODED_WORD = re.compile(r"=\?[^?\s]*\?[bq]\?", re.IGNORECASE)
_BREAKS = frozenset({"Cc", "Cs", "Zl", "Zp"})  # controls, lone surrogates, separators of lines and paragraphs
_WHOLE = frozenset({"To", "Message-ID", "List-Unsubscribe"})
_SILENT = frozenset({"head", "script", "style", "title"})
_BLOCKS = frozenset(
    {
        "address",
        "blockquote",
        "br",
        "div",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "p",
        "table",
        "tr",
        "ul",
        "ol",
    }
)


class _Policy(EmailPolicy):
    """The library's rules for mail on the wire, but what machines read stays as it is.

    It would turn any long word into encoded words, and nobody finds an address in those.
    """

    def fold_binary(self, name: str, value: Any) -> bytes:
        if name in _WHOLE:
            return f"{name}: {value}\r\n".encode("ascii")
        return super().fold_binary(name, value)


_WIRE = _Policy(linesep="\r\n")


class HeaderError(ValueError):
    """A header would carry what could be read as another one."""


class AddressError(ValueError):
    """What should be an address is none."""


def sender_address(text: str) -> Address:
    """Return the sender in `Name <name@domain>` or `name@domain`; raise AddressError or HeaderError."""
    _refuse_breaks(text)
    name, spec = parseaddr(text)
    return _address(spec, name)


def compose(mail: Mail, sender: Address) -> bytes:
    """Return the email as it goes over the wire, with CRLF; raise HeaderError or AddressError."""
    for text in (mail.id, mail.recipient, mail.subject, mail.unsubscribe_url):
        _refuse_breaks(text)
    message = EmailMessage(policy=_WIRE)
    message["From"] = sender
    message["To"] = recipient_address(mail)
    message["Subject"] = mail.subject
    message["Date"] = format_datetime(mail.created_at)
    message["Message-ID"] = f"<{mail.id}@{sender.domain}>"
    message["List-Unsubscribe"] = f"<{mail.unsubscribe_url}>"
    message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    message["Auto-Submitted"] = "auto-generated"
    if mail.test:
        message[TEST_HEADER] = "true"
    message.set_content(plain_text(mail.body) if mail.html else mail.body, cte="quoted-printable")
    if mail.html:
        message.add_alternative(mail.body, subtype="html", cte="quoted-printable")
        message.set_boundary(f"=_{mail.id}")  # not by chance: another attempt has the same bytes
    return message.as_bytes()


def recipient_address(mail: Mail) -> Address:
    """Return the one address the email goes to; raise AddressError, also for one that is not all ASCII."""
    plain = normal_email(mail.recipient)
    if plain is None:
        raise AddressError
    return _address(plain)


def plain_text(html: str) -> str:
    """Return what a reader of HTML would see, roughly: texts, line breaks at blocks, and where links lead."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _address(spec: str, name: str = "") -> Address:
    try:
        address = Address(name, addr_spec=spec)
    except (ValueError, HeaderParseError):
        raise AddressError from None
    if not (spec.isascii() and address.username and address.domain):
        raise AddressError
    return address


def _refuse_breaks(text: str) -> None:
    if any(unicodedata.category(character) in _BREAKS for character in text) or _ENCODED_WORD.search(text):
        raise HeaderError


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._silent = 0
        self._link: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent += 1
        elif tag in _BLOCKS:
            self.pieces.append("\n")
        elif tag == "a":
            self._link = dict(attrs).get("href")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(self._silent - 1, 0)
        elif tag in _BLOCKS:
            self.pieces.append("\n")
        elif tag == "a" and self._link:
            self.pieces.append(f" ({self._link})")
            self._link = None

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.pieces.append(" ".join(data.split("\n")))
