"""A graph as people tell it: step after step, the ways of a branch one after the other, what is common to them after it.

An outline holds what words and verbs can say. It need not hold everything: whoever writes an automation down compares what
reading it back gives with what there was, and notes the rest (`texts.besides`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from api.language.action import KINDS, MAX_NAME, MAX_WAIT
from api.language.event import EVENT_NAME, can_be_awaited
from api.language.filter import OPERATORS
from api.language.onchain import TYPE as ONCHAIN_EVENT
from api.language.onchain import read_source
from api.language.settings import TIMEZONE, read_settings
from api.language.trigger import is_app_event, is_trigger
from workbench.display.ids import free_id

JsonObject: TypeAlias = dict[str, Any]
TRIGGER_ID = "trigger"
STEPS = frozenset(kind for kind in KINDS if not is_trigger(kind))
_DEEPEST = 40  # branches inside branches; nobody reads more


class Step(msgspec.Struct, frozen=True):
    """One node. `id` None: the one that follows from what it does. `ways`: what happens on each, of a node that branches.

    `whole`: its data are not such as the words of its kind can tell, so they stand here as they are.
    """

    kind: str
    data: JsonObject
    id: str | None = None
    ways: "tuple[tuple[str, Block], ...]" = ()
    whole: bool = False
    line: int = 0


class GoTo(msgspec.Struct, frozen=True):
    """Going on with a step that was told before."""

    id: str
    line: int = 0


class End(msgspec.Struct, frozen=True):
    """Nothing more on this way, though steps follow for the others."""


Block: TypeAlias = tuple[Step | GoTo | End, ...]


class Outline(msgspec.Struct, frozen=True):
    """An automation without what no words say. `events`: none is any event. `id`: of the trigger.

    `logs`: which logs of a contract start it, as in the trigger spec; empty: none do. `other`: the type of a trigger that no verb can write.
    `line`: where the sentence about it stands, 0 for nowhere.
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
    """Return the outline of an automation whose graph has the contract's shape."""
    nodes = {node["id"]: node for node in graph.get("nodes") or ()}
    written = graph.get("settings")
    logs = _logs(spec)
    outline = Outline(
        name,
        _events(spec),
        tuple(each for each in _filters(spec.get("filters")) or ()),
        dict(_settings(written)) if isinstance(written, dict) else {},
        logs=logs,
        other="" if logs else _other(spec.get("type")),
    )
    start = _start(nodes)
    if start is None:
        return outline
    edges = graph.get("edges") or ()
    first = _Telling(nodes, edges)
    first.behind(start)
    steps = _Telling(nodes, edges, first.gone_to).behind(start) if first.gone_to else first.behind(start)
    return msgspec.structs.replace(outline, steps=steps, id=start)


def _start(nodes: Mapping[str, JsonObject]) -> str | None:
    """Return the trigger node: of a trigger's kind, or else a first one of a kind that is no step."""
    first = next(iter(nodes.values()), None)
    found = next((node for node in nodes.values() if is_trigger(node["type"])), first)
    return None if found is None or found["type"] in STEPS else found["id"]


def _other(kind: Any) -> str:
    return kind if isinstance(kind, str) and not is_app_event(kind) else ""


def _logs(spec: Mapping[str, Any]) -> JsonObject:
    """Return which logs are meant, as the verb writes it; empty unless the language takes all of it."""
    if spec.get("type") != ONCHAIN_EVENT or read_source(spec, "", []) is None:
        return {}
    return {"confirmations": 0, "createContacts": False} | {key: spec[key] for key in _LOGS if key in spec}


_LOGS = ("chainId", "contract", "signature", "walletArg", "confirmations", "createContacts")


