"""A draft: the graph as it is being written, with its open ends. The methods that write it are in `verbs`.

A draft *is* the contract's payload (trigger spec, nodes, edges) plus a list of open ends, so reading JSON and writing
it again loses nothing, whichever program wrote it. An open end is a handle of a node without an edge; the next step is
connected to every open end. Drafts never change: each function here returns a new one.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeAlias, TypedDict, cast
from zlib import crc32

import msgspec

from workbench.display.kinds import TRIGGER_ARGUMENTS, free_id
from workbench.display.layout import Point, chosen_positions, grid_positions, position_below
from workbench.display.outline import TRIGGER_ID
from workbench.errors import InvalidAutomationError
from workbench.language.actions import MAX_ID_LENGTH, is_valid_id, side_handles
from workbench.language.check import Diagnostic, check
from workbench.language.codec import encode, exactness_problem, normalize
from workbench.language.event import EVENT_NAME, is_awaitable_name
from workbench.language.filter import OPERATORS, WHERE, is_expression, paths_of, where_problem, written_conditions
from workbench.language.filter import condition_fields as condition_fields
from workbench.language.graph import Graph, read_graph, read_settings
from workbench.language.problem import DeclarationError
from workbench.language.trigger import Trigger, read_trigger

JsonObject: TypeAlias = dict[str, Any]
OpenEnd: TypeAlias = tuple[str, str | None]
"""A node id and a handle that has no edge yet."""


class FilterArguments(TypedDict, total=False):
    """The operator of a filter and its value: one of these. Without one the filter checks whether the value is set.

    None stands for JSON null.
    """

    eq: object
    neq: object
    is_in: Iterable[object]
    contains: object
    exists: Literal[True]
    gt: object
    gte: object
    lt: object
    lte: object


COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}  # written into `where`: filters cannot compare
KEYWORDS = {name: "is_in" if name == "in" else name for name in OPERATORS}  # `in` is a keyword of Python
if FilterArguments.__annotations__.keys() != {*KEYWORDS.values(), *COMPARISONS}:
    raise DeclarationError(f"FilterArguments must be {', '.join((*KEYWORDS.values(), *COMPARISONS))}")
_EXAMPLES = {"value": "…", "list": "[…]", "nothing": "True"}
*_USAGES, _LAST_USAGE = [
    *(f"{KEYWORDS[name]}={_EXAMPLES[operator.operand]}" for name, operator in OPERATORS.items()),
    *(f"{name}=…" for name in COMPARISONS),
]
OPERATOR_USAGE = f"{', '.join(_USAGES)} or {_LAST_USAGE}"

WhereArgument: TypeAlias = str | Mapping[str, object] | Sequence[str | Mapping[str, object]]
"""`{"plan": "pro", "amountUsd": {"is_in": [1, 2]}}`, an expression (`"amountUsd > 500"`), or a list of these."""


class Fork(msgspec.Struct, frozen=True):
    """A branching node, and its handles that have no steps yet."""

    node_id: str
    handles: tuple[str, ...]


class Draft(msgspec.Struct, frozen=True):
    """An automation that is being written.

    `fork` is the node just written, while its branches can still be added one by one. `as_read`: unchanged since it was
    read from JSON. `extra_keys` are the keys of the graph other than nodes and edges: settings, and keys of a canvas.
    """

    name: str
    trigger: JsonObject = msgspec.field(default_factory=lambda: {"type": "app_event"})
    nodes: tuple[JsonObject, ...] = ()
    edges: tuple[JsonObject, ...] = ()
    ends: tuple[OpenEnd, ...] = ()
    fork: Fork | None = None
    as_read: bool = False
    extra_keys: JsonObject = {}

    def payload(self) -> JsonObject:
        """Return the contract's payload: `name`, `triggerSpec`, `graph`. Nodes without a position get one on a grid."""
        nodes = [*self.nodes]
        if not self.as_read:  # a payload that was only read comes back unchanged, even without positions
            links = [(edge["source"], edge["target"]) for edge in self.edges]
            grid = grid_positions([node["id"] for node in self.nodes], links)
            # `| node` last, so that a position that a user chose wins.
            nodes = [{"id": node["id"], "type": node["type"], "position": grid[node["id"]]} | node for node in nodes]
        graph = {"nodes": nodes, "edges": [*self.edges]} | self.extra_keys
        return {"name": self.name, "triggerSpec": self.trigger, "graph": graph}

    def language(self) -> tuple[Trigger, Graph]:
        """Return trigger and graph as the engine reads them; raise InvalidAutomationError if their shape is wrong."""
        payload = normalize(self.payload())  # as the server receives it, with exact decimals
        return read_language(payload["triggerSpec"], payload["graph"])

    def remarks(self) -> tuple[Diagnostic, ...]:
        """Return the errors, which prevent publishing, and then the warnings."""
        payload = normalize(self.payload())
        trigger, graph = read_trigger(payload["triggerSpec"]), read_graph(payload["graph"])
        if isinstance(trigger, Trigger) and isinstance(graph, Graph):
            tags = {
                node["id"]: node["data"].get("tag")
                for node in payload["graph"]["nodes"]
                if node.get("type") in ("add_tag", "remove_tag") and isinstance(node.get("data"), dict)
            }
            diagnostics = []
            for diagnostic in check(trigger, graph):
                if diagnostic.node_id in tags and diagnostic.field is not None:
                    # The message names the tag: the node's id rarely shows what is wrong with it.
                    tag = repr(tags[diagnostic.node_id])
                    shown = tag if len(tag) <= _MAX_SHOWN_TAG else f"{tag[:_MAX_SHOWN_TAG]}…"
                    message = f"the tag {shown} {diagnostic.message}"
                    diagnostics.append(msgspec.structs.replace(diagnostic, message=message))
                else:
                    diagnostics.append(diagnostic)
            return tuple(diagnostics)
        return tuple(
            Diagnostic("error", problem.reason, field=problem.field)
            for problems in (trigger, graph)
            if isinstance(problems, tuple)
            for problem in problems
        )

    def positions(self) -> dict[str, Point] | None:
        """Return the positions that a user chose, in pixels; None if the nodes are laid out automatically."""
        return chosen_positions(self.nodes, self.edges)


