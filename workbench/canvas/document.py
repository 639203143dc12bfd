"""Values on their way to a browser and back: numbers that JavaScript would change travel as their digits.

What a canvas edits: a draft taken apart into pieces that can change on their own.

Every node and edge has a key of its own, which is its id wherever that is unambiguous: drafts may hold edges without ids, and two of one id.
Pieces that nobody touches are kept as they are, so nothing in them is lost, whatever a canvas does not know of.

What a canvas shows of a draft besides its pieces: the cards, the remarks, and where nodes stand that nobody has put anywhere.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from workbench.canvas.forms import ways
from workbench.display.cards import WIDTH, card
from workbench.display.layout import Box, Point, Route, arrange, point_of, route_edges
from workbench.draft import Draft, JsonObject, from_json
from workbench.errors import InvalidAutomationError
from workbench.language.actions import InvalidAction
from workbench.language.check import Diagnostic
from workbench.language.codec import decode, normalise
from workbench.language.graph import Graph, Node, read_graph
from workbench.language.trigger import Trigger, is_trigger, read_trigger

_DIGITS: Final = "$exact"  # {"$exact": "1.0"} is the number 1.0
_OBJECT: Final = "$object"  # {"$object": {…}} is an object that looks like one of these two
_MARKS: Final = ({_DIGITS}, {_OBJECT})
_SAFE: Final = 2**53 - 1


def to_browser(value: Any) -> Any:
    """Return a JSON value in which no number changes when JavaScript reads it."""
    return _out(normalise(value))


def from_browser(value: Any) -> Any:
    """Return the value that `to_browser` was given; raise ValueError for digits that are no number."""
    match value:
        case dict() if value.keys() == {_DIGITS}:
            return _number(value[_DIGITS])
        case dict():
            inside = value[_OBJECT] if value.keys() == {_OBJECT} else value
            return {key: from_browser(each) for key, each in inside.items()}
        case list():
            return [from_browser(each) for each in value]
        case _:
            return value


def _number(digits: Any) -> Any:
    number = decode(str(digits).encode())
    if isinstance(number, bool) or not isinstance(number, int | Decimal):
        raise ValueError(f"{digits!r} is not a number")
    return number


def _out(value: Any) -> Any:
    match value:
        case bool() | None | str():
            return value
        case int():
            return value if abs(value) <= _SAFE else {_DIGITS: str(value)}
        case Decimal():
            return float(value) if _survives(value) else {_DIGITS: str(value)}
        case dict():
            inside = {key: _out(each) for key, each in value.items()}
            return {_OBJECT: inside} if set(value) in _MARKS else inside
        case _:
            return [_out(each) for each in value]


def _survives(value: Decimal) -> bool:
    """Return whether JavaScript prints the number just as it was written."""
    text = str(value)
    return "E" not in text and not text.endswith("0") and repr(float(value)) == text


class Patch(msgspec.Struct, frozen=True):
    """What changed: pieces by key, None for those that are gone. `order`: the keys of all nodes, where it changed.

    `fresh`: keys of nodes that are meant to be new.
    """

    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    trigger: Any = None
    order: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()


class Sheet(msgspec.Struct, frozen=True):
    """A draft in pieces: nodes and edges by key, the trigger, and what stands beside them in the graph."""

    nodes: dict[str, JsonObject]
    edges: dict[str, JsonObject]
    trigger: JsonObject
    beside: JsonObject

    def draft(self, name: str) -> Draft:
        """Return the draft; raise InvalidAutomationError when its shape is wrong."""
        graph = {"nodes": [*self.nodes.values()], "edges": [*self.edges.values()]} | self.beside
        return from_json({"name": name, "triggerSpec": self.trigger, "graph": graph})

    def patched(self, patch: Patch) -> "Sheet":
        """Return the sheet with a change; raise InvalidAutomationError when somebody else has made a node of that id meanwhile."""
        if taken := [key for key in patch.fresh if key in self.nodes]:
            raise InvalidAutomationError(f"a step {taken[0]!r} exists already")
        nodes = _merged(self.nodes, patch.nodes)
        rank = {key: index for index, key in enumerate(patch.order)}
        if rank:
            nodes = dict(sorted(nodes.items(), key=lambda each: rank.get(each[0], len(rank))))
        trigger = self.trigger if patch.trigger is None else from_browser(patch.trigger)
        return Sheet(nodes, _merged(self.edges, patch.edges), trigger, _merged(self.beside, patch.beside))

    def pieces(self) -> JsonObject:
        """Return it as a browser takes it."""
        return {
            "nodes": [{"key": key, "node": to_browser(node)} for key, node in self.nodes.items()],
            "edges": [{"key": key, "edge": to_browser(edge)} for key, edge in self.edges.items()],
            "trigger": to_browser(self.trigger),
            "beside": to_browser(self.beside),
        }

    def keys(self) -> dict[str, str]:
        """Return the key of each node id: of the first, where there are two."""
        return {node["id"]: key for key, node in reversed(self.nodes.items())}

    def key_of(self, remark: Diagnostic) -> str | None:
        """Return the key of the node that a remark is about: the trigger's, where it is about the trigger."""
        if remark.node_id is not None:
            return self.keys().get(remark.node_id)
        return self.start if (remark.field or "").startswith("triggerSpec") else None

    @property
    def start(self) -> str | None:
        """The key of the node that stands for the trigger."""
        triggers = (key for key, node in self.nodes.items() if is_trigger(node["type"]))
        return next(triggers, next(iter(self.nodes), None))


