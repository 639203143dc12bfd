"""Which stored events a backtest reads. SQL only pre-selects, so it may give too many, and never too few.

Of a trigger's filters only those go along that Postgres can ask of payloads (`language.preselect`).

What a backtest reads from the server, asked as every analyst's SQL is: with the rights of the key, and only so much at once.
"""

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from datetime import datetime, timedelta
from itertools import chain
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
from workbench.language.trigger import Trigger, containment_patterns
from workbench.sql import SqlQuery, Stream, sql, statement


class Way(msgspec.Struct, frozen=True):
    """Events of some names, of whose values each of `asked` allows some; names of parameters, like everything here."""

    names: str
    asked: tuple[tuple[str, ...], ...] = ()


class Start(msgspec.Struct, frozen=True):
    """Logs that may start an entry; names of parameters."""

    chain: str
    contract: str
    signature: str
    wallet: str
    key: str


class ChainLogSelection(msgspec.Struct, frozen=True):
    """Which logs of chains are read: those that may start an entry, and those by the names that waits have for them."""

    starts: tuple[Start, ...] = ()
    params: dict[str, Any] = {}


class EventSelection(msgspec.Struct, frozen=True):
    """The structure of the condition (`names` None: events of every name; no `ways`: whatever their values), and its parameters.

    `addresses`: whether somebody looks at email addresses. Otherwise it is enough to know that there is one: the server does not
    have to open them. `logs` None: nobody looks at chains; `customs`: whether somebody looks at anything else.
    """

    names: str | None = None
    ways: tuple[Way, ...] = ()
    params: dict[str, Any] = {}
    addresses: bool = True
    logs: ChainLogSelection | None = None
    customs: bool = True


def select(automations: Iterable[SimulatedAutomation]) -> EventSelection:
    """Return what may start, wake or end an entry of any of these automations."""
    automations = tuple(automations)
    addresses, logs = any(map(_sees_addresses, automations)), _logs(automations)
    if any(not each.trigger.names and each.trigger.source is None for each in automations):
        return EventSelection(addresses=addresses, logs=logs)
    params: dict[str, Any] = {}
    ways = [*map(_starting, automations), *map(_awaited, automations)]
    named = [(names, asked) for names, asked in ways if names]
    written = tuple(_way(names, asked, params) for names, asked in named) if any(asked for _, asked in named) else ()
    params["names"] = sorted(frozenset().union(*(names for names, _ in named)))
    return EventSelection("names", written, params, addresses, logs, customs=bool(params["names"]))


def decides_by(node: Node) -> set[str]:
    """Return the paths that a condition asks about, or a wait in the event that it waits for."""
    return {each.path for each in _filters(node)}


def decides_by_addresses(automation: SimulatedAutomation) -> bool:
    """Return whether a filter of the automation asks what an email address is; whether there is one is known without."""
    graph = automation.graph or Graph()
    goal = graph.settings.goal.filters if graph.settings.goal is not None else ()
    asked = (*automation.trigger.filters, *goal, *chain.from_iterable(map(_filters, graph.nodes)))
    return any(each.path in _ADDRESSES and each.operator != "exists" for each in asked)


def _filters(node: Node) -> tuple[Filter, ...]:
    match node.action:
        case Condition(filters=filters) | WaitForEvent(filters=filters):
            return filters
        case _:
            return ()


def _sees_addresses(automation: SimulatedAutomation) -> bool:
    graph = automation.graph or Graph()
    if graph.actions & {SendEmail, SendWebhook} or decides_by_addresses(automation):
        return True
    return any(not _ADDRESSES.isdisjoint(context_paths(node)) for node in graph.nodes)


_ADDRESSES = frozenset({"email", "contact", "contact.email"})


_Asked = tuple[tuple[dict[str, Any], ...], ...]


def _starting(automation: SimulatedAutomation) -> tuple[frozenset[str], _Asked]:
    return automation.trigger.names, _asked(automation.trigger)


