"""Extra fields: the parts of an automation that sentences and verbs cannot express, as paths with values.

Positions, keys that other programs added, ids of edges and the order of nodes belong here. They are computed by
comparing the payload that the text would build with the original, so nothing can be forgotten. Paths:

    nodes.send_inapp.data.label      a key of a node, by the node's id
    edges.trigger-send_inapp.id      a key of an edge, by its source, handle and target
    positions                        all positions, by node id
    order.nodes                      the order of nodes in the array
    triggerSpec, graph, settings     everything else there
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from workbench.errors import InvalidAutomationError
from workbench.language.codec import normalize, same_json

JsonObject: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

_KEY = re.compile(r"[\w-]+")
_ANY_KEY = re.compile(rf'(?:{_KEY.pattern}|"(?:[^"\\]|\\.)*")')
PATH = re.compile(rf"{_ANY_KEY.pattern}(?:\.{_ANY_KEY.pattern})*")
_LISTS = ("nodes", "edges")


class Extras(msgspec.Struct, frozen=True):
    """Values by path, and the paths of keys to remove."""

    values: dict[str, Any] = {}
    without: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.without)


def find_extras(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> Extras:
    """Return the extra fields that turn the payload `made` into the payload `wanted`."""
    # A draft in Python may have floats and tuples where a saved one has decimals and lists.
    made_tree, wanted_tree = _tree(normalize(made)), _tree(normalize(wanted))
    values: dict[Path, Any] = {}
    without: list[Path] = []
    _compare((), made_tree, wanted_tree, values, without)
    for name in _LISTS:
        ours, theirs = made_tree[name], wanted_tree[name]
        if isinstance(ours, dict) and isinstance(theirs, dict):
            # The default order: nodes of the text as written, then those that only the original has.
            default = [key for key in ours if key in theirs] + [key for key in theirs if key not in ours]
            if default != [*theirs]:
                values["order", name] = [*theirs]
    positions, others = {}, {}
    for path, value in values.items():
        match path:
            case ("nodes", node_id, "position") if isinstance(value, dict) and value.keys() == {"x", "y"}:
                positions[node_id] = [value["x"], value["y"]]
            case _:
                others[written(path)] = value
    return Extras(({"positions": positions} if positions else {}) | others, tuple(map(written, without)))


def apply_extras(made: Mapping[str, Any], extras: Extras) -> JsonObject:
    """Return a payload with its extra fields.

    Raises InvalidAutomationError for a path to a node, edge or object that does not exist.
    """
    tree = _tree(normalize(made))
    values = normalize(extras.values)
    positions = values.pop("positions", {})
    orders = {name: values.pop(f"order.{name}", None) for name in _LISTS}
    for name, value in values.items():
        path = read(name)
        _parent(tree, path)[path[-1]] = value
    for name in extras.without:
        path = read(name)
        _parent(tree, path).pop(path[-1], None)
    if not isinstance(positions, dict) or not all(isinstance(at, list) and len(at) == 2 for at in positions.values()):
        raise InvalidAutomationError('positions are written like {"send_inapp": [0, 130]}')
    for node_id, (x, y) in positions.items():
        # The position of a node that the user removed from the text is ignored.
        if isinstance(tree["nodes"], dict) and node_id in tree["nodes"]:
            tree["nodes"][node_id]["position"] = {"x": x, "y": y}
    lists = {}
    for name, order in orders.items():
        items = tree[name]  # a list if two of them have the same key
        if isinstance(items, dict):
            first = [key for key in order if key in items] if isinstance(order, list) else []
            items = [items[key] for key in dict.fromkeys([*first, *items])]
        lists[name] = items
    settings = {"settings": tree["settings"]} if "settings" in tree else {}
    return {"triggerSpec": tree["triggerSpec"], "graph": lists | tree["graph"] | settings}


def _tree(payload: JsonObject) -> JsonObject:
    """Return a payload with nodes and edges as objects by key."""
    graph = payload["graph"]
    tree = {
        "triggerSpec": payload["triggerSpec"],
        "graph": {key: value for key, value in graph.items() if key not in (*_LISTS, "settings")},
    }

    def edge_key(edge: JsonObject) -> str:
        return "-".join(filter(None, (edge["source"], edge.get("sourceHandle"), edge["target"])))

    for name, key_of in (("nodes", lambda node: node["id"]), ("edges", edge_key)):
        items = graph.get(name) or []
        # A draft may have two nodes or edges with the same key. An object would lose one of them, so these stay lists.
        by_key = {key_of(item): item for item in items}
        tree[name] = by_key if len(by_key) == len(items) else items
    return tree | ({"settings": graph["settings"]} if "settings" in graph else {})


def _compare(path: Path, made: Any, wanted: Any, values: dict[Path, Any], without: list[Path]) -> None:
    is_position = len(path) == 3 and path[2] == "position"  # compared as a whole: it is written as one pair
    if not isinstance(made, dict) or not isinstance(wanted, dict) or is_position:
        if not same_json(made, wanted):
            values[path] = wanted
        return
    for key, value in wanted.items():
        if key in made:
            _compare((*path, key), made[key], value, values, without)
        else:
            values[*path, key] = value
    without += [(*path, key) for key in made if key not in wanted]


def _parent(tree: JsonObject, path: Path) -> JsonObject:
    parent: Any = tree
    for key in path[:-1]:
        parent = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(parent, dict):
        raise InvalidAutomationError(f"{written(path)}: {written(path[:-1])} does not exist; remove this line, too")
    return parent


def written(path: Iterable[str]) -> str:
    """Return a path as text: keys joined by dots, quoted as JSON where they are not plain."""
    return ".".join(key if _KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in path)


def read(text: str) -> Path:
    """Return the keys of a path; raise InvalidAutomationError if the text is not a path."""
    try:
        if PATH.fullmatch(text):
            return tuple(json.loads(key) if key.startswith('"') else key for key in _ANY_KEY.findall(text))
    except ValueError:  # an escape that JSON does not have
        pass
    raise InvalidAutomationError(f"{text!r} is not a path; write one like nodes.send_inapp.data.label")
