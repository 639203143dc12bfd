"""What a canvas shows of a draft besides its pieces: the cards, the remarks, and where nodes stand that nobody has put anywhere."""

from collections.abc import Mapping

import msgspec

from api.language.action import Invalid
from api.language.check import Remark
from api.language.codec import normalise
from api.language.graph import Graph, Node, read_graph
from api.language.trigger import Trigger, read_trigger
from workbench.author import Draft, JsonObject
from workbench.canvas.forms import ways
from workbench.canvas.sheet import Sheet
from workbench.display.cards import WIDTH, card
from workbench.display.lanes import Box, Lane, lanes
from workbench.display.places import Point, arranged, point_of

_PREFIXES = ("triggerSpec.", "graph.")


class Read(msgspec.Struct, frozen=True):
    """A draft as far as the language can read it: a trigger that is not filled in yet is the wildcard."""

    trigger: Trigger
    graph: Graph


def read(draft: Draft) -> Read:
    """Return what the language reads in a draft."""
    trigger, graph = read_trigger(normalise(draft.trigger)), read_graph(normalise(draft.payload()["graph"]))
    return Read(trigger if isinstance(trigger, Trigger) else Trigger(), graph if isinstance(graph, Graph) else Graph())


def cards(sheet: Sheet, known: Read) -> dict[str, JsonObject]:
    """Return what stands on each card, by key."""
    return {
        key: _card(node, sheet.nodes[key].get("data"), known)
        for key, node in zip(sheet.nodes, known.graph.nodes, strict=False)
    }


def _card(node: Node, written: object, known: Read) -> JsonObject:
    shown = card(node, known.trigger, known.graph)
    return {
        "kind": shown.kind,
        "title": [*shown.title],
        "lines": [*shown.lines],
        "color": shown.look.color,
        "icon": shown.look.icon,
        "height": shown.height,
        "ways": ways(node, written),
        "valid": not isinstance(node.action, Invalid),
    }


def passing(sheet: Sheet, shown: Mapping[str, JsonObject]) -> dict[str, Lane]:
    """Return what edges pass on their way between the cards, by key."""
    boxes = {}
    for key, node in sheet.nodes.items():
        point = point_of(node)
        if point is not None and key in shown:
            boxes[key] = Box(point[0], point[1], point[0] + WIDTH, point[1] + shown[key]["height"])
    keys = sheet.keys()
    links = [
        (name, keys.get(edge["source"], ""), keys.get(edge["target"], ""), _share(edge, shown, keys))
        for name, edge in sheet.edges.items()
    ]
    return lanes(boxes, links)


def _share(edge: JsonObject, shown: Mapping[str, JsonObject], keys: Mapping[str, str]) -> float:
    card = shown.get(keys.get(edge["source"], ""))
    handles = [each["handle"] for each in card["ways"]] if card else []
    way = edge.get("sourceHandle") or None
    return (handles.index(way) + 1) / (len(handles) + 1) if way in handles else 0.5


def remarks(sheet: Sheet, found: tuple[Remark, ...]) -> list[JsonObject]:
    """Return remarks as a browser takes them: `key` of the node, and `field` as its form calls it."""
    return [
        {
            "level": each.level,
            "message": each.message,
            "key": sheet.key_of(each),
            "field": _field(each.field or ""),
        }
        for each in found
    ]


def _field(path: str) -> str:
    """Return the field as forms know it: `title`, `filters[0].path`, `settings.goal.event`."""
    inside = path.rpartition(".data.")[2]
    for prefix in _PREFIXES:
        inside = inside.removeprefix(prefix)
    return "events" if inside == "triggerSpec" else inside


def laid_out(draft: Draft) -> dict[str, Point]:
    """Return where nodes stand when they are laid out, by id."""
    graph, trigger = read(draft).graph, read(draft).trigger
    order = {(node.id, way): place for node in graph.nodes for place, way in enumerate(node.handles)}
    links = sorted(graph.edges, key=lambda edge: order.get((edge.source, edge.handle), 0))
    heights = {node.id: card(node, trigger, graph).height for node in graph.nodes}
    return arranged(heights, [(edge.source, edge.target) for edge in links]).corners
