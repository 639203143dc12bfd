"""A whole automation in plain English, indented by branch. `texts.reader` reads it back.

Texts stand in “curly quotes”, or as JSON where those would not do; the last text of a message may stand below it, a line behind
each `|`. A step whose id does not follow from what it does has it behind it in brackets.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from api.language.codec import encode
from api.language.graph import Graph
from api.language.trigger import Trigger, is_trigger
from workbench.display import words
from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, Outline, Step, canonical, ways_of
from workbench.display.words import both, counted, either

PLAIN_NAME = re.compile(r"[a-z0-9_]+(?:[.:-][a-z0-9_]+)*")  # of an event
PLAIN_PATH = re.compile(r"[\w$@./-]*[\w$@]", re.ASCII)
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
PLAIN_URL = re.compile(r"https?://[^\s“”\"\[\]]*[\w/=&?#%-]", re.ASCII)
UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
NOTHING_YET = "nothing happens yet."
NOTHING_MORE = "Nothing more."
END = "End here."


def sentences(trigger: Trigger, graph: Graph) -> list[str]:
    """Return what an automation does, node by node: the words that stand for its picture."""
    arrives = f"When a {words.events(trigger)} event arrives" if trigger.names else "When any event arrives"
    if trigger.source is not None:
        arrives = f"When there is a {words.events(trigger)}"
    only = f", and {words.conditions(trigger.filters)}" if trigger.filters else ""
    steps = [f"  • {words.title(node)}." for node in graph.nodes if node is not graph.start]
    return [f"{arrives}{only}:", *(f"  ({rule})" for rule in words.rules(graph.settings)), *steps]


def told(outline: Outline) -> list[str]:
    """Return an outline as lines; reading them gives the outline again."""
    only = f", and {conditions(outline.filters)}" if outline.filters else ""
    label = f" {_label(outline.id)}" if outline.id != TRIGGER_ID else ""
    head = [f"When {_arrives(outline)}{only}:{label}", *(f"  ({rule})" for rule in _rules(outline.settings))]
    return [*head, *(_block(outline.steps, 1) or [f"  {NOTHING_YET}"])]


def _arrives(outline: Outline) -> str:
    """Say what starts it."""
    if outline.logs:
        return _logged(outline.logs)
    if outline.other:
        return f"{text(outline.other)} happens"
    named = f"a {either([name(each) for each in outline.events])}" if outline.events else "any"
    return f"{named} event arrives"


def _logged(logs: Mapping[str, Any]) -> str:
    deep = logs["confirmations"]
    since = f", once {counted(deep, 'block')} {'stands' if deep == 1 else 'stand'} on top of it" if deep else ""
    whose = f"the {'' if logs['createContacts'] else 'known '}wallet in {text(logs['walletArg'])}"
    return f"contract {logs['contract']} on chain {logs['chainId']} logs {text(logs['signature'])} about {whose}{since}"


def _block(block: Block, depth: int) -> list[str]:
    margin = "  " * depth
    return [f"{margin}{line}" for each in block for line in _step(each)]


def _step(step: Step | GoTo | End) -> Iterator[str]:
    """Yield the lines of one step and of all that happens on its ways."""
    match step:
        case GoTo():
            yield f"• Go on with {_label(step.id)}."
        case End():
            yield f"• {END}"
        case Step(ways=()):
            yield from _message(step)
        case Step():
            (_, first), *others = step.ways
            opening, *headings = _headings(step)
            yield f"• {opening}:{f' {_label(step.id)}' if step.id is not None else ''}"
            yield from _block(first, 1) or [f"  • {NOTHING_MORE}"]
            for (_, block), heading in zip(others, headings, strict=True):
                if block or step.kind == "split" or step.whole:
                    yield f"  {heading}:"
                    yield from _block(block, 1) or [f"  • {NOTHING_MORE}"]


def _message(step: Step) -> Iterator[str]:
    """Yield the lines of a step with one way out."""
    label = f" {_label(step.id)}" if step.id is not None else ""
    sentence, below = _sentence(step)
    if below is None:
        yield f"• {sentence}.{label}"
        return
    if _stands_below(below):
        yield f"• {sentence}:{label}"
        yield from (f"  | {line}".rstrip() for line in below.split("\n"))
    else:
        yield f"• {sentence}: {text(below)}.{label}"


def _stands_below(body: str) -> bool:
    """Return whether a text of several lines can be read where each has a line to itself."""
    lines = body.split("\n")
    return len(lines) > 1 and all(line.isprintable() and line == line.rstrip() for line in lines)


def _sentence(step: Step) -> tuple[str, str | None]:  # noqa: PLR0911  a table: one line per kind
    """Return what is said, and the text that comes after it."""
    data = step.data
    if step.whole:
        return f"Do {text(step.kind)} with {value(data)}", None
    match step.kind:
        case "send_inapp":
            extra = f" with {value(data['data'])}" if "data" in data else ""
            return f"Send the in-app message {text(data['title'])}{extra}", data["body"]
        case "send_email":
            return f"Send the email {text(data['subject'])}", data["body"]
        case "send_webhook":
            return _post(data)
        case "add_tag":
            return f"Add the tag {text(data['tag'])}", None
        case "remove_tag":
            return f"Remove the tag {text(data['tag'])}", None
        case "update_contact":
            return f"Set {both([f'{path(key)} = {value(each)}' for key, each in data['attributes'].items()])}", None
        case "delay":
            return f"Wait {span(data['seconds'])}", None
        case _:
            return "Stop", None


def _post(data: Mapping[str, Any]) -> tuple[str, str | None]:
    url = data["url"] if PLAIN_URL.fullmatch(data["url"]) else text(data["url"])
    match data.get("body"):
        case None:
            return f"Post to {url}", None
        case str(body):
            return f"Post to {url}", body
        case body:
            return f"Post to {url} with {value(body)}", None


def _headings(step: Step) -> list[str]:
    """Return what stands over each way out."""
    data = step.data
    if step.whole:
        first, *others = [f"Along {text(way)}" for way, _ in step.ways]
        return [f"Do {text(step.kind)} with {value(data)}. {first}", *others]
    match step.kind:
        case "split":
            first, *others = [f"{each['percent']} % go along {text(each['handle'])}" for each in data["branches"]]
            return [f"Split: {first}", *others]
        case "wait_for_event":
            waiting = f"Wait up to {span(data['timeoutSeconds'])} for {name(data['event'])}{_where(data['filters'])}"
            return [f"{waiting}. When it comes", "Otherwise"]
        case _:
            return [f"If {conditions(data['filters'])}", "Otherwise"]


def said(kind: str, data: Mapping[str, Any]) -> str:
    """Return what one node does, in a sentence."""
    if is_trigger(kind):
        return "the trigger"
    known = canonical(kind, data)
    rest = {key: each for key, each in data.items() if key != "actionType"}
    step = Step(kind, rest if known is None else known, whole=known is None)
    if known is None or len(ways_of(kind, known)) < 2:
        sentence, below = _sentence(step)
        return sentence if below is None else f"{sentence}: {text(below)}"
    headings = _headings(step)
    return both(headings) if kind == "split" else headings[0].removesuffix(". When it comes")


def _rules(settings: Mapping[str, Any]) -> list[str]:
    """Return what holds for an automation as a whole, one rule each."""
    return [rule(setting, each) for setting, each in settings.items()]


def rule(setting: str, each: Any) -> str:
    """Write one setting, as an outline has it."""
    match setting:
        case "reentry" if each["policy"] == "once_per":
            return f"once in {counted(each['days'], 'day')} per contact"
        case "reentry":
            return "once per contact" if each["policy"] == "once" else "not while it runs for the contact"
        case "goal":
            return f"until {name(each['event'])}{_where(each['filters'])}"
        case "quietHours":
            zone = each["timezoneAttribute"]
            clock = f", on the clock of {path(zone)}" if zone != "timezone" else ""
            return f"quiet from {each['from']} to {each['to']}{clock}"
        case "holdout":
            return f"hold out {each} % of contacts"
        case _:
            return f"at most {counted(each['messages'], 'message')} in {span(each['seconds'])}"


def conditions(filters: Iterable[Mapping[str, Any]]) -> str:
    """Write all filters: `a is 1 and b is present`."""
    return " and ".join(f"{path(each['path'])} {_asked(each)}" for each in filters)


def _asked(each: Mapping[str, Any]) -> str:
    match each["operator"]:
        case "eq":
            return f"is {value(each['value'])}"
        case "neq":
            return f"is not {value(each['value'])}"
        case "in":
            return f"is one of {either([value(option) for option in each['value']]) or 'none'}"
        case "contains":
            return f"contains {value(each['value'])}"
        case _:
            return "is present"


def _where(filters: list[dict[str, Any]]) -> str:
    return f", where {conditions(filters)}" if filters else ""


def name(event: str) -> str:
    """Write the name of an event."""
    return event if PLAIN_NAME.fullmatch(event) else text(event)


def path(written: str) -> str:
    """Write the path of a value, or the name of an attribute."""
    return written if PLAIN_PATH.fullmatch(written) else text(written)


def text(given: str) -> str:
    """Write a text in curly quotes, or as JSON when it could not be read then."""
    fits = given.isprintable() and "“" not in given and "”" not in given
    return f"“{given}”" if fits else json.dumps(given, ensure_ascii=False)


def value(given: Any) -> str:
    """Write a value: a text in its quotes, everything else as JSON."""
    return text(given) if isinstance(given, str) else msgspec.json.format(encode(given), indent=0).decode()


def span(seconds: int) -> str:
    """Write a span to the second: `1 day 2 hours 3 seconds`."""
    left, parts = timedelta(seconds=seconds) // timedelta(seconds=1), []
    for size, noun in UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(counted(number, noun))
    return " ".join(parts)


def _label(node_id: str) -> str:
    plain = re.fullmatch(r"[\w.:-]+", node_id, re.ASCII)
    return f"[{node_id if plain else json.dumps(node_id, ensure_ascii=False)}]"
