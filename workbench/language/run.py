"""The state of an entry, the transitions between states, the record of a step, and the effects that a step requests."""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias, TypeGuard

import msgspec

from workbench.language.channel import CHANNELS_BY_MESSAGE, Message
from workbench.language.codec import Json


class State(StrEnum):
    """The state of an entry."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    RETRYING = "retrying"
    PAUSED = "paused"
    COMPLETED = "completed"
    EXITED = "exited"
    CANCELLED = "cancelled"
    DEAD = "dead"

    __hash__ = str.__hash__  # Enum's own is a Python function, and a step looks up several states


# The reason for each transition is its label in docs/entry-states.md. A CHECK in the database has the same pairs.
TRANSITIONS: Mapping[tuple[State, State], str] = {
    (State.PENDING, State.RUNNING): "claimed",
    (State.PENDING, State.CANCELLED): "switched off, or its log was dropped",
    (State.WAITING, State.RUNNING): "due, or woken by an event",
    (State.WAITING, State.CANCELLED): "switched off, or its log was dropped",
    (State.RETRYING, State.RUNNING): "retried",
    (State.RETRYING, State.CANCELLED): "switched off, or its log was dropped",
    (State.RUNNING, State.WAITING): "a delay, an event to wait for, quiet hours",
    (State.RUNNING, State.PAUSED): "its automation is paused",
    (State.RUNNING, State.RETRYING): "a step failed, or its worker stopped",
    (State.RUNNING, State.COMPLETED): "the end of the graph, or held out",
    (State.RUNNING, State.EXITED): "an exit, or the goal",
    (State.RUNNING, State.CANCELLED): "switched off, dropped, not admitted, or joined another entry",
    (State.RUNNING, State.DEAD): "no attempt left, or a permanent failure",
    (State.PAUSED, State.PENDING): "its automation is resumed",
    (State.PAUSED, State.CANCELLED): "switched off, or its log was dropped",
    (State.CANCELLED, State.PENDING): "its log is on the chain again",
    (State.DEAD, State.PENDING): "replayed",
}
TERMINAL = frozenset({State.COMPLETED, State.EXITED, State.CANCELLED, State.DEAD})


class IllegalTransitionError(AssertionError):
    """A transition that is not in the table. It is always a bug."""


class Run(msgspec.Struct, frozen=True, gc=False):
    """An entry as the interpreter sees it.

    `attempt` counts the claims of the current step, from 1. `due_at`: when a waiting or retrying run continues.
    `since`: when the wait at the current node began; None at a node where the run has not waited. `since_id`: the event
    that brought the run to this node; of the events of that same moment, those with a later id come after it. None: all
    events of that moment came before. `event_id`: the event that started the entry; "" for an event that has not
    happened. `resumed`: the run came due while its automation was paused.
    """

    entry_id: str
    automation_id: str
    state: State = State.PENDING
    node_id: str | None = None
    step: int = 0
    attempt: int = 0
    outcome: str | None = None
    error: str | None = None
    due_at: datetime | None = None
    since: datetime | None = None
    since_id: str | None = None
    event_id: str = ""
    resumed: bool = False

    @property
    def jitter_key(self) -> str:
        """The text that the jitter of its retries is a hash of. A backtest knows it, unlike the id of the entry."""
        return f"{self.automation_id}/{self.event_id}"

    def to(self, state: State, **changes: Any) -> "Run":
        """Return the run in another state; raise IllegalTransitionError if the table has no such transition."""
        if (self.state, state) not in TRANSITIONS:
            raise IllegalTransitionError(f"{self.state} -> {state}")
        return msgspec.structs.replace(self, state=state, **changes)

    def claimed(self) -> "Run":
        """Return the run as claimed by a worker: running, one more attempt."""
        resumed = self.state is State.PENDING and self.node_id is not None  # after a pause
        return self.to(State.RUNNING, attempt=self.attempt + 1, due_at=None, resumed=resumed)

    def at(self, node_id: str) -> "Run":
        """Return the run at the next node, still running."""
        since_id = self.since_id if self.since is None else None
        return msgspec.structs.replace(
            self,
            node_id=node_id,
            step=self.step + 1,
            attempt=1,
            error=None,
            since=None,
            since_id=since_id,
            resumed=False,
        )


class Step(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The record of one node that was run; the same in the history of an entry and in a simulation."""

    node_id: str
    kind: str
    at: datetime
    outcome: str
    attempt: int = 1
    handle: str | None = None
    detail: dict[str, Any] = {}


JITTER = 0.2  # of a delay, in both directions


def delay_after(delays: tuple[float, ...], attempt: int, jitter_key: str) -> timedelta | None:
    """Return the delay after failed attempt number `attempt` (from 1), or None when no attempt is left."""
    if attempt > len(delays):
        return None
    # The jitter is a hash, not a random number: a backtest and the engine get the same delay.
    digest = hashlib.blake2b(f"{jitter_key}/{attempt}".encode(), digest_size=4).digest()
    jitter = (int.from_bytes(digest, "big") / 0xFFFFFFFF * 2 - 1) * JITTER
    return timedelta(seconds=delays[attempt - 1] * (1 + jitter))


class TagAdded(msgspec.Struct, frozen=True, gc=False):
    """The tag is added to the contact, unless the contact has it."""

    tag: str


class TagRemoved(msgspec.Struct, frozen=True, gc=False):
    """The tag is removed from the contact, if the contact has it."""

    tag: str


class ContactUpdated(msgspec.Struct, frozen=True, gc=False):
    """The attributes are merged into the contact's, shallowly, like those of an event."""

    attributes: dict[str, Json]


JOINED = "joined"  # the outcome of such an entry, and of its step


class EntryJoined(msgspec.Struct, frozen=True, gc=False):
    """The entry ends, and its events are those of another entry. `is_last`: that one has all the events it can have."""

    entry_id: str
    is_last: bool


Effect: TypeAlias = Message | TagAdded | TagRemoved | ContactUpdated | EntryJoined


_CAPPED = frozenset(message for message, channel in CHANNELS_BY_MESSAGE.items() if channel.to_contact)


def counts_towards_cap(effect: Effect) -> TypeGuard[Message]:
    """Return whether an effect counts towards a frequency cap: whether it is a message to the contact."""
    return type(effect) in _CAPPED


def message_id(entry_id: str, node_id: str, visit: int = 1) -> str:
    """Return the permanent id of the message that a node sends for an entry (UUID version 8, RFC 9562)."""
    digest = hashlib.sha256(f"{entry_id}/{node_id}/{visit}".encode()).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"
