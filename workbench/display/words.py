"""Filters, verdicts, outcomes and graphs in plain sentences. Everything the workbench says about an automation is said here."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from api.language.codec import encode
from api.language.filter import OPERATORS, Filter, Verdict
from api.language.graph import AddTag, Condition, Entered, Exit, Graph, Invalid, Node, SendInapp
from api.language.run import State
from api.language.trigger import Trigger

KIND_WORDS = {
    "app_event": "When",
    "send_inapp": "In-app message",
    "add_tag": "Add tag",
    "condition": "If",
    "exit": "Stop",
}
STEP_WORDS = KIND_WORDS | {"app_event": "Event", "condition": "Decision"}
OUTCOME_WORDS = {
    "entered": "event arrived",
    "sent": "message sent",
    "tagged": "tag added",
    "branched": "decided",
    "exited": "stopped",
    "failed": "failed",
    "completed": "reached the end",
    "exit": "stopped at an exit",
    "no_published_version": "nothing published, so nothing was done",
    "no_wallet": "the contact has no wallet to send to",
    "template_error": "a text could not be filled in",
    "node_invalid": "a step is not set up correctly",
    "attempts_exhausted": "every try failed",
}

_PLAIN_ENDINGS: dict[State | str | None, str] = {
    State.COMPLETED: "Completed.",
    State.EXITED: "Stopped at an exit.",
    State.WAITING: "Waiting.",
    State.RUNNING: "Running.",
}


def value(given: Any) -> str:
    """Write a value as a person would: texts in quotes, numbers plain."""
    match given:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if given else "false"
        case str():
            return f"“{given}”"
        case int() | float() | Decimal():
            return str(given)
        case list() | tuple():
            return either([value(each) for each in given])
        case _:
            return encode(given).decode()


def short(identifier: str | None) -> str:
    """Shorten an id or an address to its ends: `0198c0de…42af`."""
    text = identifier or ""
    return text if len(text) <= 24 else f"{text[:8]}…{text[-4:]}"


def condition(each: Filter | Verdict) -> str:
    """Write one filter: `amountUsd is 100`."""
    match each.operator:
        case "eq":
            return f"{each.path} is {value(each.value)}"
        case "neq":
            return f"{each.path} is not {value(each.value)}"
        case "in":
            return f"{each.path} is one of {either([value(each) for each in _listed(each.value)])}"
        case "contains":
            return f"{each.path} contains {value(each.value)}"
        case "exists":
            return f"{each.path} is present"
        case _:
            return f"{each.path} {each.operator} {value(each.value)} (unknown operator, ignored)"


def conditions(filters: Iterable[Filter | Verdict]) -> str:
    """Write all filters: `a is 1 and b is present`; empty for none."""
    return " and ".join(condition(each) for each in filters)


def found(verdict: Verdict) -> str:
    """Say what a filter met, and point out a near miss."""
    if verdict.operator not in OPERATORS:
        return "ignored: there is no such operator"
    if not verdict.present:
        return f"there is no {verdict.path}"
    actual = value(short(verdict.actual) if isinstance(verdict.actual, str) else verdict.actual)
    return f"it is {actual}" if verdict.passed else f"it is {actual}{_near_miss(verdict)}"


def _near_miss(verdict: Verdict) -> str:
    actual = verdict.actual
    for wanted in _listed(verdict.value) if verdict.operator == "in" else (verdict.value,):
        if isinstance(actual, str) and isinstance(wanted, str) and actual.lower() == wanted.lower():
            return f": same letters as {value(wanted)}, but capitals count"
        if type(actual) is not type(wanted) and _plain(actual) == _plain(wanted):
            return f", {_kind(actual)}, and {value(wanted)} is {_kind(wanted)}: they are not the same"
    return ""


def _plain(given: Any) -> str:
    return str(given).lower()


def _kind(given: Any) -> str:
    match given:
        case bool():
            return "a yes/no value"
        case str():
            return "a text"
        case int() | float() | Decimal():
            return "a number"
        case _:
            return "something else"


def events(trigger: Trigger) -> str:
    """Write which events start an automation: `deposit or trade`."""
    return either(sorted(trigger.names)) if trigger.names else "any event"


def outcome(word: str | None) -> str:
    """Say an outcome in words."""
    return OUTCOME_WORDS.get(word or "", (word or "").replace("_", " "))


def ending(state: State | str | None, word: str | None, error: str | None) -> str:
    """Say where an entry stands, and why."""
    if state == State.COMPLETED and word == "no_published_version":
        return "Nothing is published, so nothing was done."
    match state:
        case State.CANCELLED:
            return f"Cancelled: {outcome(word)}."
        case State.DEAD:
            return f"Failed for good: {(error or outcome(word)).removeprefix(f'{word}: ')}."
        case State.RETRYING:
            return f"A step failed and will be tried again: {error or outcome(word)}."
        case _:
            return _PLAIN_ENDINGS.get(state, "Waiting for the engine.")


def deeds(messages: int, tags: Sequence[str], *, done: bool) -> str:
    """Say what is done: `send 1 message and add the tag “vip”` (`done`: `sent …`); empty when nothing is."""
    send, add = ("sent", "added") if done else ("send", "add")
    parts = [f"{send} {counted(messages, 'message')}"] if messages else []
    if tags:
        parts.append(f"{add} the {'tag' if len(tags) == 1 else 'tags'} {both([value(tag) for tag in tags])}")
    return both(parts)


def counted(number: int, noun: str) -> str:
    """Write a number of things: `1 message`, `2 messages`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def title(node: Node) -> str:
    """Name a node in a few words, with what matters about it."""
    match node.action:
        case SendInapp(title=text):
            return f"send the in-app message {value(text)}"
        case AddTag(tag=tag):
            return f"add the tag {value(tag)}"
        case Condition(filters=filters):
            return f"if {conditions(filters) or 'always'}"
        case Exit():
            return "stop"
        case Entered():
            return "start"
        case Invalid(problems=problems):
            return f"{node.id}, which cannot run: {problems[0].reason}"


