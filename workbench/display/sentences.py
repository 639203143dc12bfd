"""An automation in plain English, indented by branch. `workbench.text.parse` reads it back: change both together.

Texts are in “curly quotes”, or JSON where quotes would be ambiguous. A message of several lines follows its sentence,
each line after a `|`. If a step has an id other than the default, its line ends with the id in brackets.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from workbench.display import words
from workbench.display.kinds import LINES, STEPS, TRIGGERS, filled, parts, short_texts, step_title, trigger_texts
from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, Outline, OutlineStep, canonical
from workbench.display.words import join_and, quantity
from workbench.language.actions import FIELDS, FieldType, fields_of_type
from workbench.language.codec import encode
from workbench.language.filter import WHERE, Filter, Where
from workbench.language.graph import AutomationSettings, Graph, SettingName, read_settings
from workbench.language.local_time import TIMEZONE_ATTRIBUTE
from workbench.language.locales import LOCALE_ATTRIBUTE
from workbench.language.trigger import Trigger, is_trigger

# The parser uses the same patterns and phrases.
PLAIN_EVENT = re.compile(r"[a-z0-9_]+(?:[.:-][a-z0-9_]+)*")
PLAIN_PATH = re.compile(r"[\w$@./-]*[\w$@]", re.ASCII)
PLAIN_URL = re.compile(r"https?://[^\s“”\"\[\]]*[\w/=&?#%-]", re.ASCII)
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
OTHER_TRIGGER = "When {type} happens[, and {filters}]"
NO_STEPS = "nothing happens yet."
NOTHING_MORE = "Nothing more."
END = "End here."
EXPRESSION = "it holds that "  # “If plan is “pro” and it holds that “amountUsd > 500””
NOTHING_MISSING = "nothing is missing"  # “Send the email “Hi” if nothing is missing”
AND_FOR = " and for "  # “for de (subject “Hallo”, body “…”) and for fr (…)”


def sentences(trigger: Trigger, graph: Graph) -> list[str]:
    """Return the alternative text of a graph's picture: the trigger, the rules, and one line per node."""
    when = filled(TRIGGERS[trigger.type].sentence, short_texts(trigger))
    steps = [f"  • {step_title(node)}." for node in graph.nodes if node is not graph.start]
    return [f"{when}:", *(f"  ({rule})" for rule in rules(graph.settings)), *steps]


def outline_lines(outline: Outline) -> list[str]:
    """Return an outline as lines; reading them gives the same outline."""
    texts = trigger_texts(outline.kind, outline.trigger, event_name, _address, conditions)
    sentence = OTHER_TRIGGER if outline.other else TRIGGERS[outline.kind].sentence
    when = filled(sentence, texts | {"type": text(outline.other)})
    label = f" {_label(outline.id)}" if outline.id != TRIGGER_ID else ""
    return [
        f"{when}:{label}",
        *(f"  ({rule})" for rule in rules_of(outline.settings)),
        *(_block(outline.steps, 1) or [f"  {NO_STEPS}"]),
    ]


def node_sentence(kind: str, data: Mapping[str, Any]) -> str:
    """Return what one node does, without its branches."""
    if is_trigger(kind):
        return "the trigger"
    words_data = canonical(kind, data)
    raw = {key: value for key, value in data.items() if key != "actionType"}
    step = OutlineStep(kind, raw if words_data is None else words_data, raw=words_data is None)
    if words_data is not None and fields_of_type(kind, "branches"):
        return join_and(_headings(step))
    sentence, body = _sentence(step)
    return sentence if body is None else f"{sentence}: {text(body)}"


def rules_of(settings: Mapping[SettingName, Any]) -> list[str]:
    """Return the rules that settings of an outline set; the parser reads them back."""

    def written(item: Filter) -> Mapping[str, Any]:
        return {WHERE: item.path} if isinstance(item, Where) else msgspec.structs.asdict(item)

    return rules(read_settings(settings, ""), lambda filters: conditions(map(written, filters)))


