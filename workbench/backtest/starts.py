"""The starts that a backtest plays beside events: contacts that enter or leave a segment, schedules and broadcasts.

A start that happened is in the history of the contacts, or is an entry of a broadcast. The runs of a schedule, and a
broadcast that was not sent, are made of the contacts that there were at their times. All are read like events, with
the macro `starts` of backtest_macros.sql.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal

import msgspec

from workbench.display.html import moment
from workbench.display.words import quantity
from workbench.errors import InvalidArgumentError
from workbench.language.cron import Cron
from workbench.language.starts import SEGMENT_CHANGES, StartSource

MAX_TIMES = 5_000  # runs of a schedule in the period: 17 days of a run every five minutes, 208 days of an hourly one
MAX_STARTS = 10_000_000  # contacts at all these times

_TICK = timedelta(microseconds=1)
_FEWER = "Use fewer days, or sample=0.1 for a tenth of the contacts"


class StartSelection(msgspec.Struct, frozen=True):
    """The starts of one source; `number` tells its query parameters from those of other sources.

    `kind`: `changes` of the members of a segment, `broadcasts` that were sent, or the contacts at `times`, only those
    of `segment` if it is set. `own`: the automation is stored, so runs of its schedule may have happened.
    """

    number: int
    source: StartSource
    kind: Literal["changes", "broadcasts", "times"]
    segment: str | None = None
    times: tuple[datetime, ...] = ()
    own: bool = False

    def param(self, name: str) -> str:
        return f":start_{name}_{self.number}"

    @property
    def params(self) -> dict[str, Any]:
        """The values of its query parameters."""
        times = [time.isoformat() for time in self.times]
        values = {"type": self.source.type, "key": self.source.key, "segment": self.segment, "times": times}
        return {self.param(name)[1:]: value for name, value in values.items()}


class UnsentBroadcast(msgspec.Struct, frozen=True):
    """A broadcast `at` a time, to the contacts that are in a `segment` then, or to all."""

    at: datetime
    segment: str | None = None

    def recipients(self) -> str:
        return "all contacts" if self.segment is None else f"the contacts that were in {self.segment} then"


def select_starts(
    sources: Iterable[StartSource], since: datetime, until: datetime, broadcast: UnsentBroadcast | None, *, own: bool
) -> tuple[StartSelection, ...]:
    """Return what to read of each source from `since` until before `until`.

    `broadcast` None: those that were sent. Raises InvalidArgumentError for a schedule with more than `MAX_TIMES` runs.
    """
    selections: dict[str, StartSelection] = {}
    for source in sources:
        number, segment = len(selections), source.segment
        if source.key in selections:
            continue
        if source.type in SEGMENT_CHANGES:
            selection = StartSelection(number, source, "changes", segment)
        elif source.type == "schedule":
            selection = StartSelection(number, source, "times", segment, _times(source, since, until), own)
        elif broadcast is None:
            selection = StartSelection(number, source, "broadcasts")
        else:
            selection = StartSelection(number, source, "times", broadcast.segment, (broadcast.at,))
        selections[source.key] = selection
    return tuple(selections.values())


def too_many_starts(starts: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the schedule starts {starts:,} entries in this period, and a backtest at most {MAX_STARTS:,}. {_FEWER}"
    )


def segment_remarks(
    name: str, created_at: datetime | None, since: datetime, unrecorded: int, begins_at: datetime | None
) -> Sequence[str]:
    """Return what is unknown about the members of a segment since a moment.

    `unrecorded`: how many changes happened before `begins_at`, when the history of contacts begins.
    """
    remarks = []
    if created_at is None:
        remarks.append(f"The segment {name} does not exist.")
    elif created_at > since:
        remarks.append(
            f"The segment {name} was defined on {moment(created_at)} UTC, after the beginning of the period."
        )
    if unrecorded:
        begin = "" if begins_at is None else f", which knows members of segments since {moment(begins_at)} UTC"
        changes = quantity(unrecorded, "change")
        remarks.append(f"{changes} of the members of {name} are not in the history of contacts{begin}.")
    return remarks


def _times(source: StartSource, since: datetime, until: datetime) -> tuple[datetime, ...]:
    cron = source.times()
    if not isinstance(cron, Cron):  # `read_start_source` has checked it
        raise InvalidArgumentError(f"cron {cron}")
    times = tuple(islice(takewhile(lambda at: at < until, cron.times_after(since - _TICK)), MAX_TIMES + 1))
    if len(times) > MAX_TIMES:
        raise InvalidArgumentError(
            f"the schedule {source.cron!r} has more than {MAX_TIMES:,} times in this period. Use fewer days"
        )
    return times
