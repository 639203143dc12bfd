"""What stands on a node's card: its kind, a title, a few lines, a colour and an icon. One look for pictures and the canvas."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec

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
from api.language.graph import Graph, Node
from api.language.onchain import TYPE as ONCHAIN_EVENT
from api.language.trigger import Trigger
from workbench.display import words

WIDTH = 280
_TEXT = WIDTH - 64
_TITLE, LINE = 15.5, 12  # sizes for measuring; titles are 14, but bold
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMW@%…—")
_TAG = re.compile(r"<[^<>]*>")
_LOOKS: dict[str, Any] = json.loads(files("workbench.display").joinpath("looks.json").read_text("utf-8"))

ICONS: dict[str, str] = _LOOKS["icons"]
"""Icons as pieces of SVG around (0, 0), 18 units wide."""


class Look(msgspec.Struct, frozen=True):
    """A colour and the name of an icon."""

    color: str
    icon: str


class Card(msgspec.Struct, frozen=True):
    """The texts of a card, wrapped and cut to its width."""

    kind: str
    title: Sequence[str]
    lines: Sequence[str]
    look: Look

    @property
    def height(self) -> float:
        """The height in pixels."""
        return 36 + 18 * len(self.title) + 16 * len(self.lines) + (4 if self.lines else 0)


def look(kind: str) -> Look:
    """Return the look of a kind of node."""
    return Look(*_LOOKS["kinds"].get(kind, _LOOKS["unknown"]))


def card(node: Node, trigger: Trigger, graph: Graph) -> Card:
    """Return the card of a node."""
    kind = _trigger_kind(node, trigger) if isinstance(node.action, Entered) else node.kind
    title, lines = _texts(node, trigger, graph)
    return Card(words.KIND_WORDS.get(kind, kind), title, lines, look(kind))


def _trigger_kind(node: Node, trigger: Trigger) -> str:
    """Return what the card of a trigger shows: the trigger's own kind, the node's while it is not filled in."""
    return ONCHAIN_EVENT if trigger.source is not None or node.kind == ONCHAIN_EVENT else "app_event"


def label(source: Node, way: Way, share: str = "") -> str:
    """Return what stands at a way out of a node that branches; a share that was counted in place of the one that is meant."""
    name = words.HANDLE_WORDS.get(way or "", way or "")
    match source.action:
        case Split(branches=branches) if not share:
            return next((f"{each.handle} {each.percent} %" for each in branches if each.handle == way), name)
        case _:
            return f"{name} {share}".strip()


def _texts(  # noqa: C901, PLR0911, PLR0912  a table: one line or two per kind
    node: Node, trigger: Trigger, graph: Graph
) -> tuple[list[str], list[str]]:
    """Return the title and the lines below it."""
    match node.action:
        case Entered():
            rules = [line for rule in words.rules(graph.settings) for line in _wrapped(rule, LINE, 2)]
            asked = _wrapped(words.conditions(trigger.filters), LINE, 3)
            title, lines = _starting(node, trigger)
            return _wrapped(title, _TITLE, 2), [*lines, *asked, *rules]
        case SendInapp(title=title, body=body):
            return _wrapped(title, _TITLE, 2), _wrapped(body, LINE, 3)
        case SendEmail(subject=title, body=body, html=html):
            return _wrapped(title, _TITLE, 2), _wrapped(_TAG.sub(" ", body) if html else body, LINE, 3)
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
            return _wrapped(event, _TITLE, 1), [within, *_wrapped(words.conditions(filters), LINE, 3)]
        case Split(branches=branches):
            return [f"{len(branches)} ways"], []
        case Exit():
            return ["Nothing more happens"], []
        case Invalid(problems=problems):
            field = problems[0].field.rpartition(".data.")[2]
            return _wrapped(node.id, _TITLE, 1), _wrapped(f"{field} {problems[0].reason}", LINE, 3)


def _starting(node: Node, trigger: Trigger) -> tuple[str, list[str]]:
    """Return what starts it, and below it, of a log, where it is looked for and whose it is."""
    source = trigger.source
    if source is None:
        return ("which contract?" if node.kind == ONCHAIN_EVENT else words.events(trigger)), []
    deep = f", {words.counted(source.confirmations, 'block')} deep" if source.confirmations else ""
    where = f"{words.short(source.contract)} on chain {source.chain_id}"
    return source.declared.name, [cut(where, LINE), cut(f"for the wallet in {source.wallet_arg}{deep}", LINE)]


def _wrapped(text: str, size: float, most: int) -> list[str]:
    """Break a text into at most `most` lines of a card; what does not fit ends in an ellipsis."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        longer = f"{current} {word}".strip()
        if not current or long(longer, size) <= _TEXT:
            current = longer
            continue
        lines.append(current)
        current = word
    lines += [current] if current else []
    shown = lines[:most]
    if len(lines) > most:
        shown[-1] += " …"
    return [cut(line, size) for line in shown]


def cut(text: str, size: float, room: float = _TEXT) -> str:
    """Return a text that fits into so many pixels."""
    if long(text, size) <= room:
        return text
    while text and long(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def long(text: str, size: float) -> float:
    """Estimate the width in pixels, on the wide side: fonts differ, and a picture cannot measure."""
    return size * sum(map(_share, text))


def _share(letter: str) -> float:
    if letter in _NARROW:
        return 0.36
    if letter in _WIDE or ord(letter) > 0x2E7F:
        return 1.0
    return 0.7 if letter.isupper() else 0.6
