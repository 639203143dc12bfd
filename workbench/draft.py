"""An automation as it is written: the graph, and the ends that are still open. The verbs that write it are in `verbs`.

A draft *is* the contract's payload (trigger spec, nodes, edges) plus the list of open ends, so reading JSON and writing it again
loses nothing, whoever made it. Node ids are readable and follow from what the node does. Values are never changed: every verb
returns a new draft.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeGuard
from zlib import crc32

import msgspec

from workbench.display.cards import free_id
from workbench.display.layout import Point, chosen_positions, grid_positions, position_below
from workbench.display.outline import TRIGGER_ID
from workbench.errors import InvalidAutomationError
from workbench.language.actions import MAX_ID_LENGTH, is_valid_id
from workbench.language.check import Diagnostic, check
from workbench.language.codec import encode, normalise
from workbench.language.event import EVENT_NAME, LOG_NAME
from workbench.language.graph import Graph, read_graph, read_settings
from workbench.language.problem import Problem
from workbench.language.trigger import Trigger, read_trigger

JsonObject: TypeAlias = dict[str, Any]
End: TypeAlias = tuple[str, str | None]
"""A way out of a node that leads nowhere yet: node id and handle."""

_TAG_SHOWN = 48


class FilterArguments(TypedDict, total=False):
    """What may be asked of a value, one of these at a time; none of them asks whether it is there. None is a value: null."""

    eq: object
    neq: object
    is_in: Iterable[object]
    contains: object
    exists: Literal[True]


OPERATORS = "eq=…, neq=…, is_in=[…], contains=… or exists=True"


class Fork(msgspec.Struct, frozen=True):
    """A node that branches, and those of its ways that have not been told yet."""

    node_id: str
    ways: tuple[str, ...]


class Draft(msgspec.Struct, frozen=True):
    """An automation as it is written so far.

    `fork`: the node just written whose ways may still be told one by one. `as_read`: untouched since it was read from JSON.
    `beside`: what is in the graph besides nodes and edges, such as its settings and what a canvas keeps there.
    """

    name: str
    trigger: JsonObject = msgspec.field(default_factory=lambda: {"type": "app_event"})
    nodes: tuple[JsonObject, ...] = ()
    edges: tuple[JsonObject, ...] = ()
    ends: tuple[End, ...] = ()
    fork: Fork | None = None
    as_read: bool = False
    beside: JsonObject = {}

    def payload(self) -> JsonObject:
        """Return the contract's payload: `name`, `triggerSpec`, `graph` with places for the nodes that have none."""
        return {
            "name": self.name,
            "triggerSpec": self.trigger,
            "graph": {"nodes": self._placed(), "edges": [*self.edges]} | self.beside,
        }

    def language(self) -> tuple[Trigger, Graph]:
        """Return the draft as the engine reads it; raise InvalidAutomationError when its shape is wrong."""
        payload = normalise(self.payload())
        trigger, graph = read_trigger(payload["triggerSpec"]), read_graph(payload["graph"])
        problems = [*(trigger if isinstance(trigger, tuple) else ()), *(graph if isinstance(graph, tuple) else ())]
        if isinstance(trigger, tuple) or isinstance(graph, tuple):
            raise InvalidAutomationError("; ".join(map(str, problems)))
        return trigger, graph

    def remarks(self) -> tuple[Diagnostic, ...]:
        """Return what stands against publishing, and what the author should know."""
        payload = normalise(self.payload())
        trigger, graph = read_trigger(payload["triggerSpec"]), read_graph(payload["graph"])
        found = [*_as_remarks(trigger), *_as_remarks(graph)]
        if isinstance(trigger, Trigger) and isinstance(graph, Graph):
            tags = {node["id"]: node["data"].get("tag") for node in payload["graph"]["nodes"] if _is_tag(node)}
            found += [_with_tag(each, tags) for each in check(trigger, graph)]
        return tuple(found)

    def positions(self) -> dict[str, Point] | None:
        """Return where somebody put the nodes, in pixels; None when they are laid out."""
        return chosen_positions(self.nodes, self.edges)

    def _placed(self) -> list[JsonObject]:
        if self.as_read:
            return [*self.nodes]
        links = [(edge["source"], edge["target"]) for edge in self.edges]
        places = grid_positions([node["id"] for node in self.nodes], links)
        return [{"id": node["id"], "type": node["type"], "position": places[node["id"]]} | node for node in self.nodes]


def _as_remarks(read: Trigger | Graph | tuple[Problem, ...]) -> list[Diagnostic]:
    return [Diagnostic("error", each.reason, field=each.field) for each in read] if isinstance(read, tuple) else []


def _is_tag(node: JsonObject) -> bool:
    return node.get("type") in ("add_tag", "remove_tag") and isinstance(node.get("data"), dict)


def _with_tag(remark: Diagnostic, tags: Mapping[str, Any]) -> Diagnostic:
    """Name the tag in what stands against it: the node's id seldom shows what is wrong."""
    if remark.node_id is None or remark.node_id not in tags or remark.field is None:
        return remark
    tag = repr(tags[remark.node_id])
    shown = tag if len(tag) <= _TAG_SHOWN else f"{tag[:_TAG_SHOWN]}…"
    return msgspec.structs.replace(remark, message=f"the tag {shown} {remark.message}")


