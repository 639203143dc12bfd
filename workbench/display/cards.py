"""Cards: how a node looks in pictures and on the canvas. Also the ids of nodes that are written without one.

Text is measured without a browser, because a picture cannot measure itself: widths are estimated on the wide side, so
that lines are cut too early rather than too late. Sizes are in pixels.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from importlib.resources import files
from typing import Any

import msgspec

from workbench.display import words
from workbench.language.actions import (
    AddTag,
    Condition,
    Delay,
    Exit,
    Handle,
    InvalidAction,
    RemoveTag,
    SendEmail,
    SendInapp,
    SendWebhook,
    Split,
    TriggerNode,
    UpdateContact,
    WaitForEvent,
)
from workbench.language.graph import Graph, Node
from workbench.language.onchain import ONCHAIN_EVENT
from workbench.language.trigger import Trigger

WIDTH = 280
_TEXT_WIDTH = WIDTH - 64  # without the icon and the margins
_TITLE_SIZE, _LINE_SIZE = 15.5, 12  # titles are drawn at 14, but bold
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMW@%…—")
_HTML_TAG = re.compile(r"<[^<>]*>")
_LOOKS: dict[str, Any] = json.loads(files("workbench.display").joinpath("looks.json").read_text("utf-8"))
_MAX_ID_LENGTH = 40
_MAX_SECONDS = 10**9  # of a delay in an id; larger ones would overflow a timedelta

ICONS: dict[str, str] = _LOOKS["icons"]
"""Icons as SVG elements around (0, 0), 18 units wide."""


class CardStyle(msgspec.Struct, frozen=True):
    """A colour and the name of an icon."""

    color: str
    icon: str


class Card(msgspec.Struct, frozen=True):
    """The texts of a card, wrapped and cut to its width."""

    kind: str
    title: Sequence[str]
    lines: Sequence[str]
    look: CardStyle

    @property
    def height(self) -> float:
        """The height in pixels."""
        return 36 + 18 * len(self.title) + 16 * len(self.lines) + (4 if self.lines else 0)


def look(kind: str) -> CardStyle:
    """Return the colour and the icon of a kind of node."""
    return CardStyle(*_LOOKS["kinds"].get(kind, _LOOKS["unknown"]))


def card(node: Node, trigger: Trigger, graph: Graph) -> Card:
    """Return the card of a node."""
    kind = node.kind
    if isinstance(node.action, TriggerNode):
        kind = ONCHAIN_EVENT if trigger.source is not None or node.kind == ONCHAIN_EVENT else "app_event"
    title, lines = _texts(node, trigger, graph)
    return Card(words.KIND_WORDS.get(kind, kind), title, lines, look(kind))


def label(source: Node, way: Handle, share: str = "") -> str:
    """Return the label of an edge: the name of the branch, with the measured share or else the planned percentage."""
    if share:
        # The short name: with a share, “Event received” would not fit between two edges.
        return f"{words.SHORT_HANDLE_WORDS.get(way or '', way or '')} {share}"
    if isinstance(source.action, Split):
        for branch in source.action.branches:
            if branch.handle == way:
                return f"{branch.handle} {branch.percent} %"
    return words.HANDLE_WORDS.get(way or "", way or "")


def _texts(node: Node, trigger: Trigger, graph: Graph) -> tuple[list[str], list[str]]:
    """Return the title and the lines below it."""
    match node.action:
        case TriggerNode():
            title, lines = words.event_names(trigger), []
            if (source := trigger.source) is not None:
                confirmations = source.confirmations
                depth = f", {words.quantity(confirmations, 'confirmation')}" if confirmations else ""
                chain = f"{words.short(source.contract)} on chain {source.chain_id}"
                title = source.abi_event.name
                lines = [cut(chain, _LINE_SIZE), cut(f"wallet in {source.wallet_arg}{depth}", _LINE_SIZE)]
            elif node.kind == ONCHAIN_EVENT:
                title = "which contract?"
            rules = [line for rule in words.rules(graph.settings) for line in _wrapped(rule, _LINE_SIZE, 2)]
            filters = _wrapped(words.conditions(trigger.filters), _LINE_SIZE, 3)
            return _wrapped(title, _TITLE_SIZE, 2), [*lines, *filters, *rules]
        case SendInapp(title=title, body=body):
            return _wrapped(title, _TITLE_SIZE, 2), _wrapped(body, _LINE_SIZE, 3)
        case SendEmail(subject=title, body=body, html=html):
            text = _HTML_TAG.sub(" ", body) if html else body
            return _wrapped(title, _TITLE_SIZE, 2), _wrapped(text, _LINE_SIZE, 3)
        case SendWebhook(url=url):
            return _wrapped(url, _TITLE_SIZE, 1), []
        case AddTag(tag=tag) | RemoveTag(tag=tag):
            return _wrapped(tag, _TITLE_SIZE, 1), []
        case UpdateContact(attributes=attributes):
            return _wrapped(words.assignments(attributes), _TITLE_SIZE, 3), []
        case Condition(filters=filters):
            return _wrapped(words.conditions(filters) or "always", _TITLE_SIZE, 3), []
        case Delay(wait=wait):
            return [words.duration(wait)], []
        case WaitForEvent(event=event, filters=filters, timeout=timeout):
            limit = f"up to {words.duration(timeout)}"
            return _wrapped(event, _TITLE_SIZE, 1), [limit, *_wrapped(words.conditions(filters), _LINE_SIZE, 3)]
        case Split(branches=branches):
            return [f"{len(branches)} branches"], []
        case Exit():
            return ["Nothing more happens"], []
        case InvalidAction(problems=problems):
            field = problems[0].field.rpartition(".data.")[2]
            return _wrapped(node.id, _TITLE_SIZE, 1), _wrapped(f"{field} {problems[0].reason}", _LINE_SIZE, 3)


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
    # The estimate is rather too wide: a line that is cut early is readable, a line that leaves its card is not.
    width = 0.0
    for letter in text:
        if letter in _NARROW:
            width += 0.36
        elif letter in _WIDE or ord(letter) > 0x2E7F:  # CJK and emoji are as wide as high
            width += 1.0
        else:
            width += 0.7 if letter.isupper() else 0.6
    return size * width


def free_id(kind: str, data: Mapping[str, Any], taken: Collection[str]) -> str:
    """Return the id of a new node: `add_tag_vip`, or `add_tag_vip_2` if that is taken."""
    match kind, data:
        case ("add_tag" | "remove_tag", {"tag": str(tag)}):
            name = f"{kind}_{tag}"
        case "delay", {"seconds": int(seconds)} if 0 < seconds < _MAX_SECONDS:
            name = f"delay_{words.duration(timedelta(seconds=seconds))}"
        case "wait_for_event", {"event": str(event)}:
            name = f"wait_for_{event}"
        case "condition", {"filters": [{"path": str(path)}, *_]}:
            name = f"if_{path.removeprefix('contact.')}"
        case _:
            name = kind
    # Ids appear in sentences, Python code and SQL, so they have only letters, digits and underscores.
    stem = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_MAX_ID_LENGTH] or "step"
    if stem not in taken:
        return stem
    return next(f"{stem}_{number}" for number in range(2, len(taken) + 3) if f"{stem}_{number}" not in taken)
