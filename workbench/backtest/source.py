"""The events that a backtest reads: which ones, and reading them from the server.

SQL only pre-selects, so it may return too many events but never too few; the interpreter decides on each. Of a
trigger's filters only those are sent that Postgres can test with `payload @> …` (`containment_patterns`). Every query
runs like one of an analyst: with the rights of the key and within its limits.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import msgspec
import polars as pl

from workbench.connection import Connection
from workbench.display.html import moment
from workbench.duration import Period
from workbench.errors import InvalidArgumentError
from workbench.language.actions import Condition, SendEmail, SendWebhook, WaitForEvent
from workbench.language.backtest import prepare_backtest
from workbench.language.check import context_paths
from workbench.language.event import LOG_NAME
from workbench.language.filter import Filter
from workbench.language.graph import Graph, Node
from workbench.language.onchain import ZERO_ADDRESS
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import containment_patterns
from workbench.sql import SqlQuery, Stream, sql, statement

_ADDRESSES = frozenset({"email", "contact", "contact.email"})


class EventPattern(msgspec.Struct, frozen=True):
    """Events by name and payload, as names of parameters. The payload contains an object of each of `conditions`."""

    names: str
    conditions: tuple[tuple[str, ...], ...] = ()


class LogPattern(msgspec.Struct, frozen=True):
    """Logs that may start an entry. All fields are names of parameters."""

    chain: str
    contract: str
    signature: str
    wallet: str
    key: str


class BacktestLogs(msgspec.Struct, frozen=True):
    """The logs to read: those that may start an entry, and those in the parameter `awaited`, for which steps wait."""

    starts: tuple[LogPattern, ...] = ()
    params: dict[str, Any] = {}


class EventSelection(msgspec.Struct, frozen=True):
    """The structure of the SQL condition, and its parameters.

    `names` None: events of every name. No `patterns`: whatever their payload. `custom_events`: whether any events of
    backends are read; `logs` None: no logs are read. `addresses` False: nothing uses the text of an email address, so
    the server need not decrypt them, which costs more than everything else.
    """

    names: str | None = None
    patterns: tuple[EventPattern, ...] = ()
    params: dict[str, Any] = {}
    addresses: bool = True
    logs: BacktestLogs | None = None
    custom_events: bool = True


def select(automations: Sequence[SimulatedAutomation]) -> EventSelection:
    """Return the events that may start, wake or end an entry of any of these automations."""
    addresses, logs = any(map(_reads_addresses, automations)), _select_logs(automations)
    if any(not automation.trigger.names and automation.trigger.source is None for automation in automations):
        return EventSelection(addresses=addresses, logs=logs)
    starting = [
        (automation.trigger.names, tuple(filter(None, map(containment_patterns, automation.trigger.filters))))
        for automation in automations
    ]
    # Of awaited events and goals the filters are not sent: they may refer to the contact and to the event before.
    awaited = [
        (frozenset(name for name in prepare_backtest(automation).awaited if not LOG_NAME.fullmatch(name)), ())
        for automation in automations
    ]
    params: dict[str, Any] = {}

    def bind(value: Any) -> str:
        name = f"value_{len(params)}"
        params[name] = value
        return name

    named = [(names, conditions) for names, conditions in (*starting, *awaited) if names]
    patterns: tuple[EventPattern, ...] = ()
    if any(conditions for _, conditions in named):
        patterns = tuple(
            EventPattern(bind(sorted(names)), tuple(tuple(map(bind, options)) for options in conditions))
            for names, conditions in named
        )
    params["names"] = sorted(frozenset().union(*(names for names, _ in named)))
    return EventSelection("names", patterns, params, addresses, logs, custom_events=bool(params["names"]))


def _select_logs(automations: Iterable[SimulatedAutomation]) -> BacktestLogs | None:
    params: dict[str, Any] = {}
    starts: dict[tuple[str, str], LogPattern] = {}  # two versions of an automation mostly have the same trigger
    awaited: set[str] = set()
    for automation in automations:
        awaited.update(name for name in prepare_backtest(automation).awaited if LOG_NAME.fullmatch(name))
        source = automation.trigger.source
        if source is not None and (source.key, source.wallet_arg) not in starts:
            values = (source.chain_id, source.contract, source.abi_event.canonical, source.wallet_arg, source.key)
            start = LogPattern(*(f"{field}_{len(starts)}" for field in LogPattern.__struct_fields__))
            params |= {"nobody": ZERO_ADDRESS} | dict(zip(msgspec.structs.astuple(start), values, strict=True))
            starts[source.key, source.wallet_arg] = start
    return BacktestLogs((*starts.values(),), params | {"awaited": sorted(awaited)}) if starts or awaited else None


def filter_paths(node: Node) -> set[str]:
    """Return the paths in the filters of a condition or a wait."""
    return {filter_.path for filter_ in _filters(node)}


def filters_on_addresses(automation: SimulatedAutomation) -> bool:
    """Return whether a filter compares an email address. Whether there is one is known even if it is masked."""
    graph = automation.graph or Graph()
    goal = graph.settings.goal.filters if graph.settings.goal is not None else ()
    filters = (*automation.trigger.filters, *goal, *(filter_ for node in graph.nodes for filter_ in _filters(node)))
    return any(filter_.path in _ADDRESSES and filter_.operator != "exists" for filter_ in filters)


def _filters(node: Node) -> tuple[Filter, ...]:
    match node.action:
        case Condition(filters=filters) | WaitForEvent(filters=filters):
            return filters
        case _:
            return ()


def _reads_addresses(automation: SimulatedAutomation) -> bool:
    graph = automation.graph or Graph()
    if graph.actions & {SendEmail, SendWebhook} or filters_on_addresses(automation):
        return True
    return any(not _ADDRESSES.isdisjoint(context_paths(node)) for node in graph.nodes)


_MAX_EVENTS_PER_QUERY = 300_000  # a query may stream for five minutes
_HASHES = 2**32  # a contact is in a sample if the first 32 bits of its hash are below share * 2**32


class Window(msgspec.Struct, frozen=True):
    """The time from `since` (inclusive) to `until` (exclusive)."""

    since: datetime
    until: datetime

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a query about this window."""
        return {"since": self.since.isoformat(), "until": self.until.isoformat()}


