"""An automation in plain English, indented by branch. `workbench.text.parse` reads it back: change both together.

Texts are in “curly quotes”, or JSON where quotes would be ambiguous. A message of several lines follows its sentence,
each line after a `|`. A step with an id other than the default has it in brackets at the end.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from workbench.display import words
from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, Outline, OutlineStep, canonical, handles_of
from workbench.display.words import join_and, join_or, quantity
from workbench.language.actions import BranchingKind, PlainKind
from workbench.language.codec import encode
from workbench.language.filter import Operator
from workbench.language.graph import Graph
from workbench.language.trigger import Trigger, is_trigger

# The parser uses the same patterns and phrases.
PLAIN_EVENT = re.compile(r"[a-z0-9_]+(?:[.:-][a-z0-9_]+)*")
PLAIN_PATH = re.compile(r"[\w$@./-]*[\w$@]", re.ASCII)
PLAIN_URL = re.compile(r"https?://[^\s“”\"\[\]]*[\w/=&?#%-]", re.ASCII)
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
UNITS_S = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
NO_STEPS = "nothing happens yet."
NOTHING_MORE = "Nothing more."
END = "End here."
IF_RECEIVED = ". If received"


def sentences(trigger: Trigger, graph: Graph) -> list[str]:
    """Return the alternative text of a graph's picture: the trigger, the rules, and one line per node."""
    when = f"When a {words.event_names(trigger)} event arrives" if trigger.names else "When any event arrives"
    if trigger.source is not None:
        when = f"When there is a {words.event_names(trigger)}"
    filters = f", and {words.conditions(trigger.filters)}" if trigger.filters else ""
    steps = [f"  • {words.step_title(node)}." for node in graph.nodes if node is not graph.start]
    return [f"{when}{filters}:", *(f"  ({rule})" for rule in words.rules(graph.settings)), *steps]


def outline_lines(outline: Outline) -> list[str]:
    """Return an outline as lines; reading them gives the same outline."""
    if outline.logs:
        logs = outline.logs
        wallet = f"the {'' if logs['createContacts'] else 'known '}wallet in {text(logs['walletArg'])}"
        blocks = logs["confirmations"]
        after = f", after {quantity(blocks, 'confirmation')}" if blocks else ""
        contract = f"contract {logs['contract']} on chain {logs['chainId']}"
        when = f"{contract} emits {text(logs['signature'])} for {wallet}{after}"
    elif outline.other:
        when = f"{text(outline.other)} happens"
    elif outline.events:
        when = f"a {join_or([event_name(event) for event in outline.events])} event arrives"
    else:
        when = "any event arrives"
    filters = f", and {conditions(outline.filters)}" if outline.filters else ""
    label = f" {_label(outline.id)}" if outline.id != TRIGGER_ID else ""
    return [
        f"When {when}{filters}:{label}",
        *(f"  ({rule_text(name, setting)})" for name, setting in outline.settings.items()),
        *(_block(outline.steps, 1) or [f"  {NO_STEPS}"]),
    ]


def node_sentence(kind: str, data: Mapping[str, Any]) -> str:
    """Return what one node does, without its branches."""
    if is_trigger(kind):
        return "the trigger"
    words_data = canonical(kind, data)
    raw = {key: value for key, value in data.items() if key != "actionType"}
    step = OutlineStep(kind, raw if words_data is None else words_data, raw=words_data is None)
    if words_data is None or len(handles_of(kind, words_data)) < 2:
        sentence, body = _sentence(step)
        return sentence if body is None else f"{sentence}: {text(body)}"
    headings = _headings(step)
    return join_and(headings) if kind == "split" else headings[0].removesuffix(IF_RECEIVED)


def rule_text(name: str, setting: Any) -> str:
    """Return one setting of an outline in words."""
    match name:
        case "reentry" if setting["policy"] == "once_per":
            return f"once in {quantity(setting['days'], 'day')} per contact"
        case "reentry":
            return "once per contact" if setting["policy"] == "once" else "not while it runs for the contact"
        case "goal":
            return f"until {event_name(setting['event'])}{_where(setting['filters'])}"
        case "quietHours":
            attribute = setting["timezoneAttribute"]
            timezone = f", in the time zone of {path(attribute)}" if attribute != "timezone" else ""
            return f"quiet from {setting['from']} to {setting['to']}{timezone}"
        case "holdout":
            return f"hold out {setting} % of contacts"
        case _:
            return f"at most {quantity(setting['messages'], 'message')} in {span_text(setting['seconds'])}"


def conditions(filters: Iterable[Mapping[str, Any]]) -> str:
    """Return all filters in words: `a is 1 and b is set`."""
    return " and ".join(f"{path(item['path'])} {_predicate(item)}" for item in filters)


def event_name(event: str) -> str:
    """Return the name of an event, quoted if it could be read as something else."""
    return event if PLAIN_EVENT.fullmatch(event) else text(event)


def path(name: str) -> str:
    """Return the path of a value or the name of an attribute, quoted if it could be read as something else."""
    return name if PLAIN_PATH.fullmatch(name) else text(name)


