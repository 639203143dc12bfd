"""Cards: how a node looks in pictures and on the canvas.

Text is measured without a browser, because a picture cannot measure itself: widths are estimated on the wide side, so
that lines are cut too early rather than too late. Sizes are in pixels.
"""

import json
import re
from collections.abc import Sequence
from importlib.resources import files

import msgspec

from workbench.display.kinds import KINDS, STEPS, TRIGGERS, field_texts, filled, handle_words, parts, short_texts
from workbench.display.sentences import rules
from workbench.language.actions import FIELDS, FieldType, Handle, InvalidAction, SendEmail, Split, TriggerNode
from workbench.language.graph import Graph, Node
from workbench.language.trigger import Trigger, is_app_event

WIDTH = 280
_TEXT_WIDTH = WIDTH - 64  # without the icon and the margins
_TITLE_SIZE, _LINE_SIZE = 15.5, 12  # titles are drawn at 14; bold text is wider
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMW@%…—")
_HTML_TAG = re.compile(r"<[^<>]*>")
_TITLE_LINES: dict[FieldType, int] = {"line": 2, "attributes": 3, "filters": 3}
_UNKNOWN = ("#c0392b", "alert")

ICONS: dict[str, str] = json.loads(files("workbench.display").joinpath("icons.json").read_text("utf-8"))
"""Icons as SVG elements around (0, 0), 18 units wide."""


class Card(msgspec.Struct, frozen=True):
    """The texts of a card, wrapped and cut to its width, its colour and the name of its icon."""

    kind: str
    title: Sequence[str]
    lines: Sequence[str]
    color: str
    icon: str

    @property
    def height(self) -> float:
        return 36 + 18 * len(self.title) + 16 * len(self.lines) + (4 if self.lines else 0)


def card(node: Node, trigger: Trigger, graph: Graph) -> Card:
    kind = node.kind
    if isinstance(node.action, TriggerNode):
        kind = trigger.type if is_app_event(node.kind) else node.kind
    match node.action:
        case TriggerNode():
            first, *others = TRIGGERS[kind].card if kind == trigger.type else (TRIGGERS[kind].incomplete, "{filters}")
            texts = short_texts(trigger)
            title = _wrapped(filled(first, texts), _TITLE_SIZE, 2)
            lines = [line for text in others for line in _wrapped(filled(text, texts), _LINE_SIZE, 3)]
            lines += [line for rule in rules(graph.settings) for line in _wrapped(rule, _LINE_SIZE, 2)]
        case InvalidAction(problems=problems):
            field = problems[0].field.rpartition(".data.")[2]
            title = _wrapped(node.id, _TITLE_SIZE, 1)
            lines = _wrapped(f"{field} {problems[0].reason}", _LINE_SIZE, 3)
        case action:
            texts = field_texts(node, quoted=False)
            if isinstance(action, SendEmail) and action.html:
                texts["body"] = _HTML_TAG.sub(" ", action.body)
            first, *others = STEPS[node.kind].card
            # A title that contains a name has one line; one that contains a text may have several.
            types = {field.key: field.type for field in FIELDS[node.kind]}
            max_lines = max((_TITLE_LINES.get(types[part.key], 1) for part in parts(first) if part.key), default=1)
            # Only a condition may have an empty title: no filters.
            title = _wrapped(filled(first, texts) or "always", _TITLE_SIZE, max_lines)
            lines = [line for text in others for line in _wrapped(filled(text, texts), _LINE_SIZE, 3)]
    row = KINDS.get(kind)
    if row is None:
        return Card(kind, title, lines, *_UNKNOWN)
    return Card(row.label, title, lines, row.color, row.icon)


def label(source: Node, way: Handle, share: str = "") -> str:
    """Return the label of an edge: the name of the branch, with the measured share or else the planned percentage."""
    if share:
        # The short name: with a share, “Event received” would not fit between two edges.
        return f"{handle_words(way, short=True)} {share}"
    if isinstance(source.action, Split):
        for branch in source.action.branches:
            if branch.handle == way:
                return f"{branch.handle} {branch.percent} %"
    return handle_words(way)


def _wrapped(text: str, size: float, max_lines: int) -> list[str]:
    """Return a text in lines of a card; text beyond `max_lines` is replaced by an ellipsis."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        longer = f"{current} {word}".strip()
        if not current or long(longer, size) <= _TEXT_WIDTH:
            current = longer
        else:
            lines.append(current)
            current = word
    if current:
        lines.append(current)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], f"{lines[max_lines - 1]} …"]
    return [cut(line, size) for line in lines]


def cut(text: str, size: float, width: float = _TEXT_WIDTH) -> str:
    """Return a text that fits into a width; the end of a longer one is replaced by an ellipsis."""
    if long(text, size) <= width:
        return text
    while text and long(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def long(text: str, size: float) -> float:
    """Return the estimated width of a text in pixels."""
    # The estimate errs on the wide side: a line that is cut early is readable, a line that leaves its card is not.
    width = 0.0
    for letter in text:
        if letter in _NARROW:
            width += 0.36
        elif letter in _WIDE or ord(letter) > 0x2E7F:  # CJK and emoji are as wide as they are high
            width += 1.0
        else:
            width += 0.7 if letter.isupper() else 0.6
    return size * width
