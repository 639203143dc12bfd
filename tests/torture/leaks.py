"""Canaries and secrets: texts that only their owner may receive. Every answer of a run is searched for them.

Every organization has its own canary in its events, its contacts and its message texts. A response that holds another
organization's canary, or a secret, is recorded with the text around it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator

import msgspec

ORGANIZATIONS = ("acme", "globex")
_KEY = r"(?:sk_live_|sk_test_|pk_live_[a-z0-9-]{1,40}_|wb_)[0-9A-Za-z]{38}"
_ENDPOINT_SECRET = r"whsec_[0-9A-Za-z+/=]{16,}"
_EMAIL = r"person[0-9]+@example\.com"
_CANARY = r"canary-([a-z0-9]+)-7f3e"
_AROUND = 80  # characters kept on each side of a finding

SECRET = "torture-secret-of-more-than-forty-characters"
HOSTILE_MARK = "owned"
OBEYED = (
    "\x1b]0;owned\x07",  # sets the title of the window
    "\x9b31mowned",  # the same control sequence introducer in one character
    "\u202eowned\u2066",  # changes the direction of what follows
    "ow\rned\x08 owned",
)
FORMULAS = ("=cmd|' /C owned'!A0", "+1*owned", "-1*owned", "@SUM(owned)", "\t=owned")
HOSTILE = OBEYED + FORMULAS
"""Texts that a terminal obeys or a spreadsheet runs. Customers may write them; nothing may show them raw."""

EVERYWHERE = f"{_KEY}|{_ENDPOINT_SECRET}|{SECRET}|{_EMAIL}"
"""What stands nowhere in clear:

API keys, secrets of endpoints, the root of all keys, addresses. Python and Postgres read it alike.
"""

PRIVATE = f"{EVERYWHERE}|{_CANARY}"
"""The same, and values of events."""

_CANARIES = re.compile(_CANARY)
_ADDRESSES = re.compile(_EMAIL, re.IGNORECASE)
_PRIVATE = re.compile(PRIVATE, re.IGNORECASE)


def canary(org: str) -> str:
    """Return the canary of an organization."""
    return f"canary-{org}-7f3e"


def canaries(text: str) -> set[str]:
    """Return the organizations with a canary in `text`."""
    return set(_CANARIES.findall(text))


def private(text: str) -> Iterator[str]:
    """Yield the parts of `text` that hold a secret, an email address or an event value."""
    for match in _PRIVATE.finditer(text):
        yield text[max(match.start() - _AROUND, 0) : match.end() + _AROUND]


def addresses(text: str) -> Iterator[str]:
    """Yield the parts of `text` that hold an email address."""
    for match in _ADDRESSES.finditer(text):
        yield text[max(match.start() - _AROUND, 0) : match.end() + _AROUND]


class ResponseCounts(msgspec.Struct):
    """Counts of the responses that an organization got through one channel, and of those with its own canary."""

    texts: int = 0
    own: int = 0


class Leak(msgspec.Struct, frozen=True):
    """A response to an organization with content that it must not see."""

    org: str
    way: str
    what: str


class LeakDetector:
    """Searches the responses to organizations. `seen` counts them by organization and channel."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], ResponseCounts] = defaultdict(ResponseCounts)
        self.foreign: list[Leak] = []
        self.leaked: list[Leak] = []

    def check_response(self, org: str, way: str, text: str) -> None:
        """Search a response that may hold the organization's own data, but no email address."""
        seen, owners = self.seen[org, way], canaries(text)
        seen.texts += 1
        seen.own += org in owners
        self.foreign += [Leak(org, way, f"the canary of {other}: {text[:400]}") for other in owners - {org}]
        self.leaked += [Leak(org, way, address) for address in addresses(text)]

    def check_names(self, org: str, way: str, text: str) -> None:
        """Search a list of the server's roles, in which no organization must show."""
        seen = self.seen[org, way]
        seen.texts += 1
        seen.own += "wb_" in text
        self.foreign += [Leak(org, way, f"the name {other}: {text[:400]}") for other in ORGANIZATIONS if other in text]

    def check_rejection(self, org: str, way: str, text: str) -> None:
        """Search a rejection, which must not repeat anything that was sent."""
        self.check_response(org, way, text)
        self.leaked += [Leak(org, f"{way} (refused)", leak) for leak in private(text)]
