"""An automation as an outline: a tree of steps, in the order in which sentences and Python code write them.

A graph allows any edge; text only has sequence and indentation. The outline is the bridge: the branches of a step are
nested blocks, the step where they join again follows them, and an edge to a step that is already written becomes a
GoTo.

An outline covers only what sentences and verbs can express. Writers compare the automation that their text would
build with the original and list the rest as extra fields (`text/remainder.py`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from workbench.display.cards import free_id
from workbench.language.actions import MAX_ID_LENGTH, MAX_WAIT, NODE_KINDS
from workbench.language.event import EVENT_NAME, is_awaitable_name
from workbench.language.filter import OPERATORS
from workbench.language.graph import TIMEZONE_ATTRIBUTE, read_settings
from workbench.language.onchain import ONCHAIN_EVENT, read_log_source
from workbench.language.trigger import is_app_event, is_trigger

JsonObject: TypeAlias = dict[str, Any]
TRIGGER_ID = "trigger"
_STEP_KINDS = frozenset(kind for kind in NODE_KINDS if not is_trigger(kind))
_MAX_DEPTH = 40  # nested branches; deeper ones are unreadable, and some drafts with loops would recurse too far
_LOG_FIELDS = ("chainId", "contract", "signature", "walletArg", "confirmations", "createContacts")


class OutlineStep(msgspec.Struct, frozen=True):
    """One node. `id` is None if `free_id` would choose the same id. `branches` are (handle, block) pairs.

    With `raw` the data is written as JSON, because the text form cannot express it.
    """

    kind: str
    data: JsonObject
    id: str | None = None
    branches: "tuple[tuple[str, Block], ...]" = ()
    raw: bool = False
    line: int = 0


class GoTo(msgspec.Struct, frozen=True):
    """An edge to a step that is written elsewhere."""

    id: str
    line: int = 0


class End(msgspec.Struct, frozen=True):
    """The end of a branch that does not continue with the steps after its fork."""


Block: TypeAlias = tuple[OutlineStep | GoTo | End, ...]


class Outline(msgspec.Struct, frozen=True):
    """An automation without its extra fields. No `events` means any event. `id`: that of the trigger node.

    `logs`: the source of an on-chain trigger, as in the trigger spec; empty for other triggers. `other`: a trigger type
    without a verb. `line`: the line of the sentence about the trigger, 0 if the outline was not read from sentences.
    """

    name: str
    events: tuple[str, ...] = ()
    filters: tuple[JsonObject, ...] = ()
    settings: JsonObject = {}
    steps: Block = ()
    id: str = TRIGGER_ID
    logs: JsonObject = {}
    other: str = ""
    line: int = 0


def outline_of(name: str, spec: Mapping[str, Any], graph: Mapping[str, Any]) -> Outline:
    """Return the outline of an automation; `spec` and `graph` have the shape of the contract."""
    nodes = {node["id"]: node for node in graph.get("nodes") or ()}
    kind, settings = spec.get("type"), graph.get("settings")
    logs: JsonObject = {}
    if kind == ONCHAIN_EVENT and read_log_source(spec, "", []) is not None:
        logs = {"confirmations": 0, "createContacts": False} | {key: spec[key] for key in _LOG_FIELDS if key in spec}
    single, several = spec.get("event"), spec.get("eventNames")
    names = [single, *several] if isinstance(several, list) else [single]
    events = dict.fromkeys(event.lower() for event in names if isinstance(event, str) and EVENT_NAME.fullmatch(event))
    outline = Outline(
        name,
        tuple(events),
        tuple(_filters(spec.get("filters")) or ()),
        _settings(settings) if isinstance(settings, dict) else {},
        logs=logs,
        other=kind if not logs and isinstance(kind, str) and not is_app_event(kind) else "",
    )
    start = next((node for node in nodes.values() if is_trigger(node["type"])), next(iter(nodes.values()), None))
    if start is None or start["type"] in _STEP_KINDS:
        return outline
    edges = graph.get("edges") or ()
    # Only the first walk shows which steps a GoTo refers to; the second one writes their ids.
    walk = _Walk(nodes, edges)
    steps = walk.after(start["id"])
    if walk.referred:
        steps = _Walk(nodes, edges, walk.referred).after(start["id"])
    return msgspec.structs.replace(outline, steps=steps, id=start["id"])


def handles_of(kind: str, data: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the handles by which edges leave a node of this kind with these data."""
    match kind:
        case "condition":
            return ("true", "false")
        case "wait_for_event":
            return ("matched", "timeout")
        case "split":
            branches = _branches(data.get("branches"))
            return tuple(branch["handle"] for branch in branches) if branches else (None,)
        case "exit":
            return ()
        case _:
            return (None,)