def sentences(trigger: Trigger, graph: Graph) -> list[str]:
    """Return the automation as lines of plain English, indented by branch."""
    only = f", and {conditions(trigger.filters)}" if trigger.filters else ""
    arrives = f"a {events(trigger)} event arrives" if trigger.names else "any event arrives"
    lines = [f"When {arrives}{only}:"]
    start = graph.start
    following = graph.following.get((start.id, None)) if start else None
    if start is None or following is None:
        return [*lines, "  nothing happens yet."]
    lines += _Telling(graph).steps(following, None, 1)
    return lines


class _Telling:
    """Walks a graph once; a step told before is only referred to, so that joins and knots stay short."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._told: set[str] = set()

    def steps(self, node_id: str | None, until: str | None, depth: int) -> list[str]:
        lines: list[str] = []
        margin = "  " * depth
        while node_id is not None and node_id != until:
            node = self._graph.by_id.get(node_id)
            if node is None:
                break
            if node_id in self._told:
                return [*lines, f"{margin}• go on with “{node_id}” as above."]
            self._told.add(node_id)
            if isinstance(node.action, Condition):
                node_id = self._branch(node, until, depth, lines)
                continue
            lines.append(f"{margin}• {_sentence(title(node))}")
            node_id = self._graph.following.get((node.id, None))
        return lines

    def _branch(self, node: Node, until: str | None, depth: int, lines: list[str]) -> str | None:
        yes, no = (self._graph.following.get((node.id, handle)) for handle in ("true", "false"))
        join = _meeting(self._graph, yes, no) or until
        margin = "  " * depth
        lines.append(f"{margin}• {_sentence(title(node)).removesuffix('.')}:")
        lines += self.steps(yes, join, depth + 1) or [f"{margin}  • nothing more."]
        other = self.steps(no, join, depth + 1)
        if other:
            lines += [f"{margin}  Otherwise:", *other]
        return join


def _meeting(graph: Graph, first: str | None, second: str | None) -> str | None:
    """Return the nearest node that both ways lead to."""
    from_second = set(_reachable(graph, second))
    return next((node for node in _reachable(graph, first) if node in from_second), None)


def _reachable(graph: Graph, start: str | None) -> list[str]:
    """Return the nodes reached from `start`, itself included, nearest first."""
    seen = [start] if start is not None else []
    for node in seen:
        ways = graph.by_id[node].handles if node in graph.by_id else ()
        for handle in ways:
            target = graph.following.get((node, handle))
            if target is not None and target not in seen:
                seen.append(target)
    return seen


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _listed(options: Any) -> Sequence[Any]:
    return options if isinstance(options, list | tuple) else ()


def both(texts: Sequence[str]) -> str:
    """Write a list: `a, b and c`."""
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def either(texts: Sequence[str]) -> str:
    """Write alternatives: `a, b or c`."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} or {texts[-1]}"
