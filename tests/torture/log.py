"""What the clients sent and what they were told: with the database, all that the checker knows.

An attempt without a final answer (a timeout, a broken connection, a 503) is *unknown*: the event may be stored. One that never
reached a process is `unsent`. Moments are microseconds since the epoch by this machine's clock, which Postgres reads too.
"""

import time
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

from tests.torture.listening import Ears


class Sort(StrEnum):
    """What a sent event is meant to be; a `repeat` comes with the key of another event and another body."""

    LIVE = "live"
    DRY = "dry"
    INVALID = "invalid"
    REPEAT = "repeat"


class Answer(StrEnum):
    """What became of one attempt. `revoked`: the key that was lent is taken no more. `strange`: nothing that the contract knows."""

    NEW = "new"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    REVOKED = "revoked"
    UNAVAILABLE = "unavailable"
    TIMED_OUT = "timed_out"
    BROKEN = "broken"
    UNSENT = "unsent"
    STRANGE = "strange"


ACCEPTED = frozenset({Answer.NEW, Answer.DUPLICATE})
UNKNOWN = frozenset({Answer.UNAVAILABLE, Answer.TIMED_OUT, Answer.BROKEN})
UNSETTLED = UNKNOWN | {Answer.UNSENT}


IdentifierKind = Literal["wallet", "email", "external_id"]
Identifier: TypeAlias = tuple[IdentifierKind, str]


def given(wallet: str | None, email: str | None, external_id: str | None) -> list[Identifier]:
    """Return the identifiers there are, in the order in which they decide."""
    all_three: tuple[tuple[IdentifierKind, str | None], ...] = (
        ("wallet", wallet),
        ("email", email),
        ("external_id", external_id),
    )
    return [(kind, value) for kind, value in all_three if value is not None]


class Sent(msgspec.Struct, frozen=True):
    """An event as it was sent; `number` counts the events of an organization and stands in the payload as `n`."""

    org: str
    number: int
    sort: Sort
    body: dict[str, Any]

    @property
    def key(self) -> str | None:
        """The idempotency key that the sender chose."""
        return self.body.get("idempotencyKey")

    @property
    def once(self) -> bool:
        """Whether every attempt means the same event: by its key, or by the moment that a derived key is made of."""
        return self.key is not None or "occurredAt" in self.body

    def identifiers(self) -> list[Identifier]:
        """Return the identifiers in their normal form, in the order in which they decide."""
        contact: dict[str, str] = self.body["contact"]
        wallet, email = contact.get("walletAddress"), contact.get("email")
        return given(wallet and wallet.lower(), email and email.lower(), contact.get("externalId"))


class Attempt(msgspec.Struct, frozen=True):
    """One try to hand an event to an API process, and what it answered. `lent`: the id of the lent key it was made with."""

    org: str
    number: int
    api: int
    began: int
    ended: int
    answer: Answer
    key: str | None = None
    matched: int | None = None
    detail: str = ""
    lent: str = ""


class Reply(msgspec.Struct, frozen=True):
    """How one request of anybody else was answered: its status (0: not at all), and why that is `strange`, if it is."""

    org: str
    way: str
    began: int
    ended: int
    status: int
    strange: str = ""


class Push(msgspec.Struct, frozen=True):
    """A message as it came over a socket."""

    id: str
    title: str
    body: str
    at: int


class Line(msgspec.Struct):
    """A socket of a wallet: what came over it, and what of that was acknowledged when. `key`: the id of the lent key that opened it."""

    org: str
    wallet: str
    key: str
    opened: int
    ended: int = 0
    code: int | None = None
    pushes: list[Push] = []
    acknowledged: list[tuple[str, int]] = []


class Revoked(msgspec.Struct, frozen=True):
    """A lent key was revoked; `began`: the first request for that, `ended`: the one that was answered with success."""

    org: str
    id: str
    kind: str
    began: int
    ended: int


class Erased(msgspec.Struct, frozen=True):
    """A contact was erased by a request that was answered with success."""

    org: str
    contact_id: str
    began: int
    ended: int


class Switched(msgspec.Struct, frozen=True):
    """An automation was switched on or off by a request that was answered with success."""

    automation_id: str
    active: bool
    began: int
    ended: int


class Published(msgspec.Struct, frozen=True):
    """A version was published by a request that was answered with success then."""

    automation_id: str
    ended: int


class Log(msgspec.Struct):
    """Everything sent, by organization and number, every attempt in the order of the answers, and what all others did and heard."""

    sent: dict[tuple[str, int], Sent] = {}
    attempts: list[Attempt] = []
    switched: list[Switched] = []
    published: list[Published] = []
    replies: list[Reply] = []
    lines: list[Line] = []
    revoked: list[Revoked] = []
    erased: list[Erased] = []
    ears: Ears = msgspec.field(default_factory=Ears)


def now_us() -> int:
    return time.time_ns() // 1000
