"""What the clients sent and what they were told: with the database, all that the checker knows.

An attempt without a final answer (a timeout, a broken connection, a 503) is *unknown*: the event may be stored. One that never
reached a process is `unsent`. Moments are microseconds since the epoch by this machine's clock, which Postgres reads too.
"""

import time
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec


class Sort(StrEnum):
    """What a sent event is meant to be; a `repeat` comes with the key of another event and another body."""

    LIVE = "live"
    DRY = "dry"
    INVALID = "invalid"
    REPEAT = "repeat"


class Answer(StrEnum):
    """What became of one attempt. `strange`: nothing that the contract knows."""

    NEW = "new"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
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
    """One try to hand an event to an API process, and what it answered."""

    org: str
    number: int
    api: int
    began: int
    ended: int
    answer: Answer
    key: str | None = None
    matched: int | None = None
    detail: str = ""


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
    """Everything sent, by organization and number, and every attempt in the order of the answers."""

    sent: dict[tuple[str, int], Sent] = {}
    attempts: list[Attempt] = []
    switched: list[Switched] = []
    published: list[Published] = []


def now_us() -> int:
    return time.time_ns() // 1000
