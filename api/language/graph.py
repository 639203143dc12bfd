"""Automation graphs: React Flow's shape outside, typed actions inside. Reading never raises; `check` judges."""

from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from api.language.codec import unfit
from api.language.filter import Filter
from api.language.problem import Problem, Problems
from api.language.template import TemplateError, compile_template
from api.language.trigger import is_app_event, read_filters

MAX_NAME = 128  # characters
MAX_ITEMS = 1_000  # nodes, and edges


class Entered(msgspec.Struct, frozen=True):
    """The trigger node: where an entry starts."""


class SendInapp(msgspec.Struct, frozen=True):
    """Store and push a message for the wallet of the contact that the event resolved to."""

    title: str
    body: str
    data: dict[str, Any] | None = None


class AddTag(msgspec.Struct, frozen=True):
    """Add a tag to the contact."""

    tag: str


class Condition(msgspec.Struct, frozen=True):
    """Go on along the handle `true` when all filters pass, else `false`."""

    filters: tuple[Filter, ...]


class Exit(msgspec.Struct, frozen=True):
    """End the entry here."""


class Invalid(msgspec.Struct, frozen=True):
    """A node that cannot run, and why. Drafts may hold some; a published graph never does."""

    problems: Problems


Action: TypeAlias = Entered | SendInapp | AddTag | Condition | Exit | Invalid
HANDLES: dict[type, tuple[str | None, ...]] = {Condition: ("true", "false"), Exit: ()}
KINDS = ("app_event", "send_inapp", "add_tag", "condition", "exit")


class Node(msgspec.Struct, frozen=True):
    """One node: `kind` is its type as written, `action` what it means."""

    id: str
    kind: str
    action: Action

    @property
    def handles(self) -> tuple[str | None, ...]:
        """The handles that edges may leave by; None is the only way out of a node that does not branch."""
        return HANDLES.get(type(self.action), (None,))


class Edge(msgspec.Struct, frozen=True):
    """From one node to another, by a handle where the source branches."""

    id: str
    source: str
    target: str
    handle: str | None = None


class Graph(msgspec.Struct, frozen=True, dict=True):
    """Nodes and edges in the order written."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """The nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def following(self) -> dict[tuple[str, str | None], str]:
        """The node reached from (node, handle)."""
        return {(edge.source, edge.handle): edge.target for edge in self.edges}

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
    return Graph(tuple(each for each in nodes if each), tuple(each for each in edges if each))


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


def _is_name(value: Any) -> bool:
    """Whether a value can name a node, an edge or a handle: these names stand in indexes."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME


def _node(value: Any, field: str, problems: list[Problem]) -> Node | None:
    if not isinstance(value, dict) or not _is_name(value.get("id")):
        problems.append(Problem(f"{field}.id", f"must be 1 to {MAX_NAME} characters"))
        return None
    kind, data = value.get("type"), value.get("data")
    if not isinstance(kind, str):
        problems.append(Problem(f"{field}.type", "must be a string"))
        return None
    if data is not None and not isinstance(data, dict):
        problems.append(Problem(f"{field}.data", "must be an object"))
        return None
    return Node(value["id"], kind, _action(kind, data or {}, f"{field}.data"))


def _edge(value: Any, field: str, problems: list[Problem]) -> Edge | None:
    if not isinstance(value, dict):
        problems.append(Problem(field, "must be an object"))
        return None
    for name in ("source", "target"):
        if not _is_name(value.get(name)):
            problems.append(Problem(f"{field}.{name}", f"must be the id of a node, 1 to {MAX_NAME} characters"))
            return None
    for name in ("id", "sourceHandle"):
        if value.get(name) not in (None, "") and not _is_name(value[name]):
            problems.append(Problem(f"{field}.{name}", f"must be a string of at most {MAX_NAME} characters"))
            return None
    return Edge(value.get("id") or "", value["source"], value["target"], value.get("sourceHandle") or None)


def _action(kind: str, data: dict[str, Any], field: str) -> Action:
    problems: list[Problem] = []
    action = _known_action(kind, data, field, problems)
    return Invalid(tuple(problems)) if problems else action


def _known_action(kind: str, data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    if is_app_event(kind):
        return Entered()
    match kind:
        case "send_inapp":
            return _send_inapp(data, field, problems)
        case "add_tag":
            return AddTag(_tag(data, field, problems))
        case "condition":
            return Condition(read_filters(data.get("filters"), f"{field}.filters", problems))
        case "exit":
            return Exit()
        case _:
            problems.append(
                Problem(
                    field.removesuffix(".data") + ".type",
                    f"there is no node kind {kind!r}; there are {', '.join(KINDS)}",
                )
            )
            return Exit()


def _send_inapp(data: dict[str, Any], field: str, problems: list[Problem]) -> SendInapp:
    if data.get("recipientMode", "triggering_profile") != "triggering_profile":
        problems.append(Problem(f"{field}.recipientMode", "must be triggering_profile"))
    extra = data.get("data")
    if extra is not None and not isinstance(extra, dict):
        problems.append(Problem(f"{field}.data", "must be an object"))
    return SendInapp(_template(data, field, "title", problems), _template(data, field, "body", problems), extra)


def _template(data: dict[str, Any], field: str, name: str, problems: list[Problem]) -> str:
    text = data.get(name)
    if not isinstance(text, str) or not text:
        problems.append(Problem(f"{field}.{name}", "must be a non-empty text"))
        return ""
    try:
        compile_template(text)
    except TemplateError as error:
        problems.append(Problem(f"{field}.{name}", str(error)))
    return text


def _tag(data: dict[str, Any], field: str, problems: list[Problem]) -> str:
    tag = data.get("tag")
    if not isinstance(tag, str) or not 0 < len(tag) <= 64 or "\0" in tag:
        problems.append(Problem(f"{field}.tag", "must be 1 to 64 characters"))
        return ""
    return tag
