"""An automation as it is written: the graph, and the ends that are still open. The verbs that write it are in `verbs`.

A draft *is* the contract's payload (trigger spec, nodes, edges) plus the list of open ends, so reading JSON and writing it again
loses nothing, whoever made it. Node ids are readable and follow from what the node does. Values are never changed: every verb
returns a new draft.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypedDict, TypeGuard

import msgspec

from api.language.check import Remark, check
from api.language.codec import encode, normalise
from api.language.graph import Graph, read_graph
from api.language.problem import Problem
from api.language.settings import read_settings
from api.language.trigger import Trigger, read_trigger
from workbench.display.layout import place
from workbench.errors import DraftError

JsonObject: TypeAlias = dict[str, Any]
End: TypeAlias = tuple[str, str | None]
"""A way out of a node that leads nowhere yet: node id and handle."""

_EVENT_NAME = re.compile(r"[a-z0-9_.:-]{1,64}")
_WIDTH, _HEIGHT = 300, 130  # of a node with the room around it, on a canvas
_TAG_SHOWN = 48


class Asked(TypedDict, total=False):
    """What may be asked of a value, one of these at a time; None is a value: null."""

    eq: object
    neq: object
    is_in: object
    contains: object
    exists: object


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
        """Return the draft as the engine reads it; raise DraftError when its shape is wrong."""
        payload = normalise(self.payload())
        trigger, graph = read_trigger(payload["triggerSpec"]), read_graph(payload["graph"])
        problems = [*(trigger if isinstance(trigger, tuple) else ()), *(graph if isinstance(graph, tuple) else ())]
        if isinstance(trigger, tuple) or isinstance(graph, tuple):
            raise DraftError("; ".join(map(str, problems)))
        return trigger, graph

    def remarks(self) -> tuple[Remark, ...]:
        """Return what stands against publishing, and what the author should know."""
        payload = normalise(self.payload())
        trigger, graph = read_trigger(payload["triggerSpec"]), read_graph(payload["graph"])
        found = [*_as_remarks(trigger), *_as_remarks(graph)]
        if isinstance(trigger, Trigger) and isinstance(graph, Graph):
            tags = {node["id"]: node["data"].get("tag") for node in payload["graph"]["nodes"] if _is_tag(node)}
            found += [_with_tag(each, tags) for each in check(trigger, graph)]
        return tuple(found)

    def _placed(self) -> list[JsonObject]:
        if self.as_read:
            return [*self.nodes]
        links = [(edge["source"], edge["target"]) for edge in self.edges]
        places = place([node["id"] for node in self.nodes], links).places
        return [
            {"id": node["id"], "type": node["type"], "position": _point(*places[node["id"]])} | node
            for node in self.nodes
        ]


def _point(across: float, down: int) -> JsonObject:
    return {"x": round(across * _WIDTH), "y": down * _HEIGHT}


def _as_remarks(read: Trigger | Graph | tuple[Problem, ...]) -> list[Remark]:
    return [Remark("error", each.reason, field=each.field) for each in read] if isinstance(read, tuple) else []


def _is_tag(node: JsonObject) -> bool:
    return node.get("type") in ("add_tag", "remove_tag") and isinstance(node.get("data"), dict)


def _with_tag(remark: Remark, tags: Mapping[str, Any]) -> Remark:
    """Name the tag in what stands against it: the node's id seldom shows what is wrong."""
    if remark.node_id is None or remark.node_id not in tags or remark.field is None:
        return remark
    tag = repr(tags[remark.node_id])
    shown = tag if len(tag) <= _TAG_SHOWN else f"{tag[:_TAG_SHOWN]}…"
    return msgspec.structs.replace(remark, message=f"the tag {shown} {remark.message}")


def from_json(payload: Mapping[str, Any]) -> Draft:
    """Return the draft in a payload; raise DraftError when it is not one. Writing it again gives the same payload."""
    if not isinstance(payload, Mapping):
        raise DraftError("an automation is an object with name, triggerSpec and graph")
    spec, graph = payload.get("triggerSpec"), payload.get("graph")
    if not isinstance(spec, dict) or not isinstance(graph, dict):
        raise DraftError("an automation is an object with name, triggerSpec and graph")
    read = read_graph(normalise(graph))
    if isinstance(read, tuple):
        raise DraftError("; ".join(map(str, read)))
    taken = {(edge.source, edge.handle) for edge in read.edges}
    ends = tuple((node.id, way) for node in read.nodes for way in node.handles if (node.id, way) not in taken)
    nodes, edges = tuple(graph.get("nodes", ())), tuple(graph.get("edges", ()))
    beside = {key: value for key, value in graph.items() if key not in ("nodes", "edges")}
    return Draft(str(payload.get("name", "")), spec, nodes, edges, ends, as_read=True, beside=beside)


def started(name: str, events: tuple[str, ...]) -> Draft:
    """Return a draft with a trigger and nothing else; no events at all is the wildcard."""
    names = [event_name(each) for each in events]
    spec: JsonObject = {"type": "app_event"}
    if len(names) == 1:
        spec["event"] = names[0]
    elif names:
        spec["eventNames"] = names
    data = {"actionType": "app_event"} | {key: spec[key] for key in ("event", "eventNames") if key in spec}
    node = {"id": "trigger", "type": "app_event", "data": data}
    return Draft(name, spec, (node,), (), (("trigger", None),))


