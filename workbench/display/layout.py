"""Positions of cards and routes of edges: the positions that a user chose, or else a layered layout from top to bottom.

The layout has the usual four steps (Sugiyama): assign layers by longest path; add placeholders where an edge passes a
layer; order each layer by the average position of its neighbours; move each layer as close to its neighbours as order
and distance allow. Loops and edges to missing nodes, which drafts may have, are ignored.

Cards that a user placed stay there, except that a card which overlaps another moves down. Edges are routed around the
cards between their ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import msgspec

from workbench.display.cards import WIDTH
from workbench.language.graph import search_depth_first, targets_by_source

Link: TypeAlias = tuple[str, str]
Point: TypeAlias = tuple[float, float]
Route: TypeAlias = tuple[tuple[float, float, float], ...]
"""Vertical parts of an edge on its way down: x, and the top and the bottom between which it keeps this x."""
Key = TypeVar("Key")

COLUMN_WIDTH, ROW_GAP, MARGIN = 316, 54, 14  # pixels
_MIN_GAP = ROW_GAP / 2  # pixels below a card, for the labels of its branches
_CELL = (300, 130)  # pixels for a card and its surroundings where the height of the card is unknown
_MAX_COORDINATE = 1_000_000  # pixels; a card beyond it could not be found on any canvas

_Vertex: TypeAlias = tuple[str, ...]
"""("node", id), or ("passing", source, target, layer) for an edge that passes a layer."""
_Neighbours: TypeAlias = dict[_Vertex, list[_Vertex]]
_SWEEPS = 9  # odd: the last sweep goes down, which puts the first branch on the left
_PASSING_WIDTH = 0.35  # of a node's width

_CURVE_SAMPLES = 24
_CLEARANCE = 8.0  # pixels; an edge nearer than this touches the card
_DETOUR = 20.0  # pixels between a card and an edge that is routed around it


class Layout(msgspec.Struct, frozen=True):
    """Centres of nodes, and the points where edges pass layers, in units of one node across and one layer down."""

    places: dict[str, tuple[float, int]]
    passing: dict[Link, tuple[tuple[float, int], ...]]


class GraphLayout(msgspec.Struct, frozen=True):
    """The upper left corners of cards and the routes of edges, in pixels."""

    corners: dict[str, Point]
    routes: dict[Link, Route] = {}


class Box(msgspec.Struct, frozen=True):
    left: float
    top: float
    right: float
    bottom: float

    def touches(self, x: float, y: float) -> bool:
        """Return whether an edge through this point would touch the card."""
        inside_x = self.left - _CLEARANCE < x < self.right + _CLEARANCE
        return inside_x and self.top - _CLEARANCE < y < self.bottom + _CLEARANCE


def arrange(heights: Mapping[str, float], links: Sequence[Link]) -> GraphLayout:
    """Return the layout of cards with these heights. `links` are in the order of the branches, left to right."""
    layout = layer_nodes([*heights], links)
    rows = max((row for _, row in layout.places.values()), default=-1) + 1
    tops, bottoms, y = [], [], float(MARGIN)
    for row in range(rows):
        tops.append(y)
        y += max((heights[node] for node, (_, own_row) in layout.places.items() if own_row == row), default=0.0)
        bottoms.append(y)
        y += ROW_GAP
    return GraphLayout(
        {node: (MARGIN + column * COLUMN_WIDTH, tops[row]) for node, (column, row) in layout.places.items()},
        {
            link: tuple((MARGIN + column * COLUMN_WIDTH + WIDTH / 2, tops[row], bottoms[row]) for column, row in points)
            for link, points in layout.passing.items()
        },
    )


def grid_positions(nodes: Sequence[str], links: Sequence[Link]) -> dict[str, dict[str, int]]:
    """Return a `position` for each node without knowing the heights of the cards."""
    width, height = _CELL
    places = layer_nodes([*nodes], [*links]).places
    return {node: {"x": round(column * width), "y": row * height} for node, (column, row) in places.items()}


def chosen_positions(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> dict[str, Point] | None:
    """Return the positions that a user chose; None if a node has no position, or all are those of `grid_positions`."""
    points: dict[str, Point] = {}
    for node in nodes:
        point = point_of(node)
        if point is None:
            return None
        points[node["id"]] = point
    grid = grid_positions([*points], [(edge["source"], edge["target"]) for edge in edges])
    return None if points == {node: (at["x"], at["y"]) for node, at in grid.items()} else points


def point_of(node: Mapping[str, Any]) -> Point | None:
    """Return the position of a node; None if it has none, or one that cannot be drawn."""
    position = node.get("position")
    if not isinstance(position, dict):
        return None
    x, y = _coordinate(position.get("x")), _coordinate(position.get("y"))
    return None if x is None or y is None else (x, y)


def _coordinate(value: Any) -> float | None:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _MAX_COORDINATE else None


def position_below(points: Mapping[str, Point], source: str) -> dict[str, int]:
    """Return a free `position` below a node, to the right of cards that are there already."""
    x, y = points[source]
    down = _CELL[1] + ROW_GAP
    while any(abs(x - left) < COLUMN_WIDTH and abs(y + down - top) < _CELL[1] for left, top in points.values()):
        x += COLUMN_WIDTH
    return {"x": round(x), "y": round(y + down)}


def lowered(boxes: Mapping[str, Box]) -> dict[str, float]:
    """Return the new top of each card that is on or too near below another card; the upper one of the two stays."""
    tops: dict[str, float] = {}
    above: list[Box] = []
    for key, box in sorted(boxes.items(), key=lambda item: (item[1].top, item[1].left)):
        top, height = box.top, box.bottom - box.top
        in_column = [other for other in above if other.left < box.right and box.left < other.right]
        for other in sorted(in_column, key=lambda other: other.top):
            if top < other.bottom + _MIN_GAP and other.top < top + height + _MIN_GAP:
                top = other.bottom + ROW_GAP
        if top != box.top:
            tops[key] = top
        above.append(Box(box.left, top, box.right, top + height))
    return tops


# Layered layout


def layer_nodes(nodes: Sequence[str], links: Iterable[Link]) -> Layout:
    """Return the layered layout of `nodes`. `links` are in the order of the branches, left to right."""
    existing = set(nodes)
    complete = [link for link in dict.fromkeys(links) if link[0] in existing and link[1] in existing]
    back = {*search_depth_first(nodes, targets_by_source(complete))[1]}
    acyclic = [link for link in complete if link not in back]
    layers, chains = _layers(nodes, acyclic)
    above: _Neighbours = {}
    below: _Neighbours = {}
    for chain in chains:
        for upper, lower in pairwise(chain):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    for sweep in range(_SWEEPS):
        if sweep % 2 == 0:
            _reorder(layers, above, below)
        else:
            _reorder(layers[::-1], below, above)
    at = {vertex: float(index) for layer in layers for index, vertex in enumerate(layer)}
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            _align(layer, at, above if sweep % 2 == 0 else below)
    left = min(at.values(), default=0.0)
    row = {vertex: index for index, layer in enumerate(layers) for vertex in layer}
    places = {vertex: (at[vertex] - left, row[vertex]) for vertex in at}
    return Layout(
        {vertex[1]: place for vertex, place in places.items() if vertex[0] == "node"},
        {link: tuple(places[vertex] for vertex in chain[1:-1]) for link, chain in zip(acyclic, chains, strict=True)},
    )


def _layers(nodes: Sequence[str], links: Sequence[Link]) -> tuple[list[list[_Vertex]], list[list[_Vertex]]]:
    """Return the vertices of each layer, and the vertices of each link from its source to its target."""
    sources_of: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in links:
        sources_of[target].append(source)
    depth: dict[str, int] = {}  # the longest path from a node without sources
    for node in TopologicalSorter(sources_of).static_order():
        depth[node] = max((depth[source] + 1 for source in sources_of[node]), default=0)
    layers: list[list[_Vertex]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        layers[depth[node]].append(("node", node))
    chains = []
    for source, target in links:
        passed = range(depth[source] + 1, depth[target])
        passing: list[_Vertex] = [("passing", source, target, str(row)) for row in passed]
        for row, vertex in zip(passed, passing, strict=True):
            layers[row].append(vertex)
        chains.append([("node", source), *passing, ("node", target)])
    return layers, chains


def _reorder(layers: Sequence[list[_Vertex]], neighbours: _Neighbours, branches: _Neighbours) -> None:
    """Sort each layer by the average place of its neighbours in the layer before, then by the order of branches."""
    for before, layer in pairwise(layers):
        index = {vertex: place for place, vertex in enumerate(before)}
        branch = {vertex: place for parent in before for place, vertex in enumerate(branches.get(parent, ()))}
        rank = {}
        for own, vertex in enumerate(layer):
            places = [index[neighbour] for neighbour in neighbours.get(vertex, ())]
            rank[vertex] = (sum(places) / len(places) if places else own, branch.get(vertex, 0))
        layer.sort(key=rank.__getitem__)


def _align(layer: Sequence[_Vertex], at: dict[_Vertex, float], neighbours: _Neighbours) -> None:
    """Move the vertices of a layer as close as possible to the middle of their neighbours."""
    # Least squares that keeps order and distances: isotonic regression, by pooling adjacent violators.
    offsets = [0.0]
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + (_width(left) + _width(right)) / 2)
    blocks: list[list[float]] = []  # [sum, count] of pooled vertices
    for vertex, offset in zip(layer, offsets, strict=True):
        near = neighbours.get(vertex)
        wanted = sum(at[neighbour] for neighbour in near) / len(near) if near else at[vertex]
        blocks.append([wanted - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    means = [total / count for total, count in blocks for _ in range(int(count))]
    for vertex, offset, mean in zip(layer, offsets, means, strict=True):
        at[vertex] = mean + offset


def _width(vertex: _Vertex) -> float:
    return 1.0 if vertex[0] == "node" else _PASSING_WIDTH


# Routes around cards that a user placed


def route_edges(boxes: Mapping[str, Box], edges: Iterable[tuple[Key, str, str, float]]) -> dict[Key, Route]:
    """Return the routes of edges that have cards in their way.

    An edge is a key, its source, its target, and the share of the card's width (0 to 1) at which it leaves the source.
    """
    routes = {}
    for key, source, target, share in edges:
        if source not in boxes or target not in boxes:
            continue
        upper, lower = boxes[source], boxes[target]
        start = (upper.left + (upper.right - upper.left) * share, upper.bottom)
        end = ((lower.left + lower.right) / 2, lower.top)
        if route := route_edge(start, end, (box for node, box in boxes.items() if node not in (source, target))):
            routes[key] = route
    return routes


def route_edge(start: Point, end: Point, others: Iterable[Box]) -> Route:
    """Return the route of an edge around `others`, the cards that are neither its source nor its target."""
    between = sorted(
        (box for box in others if box.top > start[1] and box.bottom < end[1]), key=lambda box: (box.top, box.left)
    )
    route: list[tuple[float, float, float]] = []
    at = start
    for box in between:
        aside = box.right <= min(at[0], end[0]) - _CLEARANCE or box.left >= max(at[0], end[0]) + _CLEARANCE
        # The comparison is cheap and excludes most cards; only the others need samples of the curve.
        if aside or box.bottom <= at[1]:
            continue
        curve = _curve(at, end)
        if not any(box.touches(*point) for point in curve):
            continue
        middle = (box.top + box.bottom) / 2
        x, _ = min(curve, key=lambda point: abs(point[1] - middle))  # where the edge would cross the card
        beside = [
            other for other in between if other.top < box.bottom + _CLEARANCE and other.bottom > box.top - _CLEARANCE
        ]
        left, right = _free_x(box.left - _DETOUR, beside, -1), _free_x(box.right + _DETOUR, beside, 1)
        detour = min((left, right), key=lambda side: abs(side - x))
        route.append((detour, box.top, box.bottom))
        at = (detour, box.bottom)
    return tuple(route)


def _curve(start: Point, end: Point) -> list[Point]:
    """Return points of the Bézier curve that leaves and arrives vertically."""
    half = (start[1] + end[1]) / 2
    points = []
    for sample in range(_CURVE_SAMPLES + 1):
        share = sample / _CURVE_SAMPLES
        rest = 1 - share
        x = start[0] + (end[0] - start[0]) * share * share * (3 - 2 * share)
        points.append((x, rest**3 * start[1] + 3 * half * share * rest + share**3 * end[1]))
    return points


def _free_x(x: float, boxes: Sequence[Box], side: int) -> float:
    """Return the first x to the left (-1) or right (1) that touches none of the boxes."""
    for _ in boxes:
        hit = next((box for box in boxes if box.left - _CLEARANCE < x < box.right + _CLEARANCE), None)
        if hit is None:
            break
        x = hit.left - _DETOUR if side < 0 else hit.right + _DETOUR
    return x
