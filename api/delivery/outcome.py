"""What a transport answers: one of four outcomes, with a reason from a closed set of words.

Neither a reason nor its detail ever carries a secret, an address, or a word of what the other side said.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Literal, TypeAlias

import msgspec

TEST_HEADER = "X-Event-Workbench-Test"  # of an email or webhook that somebody sent to try an automation

Reason: TypeAlias = Literal[
    "accepted",  # the other side took it
    "busy",  # too many deliveries wait for this endpoint, or for a connection: nothing was tried
    "unreachable",  # no connection came about; also the answer for an address that may not be dialled
    "tls_failed",  # the other side's certificate is not valid for its name, or it speaks no TLS
    "refused",  # it answered, and said no
    "not_signed_in",  # the mail server does not take our name and password
    "no_answer",  # everything may have been sent, and no answer came
    "gone",  # the endpoint says that it is no more
    "invalid_header",  # a header would carry what could be read as another one
    "invalid_address",  # nobody can be reached under this address
]


class Sent(msgspec.Struct, frozen=True):
    """The other side has it. `detail`: what it answered, as a code."""

    detail: str = ""


class Retry(msgspec.Struct, frozen=True):
    """It did not happen, and may the next time; not before `after_seconds`, if the other side asked for that."""

    reason: Reason
    after_seconds: float | None = None
    detail: str = ""

    def delay(self, scheduled: timedelta) -> timedelta:
        """Return how long to wait, where the schedule says `scheduled`."""
        return max(scheduled, timedelta(seconds=self.after_seconds or 0))


class Failed(msgspec.Struct, frozen=True):
    """It will not happen, however often it is tried: the step is dead."""

    reason: Reason
    detail: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """It may have happened. It is tried again under the same id, by which the other side can know it."""

    reason: Reason
    detail: str = ""


Outcome: TypeAlias = Sent | Retry | Failed | Unknown

MayLeave: TypeAlias = Callable[[], bool]
"""Asked at the last moment, after every wait for a place or a connection. If it says no, nothing was tried: `Retry("busy")`."""


def always() -> bool:
    """Let it leave."""
    return True
