"""The goal rate of an automation, in words and over time; with a holdout, what the automation brings about."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

import msgspec

from api.language.lift import FEWEST_CONTACTS, FEWEST_REACHED, Lift, Side
from workbench.display.page import moment
from workbench.display.table import Column
from workbench.display.words import counted, duration


class Day(msgspec.Struct, frozen=True, rename="camel"):
    """The contacts whose first entry came on one day of UTC."""

    day: date
    treated: Side
    held_out: Side


class GoalRate(msgspec.Struct, frozen=True, rename="camel"):
    """How many of the contacts that first entered in the last `days` reached the goal in time; `goal` None: there is none.

    `later_entries` are of contacts that had entered before, and do not count. `mixed`, `unknown`: how many contacts were on both sides,
    had more events than were looked at. `cut_at`: since when entries count, where there are too many (text of a moment).
    """

    goal: str | None
    days: int
    holdout: int = 0
    since_version: int | None = None
    within_seconds: int = 0
    treated: Side = Side()
    held_out: Side = Side()
    lift: Lift | None = None
    by_day: tuple[Day, ...] = ()
    later_entries: int = 0
    mixed: int = 0
    unknown: int = 0
    cut_at: str | None = None

    def lines(self) -> list[str]:
        """Say it in a sentence or three, and what limits it."""
        if self.goal is None:
            return ['No goal: .goal("purchase") names the event that it is to bring about.']
        within = duration(timedelta(seconds=self.within_seconds))
        told = f"Goal {self.goal}: reached by {_share(self.treated)} within {within} of first entering"
        lines = [f"{told}, in the last {counted(self.days, 'day')}."]
        if self.lift is not None:
            since = f", since version {self.since_version}" if (self.since_version or 1) > 1 else ""
            lines.append(f"Held out ({self.holdout} %{since}): reached by {_share(self.held_out)}.")
            lines.append(_verdict(self.lift))
        return [*lines, *self._limits()]

    def _limits(self) -> Iterator[str]:
        if self.cut_at is not None:
            yield f"There are too many to count them all: only entries since {moment(self.cut_at)} UTC count."
        if self.later_entries:
            yield f"{counted(self.later_entries, 'entry', 'entries')} of contacts that had entered before: not counted."
        if self.mixed:
            yield f"{counted(self.mixed, 'contact')} on both sides, as two became one: on the side of the first entry."
        if self.unknown:
            yield f"{counted(self.unknown, 'contact')} with more events than were looked at: counted as not reaching it."

    def table(self) -> tuple[Sequence[Column], list[tuple[str, ...]]]:
        """Return columns and rows of the days, the newest first."""
        columns = (_DAY, *_TREATED, *(_HELD_OUT if self.lift is not None else ()))
        return columns, [
            (each.day.isoformat(), *_cells(each.treated), *(_cells(each.held_out) if self.lift is not None else ()))
            for each in reversed(self.by_day)
        ]

    def percents(self) -> list[int]:
        """Return the rate of each day that somebody entered on, in whole percent."""
        return [round(each.treated.rate * 100) for each in self.by_day if each.treated.contacts]


_DAY = Column("entered on")
_TREATED = (Column("contacts", number=True), Column("reached", number=True), Column("rate", number=True))
_HELD_OUT = tuple(Column(f"held out: {each.title}", number=True) for each in _TREATED)


def _cells(side: Side) -> tuple[str, str, str]:
    return f"{side.contacts:,}", f"{side.reached:,}", f"{side.rate:.1%}" if side.contacts else ""


def _share(side: Side) -> str:
    if not side.contacts:
        return "nobody yet (0 contacts)"
    return f"{side.reached:,} of {counted(side.contacts, 'contact')} ({side.rate:.1%})"


def _verdict(lift: Lift) -> str:
    if lift.difference is None or lift.low is None or lift.high is None:
        return f"Lift: not enough to tell. It takes {FEWEST_CONTACTS} contacts on each side, and {FEWEST_REACHED} that reach the goal."
    numbers = f"{_points(lift.difference)} points (95 % interval: {_points(lift.low)} to {_points(lift.high)})"
    return f"Lift: {numbers}. {_VERDICTS[lift.verdict]}"


def _points(share: float) -> str:
    return f"{share * 100:+.1f}"


_VERDICTS = {
    "no_difference": "That may be chance: no difference can be told yet.",
    "more": "More contacts reach the goal with it than without.",
    "fewer": "Fewer contacts reach the goal with it than without.",
}
