"""An automation as an outline: a tree of steps, in the order in which sentences and Python code write them.

A graph allows any edge; text only has sequence and indentation. The outline is the bridge: the branches of a step are
nested blocks, the step where they join again follows them, and an edge to a step that is already written becomes a
GoTo.

An outline covers only what sentences and verbs can express. Writers compare the automation that their text would
build with the original and list the rest as extra fields (`text/remainder.py`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from workbench.display.kinds import STEPS, TRIGGERS, FormField, free_id, parts
from workbench.language.actions import (
    FIELDS,
    MAX_COLLECTED,
    MAX_ID_LENGTH,
    MAX_WAIT,
    STEP_ACTIONS,
    FieldType,
    handles_of,
    timing_problem,
)
from workbench.language.body import SLUG
from workbench.language.event import EVENT_NAME, is_awaitable_name
from workbench.language.filter import (
    OPERATORS,
    WHERE,
    condition_fields,
    is_expression,
    where_problem,
    written_conditions,
)
from workbench.language.graph import SettingName, find_route, read_settings
from workbench.language.local_time import TIMEZONE_ATTRIBUTE
from workbench.language.trigger import TRIGGER_FIELDS, Trigger, is_app_event, is_trigger, read_trigger

JsonObject: TypeAlias = dict[str, Any]
TRIGGER_ID = "trigger"
_MAX_DEPTH = 40  # nested branches; deeper ones are unreadable, and some drafts with loops would recurse too far


class OutlineStep(msgspec.Struct, frozen=True):
    """One node. `id` is None if `free_id` chooses the same id. `branches` are (handle, block) pairs.

    `raw`: the data is written as JSON, because the text form cannot express it.
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
    """An automation without its extra fields. `id`: that of the trigger node.

    `trigger`: the fields of the form of its kind of trigger. `other`: a trigger type without a verb, which is built as
    an app_event. `line`: the line of the sentence about the trigger, 0 if the outline was not read from sentences.
    """

    name: str
    kind: str
    trigger: JsonObject
    settings: dict[SettingName, Any] = {}
    steps: Block = ()
    id: str = TRIGGER_ID
    other: str = ""
    line: int = 0


def outline_of(name: str, spec: Mapping[str, Any], graph: Mapping[str, Any]) -> Outline:
    """Return the outline of an automation; `spec` and `graph` have the shape of the contract."""
    nodes = {node["id"]: node for node in graph.get("nodes") or ()}
    type_name, settings = spec.get("type"), graph.get("settings")
    kind, other = "app_event", ""
    if isinstance(type_name, str) and not is_app_event(type_name):
        # Filters that the verbs cannot write become extra fields; the rest of the spec must be complete.
        can_write = isinstance(read_trigger({**spec, "filters": None, "where": None}), Trigger)
        kind, other = (type_name, "") if can_write else ("app_event", type_name)
    outline = Outline(
        name,
        kind,
        {field.key: _trigger_value(field, spec) for field in TRIGGERS[kind].fields},
        _settings(settings) if isinstance(settings, dict) else {},
        other=other,
    )
    start = next((node for node in nodes.values() if is_trigger(node["type"])), next(iter(nodes.values()), None))
    if start is None or start["type"] in STEPS:
        return outline
    edges = graph.get("edges") or ()
    # Only the first walk shows which steps a GoTo refers to; the second one writes their ids.
    walk = _Walk(nodes, edges)
    steps = walk.after(start["id"])
    if walk.referred:
        steps = _Walk(nodes, edges, walk.referred).after(start["id"])
    return msgspec.structs.replace(outline, steps=steps, id=start["id"])


def _trigger_value(field: FormField, spec: Mapping[str, Any]) -> Any:
    """Return the value of a field of a trigger in the form that verbs write."""
    match field.control:
        case "events":
            single, several = spec.get("event"), spec.get("eventNames")
            names = [single, *several] if isinstance(several, list) else [single]
            valid = (name.lower() for name in names if isinstance(name, str) and EVENT_NAME.fullmatch(name))
            return list(dict.fromkeys(valid))
        case "filters":
            return _conditions(spec) or []
        case _:
            return spec.get(field.key, TRIGGER_FIELDS[field.key].get("default"))


def canonical(kind: str, data: Mapping[str, Any]) -> JsonObject | None:
    """Return the part of a node's data that sentences and verbs of its kind express; None if they cannot express it."""
    if kind not in STEPS:
        return None
    may_be_empty = {part.key for part in parts(STEPS[kind].sentence) if part.optional}
    written: JsonObject = {}
    for field in FIELDS[kind]:
        content = _conditions(data) if field.type == "filters" else _canonical_value(field.type, data.get(field.key))
        if content is not None and (content != [] or field.key in may_be_empty or field.type == "body"):
            written[field.key] = content
        elif not field.optional or (field.key == STEP_ACTIONS[kind].FORK and data.get(field.key) is not None):
            return None
    return written


