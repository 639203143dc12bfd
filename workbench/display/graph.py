"""A graph as an SVG picture: cards, labelled edges and, for a run, the path that it took; and the page of a run."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec
from markupsafe import Markup

from workbench.display import cards, words
from workbench.display.cards import WIDTH, Card
from workbench.display.html import html, image, svg
from workbench.display.layout import MARGIN, Box, GraphLayout, Point, arrange, route_edges
from workbench.display.sentences import sentences
from workbench.language.actions import Handle, InvalidAction
from workbench.language.filter import Verdict
from workbench.language.graph import Edge, Graph, Node
from workbench.language.run import State, Step
from workbench.language.trigger import Trigger

Mark: TypeAlias = Literal["done", "failed", "waiting", "skipped", "goal", "invalid", "added", "changed"]
Chosen: TypeAlias = Mapping[str, Point] | None
"""Positions that a user chose; None for the automatic layout."""

STAYING = frozenset({"failed", "refused", "joined", "held_out", "waiting", "goal"})
"""Outcomes after which a run does not follow an edge."""
_MARKS: dict[str, Mark] = {
    "failed": "failed",
    "refused": "failed",
    "held_out": "skipped",
    "joined": "skipped",
    "waiting": "waiting",
    "skipped": "skipped",
    "undeliverable": "skipped",
    "goal": "goal",
}
_LABEL_SIZE, _LABEL_PADDING = 11, 18
_ARROW = 7  # pixels between the end of an edge and its card


class RunPath(msgspec.Struct, frozen=True):
    """The path of one run, or of many: marks at nodes, the edges (node, handle) followed, and times since the start.

    `notes` at nodes replace the times; `shares` appear at the edges of nodes with branches.
    """

    marks: dict[str, Mark]
    ways: frozenset[tuple[str, Handle]] = frozenset()
    offsets: dict[str, timedelta] = {}
    notes: dict[str, str] = {}
    shares: dict[tuple[str, Handle], str] = {}


class _DrawnCard(msgspec.Struct, frozen=True):
    node_id: str
    card: Card
    x: float
    y: float
    mark: Mark | None
    faded: bool
    offset: str


class _DrawnEdge(msgspec.Struct, frozen=True):
    path: str
    label: str
    label_x: float
    label_y: float
    label_width: float
    branch: int
    branch_x: float
    branch_y: float
    look: Literal["plain", "strong", "faded"]


def path_of(steps: Iterable[Step]) -> RunPath:
    marks: dict[str, Mark] = {}
    ways: set[tuple[str, Handle]] = set()
    offsets: dict[str, timedelta] = {}
    started_at = None
    for step in steps:
        started_at = started_at or step.at
        marks[step.node_id] = _MARKS.get(step.outcome, "done")
        offsets[step.node_id] = step.at - started_at
        if step.outcome not in STAYING:
            ways.add((step.node_id, step.handle))
    return RunPath(marks, frozenset(ways), offsets)


def picture(trigger: Trigger, graph: Graph, path: RunPath | None = None, chosen: Chosen = None) -> Markup:
    """Return the graph as an `<img>`; its alternative text describes the automation in sentences."""
    source, width, height = draw(trigger, graph, path, chosen)
    return image(source, width, height, "\n".join(sentences(trigger, graph)))


def draw(
    trigger: Trigger, graph: Graph, path: RunPath | None = None, chosen: Chosen = None
) -> tuple[str, float, float]:
    """Return the SVG document, its width and its height in pixels."""
    nodes = graph.by_id
    order = {node.id: index for index, node in enumerate(graph.nodes)}

    def rank(edge: Edge) -> tuple[int, int]:
        handles = nodes[edge.source].handles
        return order[edge.source], handles.index(edge.handle) if edge.handle in handles else len(handles)

    # A draft may have edges to nodes that were deleted. The order of branches decides which card is on the left.
    edges = sorted((edge for edge in graph.edges if edge.source in order and edge.target in order), key=rank)
    card_of = {node.id: cards.card(node, trigger, graph) for node in nodes.values()}
    if chosen:
        # A user may place cards at any coordinates, also negative ones; the picture starts at its margin.
        left, top = min(x for x, _ in chosen.values()) - MARGIN, min(y for _, y in chosen.values()) - MARGIN
        corners = {node_id: (x - left, y - top) for node_id, (x, y) in chosen.items()}
        boxes = {
            node_id: Box(*corners[node_id], corners[node_id][0] + WIDTH, corners[node_id][1] + card.height)
            for node_id, card in card_of.items()
        }
        leaving = [
            ((edge.source, edge.target), edge.source, edge.target, _leaves_at(nodes[edge.source], edge))
            for edge in edges
        ]
        layout = GraphLayout(corners, route_edges(boxes, leaving))
    else:
        heights = {node_id: card.height for node_id, card in card_of.items()}
        layout = arrange(heights, [(edge.source, edge.target) for edge in edges])
    drawn = {}
    for node_id, node in nodes.items():
        mark: Mark | None = "invalid" if isinstance(node.action, InvalidAction) else None
        faded, note = False, ""
        if path is not None:
            mark = path.marks.get(node_id)
            faded, note = mark is None, path.notes.get(node_id) or words.offset(path.offsets.get(node_id, timedelta()))
        drawn[node_id] = _DrawnCard(node_id, card_of[node_id], *layout.corners[node_id], mark, faded, note)
    branches: dict[tuple[str, Handle], list[str]] = {}
    for edge in edges:
        branches.setdefault((edge.source, edge.handle), []).append(edge.target)
    wires = [
        _drawn_edge(
            edge,
            branches[edge.source, edge.handle],
            nodes[edge.source],
            drawn,
            layout.routes.get((edge.source, edge.target), ()),
            path,
        )
        for edge in edges
    ]
    width = round(max([card.x + WIDTH for card in drawn.values()] + [0.0]) + MARGIN)
    height = round(max([card.y + card.card.height for card in drawn.values()] + [0.0]) + MARGIN)
    document = svg(
        "graph.svg.j2",
        cards=drawn.values(),
        wires=sorted(wires, key=lambda wire: wire.look == "strong"),  # drawn last, above the others
        width=width,
        height=height,
        card_width=WIDTH,
        icons=cards.ICONS,
    )
    return document, width, height


def _leaves_at(source: Node, edge: Edge) -> float:
    handles = source.handles
    return (handles.index(edge.handle) + 1) / (len(handles) + 1) if edge.handle in handles else 0.5


def _drawn_edge(
    edge: Edge,
    branches: Sequence[str],
    source: Node,
    drawn: Mapping[str, _DrawnCard],
    route: Sequence[tuple[float, float, float]],
    path: RunPath | None,
) -> _DrawnEdge:
    start, end = drawn[edge.source], drawn[edge.target]
    start_x, start_y = start.x + WIDTH * _leaves_at(source, edge), start.y + start.card.height
    commands, x, y = [f"M{start_x:.1f} {start_y:.1f}"], start_x, start_y
    for detour, top, bottom in route:
        commands += [_curve(x, y, detour, top), f"V{bottom:.1f}"]
        x, y = detour, bottom
    commands.append(_curve(x, y, end.x + WIDTH / 2, end.y - _ARROW))
    share = path.shares.get((edge.source, edge.handle), "") if path else ""
    label = cards.label(source, edge.handle, share)
    room = WIDTH / (len(source.handles) + 1) - _LABEL_PADDING / 2
    if share and cards.long(label, _LABEL_SIZE) > room:
        label = share  # the edge is too narrow for both; the number matters more
    label = label if share else cards.cut(label, _LABEL_SIZE, room)
    look: Literal["plain", "strong", "faded"] = "plain"
    if path is not None:
        followed = (edge.source, edge.handle) in path.ways and edge.target in path.marks
        look = "strong" if followed else "faded"
    return _DrawnEdge(
        path=" ".join(commands),
        label=label,
        label_x=start_x,
        label_y=start_y + 14,
        label_width=cards.long(label, _LABEL_SIZE) + _LABEL_PADDING,
        branch=branches.index(edge.target) + 1 if len(branches) > 1 else 0,
        branch_x=end.x + WIDTH / 2,
        branch_y=end.y - _ARROW - 12,
        look=look,
    )


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (to_y - y) / 2
    return f"C{x:.1f} {y + half:.1f} {to_x:.1f} {to_y - half:.1f} {to_x:.1f} {to_y:.1f}"


LOOKS = {
    State.COMPLETED: "good",
    State.EXITED: "good",
    State.DEAD: "bad",
    State.CANCELLED: "warn",
    State.RETRYING: "warn",
    State.PAUSED: "warn",
    None: "warn",
}
VerdictGroup = tuple[str, tuple[Verdict, ...]]
"""A title, and the verdicts on the filters of the trigger or of one condition."""


def run_page(state: State | None, **contents: Any) -> str:
    """Return the page; `contents` are the other values of its template."""
    return html("run.html.j2", state=state.value if state else "not started", look=LOOKS.get(state, "busy"), **contents)


def explanations(verdicts: tuple[Verdict, ...], steps: Sequence[Step]) -> list[VerdictGroup]:
    """Return the verdicts on the filters of the trigger and of each condition, with the result as a title."""
    groups: list[VerdictGroup] = []
    if verdicts:
        passed = all(verdict.passed for verdict in verdicts)
        groups.append(("Why it starts" if passed else "Why it does not start", verdicts))
    for step in steps:
        if step.kind == "condition" and step.detail.get("verdicts"):
            inner = msgspec.convert(step.detail["verdicts"], tuple[Verdict, ...])
            title = f"Why “{inner[0].path} …” was {'true' if step.handle == 'true' else 'false'} ({step.node_id})"
            groups.append((title, inner))
    return groups
