"""Filters, steps, outcomes and messages in words, for notebook pages, the canvas, text output and the command line.

`sentences` describes whole automations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from importlib.resources import files
from typing import Any

import msgspec

from workbench.language.channel import Message, channel_of
from workbench.language.codec import encode
from workbench.language.decision import DELIVERY_ERRORS
from workbench.language.filter import OPERATORS, WHERE, Filter, Verdict, paths_of
from workbench.language.lift import LiftGroup
from workbench.language.locales import DEFAULT_TEXTS
from workbench.language.page import duration as duration
from workbench.language.page import quantity as quantity
from workbench.language.page import units_of as units_of
from workbench.language.problem import DeclarationError
from workbench.language.run import State, Step

OPERATOR_PHRASES = {
    # "amountUsd is 5"
    "eq": "is",
    "neq": "is not",
    "in": "is one of",
    "contains": "contains",
    "exists": "is set",
}
if OPERATOR_PHRASES.keys() != OPERATORS.keys():
    raise DeclarationError(f"operators without a phrase: {OPERATOR_PHRASES.keys() ^ OPERATORS.keys()}")
WORDS = msgspec.toml.decode(
    files("workbench.display").joinpath("words.toml").read_bytes(), type=dict[str, dict[str, str]]
)
OUTCOME_WORDS, ENTERED_WORDS, CAUSE_WORDS = WORDS["outcomes"], WORDS["entered"], WORDS["causes"]

_SEGMENTS_PATH = "contact.segments"
_MAX_COUNTED_ENTRIES = 100_000  # the server counts the states of the newest 100,000 entries only
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def value(content: Any) -> str:
    """Return a JSON value in words: texts in quotes, numbers plain, lists in brackets."""
    match content:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if content else "false"
        case str():
            return f"“{content}”"
        case int() | float() | Decimal():
            return str(content)
        case list() | tuple():
            return f"[{', '.join(value(item) for item in content)}]"
        case _:
            return encode(content).decode()


def short(identifier: str | None) -> str:
    """Return the ends of a long id or address: `0198c0de…42af`."""
    text = identifier or ""
    return text if len(text) <= 24 else f"{text[:8]}…{text[-4:]}"


def join_and(texts: Sequence[str]) -> str:
    """Return texts as one list: `a, b and c`."""
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def join_or(texts: Sequence[str]) -> str:
    """Return texts as alternatives: `a, b or c`."""
    return f"{', '.join(texts[:-1])} or {texts[-1]}" if len(texts) > 1 else "".join(texts)


def weekdays(numbers: Iterable[int]) -> str:
    """Return weekdays from 1 to 7 as alternatives: `Monday or Friday`."""
    return join_or([WEEKDAYS[number - 1] for number in numbers])


def shift(span: timedelta) -> str:
    """Return the distance of a moment from a date, in all units: `3 days earlier`, `1 day 2 hours later`."""
    parts = units_of(abs(span) // timedelta(seconds=1))
    return f"{' '.join(quantity(*part) for part in parts)} {'earlier' if span < timedelta() else 'later'}"


def offset(span: timedelta) -> str:
    """Return the time since the start of a run: `+3 days`; empty below a second."""
    return f"+{duration(span)}" if span >= timedelta(seconds=1) else ""


def to_minute(timestamp: str) -> str:
    """Return a JSON timestamp to the minute: `2026-11-23 08:00`."""
    return timestamp[:16].replace("T", " ")


def condition(item: Filter | Verdict) -> str:
    """Return one filter in words: `amountUsd is 100`."""
    if item.operator == WHERE:
        return item.path
    if item.operator not in OPERATORS:
        return f"{item.path} {item.operator} {value(item.value)} (unknown operator, ignored)"
    if item.path == _SEGMENTS_PATH and item.operator == "contains":
        return f"contact is in the segment {value(item.value)}"
    return f"{item.path} {predicate(item.operator, item.value, value)}"


def predicate(operator: str, operand: Any, shown: Callable[[Any], str]) -> str:
    """Return what an operator tests; `shown` writes values: `is one of 1 or 2`."""
    phrase = OPERATOR_PHRASES[operator]
    match OPERATORS[operator].operand:
        case "value":
            return f"{phrase} {shown(operand)}"
        case "list":
            return f"{phrase} {join_or([shown(option) for option in _options(operand)]) or 'none'}"
        case "nothing":
            return phrase


def conditions(filters: Iterable[Filter | Verdict]) -> str:
    """Return all filters in words: `a is 1 and b is set`; empty if there are no filters."""
    return " and ".join(condition(item) for item in filters)


def actual_value(verdict: Verdict) -> str:
    """Return the actual value at the path of a filter as a clause, with the reason for a near miss."""
    if verdict.operator in OPERATORS and not verdict.present:
        return f"{verdict.path} is not set"
    return f"it is {actual_cell(verdict)}" if verdict.operator in OPERATORS else actual_cell(verdict)


def actual_cell(verdict: Verdict) -> str:
    """Return the actual value at the path of a filter for a table cell, with the reason for a near miss."""
    if verdict.operator == WHERE and isinstance(verdict.actual, Mapping):
        unset = sorted(paths_of(verdict.path) - verdict.actual.keys())
        shown = [f"{path} is {value(actual)}" for path, actual in verdict.actual.items()]
        return join_and([*shown, *(f"{path} is not set" for path in unset)])
    if verdict.operator not in OPERATORS:
        return "ignored: unknown operator"
    if not verdict.present:
        return "not set"
    actual = verdict.actual
    if verdict.path == _SEGMENTS_PATH and isinstance(actual, list | tuple):
        return f"in {join_and([value(segment) for segment in actual]) or 'no segment'}"
    text = value(short(actual) if isinstance(actual, str) else actual)
    if verdict.passed:
        return text
    # Filters compare without coercion, so "100" and 100, or "USDC" and "usdc", look equal to a reader but are not.
    is_list = OPERATORS[verdict.operator].operand == "list"
    for expected in _options(verdict.value) if is_list else (verdict.value,):
        if isinstance(actual, str) and isinstance(expected, str) and actual.lower() == expected.lower():
            return f"{text}, not {value(expected)}: letter case matters"
        if type(actual) is not type(expected) and str(actual).lower() == str(expected).lower():
            return f"{text}, {_type_name(actual)}; {value(expected)} is {_type_name(expected)}, so they are different"
    return text


def _options(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _type_name(content: Any) -> str:
    match content:
        case bool():
            return "a yes/no value"
        case str():
            return "a text"
        case int() | float() | Decimal():
            return "a number"
        case _:
            return "another type"


def assignments(attributes: Mapping[str, Any]) -> str:
    """Return new values of attributes: `tier = “gold” and visits = 3`."""
    return join_and([f"{name} = {value(content)}" for name, content in attributes.items()])


def outcome(word: str | None, kind: str = "") -> str:
    """Return an outcome in words; `kind`: of the node, as that of a trigger says what started the entry."""
    key = word or ""
    if key == "entered" and kind in ENTERED_WORDS:
        return ENTERED_WORDS[kind]
    return OUTCOME_WORDS.get(key) or DELIVERY_ERRORS.get(key) or key.replace("_", " ")


def entry_outcome(word: str | None) -> str:
    # Delivery errors come first: `refused` is one for an entry, while for a step it means “did not enter”.
    return DELIVERY_ERRORS.get(word or "") or outcome(word)


def ending(state: State | str | None, word: str | None, error: str | None) -> str:
    """Return the state of an entry, with its reason, as a sentence."""
    match state, word:
        case State.COMPLETED, "no_published_version":
            return "Completed: the automation has no published version."
        case State.COMPLETED, "holdout":
            return "Held out for comparison: no message was sent."
        case State.EXITED, "goal":
            return "Stopped: the goal was reached."
        case State.CANCELLED, _:
            return f"Cancelled: {outcome(word)}."
        case State.DEAD, _:
            return f"Failed permanently: {(error or outcome(word)).removeprefix(f'{word}: ')}."
        case State.RETRYING, _:
            return f"A step failed and will be retried: {error or outcome(word)}."
        case State.COMPLETED, _:
            return "Completed."
        case State.EXITED, _:
            return "Stopped at an exit."
        case State.WAITING, _:
            return "Waiting."
        case State.RUNNING, _:
            return "Running."
        case State.PAUSED, _:
            return "Paused until the automation is resumed."
        case _:
            return "Waiting for the engine."


def entry_counts(states: Mapping[str, int]) -> str:
    """Return the number of entries by state: `3 entries: 1 waiting, 2 completed`."""
    total = sum(states.values())
    if not total:
        return "No entries yet"
    parts = [f"{count:,} {state}" for state, count in states.items() if count]
    newest = "The newest " if total >= _MAX_COUNTED_ENTRIES else ""
    return f"{newest}{quantity(total, 'entry', 'entries')}: {', '.join(parts)}"


def goal_share(group: LiftGroup) -> str:
    if not group.contacts:
        return "0 contacts so far"
    return f"{group.reached:,} of {quantity(group.contacts, 'contact')} ({group.rate:.1%})"


class ContactWrites(msgspec.Struct, frozen=True):
    """Tags and attribute names that steps write to the contact."""

    tags: Sequence[str] = ()
    removed_tags: Sequence[str] = ()
    attributes: Sequence[str] = ()


def contact_writes(steps: Iterable[Step]) -> ContactWrites:
    # Erasing a contact removes the details of its steps, hence the guards.
    tags: list[str] = []
    removed_tags: list[str] = []
    attributes: dict[str, None] = {}
    for step in steps:
        match step.outcome:
            case "tagged" if "tag" in step.detail:
                tags.append(step.detail["tag"])
            case "untagged" if "tag" in step.detail:
                removed_tags.append(step.detail["tag"])
            case "updated":
                attributes |= dict.fromkeys(step.detail.get("attributes") or ())
            case _:
                pass
    return ContactWrites(tags, removed_tags, tuple(attributes))


def effects(messages: int, writes: ContactWrites, *, done: bool) -> str:
    """Return the effects of a run: `send 1 message and add the tag “vip”` (`done`: `sent …`); may be empty."""
    parts = [f"{'sent' if done else 'send'} {quantity(messages, 'message')}"] if messages else []
    verbs = ("added", "removed") if done else ("add", "remove")
    for verb, tags in zip(verbs, (writes.tags, writes.removed_tags), strict=True):
        if tags:
            parts.append(f"{verb} the {'tag' if len(tags) == 1 else 'tags'} {join_and([value(tag) for tag in tags])}")
    if writes.attributes:
        parts.append(f"set {join_and(writes.attributes)}")
    return join_and(parts)


def message_parts(message: Message) -> tuple[str, str, str]:
    """Return the title, the body and the destination of a message."""
    channel, values = channel_of(message), msgspec.structs.asdict(message)
    address = values[channel.address]
    shown = address if channel.is_sealed else short(address)
    return channel.title.format(**values), message.body, channel.destination.format(**values | {channel.address: shown})


def message_line(message: Message) -> str:
    title, body, _ = message_parts(message)
    return f"“{title}” {body}"


def step_detail(step: Step) -> str:
    """Return the detail of a step: its error, the end of its wait, its tag, attributes, event, locale or cause."""
    detail = step.detail
    match step.outcome:
        case "failed" | "undeliverable":
            return str(detail.get("error", ""))
        case "tagged" | "untagged":
            return str(detail.get("tag", ""))
        case "updated":
            return join_and([str(name) for name in detail.get("attributes", ())])
        case "waiting" if "until" in detail:
            return f"{CAUSE_WORDS.get(detail.get('cause', ''), '')} until {to_minute(detail['until'])} UTC".strip()
        case "matched" | "timed_out" | "goal":
            return str(detail.get("event", ""))
        case "collected":
            return quantity(detail.get("events", 1), "event")
        case "skipped" if "topic" in detail:
            return f"{CAUSE_WORDS['declined_topic']} {value(detail['topic'])}"
        case "skipped" | "refused" | "missed":
            return str(detail.get("error") or CAUSE_WORDS.get(detail.get("cause", ""), ""))
        case "sent" if "locale" in detail:
            return "with the default texts" if detail["locale"] == DEFAULT_TEXTS else f"in {detail['locale']}"
        case _:
            return ""
