"""What became of an event: a closed set of values; the word of each is log word and metric label."""

from typing import TypeAlias

import msgspec

from api.language.problem import Problems


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """Accepted, and new. `entries`: automations entered."""

    idempotency_key: str
    entries: int = 0


class Duplicate(msgspec.Struct, frozen=True, tag="duplicate"):
    """Accepted before under the same idempotency key; not processed again."""

    idempotency_key: str


class DryRun(msgspec.Struct, frozen=True, tag="dry_run"):
    """Judged as if it were live; nothing entered. `matched`: automations that a live event would have entered."""

    idempotency_key: str
    matched: int
    deduplicated: bool


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """Refused for what is wrong with it; leaves no trace."""

    problems: Problems


class RateLimited(msgspec.Struct, frozen=True, tag="rate_limited"):
    """Over the organization's rate; leaves no trace."""


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """Not known to be stored: the caller retries with the same key."""

    reason: str


Accepted: TypeAlias = Stored | Duplicate | DryRun
Refused: TypeAlias = Rejected | RateLimited | Unavailable
Outcome: TypeAlias = Accepted | Refused