_MAX_SHOWN_TAG = 48


def read_language(trigger_spec: Any, graph: Any) -> tuple[Trigger, Graph]:
    """Return trigger and graph as the engine reads them; raise InvalidAutomationError if their shape is wrong."""
    results = read_trigger(trigger_spec), read_graph(graph)
    if problems := [problem for result in results if isinstance(result, tuple) for problem in result]:
        raise InvalidAutomationError("; ".join(map(str, problems)))
    return cast("tuple[Trigger, Graph]", results)


# Creating drafts


def from_json(payload: Mapping[str, Any]) -> Draft:
    """Return the draft in a contract payload. Its `payload()` is equal to the argument.

    Raises InvalidAutomationError if it is not the payload of an automation.
    """
    shape = "an automation is an object with name, triggerSpec and graph"
    if not isinstance(payload, Mapping):
        raise InvalidAutomationError(shape)
    spec, graph = payload.get("triggerSpec"), payload.get("graph")
    if not isinstance(spec, dict) or not isinstance(graph, dict):
        raise InvalidAutomationError(shape)
    language_graph = read_graph(normalize(graph))
    if isinstance(language_graph, tuple):
        raise InvalidAutomationError("; ".join(map(str, language_graph)))
    extra_keys = {key: value for key, value in graph.items() if key not in ("nodes", "edges")}
    return Draft(
        str(payload.get("name", "")),
        spec,
        nodes=tuple(graph.get("nodes") or ()),
        edges=tuple(graph.get("edges") or ()),
        ends=_open_ends(language_graph),
        as_read=True,
        extra_keys=extra_keys,
    )


def _open_ends(graph: Graph) -> tuple[OpenEnd, ...]:
    """Return the open ends in the order in which the verbs leave them: depth first, branch by branch.

    So an automation that was read continues exactly like one that was just written.
    """
    targets = graph.next_node_ids
    # Reversed, because the stack below takes the last element first.
    handles = {node.id: [(node.id, handle) for handle in reversed(node.handles)] for node in reversed(graph.nodes)}
    stack = [end for node_handles in handles.values() for end in node_handles]
    ends, visited = [], set()
    while stack:
        end = stack.pop()
        if end in visited:
            continue
        visited.add(end)
        if end in targets:
            stack += handles.get(targets[end], ())
        elif end[1] not in side_handles(graph.by_id[end[0]].kind):
            ends.append(end)
    return tuple(ends)


def new_draft(name: str, events: tuple[str, ...], node_id: str | None = None) -> Draft:
    """Return a draft with a trigger and no steps. Without event names every custom event starts it."""
    names = [event_name(event) for event in events]
    spec: JsonObject = {"type": "app_event"}  # the wildcard, as it names no event
    if len(names) == 1:
        spec["event"] = names[0]
    elif names:
        spec["eventNames"] = names
    return start_draft(name, spec, node_id)