class _Telling:
    """Walks a graph once, in the order in which it is told; a step told before is only referred to.

    `named`: the steps that are referred to, so that their ids have to be said.
    """

    def __init__(self, nodes: Mapping[str, JsonObject], edges: Iterable[JsonObject], named: Iterable[str] = ()) -> None:
        self._nodes = nodes
        self._order = {node_id: place for place, node_id in enumerate(nodes)}
        self._named = frozenset(named)
        self._told: set[str]
        self.gone_to: set[str] = set()
        self.following: dict[tuple[str, str | None], str] = {}
        for edge in edges:
            self.following.setdefault((edge["source"], edge.get("sourceHandle") or None), edge["target"])

    def behind(self, start: str) -> Block:
        """Return everything behind the trigger."""
        self._told = {start}
        return self._block(self.following.get((start, None)), None, 0)

    def _block(self, node_id: str | None, until: str | None, depth: int) -> Block:
        told: list[Step | GoTo | End] = []
        while node_id is not None and node_id != until:
            node = self._nodes.get(node_id)
            if node is None or depth > _DEEPEST:
                return (*told, End())
            if node_id in self._told:
                self.gone_to.add(node_id)
                return (*told, GoTo(node_id))
            step, node_id = self._step(node, until, depth)
            told.append(step)
            if step.kind == "exit" and not step.whole:
                return tuple(told)
        if node_id is None and until is not None:
            told.append(End())
        return tuple(told)

    def _step(self, node: JsonObject, until: str | None, depth: int) -> tuple[Step, str | None]:
        """Return the step, and the node that follows it: of a fork, the one where its ways meet again."""
        kind, written = node["type"], node.get("data") or {}
        data = canonical(kind, written)
        whole = data is None
        data = {key: each for key, each in written.items() if key != "actionType"} if data is None else data
        usual = free_id(kind, data, self._told)
        node_id = None if usual == node["id"] and node["id"] not in self._named else node["id"]
        self._told.add(node["id"])
        ways = ways_of(kind, data)
        if len(ways) < 2:
            return Step(kind, data, node_id, whole=whole), self.following.get((node["id"], None))
        targets = [self.following.get((node["id"], way)) for way in ways]
        join = self._meeting(targets) or until
        blocks = tuple(
            (str(way), self._block(target, join, depth + 1)) for way, target in zip(ways, targets, strict=True)
        )
        return Step(kind, data, node_id, blocks, whole), join

    def _meeting(self, starts: Iterable[str | None]) -> str | None:
        """Return the nearest node that all ways lead to; failing that, one that was written after all ways that stop before it."""
        reached = [self._reachable(start) for start in starts]
        nearest = [node_id for nodes in reached for node_id in nodes]
        shared = next((node_id for node_id in nearest if all(node_id in nodes for nodes in reached)), None)
        if shared is not None:
            return shared
        last = [self._last(nodes) for nodes in reached]
        for node_id in nearest:
            before = [end for end, nodes in zip(last, reached, strict=True) if node_id not in nodes]
            several = len(reached) - len(before) > 1
            if all(end is not None and end < self._order[node_id] and (end >= 0 or several) for end in before):
                return node_id
        return None

    def _last(self, reached: Collection[str]) -> int | None:
        """Return the place of the last node of a way that stops, -1 where there is none at all; None when it goes on."""
        if not reached:
            return -1
        return max(map(self._order.__getitem__, reached)) if self._stops(reached) else None

    def _stops(self, reached: Collection[str]) -> bool:
        """Return whether every way through these nodes ends in an exit."""
        return all(
            self.following.get((node_id, way)) in self._nodes
            for node_id in reached
            for way in ways_of(self._nodes[node_id]["type"], self._nodes[node_id].get("data") or {})
        )

    def _reachable(self, start: str | None) -> dict[str, None]:
        """Return the nodes reached from `start`, itself included, nearest first."""
        seen: dict[str, None] = {start: None} if start is not None and start in self._nodes else {}
        waiting = [*seen]
        for node_id in waiting:
            node = self._nodes[node_id]
            for way in ways_of(node["type"], node.get("data") or {}):
                target = self.following.get((node_id, way))
                if target is not None and target in self._nodes and target not in seen:
                    seen[target] = None
                    waiting.append(target)
        return seen