def text(content: str) -> str:
    """Return a text in curly quotes, or as JSON if it contains curly quotes or unprintable characters."""
    fits = content.isprintable() and "“" not in content and "”" not in content
    return f"“{content}”" if fits else json.dumps(content, ensure_ascii=False)


def value(content: Any) -> str:
    """Return a text in quotes, and any other value as JSON."""
    return text(content) if isinstance(content, str) else msgspec.json.format(encode(content), indent=0).decode()


def span_text(seconds: int) -> str:
    """Return a duration to the second: `1 day 2 hours 3 seconds`."""
    parts = []
    for size, noun in UNITS_S:
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(quantity(number, noun))
    return " ".join(parts)


def _block(block: Block, depth: int) -> list[str]:
    return [f"{'  ' * depth}{line}" for step in block for line in _step(step)]


def _step(step: OutlineStep | GoTo | End) -> Iterator[str]:
    """Yield the lines of a step and of its branches, without the margin of the step."""
    match step:
        case GoTo():
            yield f"• Continue at {_label(step.id)}."
        case End():
            yield f"• {END}"
        case OutlineStep(branches=()):
            label = f" {_label(step.id)}" if step.id is not None else ""
            sentence, body = _sentence(step)
            lines = [] if body is None else body.split("\n")
            if body is None:
                yield f"• {sentence}.{label}"
            elif len(lines) > 1 and all(line.isprintable() and line == line.rstrip() for line in lines):
                yield f"• {sentence}:{label}"
                yield from (f"  | {line}".rstrip() for line in lines)
            else:
                yield f"• {sentence}: {text(body)}.{label}"
        case OutlineStep():
            label = f" {_label(step.id)}" if step.id is not None else ""
            first_heading, *headings = _headings(step)
            (_, first), *others = step.branches
            yield f"• {first_heading}:{label}"
            yield from _block(first, 1) or [f"  • {NOTHING_MORE}"]
            for (_, block), heading in zip(others, headings, strict=True):
                # An empty “Otherwise” is left out. The branches of a split are its data, so each needs a heading.
                if block or step.kind == "split" or step.raw:
                    yield f"  {heading}:"
                    yield from _block(block, 1) or [f"  • {NOTHING_MORE}"]


def _sentence(step: OutlineStep) -> tuple[str, str | None]:
    """Return the sentence about a step without branches, and the text after its colon."""
    data = step.data
    if step.raw:
        return f"Run {text(step.kind)} with {value(data)}", None
    kind = cast("PlainKind", step.kind)
    match kind:
        case "send_inapp":
            extra = f" with {value(data['data'])}" if "data" in data else ""
            return f"Send the in-app message {text(data['title'])}{extra}", data["body"]
        case "send_email":
            return f"Send the email {text(data['subject'])}", data["body"]
        case "send_webhook":
            url = data["url"] if PLAIN_URL.fullmatch(data["url"]) else text(data["url"])
            body = data.get("body")
            if body is None or isinstance(body, str):
                return f"Post to {url}", body
            return f"Post to {url} with {value(body)}", None
        case "add_tag":
            return f"Add the tag {text(data['tag'])}", None
        case "remove_tag":
            return f"Remove the tag {text(data['tag'])}", None
        case "update_contact":
            return f"Set {join_and([f'{path(key)} = {value(item)}' for key, item in data['attributes'].items()])}", None
        case "delay":
            return f"Wait {span_text(data['seconds'])}", None
        case "exit":
            return "Stop", None


def _headings(step: OutlineStep) -> list[str]:
    """Return the heading of each branch; the first one starts with what the step does."""
    data = step.data
    if step.raw:
        first, *others = [f"Branch {text(handle)}" for handle, _ in step.branches]
        return [f"Run {text(step.kind)} with {value(data)}. {first}", *others]
    kind = cast("BranchingKind", step.kind)
    match kind:
        case "split":
            first, *others = [f"{branch['percent']} % to {text(branch['handle'])}" for branch in data["branches"]]
            return [f"Split: {first}", *others]
        case "wait_for_event":
            timeout, event = span_text(data["timeoutSeconds"]), event_name(data["event"])
            return [f"Wait up to {timeout} for {event}{_where(data['filters'])}{IF_RECEIVED}", "Otherwise"]
        case "condition":
            return [f"If {conditions(data['filters'])}", "Otherwise"]


def _predicate(item: Mapping[str, Any]) -> str:
    operator: Operator = item["operator"]
    match operator:
        case "eq":
            return f"is {value(item['value'])}"
        case "neq":
            return f"is not {value(item['value'])}"
        case "in":
            return f"is one of {join_or([value(option) for option in item['value']]) or 'none'}"
        case "contains":
            return f"contains {value(item['value'])}"
        case "exists":
            return "is set"


def _where(filters: list[dict[str, Any]]) -> str:
    return f", where {conditions(filters)}" if filters else ""


def _label(node_id: str) -> str:
    plain = re.fullmatch(r"[\w.:-]+", node_id, re.ASCII)
    return f"[{node_id if plain else json.dumps(node_id, ensure_ascii=False)}]"
