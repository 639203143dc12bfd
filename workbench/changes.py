"""The differences between two payloads of an automation, by meaning: which steps were added, removed or changed."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.display import words
from workbench.display.kinds import handle_words
from workbench.display.outline import canonical, outline_of
from workbench.display.sentences import conditions, event_name, node_sentence, outline_lines, rules_of, span_text, value
from workbench.language.actions import FIELDS, handles_of
from workbench.language.codec import normalize, printable, same_json
from workbench.language.graph import SettingName
from workbench.language.trigger import is_app_event, is_trigger

JsonObject: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["added", "removed", "changed", "renamed", "rerouted"]

SIGNS: Mapping[Kind, str] = {"added": "+", "removed": "-", "changed": "~", "renamed": "=", "rerouted": "→"}
_MAX_TEXT = 120


class Change(msgspec.Struct, frozen=True):
    """One difference.

    `subject`: the id of a step, `trigger`, `settings` or `name`. `rerouted`: an edge has a new target.
    """

    kind: Kind
    subject: str
    text: str

    def __str__(self) -> str:
        return printable(f"{SIGNS[self.kind]} {self.subject}: {self.text}")


class Changes(msgspec.Struct, frozen=True):
    """The differences between two payloads. True if there are any.

    `moved` counts the steps with another position on the canvas. `unread_keys`: nothing differs but the order of nodes
    and edges, or keys that the engine does not read.
    """

    items: tuple[Change, ...] = ()
    moved: int = 0
    unread_keys: bool = False

    def __bool__(self) -> bool:
        return bool(self.items or self.moved or self.unread_keys)

    def summary(self) -> str:
        if not self:
            return "no difference"
        return words.quantity(len(self.items), "difference") if self.items else "no relevant difference"

    def lines(self) -> list[str]:
        lines = [f"  {change}" for change in self.items]
        if self.moved:
            lines.append(f"  {words.quantity(self.moved, 'step')} moved on the canvas")
        if self.unread_keys:
            lines.append("  ~ other: keys that the engine does not read, or the order of nodes and edges")
        return lines


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Changes:
    """Return the differences between two payloads; with `before` None everything is added."""
    new: JsonObject = normalize(after)  # as the server stores it; otherwise 1.0 and Decimal("1.0") would differ
    new_nodes = _nodes(new)
    if before is None:
        steps = [
            Change("added", key, _trigger_sentence(new["triggerSpec"]) if is_trigger(node["type"]) else _sentence(node))
            for key, node in new_nodes.items()
        ]
        rules = [Change("added", rule.subject, rule.text) for rule in _setting_changes({"graph": {}}, new)]
        return Changes((*steps, *rules))
    old: JsonObject = normalize(before)
    old_nodes, renamed = _nodes(old), _renamed_steps(old, new)
    items = [*_trigger_changes(old, new), *_setting_changes(old, new), *_pin_changes(old, new)]
    items += [*_step_changes(old_nodes, new_nodes, renamed), *_edge_changes(old, new, renamed)]
    if old.get("name", "") != new.get("name", ""):
        items.insert(0, Change("changed", "name", _new_and_old(value(old.get("name", "")), value(new.get("name", "")))))
    moved = sum(
        not same_json(node.get("position"), new_nodes[key].get("position"))
        for key, node in old_nodes.items()
        if key in new_nodes
    )
    same = all(same_json(old.get(key), new.get(key)) for key in ("triggerSpec", "graph"))
    return Changes(tuple(items), moved, unread_keys=not items and not moved and not same)


def marks(changes: Changes) -> dict[str, Literal["added", "changed"]]:
    """Return the ids of the steps of the new graph that differ, and how to mark each in the picture."""
    kinds: dict[Kind, Literal["added", "changed"]] = {"added": "added", "changed": "changed", "renamed": "changed"}
    return {change.subject: kinds[change.kind] for change in changes.items if change.kind in kinds}


def _nodes(payload: JsonObject) -> dict[str, JsonObject]:
    return {node["id"]: node for node in payload["graph"].get("nodes") or ()}


_TRIGGER_KEYS = frozenset({"type", "event", "eventNames", "filters"})  # of a trigger spec; these have their own words


def _trigger_changes(before: JsonObject, after: JsonObject) -> list[Change]:
    specs = (before["triggerSpec"], after["triggerSpec"])
    outlines = [outline_of("", spec, {}) for spec in specs]
    if outlines[0].kind != outlines[1].kind:
        return [Change("changed", "trigger", _new_and_old(*map(_trigger_sentence, specs)))]
    texts = []
    # As sets, because the order of event names has no meaning.
    listed = [outline.trigger.get("events", ()) for outline in outlines]
    if set(listed[0]) != set(listed[1]):
        events = [words.join_or([event_name(event) for event in names]) for names in listed]
        texts.append(f"starts on {_new_and_old(events[0] or 'any event', events[1] or 'any event')}")
    filters = [spec.get("filters") or [] for spec in specs]
    if not same_json(*filters):
        texts.append(f"conditions: {_new_and_old(*map(_conditions, filters))}")
    texts += [
        f"{key}: {_new_and_old(_field('', key, specs[0]), _field('', key, specs[1]))}"
        for key in dict.fromkeys([*specs[0], *specs[1]])
        if key not in _TRIGGER_KEYS and not same_json(specs[0].get(key), specs[1].get(key))
    ]
    types = [spec.get("type") for spec in specs]
    if types[0] != types[1] and not all(map(is_app_event, types)):
        texts.append(f"is {_new_and_old(*map(str, types))}")
    return [Change("changed", "trigger", text) for text in texts]


def _setting_changes(before: JsonObject, after: JsonObject) -> list[Change]:
    old, new = (payload["graph"].get("settings") or {} for payload in (before, after))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [Change("changed", "settings", _new_and_old(value(old), value(new)))]
    # The outline has the settings that are valid; the others are shown as JSON.
    valid = [outline_of("", {}, {"settings": settings}).settings for settings in (old, new)]
    changes = []
    for key in dict.fromkeys([*old, *new]):
        if not same_json(old.get(key), new.get(key)):
            before_text, text = _rule(key, valid[0], old), _rule(key, valid[1], new) or "removed"
            text = text if before_text is None else _new_and_old(before_text, text)
            changes.append(Change("changed", "settings", text))
    return changes


def _pin_changes(before: JsonObject, after: JsonObject) -> list[Change]:
    """Return the pins that differ. A snippet that only one payload has is a change of the texts that include it."""
    old, new = (payload["graph"].get("snippets") or {} for payload in (before, after))
    zones = [payload["graph"].get("timezone") or "UTC" for payload in (before, after)]
    zone_changes = [Change("changed", "time zone of the organization", f"{zones[1]}, before: {zones[0]}")]
    return (zone_changes if zones[0] != zones[1] else []) + [
        Change("changed", f"snippet {name}", f"version {new[name]['version']}, before: {old[name]['version']}")
        for name in old.keys() & new.keys()
        if old[name] != new[name]
    ]


def _rule(key: str, valid: Mapping[SettingName, Any], settings: Mapping[str, Any]) -> str | None:
    if texts := rules_of({name: setting for name, setting in valid.items() if name == key}):
        return texts[0]
    return f"{key} {value(settings[key])}" if settings.get(key) is not None else None


def _step_changes(
    old: Mapping[str, JsonObject], new: Mapping[str, JsonObject], renamed: Mapping[str, str]
) -> list[Change]:
    added = [key for key in new if key not in old and key not in renamed.values()]
    removed = [key for key in old if key not in new and key not in renamed]
    changes = [Change("removed", key, _sentence(old[key])) for key in removed]
    changes += [Change("added", key, _sentence(new[key])) for key in added]
    for old_key, key in renamed.items():
        # A split hashes the contact with the id of its node, so a new id moves contacts to other branches.
        split = "; contacts are assigned to branches again" if new[key]["type"] == "split" else ""
        changes.append(Change("renamed", key, f"was {old_key}; its counts start at 0 again{split}"))
    for key, node in old.items():
        if key in new:
            changes += [Change("changed", key, text) for text in _field_changes(node, new[key])]
    return changes


# `actionType` repeats the type of the node, and a trigger node repeats the event names of the trigger spec. The engine
# reads neither.
_MIRRORED_KEYS = frozenset({"actionType"})
_MIRRORED_TRIGGER_KEYS = frozenset({"actionType", "event", "eventNames"})
_FIELD_WORDS = {"seconds": "waits", "timeoutSeconds": "waits at most", "filters": "conditions", "branches": "splits"}


def _field_changes(old: JsonObject, new: JsonObject) -> list[str]:
    if old["type"] != new["type"] and not (is_trigger(old["type"]) and is_trigger(new["type"])):
        return [f"another kind of step: {_new_and_old(_sentence(old), _sentence(new))}"]
    before, after = (_with_texts_by_locale(node.get("data") or {}) for node in (old, new))
    mirrored = _MIRRORED_TRIGGER_KEYS if is_trigger(old["type"]) else _MIRRORED_KEYS
    keys = [
        key
        for key in dict.fromkeys([*before, *after])
        if key not in mirrored and not same_json(before.get(key), after.get(key))
    ]
    texts = {key: _new_and_old(*(_field(new["type"], key, data) for data in (before, after))) for key in keys}
    return [f"{_FIELD_WORDS.get(key, key)}: {text}" for key, text in texts.items()]


def _with_texts_by_locale(data: JsonObject) -> JsonObject:
    """Return data with each text of other locales as a field of its own, such as `subject in de`."""
    locales = data.get("locales")
    if not isinstance(locales, dict) or not all(isinstance(texts, dict) for texts in locales.values()):
        return data
    texts = {f"{key} in {name}": text for name, texts in locales.items() for key, text in texts.items()}
    return {key: value for key, value in data.items() if key != "locales"} | texts


def _field(kind: str, key: str, data: Mapping[str, Any]) -> str:
    content, types = data.get(key), {field.key: field.type for field in FIELDS.get(kind, ())}
    if types.get(key) == "duration" and type(content) is int and content > 0:
        return span_text(content)
    if types.get(key) == "filters" and isinstance(content, list):
        return _conditions(content)
    if types.get(key) == "branches" and (split := canonical(kind, data)) is not None:
        return words.join_and([f"{branch['percent']} % {value(branch['handle'])}" for branch in split[key]])
    return _cut(value(content)) if key in data else "nothing"


def _conditions(filters: Any) -> str:
    condition = canonical("condition", {"filters": filters})
    if condition is not None:
        return conditions(condition["filters"])
    return _cut(value(filters)) if filters else "nothing"


def _edge_changes(before: JsonObject, after: JsonObject, renamed: Mapping[str, str]) -> list[Change]:
    """Return the changes of handles that lead to another step, for steps that are in both payloads."""
    old_targets, new_targets = _targets(before), _targets(after)
    old_ids, old_nodes = {key: old_key for old_key, key in renamed.items()}, _nodes(before)
    changes = []
    for node_id, node in _nodes(after).items():
        old_id = old_ids.get(node_id, node_id)
        if old_id not in old_nodes:
            continue
        for handle in handles_of(node["type"], node.get("data") or {}):
            old_target, target = old_targets.get((old_id, handle)), new_targets.get((node_id, handle))
            if target != renamed.get(old_target or "", old_target):
                label = f"{handle_words(handle)} leads to" if handle else "leads to"
                text = _new_and_old(old_target or "no step", target or "no step")
                changes.append(Change("rerouted", node_id, f"{label} {text}"))
    return changes


def _targets(payload: JsonObject) -> dict[tuple[str, str | None], str]:
    edges = payload["graph"].get("edges") or ()
    return {(edge["source"], edge.get("sourceHandle") or None): edge["target"] for edge in edges}


def _renamed_steps(before: JsonObject, after: JsonObject) -> dict[str, str]:
    """Return the new ids of renamed steps, by their old ids. A renamed step has the same type, data and edges."""
    # Only equal steps are matched, never similar ones: a wrong match would hide a removed and an added step.
    old, new = _nodes(before), _nodes(after)
    removed = {key: (node["type"], node.get("data") or {}) for key, node in old.items() if key not in new}
    added = {key: (node["type"], node.get("data") or {}) for key, node in new.items() if key not in old}
    renamed: dict[str, str] = {}
    for old_key, old_content in removed.items():
        for key, content in added.items():
            if key not in renamed.values() and same_json(old_content, content):
                renamed[old_key] = key
                break
    # Edges are compared with the new ids, so dropping one pair can disprove another: repeat until all pairs agree.
    while wrong := [key for key in renamed if _edges_of(before, key, renamed) != _edges_of(after, renamed[key], {})]:
        for key in wrong:
            del renamed[key]
    return renamed


def _edges_of(payload: JsonObject, node_id: str, renamed: Mapping[str, str]) -> set[tuple[str, str | None, str]]:
    """Return the edges from and to a node, with renamed ids replaced by the new ones."""
    return {
        (renamed.get(source, source), handle, renamed.get(target, target))
        for (source, handle), target in _targets(payload).items()
        if node_id in (source, target)
    }


def _trigger_sentence(spec: JsonObject) -> str:
    return outline_lines(outline_of("", spec, {}))[0].removesuffix(":")


def _sentence(node: JsonObject) -> str:
    return _cut(node_sentence(node["type"], node.get("data") or {}))


def _new_and_old(old: str, new: str) -> str:
    return f"{new}, before: {old}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
