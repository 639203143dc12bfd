"""States of an entry, the moves between them, and the record of a step. The database's CHECKs hold the same table."""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec


class State(StrEnum):
    """Where an entry is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    RETRYING = "retrying"
    PAUSED = "paused"
    COMPLETED = "completed"
    EXITED = "exited"
    CANCELLED = "cancelled"
    DEAD = "dead"


MOVES: frozenset[tuple[State, State]] = frozenset(
    {
        (State.PENDING, State.RUNNING),
        (State.PENDING, State.CANCELLED),
        (State.WAITING, State.RUNNING),
        (State.WAITING, State.CANCELLED),
        (State.RETRYING, State.RUNNING),
        (State.RETRYING, State.CANCELLED),
        (State.RUNNING, State.WAITING),
        (State.RUNNING, State.PAUSED),
        (State.PAUSED, State.PENDING),
        (State.PAUSED, State.CANCELLED),
        (State.RUNNING, State.RETRYING),
        (State.RUNNING, State.COMPLETED),
        (State.RUNNING, State.EXITED),
        (State.RUNNING, State.CANCELLED),
        (State.RUNNING, State.DEAD),
        (State.CANCELLED, State.PENDING),
        (State.DEAD, State.PENDING),
    }
)
TERMINAL = frozenset({State.COMPLETED, State.EXITED, State.CANCELLED, State.DEAD})


class IllegalMoveError(AssertionError):
    """A bug: a move that the table does not have."""


class Run(msgspec.Struct, frozen=True):
    """An entry as the interpreter sees it.

    `attempt` counts the claims of the current step, from 1. `due_at`: when a waiting or retrying run goes on by itself.
    `since`: when the wait at the current node began, kept while it lasts; None at a node that has not made the run wait.
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

    def to(self, state: State, **changes: Any) -> "Run":
        """Return the run moved to `state`; raise IllegalMoveError when the table has no such move."""
        if (self.state, state) not in MOVES:
            raise IllegalMoveError(f"{self.state} -> {state}")
        return msgspec.structs.replace(self, state=state, **changes)

    def claimed(self) -> "Run":
        """Return the run as a worker takes it: running, one attempt more."""
        return self.to(State.RUNNING, attempt=self.attempt + 1, due_at=None)

    def at(self, node_id: str) -> "Run":
        """Return the run going on at the next node, still running."""
        return msgspec.structs.replace(self, node_id=node_id, step=self.step + 1, attempt=1, error=None, since=None)


class Step(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What happened at one node: the same words in an entry's history and in a simulation."""

    node_id: str
    kind: str
    at: datetime
    outcome: str
    attempt: int = 1
    handle: str | None = None
    detail: dict[str, Any] = {}


def message_id(entry_id: str, node_id: str, visit: int = 1) -> str:
    """Return the one id, for ever, of the message that a node sends for an entry (UUID version 8, RFC 9562)."""
    digest = hashlib.sha256(f"{entry_id}/{node_id}/{visit}".encode()).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"
