"""A graph as an SVG picture: rounded cards, branch labels, and, for a run, the path it took."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias

import msgspec
from markupsafe import Markup

from api.language.action import (
    AddTag,
    Condition,
    Delay,
    Entered,
    Exit,
    Invalid,
    RemoveTag,
    SendEmail,
    SendInapp,
    SendWebhook,
    Split,
    UpdateContact,
    WaitForEvent,
    Way,
)
from api.language.graph import Edge, Graph, Node
from api.language.run import Step
from api.language.trigger import Trigger
from workbench.display import words
from workbench.display.layout import place
from workbench.display.page import image, svg
from workbench.display.sentences import sentences

Mark: TypeAlias = Literal["done", "failed", "waiting", "skipped", "goal", "added", "changed"]

_WIDTH, _ACROSS, _DOWN, _MARGIN = 280, 316, 54, 14
_TEXT = _WIDTH - 64
_TITLE, _LINE = 15.5, 12  # sizes for measuring; titles are 14, but bold
_LABEL, _LABEL_ROOM = 11, 18
_LOOKS = {
    Entered: ("#4c51c6", "bolt"),
    SendInapp: ("#0b7a75", "bubble"),
    SendEmail: ("#2f6fb0", "letter"),
    SendWebhook: ("#41566e", "arrow"),
    AddTag: ("#8a4bb8", "tag"),
    RemoveTag: ("#8a4bb8", "tag"),
    UpdateContact: ("#a23b72", "person"),
    Condition: ("#a85b0a", "fork"),
    Delay: ("#7a6a12", "clock"),
    WaitForEvent: ("#7a6a12", "clock"),
    Split: ("#a85b0a", "fork"),
    Exit: ("#5d6878", "stop"),
    Invalid: ("#c0392b", "alert"),
}
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMW@%…—")


class Taken(msgspec.Struct, frozen=True):
    """The path of one run: what happened at nodes, the ways (node, handle) that were followed, and how long it took to get there."""

    marks: dict[str, Mark]
    ways: frozenset[tuple[str, Way]] = frozenset()
    offsets: dict[str, timedelta] = {}


class _Card(msgspec.Struct, frozen=True):
    node_id: str
    kind: str
    title: Sequence[str]
    lines: Sequence[str]
    color: str
    icon: str
    x: float
    y: float
    height: float
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
        if step.outcome not in _STAYING:
            ways.add((step.node_id, step.handle))
    return Taken(marks, frozenset(ways), offsets)


_MARKS: dict[str, Mark] = {
    "failed": "failed",
    "refused": "failed",
    "waiting": "waiting",
    "skipped": "skipped",
    "goal": "goal",
}
_STAYING = frozenset({"failed", "refused", "waiting", "goal"})  # outcomes after which no way is followed


def picture(trigger: Trigger, graph: Graph, path: Taken | None = None) -> Markup:
    """Return the graph as an `<img>` whose alternative text is the automation in sentences."""
    source, width, height = draw(trigger, graph, path)
    return image(source, width, height, "\n".join(sentences(trigger, graph)))


def draw(trigger: Trigger, graph: Graph, path: Taken | None = None) -> tuple[str, float, float]:
    """Return the SVG document, its width and its height in pixels."""
    edges = _in_order(graph)
    layout = place([node.id for node in graph.nodes], [(edge.source, edge.target) for edge in edges])
    texts = {node.id: _texts(node, trigger, graph) for node in graph.nodes}
    tops, bottoms = _rows(layout.places, {node_id: _height(*text) for node_id, text in texts.items()})
    middle = {node_id: _MARGIN + across * _ACROSS + _WIDTH / 2 for node_id, (across, _) in layout.places.items()}
    cards = [
        _card(node, texts[node.id], middle[node.id], tops[layout.places[node.id][1]], path)
        for node in graph.by_id.values()
    ]
    by_id = {card.node_id: card for card in cards}
    wires = []
    for edge in edges:
        passed = [
            (_MARGIN + across * _ACROSS + _WIDTH / 2, tops[row], bottoms[row])
            for across, row in layout.passing.get((edge.source, edge.target), ())
        ]
        wires.append(_wire(edge, graph.by_id[edge.source], by_id, passed, path))
    width = max([card.x + _WIDTH for card in cards] + [0.0]) + _MARGIN
    height = max([card.y + card.height for card in cards] + [0.0]) + _MARGIN
    document = svg(
        "graph.svg.j2", cards=cards, wires=wires, width=round(width), height=round(height), card_width=_WIDTH
    )
    return document, round(width), round(height)


def _in_order(graph: Graph) -> list[Edge]:
    """Return the edges that join known nodes, the ways out of a node in the order of its handles."""
    known = [edge for edge in graph.edges if edge.source in graph.by_id and edge.target in graph.by_id]
    order = {node.id: index for index, node in enumerate(graph.nodes)}

    def rank(edge: Edge) -> tuple[int, int]:
        handles = graph.by_id[edge.source].handles
        return order[edge.source], handles.index(edge.handle) if edge.handle in handles else len(handles)

    return sorted(known, key=rank)


def _rows(places: dict[str, tuple[float, int]], heights: dict[str, float]) -> tuple[list[float], list[float]]:
    rows = max((row for _, row in places.values()), default=-1) + 1
    tops, bottoms, y = [], [], float(_MARGIN)
    for row in range(rows):
        tops.append(y)
        y += max((heights[node_id] for node_id, (_, at) in places.items() if at == row), default=0.0)
        bottoms.append(y)
        y += _DOWN
    return tops, bottoms


def _texts(  # noqa: C901, PLR0911, PLR0912  a table: one line or two per kind
    node: Node, trigger: Trigger, graph: Graph
) -> tuple[list[str], list[str]]:
    """Return the title and the lines below it, both wrapped and cut to the card."""
    match node.action:
        case Entered():
            rules = [line for rule in words.rules(graph.settings) for line in _wrapped(rule, _LINE, 2)]
            asked = _wrapped(words.conditions(trigger.filters), _LINE, 3)
            return _wrapped(words.events(trigger), _TITLE, 2), [*asked, *rules]
        case SendInapp(title=title, body=body) | SendEmail(subject=title, body=body):
            return _wrapped(title, _TITLE, 2), _wrapped(body, _LINE, 3)
        case SendWebhook(url=url):
            return _wrapped(url, _TITLE, 1), []
        case AddTag(tag=tag) | RemoveTag(tag=tag):
            return _wrapped(tag, _TITLE, 1), []
        case UpdateContact(attributes=attributes):
            return _wrapped(words.assignments(attributes), _TITLE, 3), []
        case Condition(filters=filters):
            return _wrapped(words.conditions(filters) or "always", _TITLE, 3), []
        case Delay(wait=wait):
            return [words.duration(wait)], []
        case WaitForEvent(event=event, filters=filters, timeout=timeout):
            within = f"for {words.duration(timeout)} at most"
            return _wrapped(event, _TITLE, 1), [within, *_wrapped(words.conditions(filters), _LINE, 3)]
        case Split(branches=branches):
            return [f"{len(branches)} ways"], []
        case Exit():
            return ["Nothing more happens"], []
        case Invalid(problems=problems):
            return _wrapped(node.id, _TITLE, 1), _wrapped(problems[0].reason, _LINE, 3)


def _height(title: Sequence[str], lines: Sequence[str]) -> float:
    return 36 + 18 * len(title) + 16 * len(lines) + (4 if lines else 0)


def _card(node: Node, text: tuple[list[str], list[str]], middle: float, y: float, path: Taken | None) -> _Card:
    color, icon = _LOOKS[type(node.action)]
    mark = path.marks.get(node.id) if path else None
    kind = words.KIND_WORDS.get("app_event" if isinstance(node.action, Entered) else node.kind, node.kind)
    faded = path is not None and mark is None
    return _Card(
        node_id=node.id,
        kind=kind,
        title=text[0],
        lines=text[1],
        color=color,
        icon=icon,
        x=middle - _WIDTH / 2,
        y=y,
        height=_height(*text),
        mark=mark,
        faded=faded,
        offset=words.offset(path.offsets.get(node.id, timedelta())) if path else "",
    )


def _wire(
    edge: Edge,
    source: Node,
    cards: dict[str, _Card],
    passed: Sequence[tuple[float, float, float]],
    path: Taken | None,
) -> _Wire:
    start, end = cards[edge.source], cards[edge.target]
    handles = source.handles
    share = (handles.index(edge.handle) + 1) / (len(handles) + 1) if edge.handle in handles else 0.5
    x, y = start.x + _WIDTH * share, start.y + start.height
    commands, first = [f"M{x:.1f} {y:.1f}"], None
    for at, top, bottom in passed:
        commands.append(_curve(x, y, at, top))
        commands.append(f"V{bottom:.1f}")
        first = first or (at, top)
        x, y = at, bottom
    commands.append(_curve(x, y, end.x + _WIDTH / 2, end.y - 7))
    label = _cut(_label(source, edge.handle), _LABEL, _WIDTH / (len(handles) + 1) - _LABEL_ROOM / 2)
    return _Wire(
        path=" ".join(commands),
        label=label,
        label_x=start.x + _WIDTH * share,
        label_y=start.y + start.height + 14,
        label_width=_long(label, _LABEL) + _LABEL_ROOM,
        look=_look(edge, path),
    )


def _label(source: Node, handle: Way) -> str:
    """Return what stands at a way out of a node that branches."""
    match source.action:
        case Split(branches=branches):
            return next((f"{each.handle} {each.percent} %" for each in branches if each.handle == handle), handle or "")
        case _:
            return words.HANDLE_WORDS.get(handle or "", handle or "")


def _look(edge: Edge, path: Taken | None) -> Literal["plain", "strong", "faded"]:
    if path is None:
        return "plain"
    followed = (edge.source, edge.handle) in path.ways and edge.target in path.marks
    return "strong" if followed else "faded"


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (to_y - y) / 2
    return f"C{x:.1f} {y + half:.1f} {to_x:.1f} {to_y - half:.1f} {to_x:.1f} {to_y:.1f}"


def _wrapped(text: str, size: float, most: int) -> list[str]:
    """Break a text into at most `most` lines of a card; what does not fit ends in an ellipsis."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        longer = f"{current} {word}".strip()
        if not current or _long(longer, size) <= _TEXT:
            current = longer
            continue
        lines.append(current)
        current = word
    lines += [current] if current else []
    shown = lines[:most]
    if len(lines) > most:
        shown[-1] += " …"
    return [_cut(line, size) for line in shown]


def _cut(text: str, size: float, room: float = _TEXT) -> str:
    if _long(text, size) <= room:
        return text
    while text and _long(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _long(text: str, size: float) -> float:
    """Estimate the width in pixels, on the wide side: fonts differ, and a picture cannot measure."""
    return size * sum(map(_share, text))


def _share(letter: str) -> float:
    if letter in _NARROW:
        return 0.36
    if letter in _WIDE or ord(letter) > 0x2E7F:
        return 1.0
    return 0.7 if letter.isupper() else 0.6