def sheet_of(draft: Draft, places: Mapping[str, Point]) -> Sheet:
    """Return a draft in pieces; nodes without a position stand where `places` has them."""
    nodes = [_placed(node, places) for node in draft.nodes]
    return Sheet(_keyed(nodes), _keyed(draft.edges), dict(draft.trigger), dict(draft.extra_keys))


def _placed(node: JsonObject, places: Mapping[str, Point]) -> JsonObject:
    if node["id"] not in places:
        return node
    x, y = places[node["id"]]
    return {"id": node["id"], "type": node["type"]} | node | {"position": {"x": round(x), "y": round(y)}}


def _keyed(pieces: Sequence[JsonObject]) -> dict[str, JsonObject]:
    keyed: dict[str, JsonObject] = {}
    for index, piece in enumerate(pieces):
        own = piece.get("id")
        keyed[own if isinstance(own, str) and own and own not in keyed else f"#{index}"] = piece
    return keyed


def _merged(pieces: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: from_browser(each) for key, each in changes.items()}
    return {key: each for key, each in {**pieces, **given}.items() if each is not None}


_PREFIXES = ("triggerSpec.", "graph.")


class Read(msgspec.Struct, frozen=True):
    """A draft as far as the language can read it: a trigger that is not filled in yet is the wildcard."""

    trigger: Trigger
    graph: Graph


def read(draft: Draft) -> Read:
    """Return what the language reads in a draft."""
    trigger, graph = read_trigger(normalise(draft.trigger)), read_graph(normalise(draft.payload()["graph"]))
    return Read(trigger if isinstance(trigger, Trigger) else Trigger(), graph if isinstance(graph, Graph) else Graph())


def cards(sheet: Sheet, known: Read) -> dict[str, JsonObject]:
    """Return what stands on each card, by key."""
    return {
        key: _card(node, sheet.nodes[key].get("data"), known)
        for key, node in zip(sheet.nodes, known.graph.nodes, strict=False)
    }


def _card(node: Node, written: object, known: Read) -> JsonObject:
    shown = card(node, known.trigger, known.graph)
    return {
        "kind": shown.kind,
        "title": [*shown.title],
        "lines": [*shown.lines],
        "color": shown.look.color,
        "icon": shown.look.icon,
        "height": shown.height,
        "ways": ways(node, written),
        "valid": not isinstance(node.action, InvalidAction),
    }


def passing(sheet: Sheet, shown: Mapping[str, JsonObject]) -> dict[str, Route]:
    """Return what edges pass on their way between the cards, by key."""
    boxes = {}
    for key, node in sheet.nodes.items():
        point = point_of(node)
        if point is not None and key in shown:
            boxes[key] = Box(point[0], point[1], point[0] + WIDTH, point[1] + shown[key]["height"])
    keys = sheet.keys()
    links = [
        (name, keys.get(edge["source"], ""), keys.get(edge["target"], ""), _share(edge, shown, keys))
        for name, edge in sheet.edges.items()
    ]
    return route_edges(boxes, links)


def _share(edge: JsonObject, shown: Mapping[str, JsonObject], keys: Mapping[str, str]) -> float:
    card = shown.get(keys.get(edge["source"], ""))
    handles = [each["handle"] for each in card["ways"]] if card else []
    way = edge.get("sourceHandle") or None
    return (handles.index(way) + 1) / (len(handles) + 1) if way in handles else 0.5


def remarks(sheet: Sheet, found: tuple[Diagnostic, ...]) -> list[JsonObject]:
    """Return remarks as a browser takes them: `key` of the node, and `field` as its form calls it."""
    return [
        {
            "level": each.level,
            "message": each.message,
            "key": sheet.key_of(each),
            "field": _field(each.field or ""),
        }
        for each in found
    ]


def _field(path: str) -> str:
    """Return the field as forms know it: `title`, `filters[0].path`, `settings.goal.event`."""
    inside = path.rpartition(".data.")[2]
    for prefix in _PREFIXES:
        inside = inside.removeprefix(prefix)
    return "events" if inside == "triggerSpec" else inside


def laid_out(draft: Draft) -> dict[str, Point]:
    """Return where nodes stand when they are laid out, by id."""
    graph, trigger = read(draft).graph, read(draft).trigger
    order = {(node.id, way): place for node in graph.nodes for place, way in enumerate(node.handles)}
    links = sorted(graph.edges, key=lambda edge: order.get((edge.source, edge.handle), 0))
    heights = {node.id: card(node, trigger, graph).height for node in graph.nodes}
    return arrange(heights, [(edge.source, edge.target) for edge in links]).corners
