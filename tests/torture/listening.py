"""Canaries and secrets: words that only some may hear, and the ears that all answers of a run pass by.

Every organization has a word of its own (its canary) in its events, its contacts and the texts of its messages. A text that comes to an
organization is noted with every word in it that is not meant for its reader.
"""

import re
from collections import defaultdict
from collections.abc import Iterator

import msgspec

_KEY = r"(?:sk_live_|sk_test_|pk_live_[a-z0-9-]{1,40}_|wb_)[0-9A-Za-z]{38}"
_ENDPOINT_SECRET = r"whsec_[0-9A-Za-z+/=]{16,}"
_EMAIL = r"person[0-9]+@example\.com"
_CANARY = r"canary-([a-z0-9]+)-7f3e"
_AROUND = 80  # characters of a text that are kept beside what was found in it

SECRET = "torture-secret-of-more-than-forty-characters"
EVERYWHERE = f"{_KEY}|{_ENDPOINT_SECRET}|{SECRET}|{_EMAIL}"
"""What stands nowhere in clear: API keys, secrets of endpoints, the root of all keys, addresses. Python and Postgres read it alike."""

PRIVATE = f"{EVERYWHERE}|{_CANARY}"
"""The same, and values of events."""

_CANARIES = re.compile(_CANARY)
_ADDRESSES = re.compile(_EMAIL, re.IGNORECASE)
_PRIVATE = re.compile(PRIVATE, re.IGNORECASE)


def canary(org: str) -> str:
    """Return the word of an organization."""
    return f"canary-{org}-7f3e"


def canaries(text: str) -> set[str]:
    """Return the organizations whose words are in a text."""
    return set(_CANARIES.findall(text))


def private(text: str) -> Iterator[str]:
    """Give every place of a text that holds a secret, an address or a value of an event."""
    for match in _PRIVATE.finditer(text):
        yield text[max(match.start() - _AROUND, 0) : match.end() + _AROUND]


def addresses(text: str) -> Iterator[str]:
    """Give every place of a text that holds an address."""
    for match in _ADDRESSES.finditer(text):
        yield text[max(match.start() - _AROUND, 0) : match.end() + _AROUND]


class Heard(msgspec.Struct):
    """What an organization was told in one way: how many texts, how many of them with its own canary."""

    texts: int = 0
    own: int = 0


class Overheard(msgspec.Struct, frozen=True):
    """A text that came to an organization in one way, and what of it was not meant for its reader."""

    org: str
    way: str
    what: str


class Ears:
    """Listens to what organizations are told; `heard` counts it by organization and way."""

    def __init__(self) -> None:
        self.heard: dict[tuple[str, str], Heard] = defaultdict(Heard)
        self.foreign: list[Overheard] = []
        self.leaked: list[Overheard] = []

    def listen(self, org: str, way: str, text: str) -> None:
        """Take a text in which an organization may read what is its own, but no address."""
        heard, spoken = self.heard[org, way], canaries(text)
        heard.texts += 1
        heard.own += org in spoken
        self.foreign += [Overheard(org, way, f"the canary of {other}: {text[:400]}") for other in spoken - {org}]
        self.leaked += [Overheard(org, way, address) for address in addresses(text)]

    def listen_to_refusal(self, org: str, way: str, text: str) -> None:
        """Take a text in which nothing may be read that was sent."""
        self.listen(org, way, text)
        self.leaked += [Overheard(org, f"refusal of {way}", leak) for leak in private(text)]
