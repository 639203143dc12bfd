"""What stands against publishing a graph, and what its author should know. Every remark names its node."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from api.language.action import Condition, Entered, Exit, Invalid, SendEmail, SendInapp, WaitForEvent, Way, texts_of
from api.language.event import EVENT_NAME
from api.language.filter import OPERATORS, Filter
from api.language.graph import Edge, Graph, Node
from api.language.onchain import remarks
from api.language.template import TemplateError, compile_template
from api.language.trigger import BUILT_INS, Trigger

Level = Literal["error", "warning"]


class Remark(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One finding; an `error` refuses publication."""

    level: Level
    message: str
    node_id: str | None = None
    field: str | None = None

    def __str__(self) -> str:
        return f"{self.node_id}: {self.message}" if self.node_id else self.message


def check(trigger: Trigger, graph: Graph) -> tuple[Remark, ...]:
    """Return every remark on an automation, errors first."""
    remarks = [
        *_nodes(graph),
        *_start(graph),
        *_edges(graph),
        *_loops(graph),
        *_reach(graph),
        *_settings(graph),
        *_names(trigger),
        *_operators(trigger, graph),
        *_trigger_paths(trigger),
        *_lists(graph),
        *_shadowed(trigger, graph),
        *_without_address(trigger, graph, SendInapp, "walletAddress", "a wallet"),
        *_without_address(trigger, graph, SendEmail, "email", "an email address"),
    ]
    return tuple(sorted(remarks, key=lambda remark: remark.level != "error"))


def errors(remarks: tuple[Remark, ...]) -> tuple[Remark, ...]:
    """Return the remarks that refuse publication."""
    return tuple(remark for remark in remarks if remark.level == "error")


def _nodes(graph: Graph) -> Iterator[Remark]:
    seen: set[str] = set()
    for node in graph.nodes:
        if node.id in seen:
            yield Remark("error", "has the same id as another node", node.id)
        seen.add(node.id)
        if isinstance(node.action, Invalid):
            yield from (Remark("error", problem.reason, node.id, problem.field) for problem in node.action.problems)


def _start(graph: Graph) -> Iterator[Remark]:
    triggers = [node for node in graph.nodes if isinstance(node.action, Entered)]
    if not graph.nodes:
        yield Remark("error", "the graph is empty: it needs a trigger node and at least one step")
    elif not triggers:
        yield Remark(
            "warning", "is where entries start, as the first node: there is no trigger node", graph.nodes[0].id
        )
    elif graph.nodes[0] is not triggers[0]:
        yield Remark("warning", "should be the first node of the graph", triggers[0].id)
    yield from (Remark("error", "is a second trigger: a graph has one", node.id) for node in triggers[1:])


def _edges(graph: Graph) -> Iterator[Remark]:
    taken: set[tuple[str, Way]] = set()
    for edge in graph.edges:
        source, target = graph.by_id.get(edge.source), graph.by_id.get(edge.target)
        if source is None:
            known = None if target is None else target.id
            yield Remark("error", f"an edge comes from a node {edge.source!r} that is not there", known)
            continue
        if target is None:
            yield Remark("error", f"an edge leads to a node {edge.target!r} that is not there", source.id)
        if edge.handle not in source.handles and not isinstance(source.action, Invalid):
            yield Remark("error", _no_way(source, edge.handle), source.id)
        if (edge.source, edge.handle) in taken:
            yield Remark("error", "has two edges from the same way out", source.id)
        taken.add((edge.source, edge.handle))
    for node in graph.nodes:
        if len(node.handles) > 1 and not any((node.id, handle) in taken for handle in node.handles):
            yield Remark("error", f"leads nowhere: connect {_listed(node.handles, 'or')}", node.id)


def _no_way(node: Node, handle: Way) -> str:
    if isinstance(node.action, Exit):
        return "ends the entry: no edge leaves it"
    if node.handles == (None,):
        return f"has one way out: its edge carries no sourceHandle, such as {handle!r}"
    said = "has an edge without sourceHandle" if handle is None else f"has no way out called {handle!r}"
    return f"{said}: its ways out are {_listed(node.handles, 'and')}"


def _listed(handles: Iterable[Way], last: str) -> str:
    *names, final = filter(None, handles)
    return f"{', '.join(names)} {last} {final}" if names else final


def _loops(graph: Graph) -> Iterator[Remark]:
    state: dict[str, bool] = {}  # False: on the path being walked, True: done
    following = _neighbours(graph.edges)
    for node in graph.nodes:
        path = [(node.id, iter(following.get(node.id, ())))] if node.id not in state else []
        state.setdefault(node.id, False)
        while path:
            current, targets = path[-1]
            target = next(targets, None)
            if target is None:
                state[current] = True
                path.pop()
            elif target not in state:
                state[target] = False
                path.append((target, iter(following.get(target, ()))))
            elif not state[target]:
                yield Remark("error", f"leads back to {target!r}: a graph has no loops", current)


def _reach(graph: Graph) -> Iterator[Remark]:
    if graph.start is None:
        return
    reached = _reached(graph.start.id, _neighbours(graph.edges))
    for node in graph.nodes:
        if node.id not in reached:
            yield Remark("error", "cannot be reached from the trigger", node.id)
    if reached == {graph.start.id} and isinstance(graph.start.action, Entered):
        yield Remark("error", "nothing follows the trigger", graph.start.id)


def _reached(start: str, following: dict[str, list[str]]) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        for target in following.get(waiting.pop(), ()):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def _neighbours(edges: Iterable[Edge]) -> dict[str, list[str]]:
    following: dict[str, list[str]] = {}
    for edge in edges:
        following.setdefault(edge.source, []).append(edge.target)
    return following


