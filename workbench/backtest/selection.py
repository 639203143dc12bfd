"""Which stored events a backtest reads. SQL only pre-selects, so it may give too many, and never too few.

Of a trigger's filters only those go along that Postgres can ask of payloads (`language.preselect`).
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec

from api.language.action import Condition, SendEmail, SendWebhook, WaitForEvent
from api.language.backtest import prepare
from api.language.check import paths_of
from api.language.event import LOG_NAME
from api.language.filter import Filter
from api.language.graph import Graph, Node
from api.language.onchain import NOBODY
from api.language.preselect import forms
from api.language.simulate import Automation
from api.language.trigger import Trigger


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


class Logs(msgspec.Struct, frozen=True):
    """Which logs of chains are read: those that may start an entry, and those by the names that waits have for them."""

    starts: tuple[Start, ...] = ()
    params: dict[str, Any] = {}


class Selection(msgspec.Struct, frozen=True):
    """The structure of the condition (`names` None: events of every name; no `ways`: whatever their values), and its parameters.

    `addresses`: whether somebody looks at email addresses. Otherwise it is enough to know that there is one: the server does not
    have to open them. `logs` None: nobody looks at chains; `customs`: whether somebody looks at anything else.
    """

    names: str | None = None
    ways: tuple[Way, ...] = ()
    params: dict[str, Any] = {}
    addresses: bool = True
    logs: Logs | None = None
    customs: bool = True


def select(automations: Iterable[Automation]) -> Selection:
    """Return what may start, wake or end an entry of any of these automations."""
    automations = tuple(automations)
    addresses, logs = any(map(_sees_addresses, automations)), _logs(automations)
    if any(not each.trigger.names and each.trigger.source is None for each in automations):
        return Selection(addresses=addresses, logs=logs)
    params: dict[str, Any] = {}
    ways = [*map(_starting, automations), *map(_awaited, automations)]
    named = [(names, asked) for names, asked in ways if names]
    written = tuple(_way(names, asked, params) for names, asked in named) if any(asked for _, asked in named) else ()
    params["names"] = sorted(frozenset().union(*(names for names, _ in named)))
    return Selection("names", written, params, addresses, logs, customs=bool(params["names"]))


def decides_by(node: Node) -> set[str]:
    """Return the paths that a condition asks about, or a wait in the event that it waits for."""
    return {each.path for each in _filters(node)}


def decides_by_addresses(automation: Automation) -> bool:
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


def _sees_addresses(automation: Automation) -> bool:
    graph = automation.graph or Graph()
    if graph.actions & {SendEmail, SendWebhook} or decides_by_addresses(automation):
        return True
    return any(not _ADDRESSES.isdisjoint(paths_of(node)) for node in graph.nodes)


_ADDRESSES = frozenset({"email", "contact", "contact.email"})


_Asked = tuple[tuple[dict[str, Any], ...], ...]


def _starting(automation: Automation) -> tuple[frozenset[str], _Asked]:
    return automation.trigger.names, _asked(automation.trigger)


def _awaited(automation: Automation) -> tuple[frozenset[str], _Asked]:
    return frozenset(name for name in prepare(automation).awaited if not LOG_NAME.fullmatch(name)), ()


def _logs(automations: Iterable[Automation]) -> Logs | None:
    """Return which logs may start, wake or end an entry, None for none."""
    params: dict[str, Any] = {}
    starts: dict[tuple[str, str], Start] = {}
    awaited: set[str] = set()
    for each in automations:
        awaited.update(name for name in prepare(each).awaited if LOG_NAME.fullmatch(name))
        source = each.trigger.source
        if source is not None and (source.key, source.wallet_arg) not in starts:
            values = (source.chain_id, source.contract, source.declared.canonical, source.wallet_arg, source.key)
            start = Start(*(f"{field}_{len(starts)}" for field in Start.__struct_fields__))
            params |= {"nobody": NOBODY} | dict(zip(msgspec.structs.astuple(start), values, strict=True))
            starts[source.key, source.wallet_arg] = start
    return Logs((*starts.values(),), params | {"awaited": sorted(awaited)}) if starts or awaited else None


def _way(names: frozenset[str], asked: _Asked, params: dict[str, Any]) -> Way:
    """Return a way, its values added to the parameters."""

    def bound(value: Any) -> str:
        name = f"value_{len(params)}"
        params[name] = value
        return name

    return Way(bound(sorted(names)), tuple(tuple(map(bound, alternatives)) for alternatives in asked))


def _asked(trigger: Trigger) -> _Asked:
    """Return what payloads have to contain, each of these in one of some forms."""
    return tuple(filter(None, map(forms, trigger.filters)))
