"""What an automation holds beside what words or verbs say of it: positions, foreign keys, ids of edges, the order of nodes.

Found by comparing what reading gives with what there was, so nothing can be forgotten. Each is a path and a value:
`nodes.send_inapp.data.label` is a key of a node by its id, `edges.trigger-send_inapp.id` one of an edge by its ends,
`positions` has the places of nodes, `order.nodes` their order in the array, `triggerSpec`, `graph` and `settings` hold what else is there.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from api.language.codec import normalise
from workbench.errors import DraftError
from workbench.exact import same

JsonObject: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

_KEY = re.compile(r"[\w-]+")
_EITHER = rf'(?:{_KEY.pattern}|"(?:[^"\\]|\\.)*")'
PATH = re.compile(rf"{_EITHER}(?:\.{_EITHER})*")
_LISTS = ("nodes", "edges")


class Besides(msgspec.Struct, frozen=True):
    """Values by their paths, and the paths of what is not there."""

    values: dict[str, Any] = {}
    without: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.without)


def difference(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> Besides:
    """Return what makes the payload `wanted` of the payload `made`."""
    ours, theirs = _opened(normalise(made)), _opened(normalise(wanted))
    values: dict[Path, Any] = {}
    without: list[Path] = []
    _compare((), ours, theirs, values, without)
    for name in _LISTS:
        if isinstance(theirs[name], dict) and isinstance(ours[name], dict):
            _note_order(name, [*ours[name]], [*theirs[name]], values)
    return Besides(_with_positions(values), tuple(map(written, without)))


def applied(made: Mapping[str, Any], besides: Besides) -> JsonObject:
    """Return a payload with everything noted beside it; raise DraftError naming a path that leads nowhere."""
    opened = _opened(normalise(made))
    given = normalise(besides.values)
    places = given.pop("positions", {})
    orders = {name: given.pop(f"order.{name}", None) for name in _LISTS}
    for path, value in given.items():
        _put(opened, read(path), value)
    for path in besides.without:
        _drop(opened, read(path))
    _place(opened["nodes"], places)
    return _closed(opened, orders)


def _opened(payload: JsonObject) -> JsonObject:
    """Return a payload as a tree in which nodes and edges stand by their keys, where these are their own."""
    graph = payload["graph"]
    nodes, edges = graph.get("nodes") or [], graph.get("edges") or []
    rest = {key: each for key, each in graph.items() if key not in (*_LISTS, "settings")}
    tree = {"triggerSpec": payload["triggerSpec"], "graph": rest}
    tree |= {"nodes": _by(nodes, [each["id"] for each in nodes]), "edges": _by(edges, [*map(_edge_key, edges)])}
    return tree | ({"settings": graph["settings"]} if "settings" in graph else {})


def _closed(tree: JsonObject, orders: Mapping[str, Any]) -> JsonObject:
    lists = {name: _ordered(tree[name], orders[name]) for name in _LISTS}
    settings = {"settings": tree["settings"]} if "settings" in tree else {}
    return {"triggerSpec": tree["triggerSpec"], "graph": lists | tree["graph"] | settings}


def _by(items: list[JsonObject], keys: Sequence[str]) -> JsonObject | list[JsonObject]:
    return dict(zip(keys, items, strict=True)) if len(set(keys)) == len(keys) else items


def _edge_key(edge: JsonObject) -> str:
    return "-".join(filter(None, (edge["source"], edge.get("sourceHandle"), edge["target"])))


def _compare(path: Path, made: Any, wanted: Any, values: dict[Path, Any], without: list[Path]) -> None:
    whole = len(path) == 3 and path[2] == "position"
    if not isinstance(made, dict) or not isinstance(wanted, dict) or whole:
        if not same(made, wanted):
            values[path] = wanted
        return
    for key, each in wanted.items():
        if key in made:
            _compare((*path, key), made[key], each, values, without)
        else:
            values[*path, key] = each
    without += [(*path, key) for key in made if key not in wanted]


def _note_order(name: str, made: list[str], wanted: list[str], values: dict[Path, Any]) -> None:
    kept = [key for key in made if key in wanted]
    if kept + [key for key in wanted if key not in made] != wanted:
        values["order", name] = wanted


def _with_positions(values: Mapping[Path, Any]) -> dict[str, Any]:
    places = {path[1]: [at["x"], at["y"]] for path, at in values.items() if _is_place(path, at)}
    rest = {written(path): each for path, each in values.items() if not _is_place(path, each)}
    return ({"positions": places} if places else {}) | rest


def _is_place(path: Path, value: Any) -> bool:
    return len(path) == 3 and (path[0], path[2]) == ("nodes", "position") and _is_point(value)


def _is_point(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"x", "y"}


def _place(nodes: Any, places: Any) -> None:
    if not isinstance(places, dict) or not all(isinstance(at, list) and len(at) == 2 for at in places.values()):
        raise DraftError('positions are written like {"send_inapp": [0, 130]}')
    for node_id, (x, y) in places.items():
        if isinstance(nodes, dict) and node_id in nodes:
            nodes[node_id]["position"] = {"x": x, "y": y}


def _ordered(items: Any, order: Any) -> list[JsonObject]:
    if not isinstance(items, dict):
        return [*items]
    first = [key for key in order if key in items] if isinstance(order, list) else []
    return [items[key] for key in dict.fromkeys([*first, *items])]


def _put(tree: JsonObject, path: Path, value: Any) -> None:
    parent = _parent(tree, path)
    parent[path[-1]] = value


def _drop(tree: JsonObject, path: Path) -> None:
    _parent(tree, path).pop(path[-1], None)


def _parent(tree: JsonObject, path: Path) -> JsonObject:
    at: Any = tree
    for key in path[:-1]:
        at = at.get(key) if isinstance(at, dict) else None
    if not isinstance(at, dict):
        raise DraftError(f"{written(path)}: there is no {written(path[:-1])} any more; take this out too")
    return at


def written(path: Iterable[str]) -> str:
    """Return a path as a text."""
    return ".".join(key if _KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in path)


def read(path: str) -> Path:
    """Return the path in a text; raise DraftError when it is none."""
    keys: list[str] = []
    at = 0
    while at <= len(path):
        plain = _KEY.match(path, at)
        if plain is not None:
            keys.append(plain[0])
            at = plain.end()
        else:
            key, at = _quoted(path, at)
            keys.append(key)
        if at == len(path):
            return tuple(keys)
        if path[at] != ".":
            break
        at += 1
    raise DraftError(_NO_PATH.format(path))


def _quoted(path: str, at: int) -> tuple[str, int]:
    try:
        key, end = json.JSONDecoder().raw_decode(path, at)
    except ValueError:
        raise DraftError(_NO_PATH.format(path)) from None
    if not isinstance(key, str):
        raise DraftError(_NO_PATH.format(path))
    return key, end


_NO_PATH = "{!r} is no path: write nodes.send_inapp.data.label"
