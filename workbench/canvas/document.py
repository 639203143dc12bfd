"""The document that the views of a canvas share: a draft in pieces, what its cards show, and its diagnostics.

Every node and edge is a piece with a key of its own. The key is the id wherever the id is unambiguous: drafts may
contain edges without ids, and two nodes with the same id. Pieces that no view changes are kept unchanged, including
fields that the canvas does not know.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from workbench.display.cards import WIDTH, card, label
from workbench.display.kinds import KINDS, Control, NodeKind
from workbench.display.layout import Box, Point, Route, arrange, lowered, point_of, route_edges
from workbench.display.words import OPERATOR_PHRASES
from workbench.draft import Draft, JsonObject, from_json
from workbench.errors import InvalidAutomationError
from workbench.language.actions import FIELDS, STEP_ACTIONS, FieldType, InvalidAction, read_action
from workbench.language.check import NO_EVENT_NAME, Diagnostic
from workbench.language.codec import decode, normalize
from workbench.language.filter import OPERATORS
from workbench.language.graph import Graph, Node, read_graph
from workbench.language.trigger import Trigger, is_trigger, read_trigger

_DIGITS: Final = "$exact"  # {"$exact": "1.0"} is the number 1.0
_OBJECT: Final = "$object"  # {"$object": {…}} escapes an object that looks like one of these two
_MARKS: Final = ({_DIGITS}, {_OBJECT})
_MAX_SAFE_INTEGER: Final = 2**53 - 1  # JavaScript rounds integers above it


def to_browser(value: Any) -> Any:
    """Return a JSON value in which every number that JavaScript would change is replaced with its digits."""
    return _escape(normalize(value))


def _escape(value: Any) -> Any:
    match value:
        case bool() | None | str():
            return value
        case int():
            return value if abs(value) <= _MAX_SAFE_INTEGER else {_DIGITS: str(value)}
        case Decimal():
            # JavaScript prints 1.0 as 1 and 1E+2 as 100, so a number that was only displayed would be saved
            # differently.
            text = str(value)
            printed_alike = "E" not in text and not text.endswith("0") and repr(float(value)) == text
            return float(value) if printed_alike else {_DIGITS: text}
        case dict():
            escaped = {key: _escape(member) for key, member in value.items()}
            return {_OBJECT: escaped} if set(value) in _MARKS else escaped
        case _:
            return [_escape(item) for item in value]


def from_browser(value: Any) -> Any:
    """Return the value that `to_browser` converted; raise ValueError for digits that are not a number."""
    match value:
        case dict() if value.keys() == {_DIGITS}:
            number = decode(str(value[_DIGITS]).encode())
            if isinstance(number, bool) or not isinstance(number, int | Decimal):
                raise ValueError(f"{value[_DIGITS]!r} is not a number")
            return number
        case dict():
            members = value[_OBJECT] if value.keys() == {_OBJECT} else value
            return {key: from_browser(member) for key, member in members.items()}
        case list():
            return [from_browser(item) for item in value]
        case _:
            return value


class Patch(msgspec.Struct, frozen=True):
    """A change: new pieces by key, None for removed ones. `order`: the keys of all nodes, if the order changed.

    `extra`: fields of the graph other than nodes and edges. `created`: keys of nodes that must not exist yet.
    """

    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    trigger: Any = None
    order: tuple[str, ...] = ()
    created: tuple[str, ...] = ()


class DraftPieces(msgspec.Struct, frozen=True):
    """A draft in pieces: nodes and edges by key, the trigger, and the other fields of the graph (`extra`)."""

    nodes: dict[str, JsonObject]
    edges: dict[str, JsonObject]
    trigger: JsonObject
    extra: JsonObject

    @classmethod
    def of(cls, draft: Draft, places: Mapping[str, Point]) -> "DraftPieces":
        """Take a draft apart. `places` are positions for nodes that have none, by id."""
        nodes = []
        for node in draft.nodes:
            if node["id"] in places:
                x, y = places[node["id"]]
                # id and type come first, because JSON keeps the order of keys and readers look for them at the top.
                start = {"id": node["id"], "type": node["type"]}
                nodes.append(start | node | {"position": {"x": round(x), "y": round(y)}})
            else:
                nodes.append(node)
        return cls(_by_key(nodes), _by_key(draft.edges), dict(draft.trigger), dict(draft.extra_keys))

    def draft(self, name: str) -> Draft:
        """Return the draft; raise InvalidAutomationError when its shape is wrong."""
        graph = {"nodes": [*self.nodes.values()], "edges": [*self.edges.values()]} | self.extra
        return from_json({"name": name, "triggerSpec": self.trigger, "graph": graph})

    def patched(self, patch: Patch) -> "DraftPieces":
        """Return the pieces after a change; raise InvalidAutomationError when a node to be created exists."""
        # Another view, or a cell, may have created a node with the same id a moment ago; overwriting it would lose it.
        if taken := [key for key in patch.created if key in self.nodes]:
            raise InvalidAutomationError(f"Step {taken[0]!r} already exists; add yours again to give it another id")
        nodes = _merge(self.nodes, patch.nodes)
        rank = {key: index for index, key in enumerate(patch.order)}
        if rank:
            nodes = dict(sorted(nodes.items(), key=lambda item: rank.get(item[0], len(rank))))
        trigger = self.trigger if patch.trigger is None else from_browser(patch.trigger)
        return DraftPieces(nodes, _merge(self.edges, patch.edges), trigger, _merge(self.extra, patch.extra))

    def to_browser(self) -> JsonObject:
        """Return the pieces as the browser reads them."""
        return {
            "nodes": [{"key": key, "node": to_browser(node)} for key, node in self.nodes.items()],
            "edges": [{"key": key, "edge": to_browser(edge)} for key, edge in self.edges.items()],
            "trigger": to_browser(self.trigger),
            "extra": to_browser(self.extra),
        }

    def keys(self) -> dict[str, str]:
        """Return the key of each node by its id; where two nodes share an id, the key of the first."""
        # Reversed, because the last assignment wins.
        return {node["id"]: key for key, node in reversed(self.nodes.items())}

    def key_of(self, diagnostic: Diagnostic) -> str | None:
        """Return the key of the node that a diagnostic is about, or of the trigger node."""
        if diagnostic.node_id is not None:
            return self.keys().get(diagnostic.node_id)
        if not (diagnostic.field or "").startswith("triggerSpec"):
            return None
        # A draft without a trigger node starts at its first node.
        triggers = (key for key, node in self.nodes.items() if is_trigger(node["type"]))
        return next(triggers, next(iter(self.nodes), None))


def _by_key(pieces: Sequence[JsonObject]) -> dict[str, JsonObject]:
    by_key: dict[str, JsonObject] = {}
    for index, piece in enumerate(pieces):
        id_ = piece.get("id")
        by_key[id_ if isinstance(id_, str) and id_ and id_ not in by_key else f"#{index}"] = piece
    return by_key


def _merge(pieces: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**pieces, **{key: from_browser(change) for key, change in changes.items()}}
    return {key: piece for key, piece in merged.items() if piece is not None}


_BLANK: dict[FieldType, Any] = {
    "attributes": {},
    "fields": {},
    "filters": [],
    "duration": 86_400,
    "branches": [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 50}],
    "recipient": "triggering_profile",
    "missing": "skip",
}


def palette() -> JsonObject:
    """Return everything that the browser knows about the language: kinds of nodes and operators."""
    operators = [
        {"name": name, "label": OPERATOR_PHRASES[name], "operand": operator.operand}
        for name, operator in OPERATORS.items()
    ]
    kinds = [_palette_entry(name, row) for name, row in KINDS.items()]
    return {"kinds": kinds, "operators": operators}


def _palette_entry(name: str, row: NodeKind) -> JsonObject:
    fields = FIELDS.get(name, ())
    required = [field for field in fields if not field.optional or field.type in _BLANK]
    blank = {"actionType": name, **{field.key: _BLANK.get(field.type, "") for field in required}, **row.blank}
    optional = {field.key for field in fields if field.optional}
    controls: dict[str, Control] = {field.key: field.type for field in fields}
    action = STEP_ACTIONS.get(name)
    fork = None
    if action is not None and action.FORK is not None:
        fork = {"field": action.FORK, "outputs": outputs(Node(name, name, InvalidAction((), action.HANDLES)))}
    return {
        "kind": name,
        **{key: getattr(row, key) for key in ("label", "group", "about", "color", "icon")},
        "blank": blank,
        "outputs": outputs(Node(name, name, read_action(name, blank, ""))),
        "fork": fork,
        "fields": [
            {"name": key, "control": control or controls[key], "label": text, "hint": hint, "optional": key in optional}
            for key, text, hint, control, _ in map(msgspec.structs.astuple, row.fields)
        ],
    }


def outputs(node: Node) -> list[JsonObject]:
    return [{"handle": handle, "label": label(node, handle) if handle else ""} for handle in node.handles]


class ParsedDraft(msgspec.Struct, frozen=True):
    """A draft as the language reads it. An incomplete trigger becomes one without event names or filters."""

    trigger: Trigger
    graph: Graph


def parse_draft(draft: Draft) -> ParsedDraft:
    """Return the draft as the language reads it; never raises, since a draft is incomplete most of the time."""
    trigger, graph = read_trigger(normalize(draft.trigger)), read_graph(normalize(draft.payload()["graph"]))
    return ParsedDraft(
        trigger if isinstance(trigger, Trigger) else Trigger(), graph if isinstance(graph, Graph) else Graph()
    )


def cards(pieces: DraftPieces, parsed: ParsedDraft) -> dict[str, JsonObject]:
    """Return the card of each node by key: texts, look, height in pixels, and outputs."""
    by_key = {}
    # Not strict: a draft with an unreadable graph has more nodes than the parsed graph. They get no card.
    for key, node in zip(pieces.nodes, parsed.graph.nodes, strict=False):
        drawn = card(node, parsed.trigger, parsed.graph)
        by_key[key] = {
            "kind": drawn.kind,
            "title": [*drawn.title],
            "lines": [*drawn.lines],
            "color": drawn.color,
            "icon": drawn.icon,
            "height": drawn.height,
            "outputs": outputs(node),
            "valid": not isinstance(node.action, InvalidAction) or node is parsed.graph.stand_in,
        }
    return by_key


def _boxes(pieces: DraftPieces, cards_by_key: Mapping[str, JsonObject]) -> dict[str, Box]:
    boxes = {}
    for key, node in pieces.nodes.items():
        point = point_of(node)
        if point is not None and key in cards_by_key:
            boxes[key] = Box(point[0], point[1], point[0] + WIDTH, point[1] + cards_by_key[key]["height"])
    return boxes


def without_overlaps(pieces: DraftPieces) -> DraftPieces:
    """Return the pieces with the cards moved down that would cover others: a card grows with its texts."""
    boxes = _boxes(pieces, cards(pieces, parse_draft(pieces.draft(""))))
    nodes = dict(pieces.nodes)
    for key, top in lowered(boxes).items():
        nodes[key] = nodes[key] | {"position": nodes[key]["position"] | {"y": math.ceil(top)}}
    return msgspec.structs.replace(pieces, nodes=nodes)


def edge_routes(pieces: DraftPieces, cards_by_key: Mapping[str, JsonObject]) -> dict[str, Route]:
    """Return the routes of edges between the cards, by the key of the edge."""
    boxes, keys = _boxes(pieces, cards_by_key), pieces.keys()
    links = []
    for name, edge in pieces.edges.items():
        source = keys.get(edge["source"], "")
        handles = [output["handle"] for output in cards_by_key[source]["outputs"]] if source in cards_by_key else []
        handle = edge.get("sourceHandle") or None
        # As OutputHandle in StepCard.tsx draws them: each in the middle of an equal part of the card's width.
        share = (handles.index(handle) + 0.5) / len(handles) if handle in handles else 0.5
        links.append((name, source, keys.get(edge["target"], ""), share))
    return route_edges(boxes, links)


def describe_diagnostics(pieces: DraftPieces, diagnostics: Iterable[Diagnostic]) -> list[JsonObject]:
    """Return diagnostics as the browser reads them: `key` of the node, `field` as its form names it, and `consent`."""
    described = []
    for diagnostic in diagnostics:
        field = (diagnostic.field or "").rpartition(".data.")[2]
        # Forms name a field `title`, `filters[0].path` or `settings.goal.event`.
        name = "events" if field == "triggerSpec" else field.removeprefix("triggerSpec.").removeprefix("graph.")
        key = pieces.key_of(diagnostic)
        texts = {"level": diagnostic.level, "message": diagnostic.message}
        # The user of a canvas may not have written `.on_any_event()`.
        consent = "every_event" if diagnostic.message == NO_EVENT_NAME else diagnostic.consent
        described.append({**texts, "key": key, "field": name, "consent": consent})
    return described


def arranged(draft: Draft) -> dict[str, Point]:
    """Return the automatic layout: the upper left corner of each node by id, in pixels."""
    parsed = parse_draft(draft)
    graph = parsed.graph
    # Edges in the order of the outputs, so that the first branch is placed on the left.
    order = {(node.id, handle): place for node in graph.nodes for place, handle in enumerate(node.handles)}
    links = sorted(graph.edges, key=lambda edge: order.get((edge.source, edge.handle), 0))
    heights = {node.id: card(node, parsed.trigger, graph).height for node in graph.nodes}
    return arrange(heights, [(edge.source, edge.target) for edge in links]).corners
