"""Selects the events that a backtest needs, and reads them from the server.

SQL only pre-selects, so it may return too many events but never too few; the interpreter decides on each. A query
contains only those filters of a trigger that Postgres can test with `payload @> …` (`containment_patterns`). Queries
run with the rights and the limits of the key, like those of `wb.sql`.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import msgspec
import polars as pl

from workbench.backtest.starts import MAX_STARTS, StartSelection, segment_remarks, too_many_starts
from workbench.connection import Connection
from workbench.display.html import moment
from workbench.duration import Period
from workbench.errors import InvalidArgumentError
from workbench.language.actions import filters_in
from workbench.language.channel import CAPPED_CHANNELS, INAPP
from workbench.language.check import context_paths
from workbench.language.event import LOG_NAME
from workbench.language.graph import Graph, Node
from workbench.language.onchain import ZERO_ADDRESS
from workbench.language.redact import ADDRESS_PATHS, compares_address
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import containment_patterns
from workbench.sql import SqlQuery, Stream, sql, statement

_PARAMETER = re.compile(r"(?<!:):(\w+)")


class EventPattern(msgspec.Struct, frozen=True):
    """Events by name and payload: `names` is the query parameter with their names.

    Each of `conditions` is a list of query parameters with objects, at least one of which the payload contains.
    """

    names: str
    conditions: tuple[tuple[str, ...], ...] = ()


class EventSelection(msgspec.Struct, frozen=True):
    """The structure of the SQL condition, and its parameters.

    `names` None: custom events of every name. No `patterns`: whatever their payload. `custom_events`: whether any are
    read. `logs`: whether logs are read. These are the logs in the parameter `awaited`, for which steps wait, and the
    logs that may start an entry, from `log_sources` contracts (parameters `chain_0`, `contract_0` …). `addresses`
    False: nothing uses the text of an email address, so the server need not decrypt them, which costs more than
    everything else. `topics`: whether contacts may have declined the topics in the parameter `topics`. `starts`: the
    starts that are read.
    """

    names: str | None = None
    patterns: tuple[EventPattern, ...] = ()
    params: dict[str, Any] = {}
    addresses: bool = True
    custom_events: bool = True
    logs: bool = False
    log_sources: int = 0
    topics: bool = False
    starts: tuple[StartSelection, ...] = ()

    def with_starts(self, starts: tuple[StartSelection, ...], own_id: str | None) -> "EventSelection":
        """Return the selection with starts. `own_id`: the automation whose broadcasts and runs are read."""
        params = self.params | ({"automation": own_id} if starts and own_id is not None else {})
        for start in starts:
            params |= start.params
        return msgspec.structs.replace(self, starts=starts, params=params)


def select(automations: Sequence[SimulatedAutomation]) -> EventSelection:
    """Return the events that may start, wake or end an entry of any of these automations."""
    triggers = [automation.trigger for automation in automations]
    awaited = [frozenset(() if item.graph is None else item.graph.awaited) for item in automations]
    addresses = any(map(_reads_addresses, automations))
    topics = sorted({topic for item in automations if item.graph is not None for topic in item.graph.topics})
    params: dict[str, Any] = {"topics": topics} if topics else {}

    def bind(value: Any) -> str:
        name = f"value_{len(params)}"
        params[name] = value
        return name

    # Two versions of an automation usually have the same trigger.
    sources = {
        (source.key, source.wallet_arg): source for trigger in triggers if (source := trigger.log_source) is not None
    }
    awaited_logs = sorted({name for names in awaited for name in names if LOG_NAME.fullmatch(name)})
    logs = bool(sources or awaited_logs)
    if logs:
        params |= {"awaited": awaited_logs} | ({"zero_address": ZERO_ADDRESS} if sources else {})
    for number, source in enumerate(sources.values()):
        params |= {
            f"chain_{number}": source.chain_id,
            f"contract_{number}": source.contract,
            f"signature_{number}": source.abi_event.canonical,
            f"wallet_{number}": source.wallet_arg,
            f"key_{number}": source.key,
        }
    if any(trigger.is_wildcard for trigger in triggers):
        return EventSelection(
            params=params, addresses=addresses, logs=logs, log_sources=len(sources), topics=bool(topics)
        )
    starting = [
        (trigger.names, tuple(filter(None, map(containment_patterns, trigger.filters)))) for trigger in triggers
    ]
    # The filters of waits and goals are not sent, because they may refer to values outside the event.
    waking = [(names.difference(awaited_logs), ()) for names in awaited]
    named = [(names, conditions) for names, conditions in (*starting, *waking) if names]
    patterns: tuple[EventPattern, ...] = ()
    if any(conditions for _, conditions in named):
        patterns = tuple(
            EventPattern(bind(sorted(names)), tuple(tuple(map(bind, options)) for options in conditions))
            for names, conditions in named
        )
    if named:
        params["names"] = sorted(frozenset().union(*(names for names, _ in named)))
    return EventSelection("names", patterns, params, addresses, bool(named), logs, len(sources), bool(topics))


def filter_paths(node: Node) -> set[str]:
    return {path for filter_ in filters_in(node.action) for path in filter_.paths}


def filters_on_addresses(automation: SimulatedAutomation) -> bool:
    """Return whether a filter compares an email address. Even a masked address shows whether there is one."""
    graph = automation.graph or Graph()
    goal = graph.settings.goal.filters if graph.settings.goal is not None else ()
    filters = (
        *automation.trigger.filters,
        *goal,
        *(filter_ for node in graph.nodes for filter_ in filters_in(node.action)),
    )
    return compares_address(filters)


def _reads_addresses(automation: SimulatedAutomation) -> bool:
    graph = automation.graph or Graph()
    # These messages go to an email address, or can have the identifiers of the contact in their body.
    uses_addresses = any(node.action.channel not in (None, INAPP) for node in graph.nodes)
    if uses_addresses or filters_on_addresses(automation):
        return True
    return any(not ADDRESS_PATHS.isdisjoint(context_paths(node)) for node in graph.nodes)


# A query may stream for five minutes, but has only ten seconds until its first row. The query of contacts has none
# before it has read all events of its part.
_MAX_EVENTS_PER_QUERY = 300_000
_HASHES = 2**32  # a contact is in a sample if the first 32 bits of its hash are below share * 2**32


class Window(msgspec.Struct, frozen=True):
    """The time from `since` (inclusive) to `until` (exclusive)."""

    since: datetime
    until: datetime

    @property
    def params(self) -> dict[str, Any]:
        return {"since": self.since.isoformat(), "until": self.until.isoformat()}


class ContactSample(msgspec.Struct, frozen=True):
    """The contacts of a backtest: a share (above 0, up to 1), and only current members of `segment` if it is set."""

    share: float = 1.0
    segment: str | None = None

    @property
    def is_partial(self) -> bool:
        return self.share < 1

    @property
    def params(self) -> dict[str, Any]:
        share = {"sampled": round(self.share * _HASHES)} if self.is_partial else {}
        return share | ({"segment": self.segment} if self.segment is not None else {})


class BacktestScope(msgspec.Struct, frozen=True):
    """The period, the sample, and the number of contacts in the sample. `remarks`: on what starts the entries."""

    window: Window
    contacts: int
    sample: ContactSample = ContactSample()
    remarks: tuple[str, ...] = ()


class BacktestSource:
    """Reads the selected events, their contacts, and messages of other automations."""

    def __init__(self, connection: Connection, selection: EventSelection, sample: ContactSample) -> None:
        self._connection = connection
        self._selection = selection
        self._sample = sample
        self._merged = False

    def scope(self, period: Period) -> BacktestScope:
        """Return the scope; the period is resolved with the clock of the server."""
        start = self._frame("backtest_begin", {})
        now = start["at"][0]  # the time of the server, because the clock of the notebook may differ
        until = min(period.get("until", now), now)
        since = period.get("since") or now - timedelta(days=period["days"])
        if since >= until:
            raise InvalidArgumentError(
                f"the period is empty: it begins on {moment(since)} and ends on {moment(until)} (UTC)"
            )
        return BacktestScope(Window(since, until), start["contacts"][0], self._sample)

    def sent_broadcasts(self, window: Window, own_id: str) -> int:
        """Return the number of starts of broadcasts of an automation in a window."""
        starts: int = self._frame("backtest_broadcasts", window.params | {"automation": own_id})["starts"][0]
        return starts

    def check_starts(self, scope: BacktestScope) -> None:
        """Raise InvalidArgumentError if a schedule starts more than `MAX_STARTS` entries."""
        for start in self._selection.starts:
            if scope.contacts * len(start.times) > MAX_STARTS:  # of a segment, perhaps fewer
                params = self._params(scope.window)
                starts = self._frame("backtest_presences", params, start=start)["starts"][0]
                if starts > MAX_STARTS:
                    raise too_many_starts(starts)

    def start_remarks(self, window: Window) -> Generator[str]:
        """Yield what is unknown about the starts of a window."""
        for start in self._selection.starts:
            if start.segment is not None:
                rows = self._frame("backtest_segment", window.params | {"start_segment": start.segment})
                (row,) = rows.iter_rows(named=True)
                yield from segment_remarks(
                    start.segment, row["created_at"], window.since, row["unrecorded"], row["begins_at"]
                )

    def slices(self, window: Window) -> list[tuple[Window, int]]:
        """Return the window in parts that are small enough for one query, each with its number of events."""
        slices: list[tuple[Window, int]] = []
        since, total = window.since, 0
        for hour, events in self._frame("backtest_hours", self._params(window)).iter_rows():
            # Parts end at a full hour, so an hour with more events is read by one query.
            if total and total + events > _MAX_EVENTS_PER_QUERY:
                slices.append((Window(since, hour), total))
                since, total = hour, 0
            total += events
        return [*slices, (Window(since, window.until), total)] if total else slices

    def events(self, window: Window, *, live: bool) -> Generator[pl.DataFrame]:
        """Yield the events of a window in any order; `live`: say which of them were imported."""
        return self._stream("backtest_events", self._params(window), live=live)

    def merges(self, window: Window) -> pl.DataFrame:
        """Return the merges since the beginning of a window. Read them first.

        If there are any, contacts and changes have those of the other contacts, too.
        """
        merges = self._frame("backtest_merges", window.params)
        self._merged = merges.height > 0
        return merges

    def contacts(self, window: Window) -> Generator[pl.DataFrame]:
        return self._stream("backtest_contacts", self._params(window) | self._opt_in_topics(), merged=self._merged)

    def count_erased(self) -> int:
        """Return the number of erased contacts."""
        erased: int = self._frame("backtest_erased", {})["erased"][0]
        return erased

    def entries(self, window: Window, own_id: str) -> Generator[pl.DataFrame]:
        """Yield the entries of the automation that began in a window, with a row for each of their steps, in any order.

        An entry without steps has one row.
        """
        return self._stream("backtest_entries", window.params | {"automation": own_id})

    def moves(self, window: Window, own_id: str) -> Generator[pl.DataFrame]:
        """Yield the moves of these entries to other versions, with those back, in any order."""
        return self._stream("backtest_moves", window.params | {"automation": own_id})

    def past_entries(self, window: Window, own_id: str) -> Generator[pl.DataFrame]:
        """Yield a row per contact with entries of the automation from before a window."""
        return self._stream("backtest_past_entries", window.params | {"automation": own_id})

    def changes(self, window: Window, own_id: str | None, *, live: bool) -> Generator[pl.DataFrame]:
        """Yield the changes of the contacts with events in a window, from its beginning to the present, in any order.

        Read them after the contacts: a change in between is then undone twice, and not overlooked. `live`: those by
        entries of the automation from before the window are not its own.
        """
        params = self._params(window) | ({"automation": own_id} if own_id is not None else {}) | self._opt_in_topics()
        return self._stream("backtest_changes", params, own=own_id is not None, live=live, merged=self._merged)

    def messages(
        self, window: Window, own_id: str | None, began_before: datetime | None = None
    ) -> Generator[pl.DataFrame]:
        """Yield the times at which contacts got messages of automations other than `own_id`.

        `began_before`: also those of its entries that began before this time.
        """
        params = window.params | {"channels": CAPPED_CHANNELS} | ({"automation": own_id} if own_id is not None else {})
        if began_before is not None:
            params["began_before"] = began_before.isoformat()
        return self._stream("backtest_messages", params, own=own_id is not None, began_before=began_before)

    def _opt_in_topics(self) -> dict[str, Any]:
        if not self._selection.topics:
            return {}
        topics = self._connection.get("/topics")["topics"]
        return {"opt_in_topics": [topic["name"] for topic in topics if topic["optIn"] != "none"]}

    def _params(self, window: Window) -> dict[str, Any]:
        return window.params | self._selection.params

    def _query(self, name: str, params: dict[str, Any], **structure: Any) -> SqlQuery:
        text = statement(name, sample=self._sample, selection=self._selection, **structure)
        # The server refuses a parameter that a statement does not use; not every statement reads all columns of logs.
        used = set(_PARAMETER.findall(text))
        values = params | self._sample.params
        return SqlQuery(text, {name: value for name, value in values.items() if name in used})

    def _frame(self, name: str, params: dict[str, Any], **structure: Any) -> pl.DataFrame:
        return sql(self._connection, self._query(name, params, **structure))

    def _stream(self, name: str, params: dict[str, Any], **structure: Any) -> Generator[pl.DataFrame]:
        with closing(Stream(self._connection, self._query(name, params, **structure)).frames()) as frames:
            yield from frames