def canonical(kind: str, data: Mapping[str, Any]) -> JsonObject | None:
    """Return the part of a node's data that sentences and verbs of its kind express; None if they cannot express it."""
    match kind, data:
        case "send_inapp", {"title": str(title), "body": str(body)}:
            extra = {"data": data["data"]} if isinstance(data.get("data"), dict) else {}
            return {"recipientMode": "triggering_profile", "title": title, "body": body, **extra}
        case "send_email", {"subject": str(subject), "body": str(body)}:
            return {"subject": subject, "body": body}
        case "send_webhook", {"url": str(url)}:
            return {"url": url} | ({"body": data["body"]} if data.get("body") is not None else {})
        case (("add_tag" | "remove_tag"), {"tag": str(tag)}):
            return {"tag": tag}
        case "update_contact", {"attributes": {**attributes}} if attributes:
            return {"attributes": attributes}
        case "condition", {"filters": listed}:
            filters = _filters(listed)
            return {"filters": filters} if filters else None
        case "delay", {"seconds": seconds} if _is_wait(seconds):
            return {"seconds": seconds}
        case "wait_for_event", {"event": str(event), "timeoutSeconds": seconds} if _is_wait(seconds):
            filters = _filters(data.get("filters") or [])
            if filters is None or not is_awaitable_name(event):
                return None
            return {"event": event.lower(), "filters": filters, "timeoutSeconds": seconds}
        case "split", {"branches": listed}:
            branches = _branches(listed)
            return {"branches": branches} if branches else None
        case "exit", _:
            return {}
        case _:
            return None


class _Walk:
    """Walks a graph once, in the order of writing. `named`: steps with a written id, because a GoTo refers to them."""

    def __init__(self, nodes: Mapping[str, JsonObject], edges: Iterable[JsonObject], named: Iterable[str] = ()) -> None:
        self._nodes = nodes
        self._rank = {node_id: index for index, node_id in enumerate(nodes)}
        self._named = frozenset(named)
        self._written: set[str] = set()
        self.referred: set[str] = set()
        self._targets: dict[tuple[str, str | None], str] = {}
        for edge in edges:
            self._targets.setdefault((edge["source"], edge.get("sourceHandle") or None), edge["target"])

    def after(self, start: str) -> Block:
        """Return all steps behind the trigger."""
        self._written = {start}
        return self._block(self._targets.get((start, None)), None, 0)

    def _block(self, node_id: str | None, join: str | None, depth: int) -> Block:
        """Return the steps from `node_id` up to `join`, where the branches of the fork around them meet."""
        block: list[OutlineStep | GoTo | End] = []
        while node_id is not None and node_id != join:
            node = self._nodes.get(node_id)
            if node is None or depth > _MAX_DEPTH:
                return (*block, End())
            if node_id in self._written:
                self.referred.add(node_id)
                return (*block, GoTo(node_id))
            step, node_id = self._step(node, join, depth)
            block.append(step)
            if step.kind == "exit" and not step.raw:
                return tuple(block)
        if node_id is None and join is not None:
            block.append(End())
        return tuple(block)

    def _step(self, node: JsonObject, join: str | None, depth: int) -> tuple[OutlineStep, str | None]:
        """Return a step and the id of the next one: for a fork, the node where its branches meet."""
        kind, own = node["type"], node.get("data") or {}
        data = canonical(kind, own)
        raw = data is None
        if data is None:
            data = {key: value for key, value in own.items() if key != "actionType"}
        derived = free_id(kind, data, self._written)
        node_id = None if derived == node["id"] and node["id"] not in self._named else node["id"]
        self._written.add(node["id"])
        handles = handles_of(kind, data)
        if len(handles) < 2:
            return OutlineStep(kind, data, node_id, raw=raw), self._targets.get((node["id"], None))
        targets = [self._targets.get((node["id"], handle)) for handle in handles]
        join = self._join(targets) or join
        blocks = [self._block(target, join, depth + 1) for target in targets]
        return OutlineStep(kind, data, node_id, tuple(zip(map(str, handles), blocks, strict=True)), raw), join

    def _join(self, starts: Iterable[str | None]) -> str | None:
        """Return the node where branches meet: the nearest one that all branches reach.

        If no node is reached by all, return one that follows all branches that end before it: with `b.exit()` in one
        branch of a fork, the steps after the fork still follow the other branches.
        """
        reached = [self._reachable(start) for start in starts]
        nearest = [node_id for nodes in reached for node_id in nodes]
        shared = next((node_id for node_id in nearest if all(node_id in nodes for nodes in reached)), None)
        if shared is not None:
            return shared
        last_ranks = [self._last_rank(nodes) for nodes in reached]
        for node_id in nearest:
            ended = [rank for rank, nodes in zip(last_ranks, reached, strict=True) if node_id not in nodes]
            several = len(reached) - len(ended) > 1
            # An empty branch (-1) counts as ended only if at least two other branches reach the node.
            if all(rank is not None and rank < self._rank[node_id] and (rank >= 0 or several) for rank in ended):
                return node_id
        return None

    def _last_rank(self, reached: Collection[str]) -> int | None:
        """Return the rank of a branch's last node if all its paths end in an exit; -1 if it is empty, else None."""
        if not reached:
            return -1
        stops = all(
            self._targets.get((node_id, handle)) in self._nodes
            for node_id in reached
            for handle in handles_of(self._nodes[node_id]["type"], self._nodes[node_id].get("data") or {})
        )
        return max(map(self._rank.__getitem__, reached)) if stops else None

    def _reachable(self, start: str | None) -> dict[str, None]:
        """Return `start` and the nodes that it leads to, nearest first."""
        reached: dict[str, None] = {start: None} if start is not None and start in self._nodes else {}
        queue = [*reached]
        for node_id in queue:
            node = self._nodes[node_id]
            for handle in handles_of(node["type"], node.get("data") or {}):
                target = self._targets.get((node_id, handle))
                if target is not None and target in self._nodes and target not in reached:
                    reached[target] = None
                    queue.append(target)
        return reached


