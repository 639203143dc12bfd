"""What the catalog knows against an automation: events that never came, values that were never in them, or hide others.

The commonest reasons why nothing happens. The catalog is a plain value: the server and the workbench read it each in their way.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from api.language.action import Condition, WaitForEvent
from api.language.check import Remark, paths_of
from api.language.event import LOG_NAME
from api.language.filter import Filter
from api.language.graph import Graph
from api.language.spelling import meant, nearest
from api.language.trigger import BUILT_INS, Trigger


class Chained(msgspec.Struct, frozen=True):
    """Which chains are read, and the logs that were kept, by the names that waits have for them."""

    chains: frozenset[int] = frozenset()
    logs: frozenset[str] = frozenset()


class Seen(msgspec.Struct, frozen=True):
    """Which events came in the last 30 days, the paths in the payloads of those that were looked into, and the segments there are.

    `segments` and `chained` are None when nobody asked for them.
    """

    events: tuple[str, ...] = ()
    paths: Mapping[str, frozenset[str]] = {}
    segments: tuple[str, ...] | None = None
    chained: Chained | None = None


class _Asked(msgspec.Struct, frozen=True):
    """A path that an automation looks for in one of these events, and where it does."""

    path: str
    events: tuple[str, ...]
    node_id: str | None = None
    field: str | None = None


def events_of(trigger: Trigger, graph: Graph) -> tuple[str, ...]:
    """Return the events that an automation knows by name: those that start it, that it waits for, that are its goal."""
    return tuple(dict.fromkeys(name for name, _, _ in _named(trigger, graph)))


def segments_of(graph: Graph) -> tuple[str, ...]:
    """Return the segments that the conditions of an automation ask for."""
    return tuple(dict.fromkeys(name for name, _ in _named_segments(graph)))


def is_on_chain(trigger: Trigger, graph: Graph) -> bool:
    """Return whether an automation looks at chains."""
    return trigger.source is not None or next(_awaited_logs(graph), None) is not None


def check_against(seen: Seen, trigger: Trigger, graph: Graph) -> tuple[Remark, ...]:
    """Return warnings about events and values that an automation counts on, and that are not what it takes them for."""
    return (
        *_unknown_events(seen, trigger, graph),
        *_unknown_paths(seen, trigger, graph),
        *_hidden(seen, trigger, graph),
        *_unknown_segments(seen, graph),
        *_unread(seen, trigger, graph),
    )


def _unknown_events(seen: Seen, trigger: Trigger, graph: Graph) -> Iterator[Remark]:
    for name, node_id, field in _named(trigger, graph):
        if name not in seen.events:
            yield Remark("warning", never_came(name, seen.events), node_id, field)


def _unknown_paths(seen: Seen, trigger: Trigger, graph: Graph) -> Iterator[Remark]:
    for asked in dict.fromkeys(_asked(trigger, graph)):
        known = _paths(asked.events, seen)
        if known is not None and not _was_sent(asked.path, known):
            yield Remark("warning", never_sent(asked.path, asked.events, known), asked.node_id, asked.field)


def _hidden(seen: Seen, trigger: Trigger, graph: Graph) -> Iterator[Remark]:
    """Warn where a built-in is used that a key of the payload overrides (contract §4.7.3)."""
    hiding = {path.partition(".")[0]: event for event in sorted(trigger.names) for path in seen.paths.get(event, ())}
    used: list[tuple[str | None, set[str]]] = [(None, {each.path for each in trigger.filters})]
    used += [(node.id, paths_of(node)) for node in graph.nodes]
    for node_id, paths in used:
        for name in sorted(paths & hiding.keys() & set(BUILT_INS)):
            message = f"{name!r} is a key of {hiding[name]}'s payload, which hides the built-in value"
            yield Remark("warning", message, node_id, "triggerSpec.filters" if node_id is None else None)


def _unknown_segments(seen: Seen, graph: Graph) -> Iterator[Remark]:
    if seen.segments is None:
        return
    for name, node_id in _named_segments(graph):
        if name not in seen.segments:
            told = meant(name, seen.segments, ": no contact is in it")
            yield Remark("warning", f"nobody has defined the segment {name!r}{told}", node_id)


def _unread(seen: Seen, trigger: Trigger, graph: Graph) -> Iterator[Remark]:
    """Warn of chains that nobody reads, and of logs to wait for that nobody keeps."""
    source, known = trigger.source, seen.chained
    if known is None:
        return
    if source is not None and source.chain_id not in known.chains:
        message = f"nobody reads chain {source.chain_id} here: WORKBENCH_EVM_RPC has to name a node of it"
        yield Remark("warning", message, None, "triggerSpec.chainId")
    own = set() if source is None else {f"{source.contract}:{source.declared.name.lower()}"}
    for name, node_id, field in _awaited_logs(graph):
        if name not in known.logs | own:
            message = f"no log {name} was seen: it has to be kept, by an automation that starts from it or `workbench chain watch`"
            yield Remark("warning", message, node_id, field)


def _awaited_logs(graph: Graph) -> Iterator[tuple[str, str | None, str | None]]:
    yield from (each for each in _awaited(graph) if LOG_NAME.fullmatch(each[0]))


def _named_segments(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield every segment that a condition asks for, with its node."""
    for node in graph.nodes:
        if isinstance(node.action, Condition):
            for each in node.action.filters:
                if each.path == "contact.segments" and each.operator == "contains" and isinstance(each.value, str):
                    yield each.value, node.id


