"""What a backtest reads from the server, asked as every analyst's SQL is: with the rights of the key, and only so much at once."""

from collections import Counter
from collections.abc import Generator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import msgspec
import polars as pl

from workbench.backtest.selection import Selection
from workbench.connection import Connection
from workbench.display.page import moment
from workbench.errors import DraftError
from workbench.periods import Period
from workbench.query import Question, sql
from workbench.statements import statement
from workbench.stream import Stream

_SLICE = 300_000  # events of one question: an answer may take five minutes
_HASHES = 2**32  # contacts of a sample are those whose hash is below its share of these


class Window(msgspec.Struct, frozen=True):
    """From `since` up to `until`."""

    since: datetime
    until: datetime


class Whom(msgspec.Struct, frozen=True):
    """Whose events count: those of a share of the contacts (above 0, up to 1), and of the members that a segment has now."""

    sample: float = 1.0
    segment: str | None = None

    @property
    def sampled(self) -> bool:
        """Whether some contacts are left out by chance."""
        return self.sample < 1

    @property
    def params(self) -> dict[str, Any]:
        """What the conditions on contacts are bound to."""
        share = {"sampled": round(self.sample * _HASHES)} if self.sampled else {}
        return share | ({"segment": self.segment} if self.segment is not None else {})


class Ground(msgspec.Struct, frozen=True):
    """Where it takes place: the time, and how many contacts there are of those whose events count."""

    window: Window
    contacts: int
    whom: Whom = Whom()


class Source:
    """The stored events that may matter, their contacts, and the messages that others sent them."""

    def __init__(self, connection: Connection, selection: Selection, whom: Whom) -> None:
        self._connection = connection
        self._selection = selection
        self._whom = whom

    def ground(self, period: Period) -> Ground:
        """Return the time that is meant, by the server's clock, and how many contacts there are."""
        begin = self._all("backtest_begin", {})
        until = min(period.get("until", begin["at"][0]), begin["at"][0])
        since = period.get("since") or begin["at"][0] - timedelta(days=period["days"])
        if since >= until:
            raise DraftError(f"the period is empty: it begins on {moment(since)} and ends on {moment(until)} (UTC)")
        return Ground(Window(since, until), begin["contacts"][0], self._whom)

    def slices(self, window: Window) -> list[tuple[Window, int]]:
        """Return the time in parts that can be asked for at once, each with its number of events."""
        found: list[tuple[Window, int]] = []
        since, held = window.since, 0
        for day, events in self._days(window):
            if held and held + events > _SLICE:
                found.append((Window(since, day), held))
                since, held = day, 0
            held += events
        return [*found, (Window(since, window.until), held)] if held else found

    def _days(self, window: Window) -> list[tuple[datetime, int]]:
        """Return the days of a time that have events, in order, and how many."""
        found: Counter[datetime] = Counter()
        if self._selection.customs:
            found.update(dict(self._all("backtest_days", self._bounds(window), selection=self._selection).iter_rows()))
        if self._selection.logs is not None:
            found.update(
                dict(self._all("backtest_log_days", self._places(window), selection=self._selection).iter_rows())
            )
        return sorted(found.items())

    def events(self, window: Window) -> Generator[pl.DataFrame]:
        """Give the events of a time, in no order."""
        if self._selection.customs:
            for frame in self._stream("backtest_events", self._bounds(window), selection=self._selection):
                yield frame.with_columns(pl.lit(None, pl.String).alias("source"))
        if self._selection.logs is not None:
            yield from self._stream("backtest_logs", self._places(window), selection=self._selection)

    def contacts(self, window: Window) -> Generator[pl.DataFrame]:
        """Give the contacts of these events, some maybe twice."""
        if self._selection.customs:
            yield from self._stream("backtest_contacts", self._bounds(window), selection=self._selection)
        if self._selection.logs is not None:
            yield from self._stream("backtest_log_contacts", self._places(window), selection=self._selection)

    def messages(self, window: Window, own: str | None) -> Generator[pl.DataFrame]:
        """Give when contacts got messages of automations other than `own`."""
        params = _written(window) | ({"automation": own} if own is not None else {})
        return self._stream("backtest_messages", params, own=own is not None)

    def _bounds(self, window: Window) -> dict[str, Any]:
        return _written(window) | self._selection.params

    def _places(self, window: Window) -> dict[str, Any]:
        logs = self._selection.logs
        return _written(window) | (logs.params if logs is not None else {})

    def _question(self, name: str, params: dict[str, Any], structure: dict[str, Any]) -> Question:
        return Question(statement(name, whom=self._whom, **structure), params | self._whom.params)

    def _all(self, name: str, params: dict[str, Any], **structure: Any) -> pl.DataFrame:
        return sql(self._connection, self._question(name, params, structure))

    def _stream(self, name: str, params: dict[str, Any], **structure: Any) -> Generator[pl.DataFrame]:
        with closing(Stream(self._connection, self._question(name, params, structure)).frames()) as frames:
            yield from frames


def _written(window: Window) -> dict[str, Any]:
    return {"since": window.since.isoformat(), "until": window.until.isoformat()}
