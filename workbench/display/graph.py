"""A graph as an SVG picture: rounded cards, branch labels, and, for a run, the path it took."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias

import msgspec
from markupsafe import Markup

from api.language.action import Invalid, Way
from api.language.graph import Edge, Graph, Node
from api.language.run import Step
from api.language.trigger import Trigger
from workbench.display import cards as written
from workbench.display import words
from workbench.display.cards import WIDTH, Card
from workbench.display.lanes import Box, Lane, lanes
from workbench.display.layout import Link
from workbench.display.page import image, svg
from workbench.display.places import MARGIN, Places, Point, arranged
from workbench.display.sentences import sentences

Mark: TypeAlias = Literal["done", "failed", "waiting", "skipped", "goal", "invalid", "added", "changed"]

_LABEL, _LABEL_ROOM = 11, 18


class Taken(msgspec.Struct, frozen=True):
    """The path of a run, or of many: what happened at nodes, the ways (node, handle) that were followed, how long it took to get there.

    `notes` stand at nodes in place of that, `shares` at the ways of those that branch.
    """

    marks: dict[str, Mark]
    ways: frozenset[tuple[str, Way]] = frozenset()
    offsets: dict[str, timedelta] = {}
    notes: dict[str, str] = {}
    shares: dict[tuple[str, Way], str] = {}


class _Drawn(msgspec.Struct, frozen=True):
    """A card where it stands, and what happened there."""

    node_id: str
    card: Card
    x: float
    y: float
    mark: Mark | None
    faded: bool
    offset: str


class _Wire(msgspec.Struct, frozen=True):
    path: str
    label: str
    label_x: float
    label_y: float
    label_width: float
    look: Literal["plain", "strong", "faded"]

    @property
    def order(self) -> int:
        """The followed way is drawn last, above the others."""
        return int(self.look == "strong")


def taken(steps: Iterable[Step]) -> Taken:
    """Return the path in a history of steps."""
    marks: dict[str, Mark] = {}
    ways: set[tuple[str, Way]] = set()
    offsets: dict[str, timedelta] = {}
    began_at = None
    for step in steps:
        began_at = began_at or step.at
        marks[step.node_id] = _MARKS.get(step.outcome, "done")
        offsets[step.node_id] = step.at - began_at
        if step.outcome not in STAYING:
            ways.add((step.node_id, step.handle))
    return Taken(marks, frozenset(ways), offsets)


_MARKS: dict[str, Mark] = {
    "failed": "failed",
    "refused": "failed",
    "held_out": "skipped",
    "waiting": "waiting",
    "skipped": "skipped",
    "goal": "goal",
}
STAYING = frozenset({"failed", "refused", "held_out", "waiting", "goal"})  # outcomes after which no way is followed


Chosen: TypeAlias = Mapping[str, Point] | None
"""Where somebody put the nodes; None: nobody did."""


def picture(trigger: Trigger, graph: Graph, path: Taken | None = None, chosen: Chosen = None) -> Markup:
    """Return the graph as an `<img>` whose alternative text is the automation in sentences."""
    source, width, height = draw(trigger, graph, path, chosen)
    return image(source, width, height, "\n".join(sentences(trigger, graph)))


def draw(trigger: Trigger, graph: Graph, path: Taken | None = None, chosen: Chosen = None) -> tuple[str, float, float]:
    """Return the SVG document, its width and its height in pixels."""
    edges = _in_order(graph)
    cards = {node.id: written.card(node, trigger, graph) for node in graph.by_id.values()}
    heights = {node_id: card.height for node_id, card in cards.items()}
    places = _moved(chosen) if chosen else arranged(heights, [(edge.source, edge.target) for edge in edges])
    drawn = {node.id: _drawn(node, cards[node.id], places.corners[node.id], path) for node in graph.by_id.values()}
    passing = _passing(graph, drawn, edges) if chosen else places.passing
    wires = []
    for edge in edges:
        passed = passing.get((edge.source, edge.target), ())
        wires.append(_wire(edge, graph.by_id[edge.source], drawn, passed, path))
    width = max([each.x + WIDTH for each in drawn.values()] + [0.0]) + MARGIN
    height = max([each.y + each.card.height for each in drawn.values()] + [0.0]) + MARGIN
    document = svg(
        "graph.svg.j2",
        cards=drawn.values(),
        wires=wires,
        width=round(width),
        height=round(height),
        card_width=WIDTH,
        icons=written.ICONS,
    )
    return document, round(width), round(height)


def _moved(chosen: Mapping[str, Point]) -> Places:
    """Return the places somebody chose, so that the picture begins at its margin."""
    left, top = min(x for x, _ in chosen.values()) - MARGIN, min(y for _, y in chosen.values()) - MARGIN
    return Places({node_id: (x - left, y - top) for node_id, (x, y) in chosen.items()})


def _passing(graph: Graph, drawn: Mapping[str, _Drawn], edges: Iterable[Edge]) -> dict[Link, Lane]:
    """Return what edges pass between cards that somebody put there."""
    boxes = {node_id: Box(each.x, each.y, each.x + WIDTH, each.y + each.card.height) for node_id, each in drawn.items()}
    return lanes(
        boxes,
        [
            ((edge.source, edge.target), edge.source, edge.target, _share(graph.by_id[edge.source], edge.handle))
            for edge in edges
        ],
    )


def _share(source: Node, handle: Way) -> float:
    """Return at which share of its card's width an edge leaves."""
    handles = source.handles
    return (handles.index(handle) + 1) / (len(handles) + 1) if handle in handles else 0.5


