"""The requests of the clients and their answers. The checker knows these and the database, nothing else.

An attempt without a final answer (a timeout, a broken connection, a 503) is *unknown*: the event may be stored. An
attempt that never reached a process is `unsent`. Times are microseconds since the epoch by this machine's clock, which
Postgres reads too.
"""

import time
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

from tests.torture.leaks import LeakDetector


class EventKind(StrEnum):
    """The kind of a sent event. A `repeat` has the key of another event and its own body."""

    LIVE = "live"
    DRY = "dry"
    INVALID = "invalid"
    REPEAT = "repeat"


class Answer(StrEnum):
    """The result of one attempt.

    `revoked`: the temporary key was rejected. `strange`: an answer outside the contract.
    """

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


def set_identifiers(wallet: str | None, email: str | None, external_id: str | None) -> list[Identifier]:
    """Return the identifiers that are set, strongest first."""
    all_three: tuple[tuple[IdentifierKind, str | None], ...] = (
        ("wallet", wallet),
        ("email", email),
        ("external_id", external_id),
    )
    return [(kind, value) for kind, value in all_three if value is not None]


class SentEvent(msgspec.Struct, frozen=True):
    """An event as it was sent. `number` counts an organization's events and is `n` in the payload."""

    org: str
    number: int
    kind: EventKind
    body: dict[str, Any]

    @property
    def key(self) -> str | None:
        """The idempotency key that the sender chose."""
        return self.body.get("idempotencyKey")

    @property
    def once(self) -> bool:
        """Whether every attempt is the same event: by its key, or by the timestamp from which its key is derived."""
        return self.key is not None or "occurredAt" in self.body

    def identifiers(self) -> list[Identifier]:
        """Return the normalized identifiers, strongest first."""
        contact: dict[str, str] = self.body["contact"]
        wallet, email = contact.get("walletAddress"), contact.get("email")
        return set_identifiers(wallet and wallet.lower(), email and email.lower(), contact.get("externalId"))


class Attempt(msgspec.Struct, frozen=True):
    """One attempt to send an event to an API process, and its answer.

    `temporary_key` is the id of the temporary key, if one was used. `half_closed`: the client ended its side of the
    connection with the request.
    """

    org: str
    number: int
    api: int
    began: int
    ended: int
    answer: Answer
    key: str | None = None
    matched: int | None = None
    detail: str = ""
    temporary_key: str = ""
    warnings: tuple[str, ...] = ()
    half_closed: bool = False


PROBE, BOMB = "readyz", "bomb"
"""Requests that are promised an answer after other times than all others."""


class Reply(msgspec.Struct, frozen=True):
    """The answer of an API process to a request other than events: its status (0 without an answer), and a description
    if it is unexpected.
    """

    org: str
    way: str
    began: int
    ended: int
    status: int
    strange: str = ""
    api: int | None = None


class Push(msgspec.Struct, frozen=True):
    """A message received over a socket."""

    id: str
    title: str
    body: str
    at: int


class SocketVisit(msgspec.Struct):
    """A wallet's socket: the pushes over it and their acknowledgements.

    `key` is the id of the temporary key that opened it.
    """

    org: str
    wallet: str
    key: str
    opened: int
    ended: int = 0
    code: int | None = None
    pushes: list[Push] = []
    acknowledged: list[tuple[str, int]] = []


class RevokedKey(msgspec.Struct, frozen=True):
    """A revoked temporary key. `began` is the time of the first request, `ended` that of the successful answer."""

    org: str
    id: str
    kind: str
    began: int
    ended: int


class ErasedContact(msgspec.Struct, frozen=True):
    """A contact erased by a successful request."""

    org: str
    contact_id: str
    began: int
    ended: int


class ActivationChange(msgspec.Struct, frozen=True):
    """An automation activated or deactivated by a successful request."""

    automation_id: str
    active: bool
    began: int
    ended: int


class PublishedVersion(msgspec.Struct, frozen=True):
    """A version published by a successful request."""

    automation_id: str
    ended: int


class CommandRun(msgspec.Struct, frozen=True):
    """A `workbench` command of an operator: its exit code (None if it had to be killed), its output, and the files in
    its folder afterwards with their modes.
    """

    name: str
    code: int | None
    output: str
    files: dict[str, int] = {}


class AttackOnUp(msgspec.Struct, frozen=True):
    """A child of `workbench up` that was killed and could not be restarted as usual.

    `expected_output` is what `up` has to say, `statuses` are those of /healthz meanwhile. `others_ran_on`: whether the
    other children are the same processes as before; `is_restarted`: whether the child runs again and the API is ready.
    """

    name: str
    victim: str
    expected_output: str
    output: str
    statuses: list[int]
    others_ran_on: bool
    is_restarted: bool


class Bomb(msgspec.Struct, frozen=True):
    """A query that would take too long or too much memory; `peak` is the memory of the largest backend meanwhile."""

    org: str
    name: str
    began: int
    ended: int
    status: int
    peak: int


class LiftedLimit(msgspec.Struct, frozen=True):
    """A limit that a direct login removed for its later sessions, and when it was put back (`ended`, 0 if never)."""

    org: str
    began: int
    ended: int


class ShownText(msgspec.Struct, frozen=True):
    """A text in a terminal, an editor or a spreadsheet: whether it quotes a hostile text, and what is wrong with it."""

    place: str
    quotes: bool
    wrong: list[str]


class Log(msgspec.Struct):
    """All events by organization and number, all attempts in the order of their answers, and all other requests and
    answers.
    """

    sent: dict[tuple[str, int], SentEvent] = {}
    attempts: list[Attempt] = []
    switched: list[ActivationChange] = []
    published: list[PublishedVersion] = []
    replies: list[Reply] = []
    visits: list[SocketVisit] = []
    revoked: list[RevokedKey] = []
    erased: list[ErasedContact] = []
    commands: list[CommandRun] = []
    attacks: list[AttackOnUp] = []
    bombs: list[Bomb] = []
    lifted: list[LiftedLimit] = []
    shown: list[ShownText] = []
    leak_detector: LeakDetector = msgspec.field(default_factory=LeakDetector)


def now_us() -> int:
    return time.time_ns() // 1000
