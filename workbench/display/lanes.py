"""Where edges pass the cards that stand in their way, so that none runs behind a card it has nothing to do with."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from workbench.display.places import Point

Lane: TypeAlias = tuple[tuple[float, float, float], ...]
"""What an edge passes on its way down: a middle, and from which height to which it is kept."""

K = TypeVar("K")
_SAMPLES = 24
_ROOM, _ASIDE = 8.0, 20.0  # pixels: nearer than this is in the way; so far beside it an edge passes


class Box(msgspec.Struct, frozen=True):
    """A card."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point is so near that an edge there would touch the card."""
        return self.left - _ROOM < x < self.right + _ROOM and self.top - _ROOM < y < self.bottom + _ROOM


def lane(start: Point, end: Point, others: Iterable[Box]) -> Lane:
    """Return what an edge passes from `start` down to `end`, among the cards that are neither its source nor its target."""
    between = sorted(
        (box for box in others if box.top > start[1] and box.bottom < end[1]), key=lambda box: (box.top, box.left)
    )
    passed: list[tuple[float, float, float]] = []
    at = start
    for box in between:
        if box.bottom <= at[1] or not _meets(at, end, box):
            continue
        middle = _beside(box, between, _across(at, end, (box.top + box.bottom) / 2))
        passed.append((middle, box.top, box.bottom))
        at = (middle, box.bottom)
    return tuple(passed)


def _meets(start: Point, end: Point, box: Box) -> bool:
    if not min(start[0], end[0]) - _ROOM < box.right or not box.left < max(start[0], end[0]) + _ROOM:
        return False
    return any(box.holds(*_point(start, end, step / _SAMPLES)) for step in range(_SAMPLES + 1))


def _point(start: Point, end: Point, share: float) -> Point:
    """Return a point of the curve, which leaves and arrives upright."""
    across, rest = share * share * (3 - 2 * share), 1 - share
    half = (start[1] + end[1]) / 2
    down = rest**3 * start[1] + 3 * half * share * rest + share**3 * end[1]
    return start[0] + (end[0] - start[0]) * across, down


def _across(start: Point, end: Point, height: float) -> float:
    """Return where the curve is at a height, to a pixel or so."""
    points = [_point(start, end, step / _SAMPLES) for step in range(_SAMPLES + 1)]
    return min(points, key=lambda point: abs(point[1] - height))[0]


def _beside(box: Box, others: Sequence[Box], wanted: float) -> float:
    """Return the nearest place beside a card, and beside those that stand next to it."""
    level = [each for each in others if each.top < box.bottom + _ROOM and each.bottom > box.top - _ROOM]
    return min(
        (_clear(box.left - _ASIDE, level, -1), _clear(box.right + _ASIDE, level, 1)), key=lambda x: abs(x - wanted)
    )


def _clear(x: float, boxes: Sequence[Box], side: int) -> float:
    for _ in boxes:
        hit = next((box for box in boxes if box.left - _ROOM < x < box.right + _ROOM), None)
        if hit is None:
            break
        x = hit.left - _ASIDE if side < 0 else hit.right + _ASIDE
    return x


def lanes(boxes: Mapping[str, Box], edges: Iterable[tuple[K, str, str, float]]) -> dict[K, Lane]:
    """Return the lanes of edges that pass anything: each is a key, its source, its target, and at which share of the card it leaves."""
    found = {}
    for key, source, target, share in edges:
        one, other = boxes.get(source), boxes.get(target)
        if one is None or other is None:
            continue
        start = (one.left + (one.right - one.left) * share, one.bottom)
        end = ((other.left + other.right) / 2, other.top)
        others = (box for node, box in boxes.items() if node not in (source, target))
        if way := lane(start, end, others):
            found[key] = way
    return found