def start_draft(name: str, spec: JsonObject, node_id: str | None = None) -> Draft:
    """Return a draft with a trigger and no steps; raise InvalidAutomationError naming the argument that is wrong."""
    _require_json(spec)
    problems = read_trigger(normalize(spec))
    if isinstance(problems, tuple):
        arguments = [TRIGGER_ARGUMENTS.get(problem.field.rpartition(".")[2]) or "trigger" for problem in problems]
        reasons = [f"{argument} {problem.reason}" for argument, problem in zip(arguments, problems, strict=True)]
        raise InvalidAutomationError("; ".join(reasons))
    trigger_id = TRIGGER_ID if node_id is None else _new_id(node_id, set())
    data = {"actionType": spec["type"]} | {key: spec[key] for key in ("event", "eventNames") if key in spec}
    return Draft(name, spec, ({"id": trigger_id, "type": spec["type"], "data": data},), (), ((trigger_id, None),))


# Extending drafts


def with_filter(draft: Draft, filter_: JsonObject) -> Draft:
    """Return the draft with one more filter on its trigger."""
    _require_json(filter_)
    spec = {**draft.trigger, **condition_fields([*written_conditions(draft.trigger), filter_])}
    return msgspec.structs.replace(draft, trigger=spec, fork=None, as_read=False)


def with_setting(draft: Draft, name: str, value: JsonObject | int | str) -> Draft:
    """Return the draft with a setting such as `goal`; raise InvalidAutomationError if its value is not valid."""
    if not draft.nodes:
        raise InvalidAutomationError('start with the event: .on("deposit")')
    _require_json({name: value})
    if problems := read_settings(normalize({name: value}), "").problems:
        raise InvalidAutomationError("; ".join(f"{problem.field.lstrip('.')} {problem.reason}" for problem in problems))
    # Settings live in the graph, so that a version contains them and a rollback restores them (docs/decisions/0016).
    before = draft.extra_keys.get("settings")
    settings = {**(before if isinstance(before, dict) else {}), name: value}
    return msgspec.structs.replace(draft, extra_keys={**draft.extra_keys, "settings": settings}, as_read=False)


def with_node(
    draft: Draft, kind: str, data: JsonObject, handles: tuple[str | None, ...] = (None,), node_id: str | None = None
) -> Draft:
    """Return the draft with one more node after every open end; its own handles are then the open ends."""
    if not draft.nodes:
        raise InvalidAutomationError(f'start {draft.name!r} with its event: .on("deposit") or .on_any_event()')
    _require_json(data)
    ids = {node["id"] for node in draft.nodes}
    node_id = free_id(kind, data, ids) if node_id is None else _new_id(node_id, ids)
    node: JsonObject = {"id": node_id, "type": kind, "data": {"actionType": kind} | data}
    nodes, points = draft.nodes, draft.positions()
    if points is None:
        # Grid positions depend on the whole graph, so they are dropped and computed again for the longer one.
        nodes = tuple({key: value for key, value in other.items() if key != "position"} for other in nodes)
    else:
        above = next((source for source, _ in draft.ends), nodes[-1]["id"])
        node["position"] = position_below(points, above)
    return msgspec.structs.replace(
        draft,
        nodes=(*nodes, node),
        edges=(*draft.edges, *(_edge(end, node_id) for end in draft.ends)),
        ends=tuple((node_id, handle) for handle in handles),
        fork=None,
        as_read=False,
    )


def with_ends_at(draft: Draft, node_id: object) -> Draft:
    """Return the draft with every open end connected to an existing node."""
    ids = [node["id"] for node in draft.nodes]
    if node_id not in ids:
        raise InvalidAutomationError(f"step not found: {node_id!r}. The steps so far are {', '.join(ids)}")
    edges = (*draft.edges, *(_edge(end, str(node_id)) for end in draft.ends))
    return msgspec.structs.replace(draft, edges=edges, ends=(), fork=None, as_read=False)


def _new_id(node_id: object, ids: set[str]) -> str:
    if not is_valid_id(node_id):
        raise InvalidAutomationError(f"{node_id!r} cannot be the id of a step: write 1 to {MAX_ID_LENGTH} characters")
    if node_id in ids:
        raise InvalidAutomationError(f"another step has the id {node_id!r}: ids are unique")
    return str(node_id)


def _require_json(data: JsonObject) -> None:
    try:
        problem, _ = exactness_problem(data, ""), encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidAutomationError(f"{data!r} cannot be written as JSON: {error}") from None
    if problem is not None:
        raise InvalidAutomationError(problem)


