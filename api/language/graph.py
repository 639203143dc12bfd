"""Automation graphs: React Flow's shape outside, typed actions inside. Reading never raises; `check` judges."""

from functools import cached_property
from typing import Any

import msgspec

from api.language.action import MAX_NAME, Action, Entered, Way, is_name, read_action
from api.language.codec import unfit
from api.language.problem import Problem, Problems
from api.language.settings import NO_SETTINGS, Settings, read_settings

MAX_ITEMS = 1_000  # nodes, and edges


class Node(msgspec.Struct, frozen=True):
    """One node: `kind` is its type as written, `action` what it means."""

    id: str
    kind: str
    action: Action

    @property
    def handles(self) -> tuple[Way, ...]:
        """The handles that edges may leave by, in order."""
        return self.action.handles


class Edge(msgspec.Struct, frozen=True):
    """From one node to another, by a handle where the source branches."""

    id: str
    source: str
    target: str
    handle: Way = None


class Graph(msgspec.Struct, frozen=True, dict=True):
    """Nodes and edges in the order written, and what holds for the automation as a whole."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    settings: Settings = NO_SETTINGS

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """The nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def following(self) -> dict[tuple[str, Way], str]:
        """The node reached from (node, handle)."""
        return {(edge.source, edge.handle): edge.target for edge in self.edges}

    @cached_property
    def actions(self) -> frozenset[type]:
        """The kinds of action there are in it."""
        return frozenset(type(node.action) for node in self.nodes)

    @cached_property
    def start(self) -> Node | None:
        """The trigger node; failing that, the first node (contract §4.7.8)."""
        return next((node for node in self.nodes if isinstance(node.action, Entered)), next(iter(self.nodes), None))


def read_graph(value: Any, field: str = "graph") -> Graph | Problems:
    """Return the graph in a decoded JSON value, or what is wrong with its shape."""
    if not isinstance(value, dict):
        return (Problem(field, "must be an object with nodes and edges"),)
    if reason := unfit(value):
        return (Problem(field, reason),)
    problems: list[Problem] = []
    nodes = [
        _node(each, f"{field}.nodes[{index}]", problems) for index, each in _items(value, field, "nodes", problems)
    ]
    edges = [
        _edge(each, f"{field}.edges[{index}]", problems) for index, each in _items(value, field, "edges", problems)
    ]
    if problems:
        return tuple(problems)
    settings = read_settings(value.get("settings"), f"{field}.settings")
    return Graph(tuple(each for each in nodes if each), tuple(each for each in edges if each), settings)


def _items(value: dict[str, Any], field: str, name: str, problems: list[Problem]) -> list[tuple[int, Any]]:
    items = value.get(name)
    if items is None:
        return []
    if not isinstance(items, list):
        problems.append(Problem(f"{field}.{name}", "must be an array"))
        return []
    if len(items) > MAX_ITEMS:
        problems.append(Problem(f"{field}.{name}", f"has {len(items)} items, at most {MAX_ITEMS} are allowed"))
        return []
    return list(enumerate(items))


def _node(value: Any, field: str, problems: list[Problem]) -> Node | None:
    if not isinstance(value, dict) or not is_name(value.get("id")):
        problems.append(Problem(f"{field}.id", f"must be 1 to {MAX_NAME} characters"))
        return None
    kind, data = value.get("type"), value.get("data")
    if not isinstance(kind, str):
        problems.append(Problem(f"{field}.type", "must be a string"))
        return None
    if data is not None and not isinstance(data, dict):
        problems.append(Problem(f"{field}.data", "must be an object"))
        return None
    return Node(value["id"], kind, read_action(kind, data or {}, field))


def _edge(value: Any, field: str, problems: list[Problem]) -> Edge | None:
    if not isinstance(value, dict):
        problems.append(Problem(field, "must be an object"))
        return None
    for name in ("source", "target"):
        if not is_name(value.get(name)):
            problems.append(Problem(f"{field}.{name}", f"must be the id of a node, 1 to {MAX_NAME} characters"))
            return None
    for name in ("id", "sourceHandle"):
        if value.get(name) not in (None, "") and not is_name(value[name]):
            problems.append(Problem(f"{field}.{name}", f"must be a string of at most {MAX_NAME} characters"))
            return None
    return Edge(value.get("id") or "", value["source"], value["target"], value.get("sourceHandle") or None)
