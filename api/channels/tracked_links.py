"""Tracked links: in an email with `trackClicks`, each link leads through a redirect of this service to its target.

The target is in the link, with a MAC, so the redirect needs no database and cannot be made to lead elsewhere. A link
does not expire, and outlives a rotation of the secret. Links are replaced when the email leaves: the stored text keeps
those that were written, as simulations show it.
"""

import base64
import binascii
import hmac
import html
import re
import struct
from html.parser import HTMLParser
from uuid import UUID

import msgspec

from api.channels.outcome import Delivery
from api.channels.signing import PREFERENCES_PATH
from api.crypto import Keyring

CLICK_PATH = "/api/v1/click"
MAX_URL_BYTES = 2_048  # longer links stay as they are: a request line has at most 8 KB

_TOKEN_VERSION = b"c1"
_TOKEN = struct.Struct(">Bq16s16s")  # generation of the secret, organization, message, MAC; then the URL
_URL = re.compile(r"https?://[^\s\x00-\x1f\x7f]+", re.IGNORECASE)
_URL_IN_TEXT = re.compile(r"https?://[^\s<>\"\x00-\x1f\x7f]+", re.IGNORECASE)
_MAX_EMPHASIS = 3  # characters
_AFTER_URL = ".,;:!?'*_~"  # punctuation of the sentence around a URL, and its emphasis: **https://a.example**
# A reference ends with a semicolon. `&region=de` is a parameter, although HTML would read `&reg` as a character.
_REFERENCE = re.compile(r"&(?:#[0-9]+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.IGNORECASE)
# The value is optional, so that a name without one is not searched again from each of its letters.
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s"'>]++))?""")


class Link(msgspec.Struct, frozen=True):
    """A link of a message. Each message of an organization has links of its own."""

    org_id: int
    message_id: str
    url: str


def click_url(public_url: str, keyring: Keyring, link: Link) -> str:
    """Return the URL that redirects to the target of a link."""
    number, message, url = keyring.chain.current.number, UUID(link.message_id).bytes, link.url.encode()
    token = _TOKEN.pack(number, link.org_id, message, _mac(keyring, number, link.org_id, message, url)) + url
    return f"{public_url}{CLICK_PATH}?token={base64.urlsafe_b64encode(token).rstrip(b'=').decode()}"


def read_click_token(keyring: Keyring, text: str) -> Link | None:
    """Return the link in a token, or None if the token is malformed or its MAC is wrong.

    Readers of emails may take the emphasis after a URL into it: `**https://…?token=abc**`.
    """
    link = _read_token(keyring, text)
    for _ in range(_MAX_EMPHASIS):
        if link is not None or not text.endswith(("*", "_", "~")):
            break
        text = text[:-1]
        link = _read_token(keyring, text)
    return link


def _read_token(keyring: Keyring, text: str) -> Link | None:
    try:
        token = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        number, org_id, message, mac = _TOKEN.unpack_from(token)
    except (binascii.Error, ValueError, struct.error):
        return None
    url = token[_TOKEN.size :]
    if not hmac.compare_digest(mac, _mac(keyring, number, org_id, message, url)):
        return None
    return Link(org_id, str(UUID(bytes=message)), url.decode())


def track_links(public_url: str, keyring: Keyring, delivery: Delivery) -> str:
    """Return the body of a delivery with tracked links: of HTML the targets of `<a>` and `<area>`, of text all URLs."""

    own = f"{public_url}{PREFERENCES_PATH}/"  # a choice is not a click, and its link is a credential

    def tracked(url: str) -> str | None:
        if len(url.encode()) > MAX_URL_BYTES or _URL.fullmatch(url) is None or url.startswith(own):
            return None
        return click_url(public_url, keyring, Link(delivery.org_id, delivery.id, url))

    def track_attribute(attribute: re.Match[str]) -> str:
        name, value = attribute[1], attribute[2] or ""
        quote = value[:1] if value[:1] in ("'", '"') else ""
        target = _REFERENCE.sub(lambda found: html.unescape(found[0]), value.strip(quote) if quote else value)
        url = tracked(target.strip())
        return f'{name}="{url}"' if name.lower() == "href" and url is not None else attribute[0]

    def track_text(match: re.Match[str]) -> str:
        text = match[0]
        if len(text) > MAX_URL_BYTES:
            return text
        url = text.rstrip(_AFTER_URL)
        while url.endswith(")") and url.count(")") > url.count("("):
            url = url[:-1].rstrip(_AFTER_URL)
        return (tracked(url) or url) + text[len(url) :]

    body = delivery.body
    if not delivery.html:
        return _URL_IN_TEXT.sub(track_text, body)
    parser = _LinkParser()
    parser.feed(body)
    parser.close()
    line_starts = [0, *(line.end() for line in re.finditer("\n", body))]
    pieces, end = [], 0
    for line_number, column, tag in parser.tags:
        start = line_starts[line_number - 1] + column
        pieces += [body[end:start], _ATTRIBUTE.sub(track_attribute, tag)]
        end = start + len(tag)
    return "".join([*pieces, body[end:]])


class _LinkParser(HTMLParser):
    """Finds the tags of links: line, column, and text of each."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[int, int, str]] = []

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        if tag in ("a", "area"):
            self.tags.append((*self.getpos(), self.get_starttag_text() or ""))


def _mac(keyring: Keyring, number: int, org_id: int, message: bytes, url: bytes) -> bytes:
    return keyring.link_mac(b"click", b"%b/%d/%d/%b/%b" % (_TOKEN_VERSION, number, org_id, message, url), number)