def from_json(payload: Mapping[str, Any]) -> Draft:
    """Return the draft in a payload; raise InvalidAutomationError when it is not one. Writing it again gives the same payload."""
    if not isinstance(payload, Mapping):
        raise InvalidAutomationError("an automation is an object with name, triggerSpec and graph")
    spec, graph = payload.get("triggerSpec"), payload.get("graph")
    if not isinstance(spec, dict) or not isinstance(graph, dict):
        raise InvalidAutomationError("an automation is an object with name, triggerSpec and graph")
    read = read_graph(normalise(graph))
    if isinstance(read, tuple):
        raise InvalidAutomationError("; ".join(map(str, read)))
    nodes, edges = tuple(graph.get("nodes") or ()), tuple(graph.get("edges") or ())
    beside = {key: value for key, value in graph.items() if key not in ("nodes", "edges")}
    return Draft(str(payload.get("name", "")), spec, nodes, edges, _open_ends(read), as_read=True, beside=beside)


def _open_ends(graph: Graph) -> tuple[End, ...]:
    """Return the ways out that lead nowhere, in the order in which verbs leave them: all along one way, then the next."""
    leads: dict[End, str] = {}
    for edge in graph.edges:
        leads.setdefault((edge.source, edge.handle), edge.target)
    ways = {node.id: [(node.id, way) for way in reversed(node.handles)] for node in reversed(graph.nodes)}
    found, left = [], [end for node_ways in ways.values() for end in node_ways]
    known: set[End] = set()
    while left:
        end = left.pop()
        if end in known:
            continue
        known.add(end)
        if end in leads:
            left += ways.get(leads[end], ())
        else:
            found.append(end)
    return tuple(found)


def new_draft(name: str, events: tuple[str, ...], node_id: str | None = None) -> Draft:
    """Return a draft with a trigger and nothing else; no events at all is the wildcard."""
    names = [event_name(each) for each in events]
    spec: JsonObject = {"type": "app_event"}
    if len(names) == 1:
        spec["event"] = names[0]
    elif names:
        spec["eventNames"] = names
    data = {"actionType": "app_event"} | {key: spec[key] for key in ("event", "eventNames") if key in spec}
    trigger_id = TRIGGER_ID if node_id is None else _new_id(node_id, set())
    return Draft(name, spec, ({"id": trigger_id, "type": "app_event", "data": data},), (), ((trigger_id, None),))


def new_chain_draft(name: str, spec: JsonObject, node_id: str | None = None) -> Draft:
    """Return a draft that starts from a contract's logs; raise InvalidAutomationError saying what is wrong with them."""
    spec = {"type": "onchain_event"} | spec
    _writable(spec)
    if isinstance(found := read_trigger(normalise(spec)), tuple):
        raise InvalidAutomationError(
            "; ".join(f"{_ASKED.get(each.field.rpartition('.')[2], 'what is given')} {each.reason}" for each in found)
        )
    trigger_id = TRIGGER_ID if node_id is None else _new_id(node_id, set())
    node = {"id": trigger_id, "type": "onchain_event", "data": {"actionType": "onchain_event"}}
    return Draft(name, spec, (node,), (), ((trigger_id, None),))


_ASKED = {
    "chainId": "chain_id",
    "contract": "contract",
    "signature": "event",
    "walletArg": "to_contact",
    "confirmations": "confirmations",
    "createContacts": "create_contacts",
}


def narrowed(draft: Draft, each: JsonObject) -> Draft:
    """Return the draft with one more filter on its trigger."""
    _writable(each)
    spec = {**draft.trigger, "filters": [*draft.trigger.get("filters", ()), each]}
    return msgspec.structs.replace(draft, trigger=spec, fork=None, as_read=False)


def settled(draft: Draft, name: str, value: JsonObject | int) -> Draft:
    """Return the draft with one of its settings; raise InvalidAutomationError saying what is wrong with it."""
    if not draft.nodes:
        raise InvalidAutomationError('say first which event: .on("deposit")')
    _writable({name: value})
    if problems := read_settings(normalise({name: value}), "").problems:
        raise InvalidAutomationError("; ".join(f"{each.field.lstrip('.')} {each.reason}" for each in problems))
    known = draft.beside.get("settings")
    settings = {**(known if isinstance(known, dict) else {}), name: value}
    return msgspec.structs.replace(draft, beside={**draft.beside, "settings": settings}, as_read=False)


def extended(
    draft: Draft, kind: str, data: JsonObject, ways: tuple[str | None, ...] = (None,), node_id: str | None = None
) -> Draft:
    """Return the draft with one more node behind every open end; its own ways out are the open ends then."""
    if not draft.nodes:
        raise InvalidAutomationError(f'say first what starts {draft.name!r}: .on("deposit") or .on_any_event()')
    _writable(data)
    taken = {node["id"] for node in draft.nodes}
    node_id = free_id(kind, data, taken) if node_id is None else _new_id(node_id, taken)
    node = {"id": node_id, "type": kind, "data": {"actionType": kind} | data}
    return msgspec.structs.replace(
        draft,
        nodes=_with_place(draft, node),
        edges=(*draft.edges, *(_edge(end, node_id) for end in draft.ends)),
        ends=tuple((node_id, way) for way in ways),
        fork=None,
        as_read=False,
    )