def started_on_chain(name: str, spec: JsonObject) -> Draft:
    """Return a draft that starts from a contract's logs; raise DraftError saying what is wrong with them."""
    spec = {"type": "onchain_event"} | spec
    _writable(spec)
    if isinstance(found := read_trigger(normalise(spec)), tuple):
        raise DraftError("; ".join(f"{_ASKED[each.field.rpartition('.')[2]]} {each.reason}" for each in found))
    node = {"id": "trigger", "type": "onchain_event", "data": {"actionType": "onchain_event"}}
    return Draft(name, spec, (node,), (), (("trigger", None),))


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


def settled(draft: Draft, name: str, value: JsonObject) -> Draft:
    """Return the draft with one of its settings; raise DraftError saying what is wrong with it."""
    if not draft.nodes:
        raise DraftError('say first which event: .on("deposit")')
    _writable(value)
    if problems := read_settings(normalise({name: value}), "").problems:
        raise DraftError("; ".join(f"{each.field.lstrip('.')} {each.reason}" for each in problems))
    known = draft.beside.get("settings")
    settings = {**(known if isinstance(known, dict) else {}), name: value}
    return msgspec.structs.replace(draft, beside={**draft.beside, "settings": settings}, as_read=False)


def extended(draft: Draft, kind: str, stem: str, data: JsonObject, ways: tuple[str | None, ...] = (None,)) -> Draft:
    """Return the draft with one more node behind every open end; its own ways out are the open ends then."""
    if not draft.nodes:
        raise DraftError(f'say first what starts {draft.name!r}: .on("deposit") or .on_any_event()')
    _writable(data)
    node_id = _free_id(stem, {node["id"] for node in draft.nodes})
    node = {"id": node_id, "type": kind, "data": {"actionType": kind} | data}
    return msgspec.structs.replace(
        draft,
        nodes=(*draft.nodes, node),
        edges=(*draft.edges, *(_edge(end, node_id) for end in draft.ends)),
        ends=tuple((node_id, way) for way in ways),
        fork=None,
        as_read=False,
    )


def _writable(data: JsonObject) -> None:
    try:
        encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DraftError(f"{data!r} cannot be written as JSON: {error}") from None


def _edge(end: End, target: str) -> JsonObject:
    source, handle = end
    if handle is None:
        return {"id": f"{source}-{target}", "source": source, "target": target}
    return {"id": f"{source}-{handle}-{target}", "source": source, "sourceHandle": handle, "target": target}


def _free_id(stem: str, taken: set[str]) -> str:
    stem = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")[:40] or "step"
    number = next(number for number in range(1, len(taken) + 2) if _numbered(stem, number) not in taken)
    return _numbered(stem, number)


def _numbered(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}_{number}"


def event_name(name: object) -> str:
    """Return the name of an event as it is stored; raise DraftError when no event can be called that."""
    if isinstance(name, list | tuple | set) and all(isinstance(each, str) for each in name):
        raise DraftError(f"event names stand side by side, without a list: .on({', '.join(map(repr, name))})")
    if not isinstance(name, str):
        raise DraftError(f'{name!r} is not an event name: write a text, like .on("deposit")')
    if not _EVENT_NAME.fullmatch(name.lower()):
        raise DraftError(f"{name!r} is not an event name: 1 to 64 characters of a-z 0-9 _ . : -")
    return name.lower()


def condition(path: object, asked: Mapping[str, object]) -> JsonObject:
    """Return one filter; raise DraftError unless exactly one thing is asked of a path."""
    if not isinstance(path, str) or not path:
        raise DraftError(f'{path!r} is not a path: write the name of a value, like "amountUsd" or "contact.plan"')
    if len(asked) != 1:
        raise DraftError(f"say one thing about {path!r}: {OPERATORS}")
    ((name, value),) = asked.items()
    if name == "exists":
        if value is not True:
            raise DraftError(f"there is no operator for “missing”: use .when({path!r}, exists=True) and .otherwise(…)")
        return {"path": path, "operator": "exists"}
    if name != "is_in":
        return {"path": path, "operator": name, "value": value}
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DraftError(f"is_in takes a list, like is_in=[{value!r}]")
    return {"path": path, "operator": "in", "value": list(value)}


def conditions(where: Mapping[str, object] | None) -> list[JsonObject]:
    """Return the filters in `{"plan": "pro", "amountUsd": {"is_in": [1, 2]}}`; raise DraftError when it is not like that."""
    if where is None:
        return []
    if not isinstance(where, Mapping):
        raise DraftError(f'where={where!r}: write {{"plan": "pro"}} or {{"plan": {{"is_in": ["pro", "max"]}}}}')
    return [condition(path, asked if _is_question(asked) else {"eq": asked}) for path, asked in where.items()]


def _is_question(asked: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(asked, Mapping) and len(asked) == 1 and asked.keys() <= Asked.__annotations__.keys()
