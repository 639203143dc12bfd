"""What an automation brings about: the goal rate of those who were treated against that of those who were held out.

The interval is Newcombe's hybrid score interval for the difference of two independent proportions, at 95 %: Wilson's score
interval of each, combined without continuity correction (R. G. Newcombe, "Interval estimation for the difference between independent
proportions: comparison of eleven methods", Statistics in Medicine 17 (1998), 873-890, method 10). It stays within -1 and 1, and
is usable where rates are small, unlike the interval of the textbooks.
"""

import math
from typing import Literal, TypeAlias

import msgspec

Verdict: TypeAlias = Literal["too_few", "no_difference", "more", "fewer"]
"""`too_few`: not enough to tell. `no_difference`: the interval holds zero. `more`, `fewer`: the treated reach the goal that way."""

FEWEST_CONTACTS = 30  # on each side
FEWEST_REACHED = 5  # on both together
_Z = 1.959963984540054  # of 95 %, on both sides


class Side(msgspec.Struct, frozen=True):
    """How many contacts entered, and how many of them reached the goal in time."""

    contacts: int = 0
    reached: int = 0

    @property
    def rate(self) -> float:
        """The share of those who reached it; 0 of nobody."""
        return self.reached / self.contacts if self.contacts else 0.0

    def __add__(self, other: "Side") -> "Side":
        return Side(self.contacts + other.contacts, self.reached + other.reached)


class Lift(msgspec.Struct, frozen=True):
    """The rate of the treated minus that of those held out, within an interval of 95 %: shares, not percent.

    `too_few` has no numbers: they would be read.
    """

    verdict: Verdict
    difference: float | None = None
    low: float | None = None
    high: float | None = None


def lift(treated: Side, held_out: Side) -> Lift:
    """Return what being treated changes."""
    if (
        min(treated.contacts, held_out.contacts) < FEWEST_CONTACTS
        or treated.reached + held_out.reached < FEWEST_REACHED
    ):
        return Lift("too_few")
    difference = treated.rate - held_out.rate
    low, high = interval(treated, held_out)
    verdict: Verdict = "more" if low > 0 else "fewer" if high < 0 else "no_difference"
    return Lift(verdict, difference, low, high)


def interval(left: Side, right: Side) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two rates, left minus right; both sides have somebody."""
    difference = left.rate - right.rate
    (left_low, left_high), (right_low, right_high) = wilson(left), wilson(right)
    below = math.hypot(left.rate - left_low, right_high - right.rate)
    above = math.hypot(left_high - left.rate, right.rate - right_low)
    return difference - below, difference + above


def wilson(side: Side) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a rate."""
    number, rate, square = side.contacts, side.rate, _Z * _Z
    middle = (rate + square / (2 * number)) / (1 + square / number)
    reach = _Z * math.sqrt(rate * (1 - rate) / number + square / (4 * number * number)) / (1 + square / number)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)