def _in_order(graph: Graph) -> list[Edge]:
    """Return the edges that join known nodes, the ways out of a node in the order of its handles."""
    known = [edge for edge in graph.edges if edge.source in graph.by_id and edge.target in graph.by_id]
    order = {node.id: index for index, node in enumerate(graph.nodes)}

    def rank(edge: Edge) -> tuple[int, int]:
        handles = graph.by_id[edge.source].handles
        return order[edge.source], handles.index(edge.handle) if edge.handle in handles else len(handles)

    return sorted(known, key=rank)


def _drawn(node: Node, card: Card, corner: Point, path: Taken | None) -> _Drawn:
    mark = path.marks.get(node.id) if path else None
    return _Drawn(
        node_id=node.id,
        card=card,
        x=corner[0],
        y=corner[1],
        mark="invalid" if path is None and isinstance(node.action, Invalid) else mark,
        faded=path is not None and mark is None,
        offset=_note(node.id, path) if path else "",
    )


def _note(node_id: str, path: Taken) -> str:
    return path.notes.get(node_id) or words.offset(path.offsets.get(node_id, timedelta()))


def _wire(
    edge: Edge,
    source: Node,
    cards: dict[str, _Drawn],
    passed: Sequence[tuple[float, float, float]],
    path: Taken | None,
) -> _Wire:
    start, end = cards[edge.source], cards[edge.target]
    across = _share(source, edge.handle)
    x, y = start.x + WIDTH * across, start.y + start.card.height
    commands, first = [f"M{x:.1f} {y:.1f}"], None
    for at, top, bottom in passed:
        commands.append(_curve(x, y, at, top))
        commands.append(f"V{bottom:.1f}")
        first = first or (at, top)
        x, y = at, bottom
    commands.append(_curve(x, y, end.x + WIDTH / 2, end.y - 7))
    share = path.shares.get((edge.source, edge.handle), "") if path else ""
    label = _fitting(written.label(source, edge.handle, share), share, WIDTH / (len(source.handles) + 1))
    return _Wire(
        path=" ".join(commands),
        label=label,
        label_x=start.x + WIDTH * across,
        label_y=start.y + start.card.height + 14,
        label_width=written.long(label, _LABEL) + _LABEL_ROOM,
        look=_look(edge, path),
    )


def _fitting(label: str, share: str, width: float) -> str:
    """Return what fits at a way out: of a label that is too long the share, which counts, or else its beginning."""
    room = width - _LABEL_ROOM / 2
    return share if share and written.long(label, _LABEL) > room else written.cut(label, _LABEL, room)


def _look(edge: Edge, path: Taken | None) -> Literal["plain", "strong", "faded"]:
    if path is None:
        return "plain"
    followed = (edge.source, edge.handle) in path.ways and edge.target in path.marks
    return "strong" if followed else "faded"


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (to_y - y) / 2
    return f"C{x:.1f} {y + half:.1f} {to_x:.1f} {to_y - half:.1f} {to_x:.1f} {to_y:.1f}"
