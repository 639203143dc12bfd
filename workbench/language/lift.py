"""The lift of an automation: the goal rate of treated contacts minus that of the holdout.

The interval is Newcombe's hybrid score interval for the difference of two independent proportions, at 95 %: Wilson's
score interval of each, combined without continuity correction (R. G. Newcombe, "Interval estimation for the difference
between independent proportions: comparison of eleven methods", Statistics in Medicine 17 (1998), 873-890, method 10).
Unlike the Wald interval, it stays within -1 and 1 and is usable for small rates.
"""

import math
from typing import Literal, TypeAlias

import msgspec

LiftVerdict: TypeAlias = Literal["too_few", "no_difference", "more", "fewer"]
"""`too_few`: not enough contacts. `no_difference`: the interval contains zero. `more`, `fewer`: treated contacts reach
the goal more or less often.
"""

MIN_CONTACTS = 30  # in each group
MIN_REACHED = 5  # in both groups together
_Z = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


class LiftGroup(msgspec.Struct, frozen=True):
    """The number of contacts that entered, and of those that reached the goal in time."""

    contacts: int = 0
    reached: int = 0

    @property
    def rate(self) -> float:
        """The share that reached the goal, from 0 to 1; 0 for an empty group."""
        return self.reached / self.contacts if self.contacts else 0.0

    def __add__(self, other: "LiftGroup") -> "LiftGroup":
        return LiftGroup(self.contacts + other.contacts, self.reached + other.reached)


class Lift(msgspec.Struct, frozen=True):
    """The goal rate of treated contacts minus that of the holdout, with its 95 % interval: shares, not percent."""

    verdict: LiftVerdict
    difference: float | None = None
    low: float | None = None
    high: float | None = None


def lift(treated: LiftGroup, held_out: LiftGroup) -> Lift:
    """Return the difference that the automation makes; `too_few` has no numbers."""
    # Numbers of a small sample are mostly noise, and readers would take them at face value.
    if min(treated.contacts, held_out.contacts) < MIN_CONTACTS or treated.reached + held_out.reached < MIN_REACHED:
        return Lift("too_few")
    difference = treated.rate - held_out.rate
    low, high = newcombe_interval(treated, held_out)
    verdict: LiftVerdict = "more" if low > 0 else "fewer" if high < 0 else "no_difference"
    return Lift(verdict, difference, low, high)


def newcombe_interval(left: LiftGroup, right: LiftGroup) -> tuple[float, float]:
    """Return the 95 % interval of `left.rate - right.rate`; neither group may be empty."""
    difference = left.rate - right.rate
    (left_low, left_high), (right_low, right_high) = wilson_interval(left), wilson_interval(right)
    below = math.hypot(left.rate - left_low, right_high - right.rate)
    above = math.hypot(left_high - left.rate, right.rate - right_low)
    return difference - below, difference + above


def wilson_interval(side: LiftGroup) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a rate."""
    number, rate, square = side.contacts, side.rate, _Z * _Z
    middle = (rate + square / (2 * number)) / (1 + square / number)
    reach = _Z * math.sqrt(rate * (1 - rate) / number + square / (4 * number * number)) / (1 + square / number)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)  # floats round past the ends
