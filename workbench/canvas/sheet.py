"""What a canvas edits: a draft taken apart into pieces that can change on their own.

Every node and edge has a key of its own, which is its id wherever that is unambiguous: drafts may hold edges without ids, and two of one id.
Pieces that nobody touches are kept as they are, so nothing in them is lost, whatever a canvas does not know of.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.language.check import Remark
from api.language.trigger import is_trigger
from workbench.author import Draft, JsonObject, from_json
from workbench.canvas.exact import from_browser, to_browser
from workbench.display.places import Point
from workbench.errors import DraftError


class Patch(msgspec.Struct, frozen=True):
    """What changed: pieces by key, None for those that are gone. `order`: the keys of all nodes, where it changed.

    `fresh`: keys of nodes that are meant to be new.
    """

    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    trigger: Any = None
    order: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()


class Sheet(msgspec.Struct, frozen=True):
    """A draft in pieces: nodes and edges by key, the trigger, and what stands beside them in the graph."""

    nodes: dict[str, JsonObject]
    edges: dict[str, JsonObject]
    trigger: JsonObject
    beside: JsonObject

    def draft(self, name: str) -> Draft:
        """Return the draft; raise DraftError when its shape is wrong."""
        graph = {"nodes": [*self.nodes.values()], "edges": [*self.edges.values()]} | self.beside
        return from_json({"name": name, "triggerSpec": self.trigger, "graph": graph})

    def patched(self, patch: Patch) -> "Sheet":
        """Return the sheet with a change; raise DraftError when somebody else has made a node of that id meanwhile."""
        if taken := [key for key in patch.fresh if key in self.nodes]:
            raise DraftError(f"there is a step {taken[0]!r} by now")
        nodes = _merged(self.nodes, patch.nodes)
        rank = {key: index for index, key in enumerate(patch.order)}
        if rank:
            nodes = dict(sorted(nodes.items(), key=lambda each: rank.get(each[0], len(rank))))
        trigger = self.trigger if patch.trigger is None else from_browser(patch.trigger)
        return Sheet(nodes, _merged(self.edges, patch.edges), trigger, _merged(self.beside, patch.beside))

    def pieces(self) -> JsonObject:
        """Return it as a browser takes it."""
        return {
            "nodes": [{"key": key, "node": to_browser(node)} for key, node in self.nodes.items()],
            "edges": [{"key": key, "edge": to_browser(edge)} for key, edge in self.edges.items()],
            "trigger": to_browser(self.trigger),
            "beside": to_browser(self.beside),
        }

    def keys(self) -> dict[str, str]:
        """Return the key of each node id: of the first, where there are two."""
        return {node["id"]: key for key, node in reversed(self.nodes.items())}

    def key_of(self, remark: Remark) -> str | None:
        """Return the key of the node that a remark is about: the trigger's, where it is about the trigger."""
        if remark.node_id is not None:
            return self.keys().get(remark.node_id)
        return self.start if (remark.field or "").startswith("triggerSpec") else None

    @property
    def start(self) -> str | None:
        """The key of the node that stands for the trigger."""
        triggers = (key for key, node in self.nodes.items() if is_trigger(node["type"]))
        return next(triggers, next(iter(self.nodes), None))


def sheet_of(draft: Draft, places: Mapping[str, Point]) -> Sheet:
    """Return a draft in pieces; nodes without a position stand where `places` has them."""
    nodes = [_placed(node, places) for node in draft.nodes]
    return Sheet(_keyed(nodes), _keyed(draft.edges), dict(draft.trigger), dict(draft.beside))


def _placed(node: JsonObject, places: Mapping[str, Point]) -> JsonObject:
    if node["id"] not in places:
        return node
    x, y = places[node["id"]]
    return {"id": node["id"], "type": node["type"]} | node | {"position": {"x": round(x), "y": round(y)}}


def _keyed(pieces: Sequence[JsonObject]) -> dict[str, JsonObject]:
    keyed: dict[str, JsonObject] = {}
    for index, piece in enumerate(pieces):
        own = piece.get("id")
        keyed[own if isinstance(own, str) and own and own not in keyed else f"#{index}"] = piece
    return keyed


def _merged(pieces: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: from_browser(each) for key, each in changes.items()}
    return {key: each for key, each in {**pieces, **given}.items() if each is not None}