def _edge(end: OpenEnd, target: str) -> JsonObject:
    source, handle = end
    edge_id = f"{source}-{target}" if handle is None else f"{source}-{handle}-{target}"
    if len(edge_id) > MAX_ID_LENGTH:  # the checksum keeps shortened ids distinct
        edge_id = f"{edge_id[: MAX_ID_LENGTH - 9]}-{crc32(edge_id.encode()):08x}"
    handle_key = {} if handle is None else {"sourceHandle": handle}
    return {"id": edge_id, "source": source, **handle_key, "target": target}


# Arguments of the verbs


def event_name(name: object) -> str:
    """Return the name of an event as it is stored, in lower case; raise InvalidAutomationError if it is not valid."""
    if isinstance(name, list | tuple | set) and all(isinstance(item, str) for item in name):
        names = ", ".join(map(repr, name))
        raise InvalidAutomationError(f"event names are separate arguments, not a list: .on({names})")
    if not isinstance(name, str):
        raise InvalidAutomationError(f'{name!r} is not an event name: write a string, like .on("deposit")')
    if not EVENT_NAME.fullmatch(name):
        raise InvalidAutomationError(f"{name!r} is not an event name: 1 to 64 characters of a-z 0-9 _ . : -")
    return name.lower()


def awaited_name(name: object) -> str:
    """Return the name by which a wait or a goal refers to an event or a log (`0x…:Transfer`), in lower case.

    Raises InvalidAutomationError for any other name.
    """
    return name.lower() if isinstance(name, str) and is_awaitable_name(name) else event_name(name)


def read_filter(path: object, arguments: Mapping[str, object]) -> JsonObject:
    """Return the filter that `path` and `FilterArguments` describe; raise InvalidAutomationError for anything else."""
    if not isinstance(path, str) or not path:
        raise InvalidAutomationError(
            f'{path!r} is not a path: write the name of a value, like "amountUsd" or "contact.plan"'
        )
    if len(arguments) > 1:
        raise InvalidAutomationError(f"write one operator for {path!r}: {OPERATOR_USAGE}")
    # Without an operator, the filter asks whether there is a value: `.when("contact.email")`.
    if not arguments and is_expression(path):
        return _expression(path)
    name, value = next(iter(arguments.items()), ("exists", True))
    if name in COMPARISONS:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise InvalidAutomationError(f"{path!r}, {name}={value!r}: compare with a number or a text")
        if (problem := exactness_problem(value, f"{path}, {name}")) is not None:
            raise InvalidAutomationError(problem)
        if paths_of(path) != {path}:
            raise InvalidAutomationError(f"{path!r} cannot be compared: its keys must be names, like order.total")
        return _expression(f"{path} {COMPARISONS[name]} {encode(value).decode()}")
    operator = next((operator for operator, keyword in KEYWORDS.items() if keyword == name), name)
    match OPERATORS[operator].operand if operator in OPERATORS else "value":
        case "nothing":
            if value is not True:
                raise InvalidAutomationError(
                    f"no operator matches missing values: write .when({path!r}, {name}=True) and then .otherwise(…)"
                )
            return {"path": path, "operator": operator}
        case "list":
            # A string is iterable too: without this check is_in="pro" would mean ["p", "r", "o"].
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise InvalidAutomationError(f"{name} takes a list, like {name}=[{value!r}]")
            return {"path": path, "operator": operator, "value": list(value)}
        case "value":
            return {"path": path, "operator": operator, "value": value}


def _expression(text: str) -> JsonObject:
    if (reason := where_problem(text)) is not None:
        raise InvalidAutomationError(f"{text!r} is not an expression: {reason}")
    return {WHERE: text}


def read_where(where: WhereArgument | None) -> list[JsonObject]:
    """Return the filters in a `where` argument; raise InvalidAutomationError if it has another form."""
    if where is None:
        return []
    if isinstance(where, str) and is_expression(where):
        return [_expression(where)]
    if isinstance(where, list | tuple):
        return [filter_ for part in where for filter_ in read_where(part)]
    if not isinstance(where, Mapping):
        raise InvalidAutomationError(
            f'where={where!r}: write {{"plan": "pro"}}, {{"plan": {{"is_in": ["pro", "max"]}}}} or "amountUsd > 500"'
        )
    filters = []
    for path, value in where.items():
        # A mapping with an operator as its only key is a filter; any other mapping is a value to compare with.
        if isinstance(value, Mapping) and len(value) == 1 and value.keys() <= FilterArguments.__annotations__.keys():
            filters.append(read_filter(path, value))
        else:
            filters.append(read_filter(path, {"eq": value}))
    return filters