def _awaited(automation: SimulatedAutomation) -> tuple[frozenset[str], _Asked]:
    return frozenset(name for name in prepare_backtest(automation).awaited if not LOG_NAME.fullmatch(name)), ()


def _logs(automations: Iterable[SimulatedAutomation]) -> ChainLogSelection | None:
    """Return which logs may start, wake or end an entry, None for none."""
    params: dict[str, Any] = {}
    starts: dict[tuple[str, str], Start] = {}
    awaited: set[str] = set()
    for each in automations:
        awaited.update(name for name in prepare_backtest(each).awaited if LOG_NAME.fullmatch(name))
        source = each.trigger.source
        if source is not None and (source.key, source.wallet_arg) not in starts:
            values = (source.chain_id, source.contract, source.abi_event.canonical, source.wallet_arg, source.key)
            start = Start(*(f"{field}_{len(starts)}" for field in Start.__struct_fields__))
            params |= {"nobody": ZERO_ADDRESS} | dict(zip(msgspec.structs.astuple(start), values, strict=True))
            starts[source.key, source.wallet_arg] = start
    return ChainLogSelection((*starts.values(),), params | {"awaited": sorted(awaited)}) if starts or awaited else None


def _way(names: frozenset[str], asked: _Asked, params: dict[str, Any]) -> Way:
    """Return a way, its values added to the parameters."""

    def bound(value: Any) -> str:
        name = f"value_{len(params)}"
        params[name] = value
        return name

    return Way(bound(sorted(names)), tuple(tuple(map(bound, alternatives)) for alternatives in asked))


def _asked(trigger: Trigger) -> _Asked:
    """Return what payloads have to contain, each of these in one of some forms."""
    return tuple(filter(None, map(containment_patterns, trigger.filters)))


_SLICE = 300_000  # events of one question: an answer may take five minutes
_HASHES = 2**32  # contacts of a sample are those whose hash is below its share of these


class Window(msgspec.Struct, frozen=True):
    """From `since` up to `until`."""

    since: datetime
    until: datetime


class ContactSample(msgspec.Struct, frozen=True):
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


class BacktestScope(msgspec.Struct, frozen=True):
    """Where it takes place: the time, and how many contacts there are of those whose events count."""

    window: Window
    contacts: int
    whom: ContactSample = ContactSample()


class BacktestSource:
    """The stored events that may matter, their contacts, and the messages that others sent them."""

    def __init__(self, connection: Connection, selection: EventSelection, whom: ContactSample) -> None:
        self._connection = connection
        self._selection = selection
        self._whom = whom

    def ground(self, period: Period) -> BacktestScope:
        """Return the time that is meant, by the server's clock, and how many contacts there are."""
        begin = self._all("backtest_begin", {})
        until = min(period.get("until", begin["at"][0]), begin["at"][0])
        since = period.get("since") or begin["at"][0] - timedelta(days=period["days"])
        if since >= until:
            raise InvalidArgumentError(
                f"the period is empty: it begins on {moment(since)} and ends on {moment(until)} (UTC)"
            )
        return BacktestScope(Window(since, until), begin["contacts"][0], self._whom)

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

    def _question(self, name: str, params: dict[str, Any], structure: dict[str, Any]) -> SqlQuery:
        return SqlQuery(statement(name, whom=self._whom, **structure), params | self._whom.params)

    def _all(self, name: str, params: dict[str, Any], **structure: Any) -> pl.DataFrame:
        return sql(self._connection, self._question(name, params, structure))

    def _stream(self, name: str, params: dict[str, Any], **structure: Any) -> Generator[pl.DataFrame]:
        with closing(Stream(self._connection, self._question(name, params, structure)).frames()) as frames:
            yield from frames


def _written(window: Window) -> dict[str, Any]:
    return {"since": window.since.isoformat(), "until": window.until.isoformat()}
