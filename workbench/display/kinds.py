"""The appearance and the wording of each kind of node: one table per kind in `kinds.toml`.

Cards, the palette and the forms of the canvas, sentences (both ways), Python code, ids and branch labels are made from
the table of a kind and from the types of its fields: those of a step are in `workbench.language.actions`, those of a
trigger are the controls of its form. Templates name fields in braces:

`sentence`: `Wait up to {timeoutSeconds} for {event}[, where {filters}]`. A part in brackets is left out if its field is
empty or off. A template ends with `: {key}` if the field is a text of several lines.
`call`: `wait_for({event}, within={timeoutSeconds}, where={filters})`, the verb with its arguments.
`card`: the title of the card, and the lines below it. A line whose fields are empty is left out.
`stem`: the id of a new node. The kind is used if it is empty or a value does not fit.
"""

import re
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.display import words
from workbench.language.actions import (
    FIELDS,
    MAX_COLLECTED,
    NODE_KINDS,
    FieldType,
    Handle,
    InvalidAction,
    TriggerNode,
    handles_of,
)
from workbench.language.graph import Node
from workbench.language.local_time import TIMEZONE_ATTRIBUTE
from workbench.language.problem import DeclarationError
from workbench.language.starts import MISSED
from workbench.language.trigger import Trigger

JsonObject: TypeAlias = dict[str, Any]
Control: TypeAlias = (
    FieldType | Literal["events", "number", "word", "wallet", "segment", "zone_name", "checkbox", "missed"]
)
Group: TypeAlias = Literal["Triggers", "Messages", "Contact", "Flow"]


class FormField(msgspec.Struct, frozen=True, array_like=True):
    """One field of a form: a key of `data`, or of the trigger spec, and the control that edits it.

    The control of a field of `data` is its type. Only triggers have others: `word` is a text without templates,
    `wallet` the name of a parameter that contains an address, `segment` the name of a segment, `zone_name` that of a
    time zone, `checkbox` a boolean that is off by default, `missed` what a schedule does with a missed run. `words`, in
    sentences: of a checkbox that is off and one that is on, of the choices of `missed`, or the noun that follows a
    number.
    """

    key: str
    label: str
    hint: str = ""
    control: Control | None = None
    words: tuple[str, ...] = ()


class NodeKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of node.

    `fields`: its form, in this order. `blank`: data of a new node that the types do not imply. `word`: in lists of
    steps, the label by default.
    """

    label: str
    group: Group
    about: str
    color: str
    icon: str
    fields: tuple[FormField, ...]
    sentence: str
    call: str
    card: tuple[str, ...]
    blank: JsonObject = {}
    word: str = ""

    def arguments(self) -> list[tuple[str, str]]:
        """Return the arguments of `call` as (name, key of the field); a positional one has no name."""
        return _ARGUMENT.findall(self.call)


class TriggerKind(NodeKind, frozen=True, kw_only=True):
    """One kind of trigger. `subject`: what starts the automation. `incomplete`: the title until it can be read."""

    subject: str
    incomplete: str = ""


class StepKind(NodeKind, frozen=True, kw_only=True):
    """One kind of step.

    `branches`: for a kind with two branches, the label of each handle on edges, and a short label to show with a
    number. `headings`: the sentence parts that introduce these branches.
    """

    stem: str = ""
    branches: Mapping[str, tuple[str, str]] = {}
    headings: tuple[str, str] = ("", "Otherwise")


class _Kinds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    triggers: dict[str, TriggerKind]
    steps: dict[str, StepKind]


_ARGUMENT = re.compile(r"(?:(\w+)=)?\{(\w+)\}")
_TABLE = msgspec.toml.decode(files("workbench.display").joinpath("kinds.toml").read_bytes(), type=_Kinds)
TRIGGERS, STEPS = _TABLE.triggers, _TABLE.steps
KINDS: dict[str, NodeKind] = {**TRIGGERS, **STEPS}
if KINDS.keys() != set(NODE_KINDS):
    raise DeclarationError(f"kinds without a row, or rows without a kind: {KINDS.keys() ^ set(NODE_KINDS)}")
for _kind, _row in KINDS.items():
    _keys = {field.key for field in _row.fields}
    _declared = {field.key for field in FIELDS[_kind] if field.type != "recipient"} if _kind in FIELDS else _keys
    if _keys != _declared or any(f"{{{key}}}" not in _row.sentence for key in _keys):
        raise DeclarationError(f"the form and the sentence of {_kind} must have its fields {_declared}")
for _kind, _row in STEPS.items():
    if any(handle is not None and handle not in _row.branches for handle in handles_of(_kind, {})):
        raise DeclarationError(f"the branches of {_kind} must be {handles_of(_kind, {})}")

STEP_WORDS = {name: row.word or row.label for name, row in KINDS.items()}
TRIGGER_ARGUMENTS = {key: name or key for row in TRIGGERS.values() for name, key in row.arguments()}
_BRANCHES = {handle: labels for row in STEPS.values() for handle, labels in row.branches.items()}
FIRST_BRANCHES, SECOND_BRANCHES = zip(*(row.branches for row in STEPS.values() if row.branches), strict=True)


def handle_words(handle: Handle, *, short: bool = False) -> str:
    """Return the label of a handle; empty for a node that does not branch."""
    return _BRANCHES[handle][short] if handle in _BRANCHES else handle or ""


class Part(msgspec.Struct, frozen=True):
    """A part of a template: a text, and the field after it; the last text may have none."""

    before: str
    key: str
    optional: bool = False


LINES = ": "  # before a text that may have several lines
_PART = re.compile(r"\[(?P<before>[^{]*)\{(?P<key>\w+)\}\]|(?P<text>[^[{]*)\{(?P<field>\w+)\}|(?P<last>[^[{]+)")


@cache
def parts(template: str) -> tuple[Part, ...]:
    return tuple(
        Part(match["before"], match["key"], optional=True)
        if match["key"]
        else Part(match["text"] or match["last"] or "", match["field"] or "")
        for match in _PART.finditer(template)
    )


def filled(template: str, texts: Mapping[str, str]) -> str:
    """Return a template with the texts of its fields; empty if one that is not optional has none."""
    used = [part for part in parts(template) if not part.optional or texts[part.key]]
    if any(part.key and not texts[part.key] for part in used):
        return ""
    return "".join(part.before + texts.get(part.key, "") for part in used)


def field_texts(node: Node, *, quoted: bool) -> dict[str, str]:
    """Return the values of the fields of a valid node, in words; `quoted`: texts in quotes, and branches by name."""
    return {
        field.key: _field_text(field.type, getattr(node.action, field.attribute), quoted)
        for field in FIELDS.get(node.kind, ())
    }


def _field_text(field_type: FieldType, value: Any, quoted: bool) -> str:
    match field_type:
        case "line" | "tag" | "connection":
            return words.value(value) if quoted else value
        case "text":
            return "" if quoted else value
        case "url" | "event":
            return str(value)
        case "attributes" | "fields":
            return words.assignments(value)
        case "filters":
            return words.conditions(value)
        case "duration":
            return "" if value is None else words.duration(value)
        case "branches" if quoted:
            return words.join_and([f"{branch.percent} % {words.value(branch.handle)}" for branch in value])
        case "branches":
            return f"{len(value)} branches"
        case "clock":
            return "" if value is None else f"{value:%H:%M}"
        case "weekdays":
            return words.weekdays(value)
        case "date":
            return value or ""
        case "shift":
            return words.shift(value) if value else ""
        case "path":
            return value or ""
        case "number":
            return "" if value == MAX_COLLECTED else f"{value} events"
        case "zone":
            return "" if value == TIMEZONE_ATTRIBUTE else str(value)
        case "locales" if value and not quoted:
            return f"also in {', '.join(value)}"
        case "topic" if value:
            return words.value(value) if quoted else f"topic {value}"
        case "body" | "object" | "recipient" | "missing" | "switch" | "locales" | "topic":
            return ""


def trigger_texts(
    kind: str,
    data: Mapping[str, Any],
    name: Callable[[str], str] = str,
    text: Callable[[str], str] = words.short,
    conditions: Callable[[Any], str] = words.conditions,
) -> dict[str, str]:
    """Return the values of the fields of a trigger in words; `names`: the events, without an article."""
    texts: dict[str, str] = {}
    for field in TRIGGERS[kind].fields:
        content = data[field.key]
        match field.control:
            case "events":
                texts["names"] = words.join_or([name(event) for event in content]) if content else "any event"
                texts[field.key] = f"a {texts['names']} event" if content else "any event"
            case "filters":
                texts[field.key] = conditions(content)
            case "checkbox":
                texts[field.key] = field.words[bool(content)]
            case "missed":
                texts[field.key] = field.words[MISSED.index(content)]
            case "number" if field.words:
                texts[field.key] = f"{content} {field.words[0]}{'' if content == 1 else 's'}" if content else ""
            case "number":
                texts[field.key] = str(content)
            case _:
                texts[field.key] = text(content) if content else ""
    return texts


def short_texts(trigger: Trigger) -> dict[str, str]:
    """Return the values of the fields of a trigger in short words."""
    return trigger_texts(trigger.type, trigger.shown_values)


def trigger_subject(trigger: Trigger) -> str:
    """Return what starts an automation: `deposit or trade`."""
    return filled(TRIGGERS[trigger.type].subject, short_texts(trigger))


def trigger_title(trigger: Trigger) -> str:
    """Return the trigger of an automation in words: `deposit where amountUsd is 100`."""
    filters = words.conditions(trigger.filters)
    return f"{trigger_subject(trigger)} where {filters}" if filters else trigger_subject(trigger)


def step_title(node: Node) -> str:
    """Return what a node does: `send the email “Welcome”`."""
    match node.action:
        case TriggerNode():
            return "start"
        case InvalidAction(problems=problems):
            return f"{node.id}, which cannot run: {problems[0].reason}"
        case _:
            texts = field_texts(node, quoted=True)
            used = [
                part
                for part in parts(STEPS[node.kind].sentence)
                if part.before != LINES and (not part.optional or texts[part.key])
            ]
            # Only a condition may have an empty field: no filters.
            title = "".join(part.before + (part.key and (texts[part.key] or "always")) for part in used)
            return title[:1].lower() + title[1:]


_MAX_ID_LENGTH = 40


def free_id(kind: str, data: Mapping[str, Any], taken: Collection[str]) -> str:
    """Return the id of a new node: `add_tag_vip`, or `add_tag_vip_2` if that is taken."""
    text, row = "", STEPS.get(kind)
    if row is not None and row.stem:
        texts = {field.key: _stem_text(field.type, data.get(field.key)) for field in FIELDS[kind]}
        text = filled(row.stem, texts)
    # Ids appear in sentences, Python code and SQL, so they have only letters, digits and underscores.
    stem = re.sub(r"[^a-z0-9]+", "_", (text or kind).lower()).strip("_")[:_MAX_ID_LENGTH] or "step"
    if stem not in taken:
        return stem
    return next(f"{stem}_{number}" for number in range(2, len(taken) + 3) if f"{stem}_{number}" not in taken)


_MAX_STEM_SECONDS = 10**9  # larger ones would overflow a timedelta


def _stem_text(field_type: FieldType, value: Any) -> str:
    match field_type, value:
        case "tag" | "event" | "connection", str():
            return str(value)
        case "date", str():
            return value.removeprefix("contact.")
        case "duration", int() if 0 < value < _MAX_STEM_SECONDS:
            return words.duration(timedelta(seconds=value))
        case "filters", [{"path": str(path)}, *_]:
            return path.removeprefix("contact.")
        case _:
            return ""