def rules(settings: AutomationSettings, shown: Callable[[Iterable[Filter]], str] = words.conditions) -> list[str]:
    """Return the rules of the whole automation, one text each; `shown` writes the filters of the goal."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'' if number == 1 else 's'}"  # without a comma, so that it can be read back

    def zone(attribute: str) -> str:
        return "" if attribute == TIMEZONE_ATTRIBUTE else f", in the time zone of {path(attribute)}"

    texts = []
    match settings.reentry.policy:
        case "always":
            pass
        case "once":
            texts.append("once per contact")
        case "once_per":
            texts.append(f"once in {count(settings.reentry.days, 'day')} per contact")
        case "not_while_running":
            texts.append("not while it runs for the contact")
    if (goal := settings.goal) is not None:
        where = f", where {shown(goal.filters)}" if goal.filters else ""
        texts.append(f"until {event_name(goal.event)}{where}")
    if (hours := settings.quiet_hours) is not None:
        texts.append(f"quiet from {hours.start:%H:%M} to {hours.end:%H:%M}{zone(hours.attribute)}")
    if settings.timezone is not None:
        texts.append(f"by the clock of {settings.timezone} if the contact has no time zone")
    if (cap := settings.frequency_cap) is not None:
        if cap.zone_attribute is None:
            period = f"in {span_text(int(cap.period.total_seconds()))}"
        else:
            period = f"per calendar day{zone(cap.zone_attribute)}"
        texts.append(f"at most {count(cap.messages, 'message')} {period}")
    if settings.holdout:
        texts.append(f"hold out {settings.holdout} % of contacts")
    if settings.locale_attribute != LOCALE_ATTRIBUTE:
        texts.append(f"texts in the locale of {path(settings.locale_attribute)}")
    if settings.default_locale is not None:
        texts.append(f"default texts in {settings.default_locale}")
    return texts


def conditions(filters: Iterable[Mapping[str, Any]]) -> str:
    """Return all filters in words: `a is 1 and b is set`, and `it holds that “a > 1”` for an expression."""
    return " and ".join(
        f"{EXPRESSION}{text(item[WHERE])}"
        if WHERE in item
        else f"{path(item['path'])} {words.predicate(item['operator'], item.get('value'), value)}"
        for item in filters
    )


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
    return " ".join(quantity(*part) for part in words.units_of(seconds))


def _address(content: str) -> str:
    return content if ADDRESS.fullmatch(content) else text(content)


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
                if block or step.raw or fields_of_type(step.kind, "branches"):
                    yield f"  {heading}:"
                    yield from _block(block, 1) or [f"  • {NOTHING_MORE}"]


def _sentence(step: OutlineStep) -> tuple[str, str | None]:
    """Return the sentence about a step without its branches, and the text after its colon."""
    if step.raw:
        return f"Run {text(step.kind)} with {value(step.data)}", None
    types = {field.key: field.type for field in FIELDS[step.kind]}
    sentence, body = "", None
    for part in parts(STEPS[step.kind].sentence):
        content = step.data.get(part.key)
        if part.before == LINES and (content is None or isinstance(content, str)):
            body = content
        elif part.before == LINES:
            sentence += f" with {value(content)}"
        elif not part.key:
            sentence += part.before
        elif not part.optional or content not in (None, [], {}):
            sentence += part.before + _field(types[part.key], content)
    return sentence, body


def _field(field_type: FieldType, content: Any) -> str:
    match field_type:
        case "line" | "text" | "tag" | "connection" | "topic":
            return text(content)
        case "url":
            return content if PLAIN_URL.fullmatch(content) else text(content)
        case "body" | "object" | "recipient":
            return value(content)
        case "attributes" | "fields":
            return join_and([f"{path(key)} = {value(item)}" for key, item in content.items()])
        case "filters":
            return conditions(content)
        case "duration":
            return span_text(content)
        case "event":
            return event_name(content)
        case "branches":
            return join_and(_shares(content))
        case "missing":
            return NOTHING_MISSING
        case "switch":
            return ""  # the words before it say that it is on
        case "clock":
            return str(content)
        case "weekdays":
            return words.weekdays(content)
        case "date" | "zone" | "path":
            return path(content)
        case "number":
            return f"{content} events"
        case "shift":
            return words.shift(timedelta(seconds=content))
        case "locales":
            return AND_FOR.join(
                f"{path(locale)} ({', '.join(f'{path(key)} {text(item)}' for key, item in texts.items())})"
                for locale, texts in content.items()
            )


def _headings(step: OutlineStep) -> list[str]:
    """Return the heading of each branch; the first one starts with what the step does."""
    if step.raw:
        first, *others = [f"Branch {text(handle)}" for handle, _ in step.branches]
        return [f"{_sentence(step)[0]}. {first}", *others]
    row = STEPS[step.kind]
    for field in fields_of_type(step.kind, "branches"):
        first, *others = _shares(step.data[field.key])
        return [f"{parts(row.sentence)[0].before}{first}", *others]
    first, *others = row.headings
    return [f"{_sentence(step)[0]}{first}", *others]


def _shares(branches: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{branch['percent']} % to {text(branch['handle'])}" for branch in branches]


def _label(node_id: str) -> str:
    plain = re.fullmatch(r"[\w.:-]+", node_id, re.ASCII)
    return f"[{node_id if plain else json.dumps(node_id, ensure_ascii=False)}]"
