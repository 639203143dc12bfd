"""An outline as calls of verbs, which are executed to build the automation, or printed as Python code.

Both use one list of calls, so the printed code builds exactly the automation that it was printed from.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import msgspec

from workbench.display.kinds import KINDS, STEPS, TRIGGERS
from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, JsonObject, Outline, OutlineStep
from workbench.display.words import WEEKDAYS, units_of
from workbench.draft import KEYWORDS, Draft
from workbench.errors import InvalidArgumentError, InvalidAutomationError
from workbench.language.actions import FIELDS, FieldType, side_handles
from workbench.language.codec import encode
from workbench.language.filter import OPERATORS, WHERE, written_conditions
from workbench.language.graph import SettingName
from workbench.language.local_time import TIMEZONE_ATTRIBUTE
from workbench.language.problem import DeclarationError
from workbench.text.remainder import Extras
from workbench.verbs import AutomationVerbs

_Arguments: TypeAlias = dict[str, Any]

_WIDTH = 100
_INDENT = "    "
_MAX_INLINE_CALLS = 2  # of a branch; more calls are easier to read with one per line


class VerbCall(msgspec.Struct, frozen=True):
    """A verb with its arguments. `line`: the line of its sentence; 0 if it was not read from sentences."""

    verb: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}
    line: int = 0


class BranchFunction(msgspec.Struct, frozen=True):
    """An argument that is a function of the branch: `lambda b: b.add_tag("vip")`."""

    calls: tuple[VerbCall, ...]


if missing := {row.call for row in KINDS.values() if not hasattr(AutomationVerbs, row.call.partition("(")[0])}:
    raise DeclarationError(f"calls in display/kinds.py without a verb: {missing}")


def calls_of(outline: Outline) -> list[VerbCall]:
    label = {} if outline.id == TRIGGER_ID else {"node": outline.id}
    row, data = TRIGGERS[outline.kind], outline.trigger
    named = {name: data[key] for name, key in row.arguments() if name and data[key]}
    # The names of events are separate arguments.
    first = [data[key] for name, key in row.arguments() if not name]
    positional = tuple(item for value in first for item in (value if isinstance(value, list) else (value,)))
    verb = "on_any_event" if outline.kind == "app_event" and not positional else row.call.partition("(")[0]
    start = VerbCall(verb, positional, named | label, outline.line)
    filters = [VerbCall("where", *_filter_arguments(item)) for item in data.get("filters", ())]
    rules = [_rule(name, value) for name, value in outline.settings.items()]
    return [start, *filters, *rules, *_block(outline.steps, followed=False)]


def build(outline: Outline) -> Draft:
    """Return the automation of an outline. Raises InvalidAutomationError, with the line, if a verb rejects it."""
    automation: AutomationVerbs = _execute(AutomationVerbs(Draft(outline.name)), calls_of(outline))
    return automation._draft


def _execute(builder: Any, calls: Iterable[VerbCall]) -> Any:
    for call in calls:
        # partial, not a lambda: a lambda in a loop would see the calls of the last branch.
        arguments = [
            partial(_execute, calls=item.calls) if isinstance(item, BranchFunction) else item for item in call.arguments
        ]
        try:
            builder = getattr(builder, call.verb)(*arguments, **call.named)
        except InvalidArgumentError as error:
            raise InvalidAutomationError(f"line {call.line}: {error}" if call.line else str(error)) from None
    return builder


def _block(block: Block, *, followed: bool) -> list[VerbCall]:
    """Return the calls of a block; `followed`: steps come after it."""
    calls: list[VerbCall] = []
    for step in block:
        match step:
            case GoTo(id=node_id, line=line):
                calls.append(VerbCall("go_to", (node_id,), line=line))
            case End():
                calls.append(VerbCall("end"))
            case OutlineStep():
                first, *others = _step(step, followed=followed or step is not block[-1])
                calls += [msgspec.structs.replace(first, line=step.line), *others]
    return calls


def _step(step: OutlineStep, *, followed: bool) -> list[VerbCall]:
    data = step.data
    label = {} if step.id is None else {"node": step.id}
    branches = [
        VerbCall("branch", (handle, _branch(block, followed=followed)))
        for handle, block in step.branches
        if block or (followed and handle in side_handles(step.kind))
    ]
    if step.raw:
        return [VerbCall("step", (step.kind, data), label), *branches]
    if step.kind == "condition":
        first, *others = data["filters"]
        more = [VerbCall("and_", *_filter_arguments(item)) for item in others]
        path, operator = _filter_arguments(first)
        when = VerbCall("when", path, operator | label)
        return [when, *more, *_yes_no(step, even_empty=True, followed=followed)]
    row = STEPS[step.kind]
    types = {field.key: field.type for field in FIELDS[step.kind]}
    if "onMissing" in types:  # Python skips by default; in the language a message without the field fails
        data = data | {"onMissing": None if data.get("onMissing") == "skip" else "fail"}
    arguments = [
        (name, _argument(types[key], data[key]))
        for name, key in row.arguments()
        if data.get(key) is not None and (data[key] != [] or types[key] == "body")
    ]
    positional = tuple(argument for name, argument in arguments if not name)
    call = VerbCall(row.call.partition("(")[0], positional, {name: item for name, item in arguments if name} | label)
    return [call, *(_yes_no(step, even_empty=False, followed=followed) if step.branches and row.branches else branches)]


def _argument(field_type: FieldType, content: Any) -> Any:
    match field_type:
        case "duration":
            return _span(content)
        case "filters":
            return _where(content)
        case "branches":
            return {branch["handle"]: branch["percent"] for branch in content}
        case "shift":
            return f"{'-' if content < 0 else ''}{_span(abs(content))}"
        case "weekdays":
            return [WEEKDAYS[day - 1][:3].lower() for day in content]
        case "line" | "text" | "url" | "body" | "object" | "tag" | "attributes" | "event":
            return content
        case "recipient" | "missing" | "switch" | "clock" | "date" | "zone" | "locales" | "path" | "number":
            return content
        case "connection" | "fields" | "topic":
            return content


def _yes_no(step: OutlineStep, *, even_empty: bool, followed: bool) -> list[VerbCall]:
    (_, yes), (other, no) = step.branches
    then = [VerbCall("then", (_branch(yes, followed=followed),))] if yes or even_empty else []
    is_written = no or (followed and other in side_handles(step.kind))
    return [*then, *([VerbCall("otherwise", (_branch(no, followed=followed),))] if is_written else [])]


def _branch(block: Block, *, followed: bool) -> BranchFunction:
    return BranchFunction(tuple(_block(block, followed=followed)))


def _rule(name: SettingName, value: Any) -> VerbCall:
    match name:
        case "reentry" if value["policy"] == "once_per":
            return VerbCall("reentry", (), {"every": f"{value['days']}d"})
        case "reentry":
            return VerbCall("reentry", ("once" if value["policy"] == "once" else "after_exit",))
        case "goal":
            conditions = written_conditions(value)
            return VerbCall("goal", (value["event"],), {"where": _where(conditions)} if conditions else {})
        case "quietHours":
            return VerbCall("quiet_hours", (value["from"], value["to"]), _zone_attribute(value))
        case "holdout" | "timezone":
            return VerbCall(name, (value,))
        case "localeAttribute":
            return VerbCall("locale_attribute", (value,))
        case "defaultLocale":
            return VerbCall("default_locale", (value,))
        case "frequencyCap":
            per = {"per": "day"} | _zone_attribute(value) if "per" in value else {"per": _span(value["seconds"])}
            return VerbCall("frequency_cap", (value["messages"],), per)


def _zone_attribute(setting: JsonObject) -> _Arguments:
    attribute = setting["timezoneAttribute"]
    return {} if attribute == TIMEZONE_ATTRIBUTE else {"timezone": attribute}


def _predicate(item: Mapping[str, Any]) -> _Arguments:
    """Return the keyword argument of a filter: `{"eq": 100}`."""
    name = item["operator"]
    return {KEYWORDS[name]: True if OPERATORS[name].operand == "nothing" else item["value"]}


def _filter_arguments(item: Mapping[str, Any]) -> tuple[tuple[str], _Arguments]:
    """Return the arguments of `.where`, `.when` and `.and_`."""
    return ((item[WHERE],), {}) if WHERE in item else ((item["path"],), _predicate(item))


def _where(items: list[JsonObject]) -> Any:
    """Return filters as the argument `where=`: a dict by path or an expression, or a list of several of these."""
    conditions: list[Any] = []
    for item in items:
        if WHERE in item:
            conditions.append(item[WHERE])
            continue
        predicate = _predicate(item)
        operand = predicate.get("eq", predicate)
        # A dict as operand of eq would be read as a predicate, so it keeps its operator.
        condition = {item["path"]: predicate if isinstance(operand, dict) else operand}
        if conditions and isinstance(conditions[-1], dict) and item["path"] not in conditions[-1]:
            conditions[-1] |= condition
        else:
            conditions.append(condition)
    return conditions[0] if len(conditions) == 1 else conditions


def _span(seconds: int) -> str:
    return " ".join(f"{number}{noun[0]}" for number, noun in units_of(seconds))  # 1d 2h, as `seconds_of` reads it


def python_code(opening: str, calls: Iterable[VerbCall], extras: Extras) -> str:
    """Return a statement that builds an automation: `a = (wb.automation("…").on("…")…)`, one call per line."""
    if extras:
        without = {"without": [*extras.without]} if extras.without else {}
        calls = [*calls, VerbCall("with_extras", (extras.values,), without)]
    lines = [line for call in calls for line in _call_lines(call, 1)]
    body = "\n".join(["a = (", f"{_INDENT}{opening}", *lines, ")"])
    return f"from decimal import Decimal\n\n{body}" if "Decimal(" in body else body


def _call_lines(call: VerbCall, depth: int) -> list[str]:
    """Return the lines of a call: one if it fits."""
    margin = _INDENT * depth
    if not any(isinstance(item, BranchFunction) for item in call.arguments):
        line = f"{margin}{_one_line(call)}"
        if len(line) <= _WIDTH or not (call.arguments or call.named):
            return [line]
        arguments = [("", item) for item in call.arguments] + [(f"{name}=", item) for name, item in call.named.items()]
        inner = [line for prefix, item in arguments for line in _argument_lines(prefix, item, margin + _INDENT)]
        return [f"{margin}.{call.verb}(", *inner, f"{margin})"]
    *before, branch = call.arguments
    chain = [*map(_one_line, branch.calls)] if len(branch.calls) <= _MAX_INLINE_CALLS else [None]
    if None not in chain:
        arguments_before = "".join(f"{literal(item)}, " for item in before)
        line = f"{margin}.{call.verb}({arguments_before}lambda b: b{''.join(map(str, chain))})"
        if len(line) <= _WIDTH:
            return [line]
    return [
        f"{margin}.{call.verb}(",
        *(f"{margin}{_INDENT}{literal(item)}," for item in before),
        *_function_lines(branch, depth + 1, "," if before else ""),
        f"{margin})",
    ]


def _one_line(call: VerbCall) -> str | None:
    """Return a call on one line; None if it has branches."""
    if any(isinstance(item, BranchFunction) for item in call.arguments):
        return None
    arguments = [*map(literal, call.arguments), *(f"{name}={literal(item)}" for name, item in call.named.items())]
    return f".{call.verb}({', '.join(arguments)})"


def _function_lines(branch: BranchFunction, depth: int, comma: str) -> Iterator[str]:
    """Yield the lines of a branch: a single call as it is, several calls in parentheses."""
    margin = _INDENT * depth
    several = len(branch.calls) > 1
    first, *rest = [line for call in branch.calls for line in _call_lines(call, depth + 1 if several else depth)]
    if several:
        yield from (f"{margin}lambda b: (", f"{margin}{_INDENT}b{first.strip()}", *rest, f"{margin}){comma}")
    else:
        *lines, last = [f"{margin}lambda b: b{first.strip()}", *rest]
        yield from (*lines, f"{last}{comma}")


def _argument_lines(prefix: str, value: Any, margin: str) -> Iterator[str]:
    """Yield the lines of one argument: long dicts with a key per line, long texts with a line of the text per line."""
    line = f"{margin}{prefix}{literal(value)},"
    if len(line) <= _WIDTH:
        yield line
    elif isinstance(value, dict) and value:
        yield f"{margin}{prefix}{{"
        for key, item in value.items():
            yield from _argument_lines(f"{literal(key)}: ", item, margin + _INDENT)
        yield f"{margin}}},"
    elif isinstance(value, str) and "\n" in value:
        yield f"{margin}{prefix}("
        for part in filter(None, re.split(r"(?<=\n)", value)):
            yield f"{margin}{_INDENT}{literal(part)}"
        yield f"{margin}),"
    else:
        yield line


def literal(value: Any) -> str:
    """Return a JSON value as Python code: texts in double quotes, numbers to the last digit."""
    match value:
        case str():
            code = repr(value)
            return f'"{code[1:-1]}"' if code.startswith("'") and '"' not in value else code
        case Decimal():
            exact = encode(float(value)) == encode(value)
            return repr(float(value)) if exact else f'Decimal("{encode(value).decode()}")'
        case Mapping():
            return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(literal, value)) + "]"
        case _:
            return repr(value)