class ContactSample(msgspec.Struct, frozen=True):
    """The contacts of a backtest: a share (above 0, up to 1), and only current members of `segment` if it is set."""

    share: float = 1.0
    segment: str | None = None

    @property
    def is_partial(self) -> bool:
        """Whether only a share of the contacts is taken."""
        return self.share < 1

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a query about these contacts."""
        share = {"sampled": round(self.share * _HASHES)} if self.is_partial else {}
        return share | ({"segment": self.segment} if self.segment is not None else {})


class BacktestScope(msgspec.Struct, frozen=True):
    """The period, the sample, and the number of contacts in the sample."""

    window: Window
    contacts: int
    sample: ContactSample = ContactSample()


class BacktestSource:
    """Reads the selected events, their contacts, and messages of other automations."""

    def __init__(self, connection: Connection, selection: EventSelection, sample: ContactSample) -> None:
        self._connection = connection
        self._selection = selection
        self._sample = sample

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

    def slices(self, window: Window) -> list[tuple[Window, int]]:
        """Return the window in parts that are small enough for one query, each with its number of events."""
        by_day: Counter[datetime] = Counter()
        if self._selection.custom_events:
            by_day.update(dict(self._frame("backtest_days", self._event_params(window)).iter_rows()))
        if self._selection.logs is not None:
            by_day.update(dict(self._frame("backtest_log_days", self._log_params(window)).iter_rows()))
        slices: list[tuple[Window, int]] = []
        since, total = window.since, 0
        for day, events in sorted(by_day.items()):
            # Parts end at midnight, so a day with more events is read by one query.
            if total and total + events > _MAX_EVENTS_PER_QUERY:
                slices.append((Window(since, day), total))
                since, total = day, 0
            total += events
        return [*slices, (Window(since, window.until), total)] if total else slices

    def events(self, window: Window) -> Generator[pl.DataFrame]:
        """Yield the events of a window in any order."""
        if self._selection.custom_events:
            for frame in self._stream("backtest_events", self._event_params(window)):
                yield frame.with_columns(pl.lit(None, pl.String).alias("source"))
        if self._selection.logs is not None:
            yield from self._stream("backtest_logs", self._log_params(window))

    def contacts(self, window: Window) -> Generator[pl.DataFrame]:
        """Yield the contacts of these events; a contact may come twice."""
        if self._selection.custom_events:
            yield from self._stream("backtest_contacts", self._event_params(window))
        if self._selection.logs is not None:
            yield from self._stream("backtest_log_contacts", self._log_params(window))

    def messages(self, window: Window, own_id: str | None) -> Generator[pl.DataFrame]:
        """Yield when contacts got messages of automations other than `own_id`."""
        params = window.params | ({"automation": own_id} if own_id is not None else {})
        return self._stream("backtest_messages", params, own=own_id is not None)

    def _event_params(self, window: Window) -> dict[str, Any]:
        return window.params | self._selection.params

    def _log_params(self, window: Window) -> dict[str, Any]:
        logs = self._selection.logs
        return window.params | (logs.params if logs is not None else {})

    def _query(self, name: str, params: dict[str, Any], **structure: Any) -> SqlQuery:
        text = statement(name, sample=self._sample, selection=self._selection, **structure)
        return SqlQuery(text, params | self._sample.params)

    def _frame(self, name: str, params: dict[str, Any]) -> pl.DataFrame:
        return sql(self._connection, self._query(name, params))

    def _stream(self, name: str, params: dict[str, Any], **structure: Any) -> Generator[pl.DataFrame]:
        with closing(Stream(self._connection, self._query(name, params, **structure)).frames()) as frames:
            yield from frames