def _with_place(draft: Draft, node: JsonObject) -> tuple[JsonObject, ...]:
    """Return the nodes and one more, which stands below the end it follows where somebody put the others."""
    points = draft.positions()
    if points is None:
        return (*({key: each for key, each in other.items() if key != "position"} for other in draft.nodes), node)
    below = next((source for source, _ in draft.ends), draft.nodes[-1]["id"])
    return (*draft.nodes, {**node, "position": position_below(points, below)})


def joined(draft: Draft, node_id: object) -> Draft:
    """Return the draft with every open end leading to a step that is there already."""
    if not any(node["id"] == node_id for node in draft.nodes):
        raise InvalidAutomationError(
            f"there is no step {node_id!r} so far; there are {', '.join(node['id'] for node in draft.nodes)}"
        )
    edges = (*draft.edges, *(_edge(end, str(node_id)) for end in draft.ends))
    return msgspec.structs.replace(draft, edges=edges, ends=(), fork=None, as_read=False)


def _new_id(node_id: object, taken: set[str]) -> str:
    if not is_valid_id(node_id):
        raise InvalidAutomationError(f"{node_id!r} cannot be the id of a step: write 1 to {MAX_ID_LENGTH} characters")
    if node_id in taken:
        raise InvalidAutomationError(f"there is a step {node_id!r} already; ids are unique")
    return str(node_id)


def _writable(data: JsonObject) -> None:
    try:
        encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidAutomationError(f"{data!r} cannot be written as JSON: {error}") from None


def _edge(end: End, target: str) -> JsonObject:
    source, handle = end
    edge_id = f"{source}-{target}" if handle is None else f"{source}-{handle}-{target}"
    if len(edge_id) > MAX_ID_LENGTH:
        edge_id = f"{edge_id[: MAX_ID_LENGTH - 9]}-{crc32(edge_id.encode()):08x}"
    way = {} if handle is None else {"sourceHandle": handle}
    return {"id": edge_id, "source": source, **way, "target": target}


def event_name(name: object) -> str:
    """Return the name of an event as it is stored; raise InvalidAutomationError when no event can be called that."""
    if isinstance(name, list | tuple | set) and all(isinstance(each, str) for each in name):
        raise InvalidAutomationError(
            f"event names stand side by side, without a list: .on({', '.join(map(repr, name))})"
        )
    if not isinstance(name, str):
        raise InvalidAutomationError(f'{name!r} is not an event name: write a text, like .on("deposit")')
    if not EVENT_NAME.fullmatch(name):
        raise InvalidAutomationError(f"{name!r} is not an event name: 1 to 64 characters of a-z 0-9 _ . : -")
    return name.lower()


def awaited_name(name: object) -> str:
    """Return the name of what a wait or a goal asks for; raise InvalidAutomationError when neither events nor logs are called that."""
    return name.lower() if isinstance(name, str) and LOG_NAME.fullmatch(name) else event_name(name)


def condition(path: object, asked: Mapping[str, object]) -> JsonObject:
    """Return one filter; raise InvalidAutomationError when several things are asked of a path at once. Nothing asked: whether it is there."""
    if not isinstance(path, str) or not path:
        raise InvalidAutomationError(
            f'{path!r} is not a path: write the name of a value, like "amountUsd" or "contact.plan"'
        )
    if len(asked) > 1:
        raise InvalidAutomationError(f"say one thing about {path!r}: {OPERATORS}")
    name, value = next(iter(asked.items()), ("exists", True))
    if name == "exists":
        if value is not True:
            raise InvalidAutomationError(
                f"there is no operator for “missing”: use .when({path!r}, exists=True) and .otherwise(…)"
            )
        return {"path": path, "operator": "exists"}
    if name != "is_in":
        return {"path": path, "operator": name, "value": value}
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidAutomationError(f"is_in takes a list, like is_in=[{value!r}]")
    return {"path": path, "operator": "in", "value": list(value)}


Where: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]]
"""`{"plan": "pro", "amountUsd": {"is_in": [1, 2]}}`, or several of these, where a path is asked about twice."""


def conditions(where: Where | None) -> list[JsonObject]:
    """Return the filters that are asked for; raise InvalidAutomationError when they are written in another way."""
    if where is None:
        return []
    if isinstance(where, list | tuple):
        return [each for part in where for each in conditions(part)]
    if not isinstance(where, Mapping):
        raise InvalidAutomationError(
            f'where={where!r}: write {{"plan": "pro"}} or {{"plan": {{"is_in": ["pro", "max"]}}}}'
        )
    return [condition(path, asked if _is_question(asked) else {"eq": asked}) for path, asked in where.items()]


def _is_question(asked: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(asked, Mapping) and len(asked) == 1 and asked.keys() <= FilterArguments.__annotations__.keys()
