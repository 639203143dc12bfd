"""When a failed step is tried again: a schedule per channel, with deterministic jitter."""

import hashlib
from datetime import timedelta
from typing import Literal, TypeAlias

import msgspec

JITTER = 0.2

IN_APP = (10, 60, 600, 3_600, 21_600)
EMAIL = (60, 300, 1_800, 7_200, 21_600, 86_400)
WEBHOOK = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)

Channel: TypeAlias = Literal["inapp", "email", "webhook"]
CHANNELS: tuple[Channel, ...] = ("inapp", "email", "webhook")


class RetryPolicy(msgspec.Struct, frozen=True):
    """Delays in seconds after the first, second, … failure; when they are used up, the entry is dead."""

    in_app: tuple[float, ...] = IN_APP
    email: tuple[float, ...] = EMAIL
    webhook: tuple[float, ...] = WEBHOOK

    def delays(self, channel: Channel) -> tuple[float, ...]:
        """Return the schedule of a channel."""
        match channel:
            case "inapp":
                return self.in_app
            case "email":
                return self.email
            case "webhook":
                return self.webhook

    def most_attempts(self, channel: Channel) -> int:
        """Return how often a step of this channel may be claimed at most."""
        return len(self.delays(channel)) + 1


DEFAULT_POLICY = RetryPolicy()


def uniform(delays: tuple[float, ...]) -> RetryPolicy:
    """Return the policy that uses one schedule for every channel (`WORKBENCH_RETRY_DELAYS`)."""
    return RetryPolicy(delays, delays, delays)


def delay_after(delays: tuple[float, ...], attempt: int, entry_id: str) -> timedelta | None:
    """Return how long to wait after failed attempt number `attempt` (from 1), or None when no try is left.

    The jitter of ±20 % comes from a hash of entry and attempt: the same in a simulation and in the engine.
    """
    if attempt > len(delays):
        return None
    chance = hashlib.blake2b(f"{entry_id}/{attempt}".encode(), digest_size=4).digest()
    spread = (int.from_bytes(chance, "big") / 0xFFFFFFFF * 2 - 1) * JITTER
    return timedelta(seconds=delays[attempt - 1] * (1 + spread))