def _named(trigger: Trigger, graph: Graph) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield every custom event that is named, with the node or the field that names it: the catalog has no logs of chains."""
    yield from ((name, None, "triggerSpec") for name in sorted(trigger.names))
    yield from (each for each in _awaited(graph) if not LOG_NAME.fullmatch(each[0]))


def _awaited(graph: Graph) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield every event that is waited for, with the node or the field that names it."""
    if graph.settings.goal is not None:
        yield graph.settings.goal.event, None, "graph.settings.goal"
    for node in graph.nodes:
        if isinstance(node.action, WaitForEvent):
            yield node.action.event, node.id, None


def _asked(trigger: Trigger, graph: Graph) -> Iterator[_Asked]:
    starting, goal = tuple(sorted(trigger.names)), graph.settings.goal
    for each in trigger.filters:
        if not each.path.startswith(("payload.", "contact.")):  # the language's own check remarks on these
            yield from _in_payload(each.path, starting, field="triggerSpec.filters")
    if goal is not None:
        yield from _in_filters(goal.filters, goal.event, field="graph.settings.goal.filters")
    for node in graph.nodes:
        for path in sorted(paths_of(node)):
            yield from _in_payload(path, starting, node_id=node.id)
        if isinstance(node.action, WaitForEvent):
            yield from _in_filters(node.action.filters, node.action.event, node_id=node.id)


def _in_filters(
    filters: tuple[Filter, ...], event: str, node_id: str | None = None, field: str | None = None
) -> Iterator[_Asked]:
    for each in filters:
        yield from _in_payload(each.path, (event,), node_id, field)


def _in_payload(
    path: str, events: tuple[str, ...], node_id: str | None = None, field: str | None = None
) -> Iterator[_Asked]:
    """Yield the path as it is in the payload, nothing for what is not in it."""
    if path not in (*BUILT_INS, "payload", "contact") and not path.startswith("contact."):
        yield _Asked(path.removeprefix("payload."), events, node_id, field)


def _paths(events: tuple[str, ...], seen: Seen) -> Collection[str] | None:
    """Return the paths of all these events; None where one was not looked into, or there may be any."""
    if not events or any(event not in seen.paths for event in events):
        return None
    return {path for event in events for path in seen.paths[event]}


def _was_sent(path: str, known: Collection[str]) -> bool:
    """Return whether a path, something in it, or something around it was seen: what is in a list is not listed."""
    return path in known or any(each.startswith(f"{path}.") or path.startswith(f"{each}.") for each in known)


def never_came(name: str, events: Collection[str]) -> str:
    """Say that an event never came, and which of those that did may be meant."""
    return f"no event {name!r} came in the last 30 days{meant(name, events)}"


def never_sent(path: str, events: tuple[str, ...], known: Collection[str]) -> str:
    """Say that a path was never in any of these events, and which of those known may be meant."""
    near = nearest(path, known)
    told = f": did you mean {near!r}?" if near else f'; wb.catalog["{events[0]}"] shows what was'
    return f"{path!r} was never seen in {_either(events)}{told}"


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
