"""What a change of an automation means: steps that came, went or do something else, in words; not which bytes differ."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.display import words
from workbench.display.outline import canonical, handles_of, outline_of
from workbench.display.sentences import (
    conditions,
    event_name,
    node_sentence,
    outline_lines,
    rule_text,
    span_text,
    value,
)
from workbench.language.codec import normalise, same_json
from workbench.language.trigger import is_app_event, is_trigger

JsonObject: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["added", "removed", "changed", "renamed", "led"]
_Way: TypeAlias = tuple[str, str | None]

SIGNS: Mapping[Kind, str] = {"added": "+", "removed": "-", "changed": "~", "renamed": "=", "led": "→"}
_SHOWN = 120


class Change(msgspec.Struct, frozen=True):
    """One difference. `subject`: the id of a step, or `trigger`, `settings`, `name`; `led`: where a way out of it leads now."""

    kind: Kind
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{SIGNS[self.kind]} {self.subject}: {self.text}"


class Changes(msgspec.Struct, frozen=True):
    """The differences from one payload to another. `moved`: how many steps only stand elsewhere on the canvas."""

    items: tuple[Change, ...] = ()
    moved: int = 0
    beside: bool = False

    def __bool__(self) -> bool:
        return bool(self.items or self.moved or self.beside)

    def lines(self) -> list[str]:
        """Return one line each."""
        moved = [f"  {words.quantity(self.moved, 'step')} moved on the canvas"] if self.moved else []
        beside = ["  ~ beside it: keys that the engine does not read, or the order of things"] if self.beside else []
        return [*(f"  {each}" for each in self.items), *moved, *beside]


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Changes:
    """Return what became of an automation; `before` None: there was none."""
    now: JsonObject = normalise(after)
    if before is None:
        rules = [Change("added", each.subject, each.text) for each in _settings({"graph": {}}, now)]
        steps = [
            Change("added", key, _begins(now) if is_trigger(each["type"]) else _said(each))
            for key, each in _nodes(now).items()
        ]
        return Changes((*steps, *rules))
    was: JsonObject = normalise(before)
    old, new, renamed = _nodes(was), _nodes(now), _renamed(was, now)
    items = [*_named(was, now), *_trigger(was, now), *_settings(was, now)]
    items += [*_steps(old, new, renamed), *_ways(was, now, renamed)]
    moved = sum(
        not same_json(each.get("position"), new[key].get("position")) for key, each in old.items() if key in new
    )
    return Changes(tuple(items), moved, beside=not items and not moved and not _same(was, now))


def marks(found: Changes) -> dict[str, Literal["added", "changed"]]:
    """Return the steps of the new graph that differ."""
    kinds: dict[Kind, Literal["added", "changed"]] = {"added": "added", "changed": "changed", "renamed": "changed"}
    return {each.subject: kinds[each.kind] for each in found.items if each.kind in kinds}


def _same(before: JsonObject, after: JsonObject) -> bool:
    return all(same_json(before.get(key), after.get(key)) for key in ("triggerSpec", "graph"))


def _nodes(payload: JsonObject) -> dict[str, JsonObject]:
    return {node["id"]: node for node in payload["graph"].get("nodes") or ()}


def _named(before: JsonObject, after: JsonObject) -> list[Change]:
    old, new = before.get("name", ""), after.get("name", "")
    return [] if old == new else [Change("changed", "name", _told(value(old), value(new)))]


def _trigger(before: JsonObject, after: JsonObject) -> list[Change]:
    old, new = (outline_of("", each["triggerSpec"], {}) for each in (before, after))
    if bool(old.logs) != bool(new.logs):
        return [Change("changed", "trigger", _told(_begins(before), _begins(after)))]
    found = []
    if set(old.events) != set(new.events):
        starts = [words.join_or([event_name(each) for each in outline.events]) or "any event" for outline in (old, new)]
        found.append(Change("changed", "trigger", f"starts on {_told(*starts)}"))
    asked = [each["triggerSpec"].get("filters") or [] for each in (before, after)]
    if not same_json(asked[0], asked[1]):
        found.append(Change("changed", "trigger", f"asks {_told(*map(_conditions, asked))}"))
    specs = [each["triggerSpec"] for each in (before, after)]
    keys = [key for key in dict.fromkeys([*specs[0], *specs[1]]) if key not in _TRIGGER]
    differing = [key for key in keys if not same_json(*(each.get(key) for each in specs))]
    found += [
        Change("changed", "trigger", f"{key}: {_told(*(_field(key, each) for each in specs))}") for key in differing
    ]
    if specs[0].get("type") != specs[1].get("type") and not all(is_app_event(each.get("type")) for each in specs):
        found.append(Change("changed", "trigger", f"is {_told(*(str(each.get('type')) for each in specs))}"))
    return found


def _settings(before: JsonObject, after: JsonObject) -> list[Change]:
    old, new = (each["graph"].get("settings") or {} for each in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [Change("changed", "settings", _told(value(old), value(new)))]
    known = [outline_of("", {}, {"settings": each}).settings for each in (old, new)]
    found: list[Change] = []
    for key in dict.fromkeys([*old, *new]):
        if not same_json(old.get(key), new.get(key)):
            told = [_rule(key, mine, each) for mine, each in zip(known, (old, new), strict=True)]
            found.append(Change("changed", "settings", _told(*told)))
    return found


def _rule(key: str, known: Mapping[str, Any], written: Mapping[str, Any]) -> str:
    if key in known:
        return rule_text(key, known[key])
    return f"{key} {value(written[key])}" if written.get(key) is not None else _NO_RULE


def _steps(old: Mapping[str, JsonObject], new: Mapping[str, JsonObject], renamed: Mapping[str, str]) -> list[Change]:
    found = [Change("removed", key, _said(each)) for key, each in old.items() if key not in new and key not in renamed]
    found += [
        Change("added", key, _said(each)) for key, each in new.items() if key not in old and key not in renamed.values()
    ]
    for was, now in renamed.items():
        anew = "; contacts are dealt anew" if new[now]["type"] == "split" else ""
        found.append(Change("renamed", now, f"was {was}; its counts begin anew{anew}"))
    for key, each in old.items():
        if key in new:
            found += [Change("changed", key, text) for text in _fields(each, new[key])]
    return found


def _fields(old: JsonObject, new: JsonObject) -> list[str]:
    """Return what is different about one step, a field each."""
    if old["type"] != new["type"] and not (is_trigger(old["type"]) and is_trigger(new["type"])):
        return [f"another kind of step: {_told(_said(old), _said(new))}"]
    before, after = old.get("data") or {}, new.get("data") or {}
    mirrored = _MIRRORED if is_trigger(old["type"]) else {"actionType"}
    keys = [key for key in dict.fromkeys([*before, *after]) if key not in mirrored]
    return [
        f"{_FIELDS.get(key, key)}: {_told(_field(key, before), _field(key, after))}"
        for key in keys
        if not same_json(before.get(key), after.get(key))
    ]


def _field(key: str, data: Mapping[str, Any]) -> str:
    given = data.get(key)
    if key in ("seconds", "timeoutSeconds") and type(given) is int and given > 0:
        return span_text(given)
    if key == "filters" and isinstance(given, list):
        return _conditions(given)
    if key == "branches" and (known := canonical("split", data)) is not None:
        return words.join_and([f"{each['percent']} % {value(each['handle'])}" for each in known["branches"]])
    return _cut(value(given)) if key in data else "nothing"


_TRIGGER = frozenset({"type", "event", "eventNames", "filters"})
_NO_RULE = "no such rule"
_MIRRORED = frozenset({"actionType", "event", "eventNames"})  # of the trigger node: what counts is the trigger
_FIELDS = {"seconds": "waits", "timeoutSeconds": "waits at most", "filters": "asks", "branches": "splits"}


def _conditions(filters: Any) -> str:
    known = canonical("condition", {"filters": filters})
    if known is not None:
        return conditions(known["filters"])
    return _cut(value(filters)) if filters else "nothing"


def _ways(before: JsonObject, after: JsonObject, renamed: Mapping[str, str]) -> list[Change]:
    """Return the ways out of steps that are in both, and lead elsewhere now."""
    old, new = _following(before), _following(after)
    nodes, known = _nodes(after), _nodes(before)
    found = []
    for node_id, node in nodes.items():
        was = next((each for each, now in renamed.items() if now == node_id), node_id)
        if was not in known:
            continue
        for way in handles_of(node["type"], node.get("data") or {}):
            target, earlier = new.get((node_id, way)), old.get((was, way))
            if target != renamed.get(earlier or "", earlier):
                label = f"{words.HANDLE_WORDS.get(way or '', way)} leads to" if way else "leads to"
                found.append(Change("led", node_id, f"{label} {_told(earlier or 'nowhere', target or 'nowhere')}"))
    return found


def _following(payload: JsonObject) -> dict[_Way, str]:
    edges = payload["graph"].get("edges") or ()
    return {(edge["source"], edge.get("sourceHandle") or None): edge["target"] for edge in edges}


def _renamed(before: JsonObject, after: JsonObject) -> dict[str, str]:
    """Return the new ids of steps that differ in nothing else: the same data, the same ways in and out."""
    old, new = _nodes(before), _nodes(after)
    gone, come = [key for key in old if key not in new], [key for key in new if key not in old]
    found: dict[str, str] = {}
    for was in gone:
        alike = (now for now in come if now not in found.values() and same_json(_does(old[was]), _does(new[now])))
        if (now := next(alike, None)) is not None:
            found[was] = now
    while wrong := [was for was in found if _around(before, was, found) != _around(after, found[was], {})]:
        for was in wrong:
            del found[was]
    return found


def _does(node: JsonObject) -> tuple[str, Any]:
    return node["type"], node.get("data") or {}


def _around(payload: JsonObject, node_id: str, renamed: Mapping[str, str]) -> set[tuple[str, str | None, str]]:
    """Return the edges of a node, in the ids of today."""
    return {
        (renamed.get(source, source), way, renamed.get(target, target))
        for (source, way), target in _following(payload).items()
        if node_id in (source, target)
    }


def _said(node: JsonObject) -> str:
    return _cut(node_sentence(node["type"], node.get("data") or {}))


def _begins(payload: JsonObject) -> str:
    return outline_lines(outline_of("", payload["triggerSpec"], {}))[0].removesuffix(":")


def _told(before: str, after: str) -> str:
    return f"{after}, before: {before}" if before != _NO_RULE else after


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
