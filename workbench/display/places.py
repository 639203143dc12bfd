"""Where cards stand, in pixels: as somebody put them, or laid out from top to bottom."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from workbench.display.cards import WIDTH
from workbench.display.layout import Layout, Link, place

Point: TypeAlias = tuple[float, float]

ACROSS, DOWN, MARGIN = 316, 54, 14
_GRID = (300, 130)  # of a node with the room around it, where heights are not known
_FAR = 1_000_000  # pixels; what is farther away is on no canvas


class Places(msgspec.Struct, frozen=True):
    """The upper left corner of every card, and for edges that pass others the middle, top and bottom of each row passed."""

    corners: dict[str, Point]
    passing: dict[Link, tuple[tuple[float, float, float], ...]] = {}


def arranged(heights: Mapping[str, float], links: Sequence[Link]) -> Places:
    """Return the places of cards of these heights; `links` come in the order of the ways out, left to right."""
    layout = place([*heights], links)
    tops, bottoms = _rows(layout, heights)
    corners = {node: (MARGIN + across * ACROSS, tops[row]) for node, (across, row) in layout.places.items()}
    passing = {
        link: tuple((MARGIN + across * ACROSS + WIDTH / 2, tops[row], bottoms[row]) for across, row in spots)
        for link, spots in layout.passing.items()
    }
    return Places(corners, passing)


def gridded(nodes: Sequence[str], links: Sequence[Link]) -> dict[str, dict[str, int]]:
    """Return a `position` for each node without knowing how high its card is."""
    across, down = _GRID
    return {node: {"x": round(x * across), "y": y * down} for node, (x, y) in place([*nodes], [*links]).places.items()}


def chosen(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> dict[str, Point] | None:
    """Return where nodes were put; None when one of them was not, or nobody but `gridded` did."""
    found = [(node["id"], point_of(node)) for node in nodes]
    points = {node_id: point for node_id, point in found if point is not None}
    if not found or any(point is None for _, point in found):
        return None
    links = [(edge["source"], edge["target"]) for edge in edges]
    ours = {node: (each["x"], each["y"]) for node, each in gridded([*points], links).items()}
    return None if points == ours else points


def point_of(node: Mapping[str, Any]) -> Point | None:
    """Return the position in a node, None when there is none that can be drawn."""
    position = node.get("position")
    if not isinstance(position, dict):
        return None
    x, y = _pixels(position.get("x")), _pixels(position.get("y"))
    return None if x is None or y is None else (x, y)


def beside(points: Mapping[str, Point], source: str) -> dict[str, int]:
    """Return a `position` below a node, right of whatever stands there already."""
    x, y = points[source]
    down = _GRID[1] + DOWN
    while any(abs(x - left) < ACROSS and abs(y + down - top) < _GRID[1] for left, top in points.values()):
        x += ACROSS
    return {"x": round(x), "y": round(y + down)}


def _pixels(value: Any) -> float | None:
    known = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return float(value) if known and abs(value) < _FAR else None


def _rows(layout: Layout, heights: Mapping[str, float]) -> tuple[list[float], list[float]]:
    rows = max((row for _, row in layout.places.values()), default=-1) + 1
    tops, bottoms, y = [], [], float(MARGIN)
    for row in range(rows):
        tops.append(y)
        y += max((heights[node] for node, (_, at) in layout.places.items() if at == row), default=0.0)
        bottoms.append(y)
        y += DOWN
    return tops, bottoms