def ways_of(kind: str, data: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the handles by which edges leave a node that is written like this."""
    match kind:
        case "condition":
            return ("true", "false")
        case "wait_for_event":
            return ("matched", "timeout")
        case "split":
            branches = _branches(data.get("branches"))
            return tuple(each["handle"] for each in branches) if branches else (None,)
        case "exit":
            return ()
        case _:
            return (None,)


def canonical(  # noqa: C901, PLR0911, PLR0912  a table: one line per kind
    kind: str, data: Mapping[str, Any]
) -> JsonObject | None:
    """Return what the words and verbs of a kind can say of a node's data; None when they cannot."""
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
        case "condition", {"filters": filters}:
            found = _filters(filters)
            return {"filters": found} if found else None
        case "delay", {"seconds": seconds} if _is_span(seconds):
            return {"seconds": seconds}
        case "wait_for_event", {"event": str(event), "timeoutSeconds": seconds} if _is_span(seconds):
            found = _filters(data.get("filters") or [])
            known = found is not None and can_be_awaited(event)
            return {"event": event.lower(), "filters": found, "timeoutSeconds": seconds} if known else None
        case "split", {"branches": branches}:
            found = _branches(branches)
            return {"branches": found} if found else None
        case "exit", _:
            return {}
        case _:
            return None


def _events(spec: Mapping[str, Any]) -> tuple[str, ...]:
    single, several = spec.get("event"), spec.get("eventNames")
    names = [single, *several] if isinstance(several, list) else [single]
    return tuple(dict.fromkeys(each.lower() for each in names if isinstance(each, str) and _is_event(each)))


def _is_event(name: str) -> bool:
    return EVENT_NAME.fullmatch(name) is not None


def _filters(value: Any) -> list[JsonObject] | None:
    """Return filters as the verbs write them; None when there is one that they cannot write."""
    if not isinstance(value, list | tuple):
        return None
    found = [_filter(each) for each in value]
    return None if None in found else [each for each in found if each is not None]


def _filter(value: Any) -> JsonObject | None:
    match value:
        case {"path": str(path), "operator": "exists"} if path:
            return {"path": path, "operator": "exists"}
        case {"path": str(path), "operator": "in", "value": [*options]} if path:
            return {"path": path, "operator": "in", "value": options}
        case {"path": str(path), "operator": str(name), "value": asked} if path and name in OPERATORS and name != "in":
            return {"path": path, "operator": name, "value": asked}
        case _:
            return None


def _branches(value: Any) -> list[JsonObject] | None:
    """Return the branches of a split; None unless there are two at least, each with a name of its own."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < 2:
        return None
    found = [
        {"handle": each["handle"], "percent": each["percent"]}
        for each in value
        if isinstance(each, dict) and _is_handle(each.get("handle")) and type(each.get("percent")) is int
    ]
    names = {each["handle"] for each in found}
    return found if len(names) == len(value) else None


def _is_handle(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME


def _is_span(seconds: Any) -> bool:
    return type(seconds) is int and 1 <= seconds <= MAX_WAIT.total_seconds()


def _settings(written: JsonObject) -> Iterable[tuple[str, Any]]:
    """Yield the settings as the verbs write them; those that they cannot write are left out."""
    for name, value in written.items():
        found = _setting(name, value)
        if found is not None:
            yield name, found


def _setting(name: str, value: Any) -> JsonObject | int | None:  # noqa: PLR0911  a table: one line per setting
    """Return a setting that the language takes, as the verbs write it; None for one that says nothing, or more than they can."""
    if read_settings({name: value}, "").problems:
        return None
    match name, value:
        case "reentry", {"policy": "once_per", "days": days}:
            return {"policy": "once_per", "days": days}
        case "reentry", {"policy": ("once" | "not_while_running") as policy}:
            return {"policy": policy}
        case "goal", {"event": event}:
            found = _filters(value.get("filters") or [])
            return {"event": event.lower(), "filters": found} if found is not None else None
        case "quietHours", {"from": start, "to": end}:
            return {"from": start, "to": end, "timezoneAttribute": value.get("timezoneAttribute") or TIMEZONE}
        case "frequencyCap", {"messages": messages, "seconds": seconds}:
            return {"messages": messages, "seconds": seconds}
        case "holdout", int():
            return value
        case _:
            return None