def _canonical_value(field_type: FieldType, value: Any) -> Any:
    """Return the value of a field in the form that verbs write; None if they cannot write it."""
    match field_type:
        case "line" | "text" | "url" | "tag" | "connection":
            return value if isinstance(value, str) else None
        case "body":
            return value
        case "object":
            return value if isinstance(value, dict) else None
        case "fields":
            return {**value} if isinstance(value, Mapping) else None
        case "attributes":
            return {**value} if isinstance(value, Mapping) and value else None
        case "filters":
            return _conditions({"filters": value})
        case "duration":
            return value if type(value) is int and 1 <= value <= MAX_WAIT.total_seconds() else None
        case "event":
            return value.lower() if isinstance(value, str) and is_awaitable_name(value) else None
        case "branches":
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
        case "recipient":
            return "triggering_profile"
        case "missing":
            return value if value == "skip" else None  # a message fails by default
        case "switch":
            return True if value is True else None
        case "topic":
            return value if isinstance(value, str) and SLUG.fullmatch(value) else None
        case "clock" | "weekdays" | "date" | "shift" | "zone":
            return None if timing_problem(field_type, value) else value
        case "path":
            return value if isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH else None
        case "number":
            return value if type(value) is int and 2 <= value <= MAX_COLLECTED else None
        case "locales":
            if not isinstance(value, dict) or not all(isinstance(texts, dict) and texts for texts in value.values()):
                return None
            is_written = all(isinstance(text, str) for texts in value.values() for text in texts.values())
            return {**value} if value and is_written else None


class _Walk:
    """Walks a graph once, in writing order. `named`: steps with a written id, because a GoTo refers to them."""

    def __init__(self, nodes: Mapping[str, JsonObject], edges: Iterable[JsonObject], named: Iterable[str] = ()) -> None:
        self._nodes = nodes
        self._rank = {node_id: index for index, node_id in enumerate(nodes)}
        self._named = frozenset(named)
        self._written: set[str] = set()
        self.referred: set[str] = set()
        handles = {node_id: handles_of(node["type"], node.get("data") or {}) for node_id, node in nodes.items()}
        links = [(edge["source"], edge.get("sourceHandle") or None, edge["target"]) for edge in edges]
        self._targets = find_route(handles, links).next_node_ids

    def after(self, start: str) -> Block:
        """Return all steps after the trigger."""
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

        If there is none, branches that end are left out: if one branch ends in `b.exit()`, the steps after the fork
        follow the other branches.
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


def _conditions(owner: Mapping[str, Any]) -> list[JsonObject] | None:
    """Return filters and `where` in the form that verbs write; None if the verbs cannot write one of them."""
    if not isinstance(owner.get("filters") or [], list | tuple):
        return None
    filters: list[JsonObject] = []
    for item in written_conditions(owner):
        if isinstance(item, dict) and item.keys() == {WHERE}:
            if where_problem(item[WHERE]) is not None or not is_expression(item[WHERE]):
                return None
            filters.append(item)
            continue
        path, name = (item.get("path"), item.get("operator")) if isinstance(item, dict) else (None, None)
        if not isinstance(path, str) or not path or not isinstance(name, str) or name not in OPERATORS:
            return None
        written = {"path": path, "operator": name}
        match OPERATORS[name].operand, item:
            case "nothing", _:
                filters.append(written)
            case "value", {"value": operand}:
                filters.append(written | {"value": operand})
            case "list", {"value": [*options]}:
                filters.append(written | {"value": options})
            case _:
                return None
    return filters


def _settings(settings: JsonObject) -> dict[SettingName, Any]:
    """Return the settings that verbs can write, in the form that they write; others become extra fields."""
    written: dict[SettingName, Any] = {}
    for key, value in settings.items():
        if value is None or read_settings({key: value}, "").problems:
            continue
        name = cast("SettingName", key)
        match name:
            case "reentry" if value["policy"] == "always":
                continue
            case "reentry":
                days = {"days": value["days"]} if value["policy"] == "once_per" else {}
                written[name] = {"policy": value["policy"], **days}
            case "goal":
                conditions = _conditions(value)
                if conditions is not None:
                    written[name] = {"event": value["event"].lower(), **condition_fields(conditions)}
            case "quietHours":
                written[name] = {"from": value["from"], "to": value["to"], **_zone_attribute(value)}
            case "frequencyCap" if value.get("per") is not None:
                written[name] = {"messages": value["messages"], "per": value["per"], **_zone_attribute(value)}
            case "frequencyCap":
                written[name] = {"messages": value["messages"], "seconds": value["seconds"]}
            case "holdout" | "timezone" | "localeAttribute" | "defaultLocale":
                written[name] = value
    return written


def _zone_attribute(setting: JsonObject) -> JsonObject:
    return {"timezoneAttribute": setting.get("timezoneAttribute") or TIMEZONE_ATTRIBUTE}