def _settings(graph: Graph) -> Iterator[Remark]:
    settings = graph.settings
    yield from (Remark("error", problem.reason, field=problem.field) for problem in settings.problems)
    if settings.holdout and settings.goal is None and not settings.problems:
        message = "without a goal there is nothing to compare: name the event that this automation is to bring about"
        yield Remark("warning", message, field="graph.settings.holdout")


def _names(trigger: Trigger) -> Iterator[Remark]:
    if trigger.source is not None:
        for message in remarks(trigger.source, trigger.filters):
            yield Remark("warning", message, field="triggerSpec.filters")
        return
    if not trigger.names:
        message = "no event name: every custom event of the organization starts this automation"
        yield Remark("warning", message, field="triggerSpec")
    for name in sorted(trigger.names):
        if not EVENT_NAME.fullmatch(name):
            yield Remark("warning", f"no event can be called {name!r}", field="triggerSpec")


def _operators(trigger: Trigger, graph: Graph) -> Iterator[Remark]:
    for node in graph.nodes:
        if isinstance(node.action, Condition) and not node.action.filters:
            yield Remark("warning", "has no filters: it always goes on along true", node.id)
    for node_id, field, each in _filters(trigger, graph):
        if each.operator not in OPERATORS:
            message = f"the operator {each.operator!r} on {each.path!r} is unknown and will be dropped"
            yield Remark("warning", f"{message}; there are {', '.join(OPERATORS)}", node_id, field)


def _filters(trigger: Trigger, graph: Graph) -> Iterator[tuple[str | None, str | None, Filter]]:
    """Yield every filter there is, with the node or the field it stands in."""
    yield from ((None, "triggerSpec.filters", each) for each in trigger.filters)
    if graph.settings.goal is not None:
        yield from ((None, "graph.settings.goal.filters", each) for each in graph.settings.goal.filters)
    for node in graph.nodes:
        if isinstance(node.action, Condition | WaitForEvent):
            yield from ((node.id, None, each) for each in node.action.filters)


def _trigger_paths(trigger: Trigger) -> Iterator[Remark]:
    """Warn of paths that only conditions and texts know: the trigger sees the flat context (contract §4.7.3)."""
    for each in trigger.filters:
        first, _, rest = each.path.partition(".")
        if first == "payload" and rest:
            message = f"the trigger sees the payload's own keys: write {rest!r}, not {each.path!r}"
            yield Remark("warning", message, field="triggerSpec.filters")
        elif first == "contact" and rest:
            message = f"the trigger does not see the contact: ask for {each.path!r} in a condition"
            yield Remark("warning", message, field="triggerSpec.filters")


def _lists(graph: Graph) -> Iterator[Remark]:
    """Warn of conditions that take a list of the contact's for one of its elements."""
    for node in graph.nodes:
        for each in node.action.filters if isinstance(node.action, Condition) else ():
            of_list = each.path in ("contact.tags", "contact.segments")
            if of_list and each.operator in ("eq", "neq", "in") and _has_text(each.value, each.operator):
                yield Remark("warning", f"{each.path} is a list: ask whether it contains a value", node.id)


def _has_text(value: Any, operator: str) -> bool:
    return any(isinstance(each, str) for each in (value if operator == "in" and isinstance(value, list) else [value]))


def _shadowed(trigger: Trigger, graph: Graph) -> Iterator[Remark]:
    """Warn where a built-in is used although the author knows of a payload key of that name, which overrides it."""
    used = [(None, {each.path for each in trigger.filters}), *((node.id, paths_of(node)) for node in graph.nodes)]
    in_payload = {
        name for _, paths in used for name in BUILT_INS if any(_is_or_in(path, f"payload.{name}") for path in paths)
    }
    for node_id, paths in used:
        for name in sorted(in_payload & paths):
            yield Remark(
                "warning",
                f"{name!r} is the payload's key of that name when the event has one, not the built-in value",
                node_id,
                "triggerSpec.filters" if node_id is None else None,
            )


def _is_or_in(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}.")


def paths_of(node: Node) -> set[str]:
    """Return the paths that a node looks at in the event that started the entry, and in the contact."""
    if isinstance(node.action, Condition):
        return {each.path for each in node.action.filters}
    return {path for text in texts_of(node.action) for path in _text_paths(text)}


def _text_paths(text: str) -> frozenset[str]:
    try:
        return compile_template(text).paths
    except TemplateError:
        return frozenset()


def _without_address(trigger: Trigger, graph: Graph, kind: type, name: str, words: str) -> Iterator[Remark]:
    """Warn of messages on a way that asks nowhere for the address they go to."""
    if graph.start is None or _ask_for(name, trigger.filters) or (trigger.source and kind is SendInapp):
        return
    unasked = [edge for edge in graph.edges if not _asks(name, graph.by_id.get(edge.source), edge.handle)]
    reached = _reached(graph.start.id, _neighbours(unasked))
    for node in graph.nodes:
        if isinstance(node.action, kind) and node.id in reached:
            yield Remark(
                "warning", f"fails for contacts without {words}: ask for {name} in a condition before", node.id
            )


def _asks(name: str, node: Node | None, handle: Way) -> bool:
    return (
        node is not None
        and isinstance(node.action, Condition)
        and handle == "true"
        and _ask_for(name, node.action.filters)
    )


def _ask_for(name: str, filters: Iterable[Filter]) -> bool:
    asking = ("exists", "eq", "in", "contains")
    return any(each.path in (name, f"contact.{name}") and each.operator in asking for each in filters)
