"""An outline as calls of verbs: made for real, to build the automation, or written down, as Python.

One list serves both, so the code that is written builds what it was written from.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import msgspec

from workbench.author import Draft
from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, JsonObject, Outline, Step
from workbench.errors import DraftError
from workbench.verbs import Rules, Steps


class Call(msgspec.Struct, frozen=True):
    """A verb with its arguments. `line`: where the sentence stands that it comes from, 0 for nowhere."""

    verb: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}
    line: int = 0


class Along(msgspec.Struct, frozen=True):
    """What a branch does: an argument that is a function of its steps."""

    calls: tuple[Call, ...]


Asked: TypeAlias = dict[str, Any]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def calls_of(outline: Outline) -> list[Call]:
    """Return the calls that write an automation."""
    label = {} if outline.id == TRIGGER_ID else {"node": outline.id}
    filters = [Call("where", (each["path"],), _question(each)) for each in outline.filters]
    rules = [_rule(name, value) for name, value in outline.settings.items()]
    return [_start(outline, label), *filters, *rules, *_block(outline.steps)]


def _start(outline: Outline, label: Asked) -> Call:
    if outline.logs:
        return Call("on_chain", (), _on_chain(outline.logs) | label, outline.line)
    return Call("on", outline.events, label) if outline.events else Call("on_any_event", (), label)


def _on_chain(logs: JsonObject) -> Asked:
    deep = {"confirmations": logs["confirmations"]} if logs["confirmations"] else {}
    strangers = {"create_contacts": True} if logs["createContacts"] else {}
    which = {"contract": logs["contract"], "event": logs["signature"], "to_contact": logs["walletArg"]}
    return {**which, "chain_id": logs["chainId"], **deep, **strangers}


class _Plain(Rules):
    """What carries a draft through the calls."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def _with(self, draft: Draft) -> "_Plain":
        return _Plain(draft)


def build(outline: Outline) -> Draft:
    """Return the automation of an outline; raise DraftError, with the line where there is one, for what cannot be written."""
    built: _Plain = _made(_Plain(Draft(outline.name)), calls_of(outline))
    return built._draft


def _made(written: Any, calls: Iterable[Call]) -> Any:
    for call in calls:
        arguments = [_function(each) if isinstance(each, Along) else each for each in call.arguments]
        try:
            written = getattr(written, call.verb)(*arguments, **call.named)
        except DraftError as error:
            raise DraftError(f"line {call.line}: {error}" if call.line else str(error)) from None
    return written


def _function(along: Along) -> Any:
    return lambda steps: cast("Steps", _made(steps, along.calls))


def _block(block: Block) -> list[Call]:
    return [call for each in block for call in _step(each)]


def _step(step: Step | GoTo | End) -> list[Call]:
    match step:
        case GoTo(id=node_id, line=line):
            return [Call("go_to", (node_id,), line=line)]
        case End():
            return [Call("end")]
        case Step():
            label = {} if step.id is None else {"node": step.id}
            calls = _as_it_stands(step, label) if step.whole else _in_words(step, label)
            return [msgspec.structs.replace(calls[0], line=step.line), *calls[1:]]


def _as_it_stands(step: Step, label: Asked) -> list[Call]:
    ways = [Call("branch", (way, Along(tuple(_block(block))))) for way, block in step.ways if block]
    return [Call("step", (step.kind, step.data), label), *ways]


def _in_words(step: Step, label: Asked) -> list[Call]:  # noqa: PLR0911  a table: one line per kind
    data = step.data
    match step.kind:
        case "send_inapp":
            extra = {"data": data["data"]} if "data" in data else {}
            return [Call("send_inapp", (), {"title": data["title"], "body": data["body"], **extra, **label})]
        case "send_email":
            return [Call("send_email", (), {**data, **label})]
        case "send_webhook":
            body = {"body": data["body"]} if "body" in data else {}
            return [Call("send_webhook", (data["url"],), {**body, **label})]
        case "add_tag" | "remove_tag":
            return [Call(step.kind, (data["tag"],), label)]
        case "update_contact":
            return [Call("update_contact", (data["attributes"],), label)]
        case "delay":
            return [Call("delay", (_span(data["seconds"]),), label)]
        case "exit":
            return [Call("exit", (), label)]
        case "split":
            shares = {each["handle"]: each["percent"] for each in data["branches"]}
            ways = [Call("branch", (way, Along(tuple(_block(block))))) for way, block in step.ways if block]
            return [Call("split", (shares,), label), *ways]
        case "wait_for_event":
            where = {"where": _where(data["filters"])} if data["filters"] else {}
            call = Call("wait_for", (data["event"],), {"within": _span(data["timeoutSeconds"]), **where, **label})
            return [call, *_ways(step, even_empty=False)]
        case _:
            first, *others = data["filters"]
            more = [Call("and_", (each["path"],), _question(each)) for each in others]
            return [Call("when", (first["path"],), _question(first) | label), *more, *_ways(step, even_empty=True)]


def _ways(step: Step, *, even_empty: bool) -> list[Call]:
    (_, yes), (_, no) = step.ways
    then = [Call("then", (Along(tuple(_block(yes))),))] if yes or even_empty else []
    return [*then, *([Call("otherwise", (Along(tuple(_block(no))),))] if no else [])]


def _rule(name: str, value: Any) -> Call:
    match name:
        case "reentry" if value["policy"] == "once_per":
            return Call("once_per", (), {"days": value["days"]})
        case "reentry":
            return Call(value["policy"])
        case "goal":
            where = {"where": _where(value["filters"])} if value["filters"] else {}
            return Call("goal", (value["event"],), where)
        case "quietHours":
            zone = value["timezoneAttribute"]
            return Call("quiet_hours", (value["from"], value["to"]), {"timezone": zone} if zone != "timezone" else {})
        case "holdout":
            return Call("holdout", (value,))
        case _:
            return Call("frequency_cap", (value["messages"],), {"per": _span(value["seconds"])})


def _question(each: Mapping[str, Any]) -> Asked:
    match each["operator"]:
        case "exists":
            return {"exists": True}
        case "in":
            return {"is_in": each["value"]}
        case operator:
            return {operator: each["value"]}


def _where(filters: list[JsonObject]) -> Asked | list[Asked]:
    """Return filters as `where=` takes them: by path, or one after the other where a path comes twice."""
    asked = [{each["path"]: _shortened(_question(each))} for each in filters]
    paths = {each["path"] for each in filters}
    return {path: value for each in asked for path, value in each.items()} if len(paths) == len(asked) else asked


def _shortened(question: Asked) -> Any:
    value = question.get("eq", question)
    return question if isinstance(value, dict) else value


def _span(seconds: int) -> str:
    parts = []
    for size, unit in _UNITS:
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts)