def _filters(value: Any) -> list[JsonObject] | None:
    """Return filters in the form that verbs write; None if the verbs cannot write one of them."""
    if not isinstance(value, list | tuple):
        return None
    filters: list[JsonObject] = []
    for item in value:
        match item:
            case {"path": str(path), "operator": "exists"} if path:
                filters.append({"path": path, "operator": "exists"})
            case {"path": str(path), "operator": "in", "value": [*options]} if path:
                filters.append({"path": path, "operator": "in", "value": options})
            case {"path": str(path), "operator": str(name), "value": operand} if (
                path and name in OPERATORS and name != "in"
            ):
                filters.append({"path": path, "operator": name, "value": operand})
            case _:
                return None
    return filters


def _branches(value: Any) -> list[JsonObject] | None:
    """Return the branches of a split; None unless there are at least two, with different names."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < 2:
        return None
    branches = [
        {"handle": handle, "percent": branch["percent"]}
        for branch in value
        if isinstance(branch, dict)
        and isinstance(handle := branch.get("handle"), str)
        and 0 < len(handle) <= MAX_ID_LENGTH
        and type(branch.get("percent")) is int  # not isinstance: True is an int, but not a percentage
    ]
    return branches if len({branch["handle"] for branch in branches}) == len(value) else None


def _is_wait(seconds: Any) -> bool:
    return type(seconds) is int and 1 <= seconds <= MAX_WAIT.total_seconds()


def _settings(settings: JsonObject) -> JsonObject:
    """Return the settings that verbs can write, in the form that they write; others become extra fields."""
    canonical: JsonObject = {}
    for name, value in settings.items():
        if read_settings({name: value}, "").problems:
            continue
        match name, value:
            case "reentry", {"policy": "once_per", "days": days}:
                canonical[name] = {"policy": "once_per", "days": days}
            case "reentry", {"policy": ("once" | "not_while_running") as policy}:
                canonical[name] = {"policy": policy}
            case "goal", {"event": event}:
                filters = _filters(value.get("filters") or [])
                if filters is not None:
                    canonical[name] = {"event": event.lower(), "filters": filters}
            case "quietHours", {"from": start, "to": end}:
                timezone = value.get("timezoneAttribute") or TIMEZONE_ATTRIBUTE
                canonical[name] = {"from": start, "to": end, "timezoneAttribute": timezone}
            case "frequencyCap", {"messages": messages, "seconds": seconds}:
                canonical[name] = {"messages": messages, "seconds": seconds}
            case "holdout", int():
                canonical[name] = value
            case _:
                pass
    return canonical
