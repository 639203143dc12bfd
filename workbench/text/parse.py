"""The parser of sentences: it returns the outline that `display/sentences.py` writes.

A recursive-descent parser over lines. Indentation gives the blocks, and a `Scanner` reads each line from left to right.
Every error has the line, the column and what was expected there, because users edit these texts by hand.
"""

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from workbench.display.kinds import LINES, STEPS, TRIGGERS, FormField, parts
from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, JsonObject, Outline, OutlineStep
from workbench.display.sentences import (
    ADDRESS,
    AND_FOR,
    END,
    EXPRESSION,
    NO_STEPS,
    NOTHING_MISSING,
    NOTHING_MORE,
    OTHER_TRIGGER,
    PLAIN_EVENT,
    PLAIN_PATH,
    PLAIN_URL,
)
from workbench.display.words import OPERATOR_PHRASES, WEEKDAYS
from workbench.errors import InvalidAutomationError
from workbench.language.actions import FIELDS, FieldType, handles_of
from workbench.language.filter import OPERATORS, WHERE, condition_fields
from workbench.language.local_time import TIMEZONE_ATTRIBUTE
from workbench.language.page import UNITS_S
from workbench.language.starts import MISSED

_RAW = "Run "
_TRIGGERS = {parts(row.sentence)[0].before: kind for kind, row in TRIGGERS.items()}
_TRIGGER_OPENINGS = sorted(_TRIGGERS, key=len, reverse=True)  # “When contract ” begins with “When ”
_TRIGGER_TYPE = FormField("type", "Type", "The type of a trigger.")
_KINDS = {parts(row.sentence)[0].before: kind for kind, row in STEPS.items()}
_OPENINGS = sorted([*_KINDS, _RAW], key=len, reverse=True)  # “Wait up to ” begins with “Wait ”
_OPERATORS = {
    f" {phrase}" if OPERATORS[name].operand == "nothing" else f" {phrase} ": name
    for name, phrase in OPERATOR_PHRASES.items()
}
_PHRASES = sorted(_OPERATORS, key=len, reverse=True)  # longest first, because most of them begin with “ is ”
_UNIT_SIZES_S = {noun: size for size, noun in UNITS_S}
# re.ASCII: without it \d and \w also match the digits and letters of other scripts.
_SPAN = re.compile(r"(\d+) (day|hour|minute|second)s?", re.ASCII)
_SPANS = re.compile(rf"{_SPAN.pattern}(?: {_SPAN.pattern})*", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_TIME_OF_DAY = re.compile(r"\d\d:\d\d", re.ASCII)
_ZONE_NAME = re.compile(r"[\w+/-]+", re.ASCII)
_LABEL = re.compile(r"[\w.:-]+", re.ASCII)
_SHOWN_CHARACTERS = 40


class Line(msgspec.Struct, frozen=True):
    """A line that is not empty: its number from 1, its indentation and its text."""

    number: int
    indent: int
    text: str


def lines_of(text: str) -> list[Line]:
    """Return the lines of a text that are not empty. Steps may begin with `-` or `*`: most keyboards have no bullet."""
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        content = line.strip(" \t\r")
        if content.startswith(("- ", "* ")):
            content = f"• {content[2:]}"
        if content:
            lines.append(Line(number, len(line) - len(line.lstrip(" ")), content))
    return lines


def read(name: str, lines: Sequence[Line]) -> Outline:
    """Return the outline of an automation; raise InvalidAutomationError with the line that cannot be read."""
    if not lines:
        raise InvalidAutomationError(
            "expected sentences: “When a deposit event arrives:”, and a step on each line after it"
        )
    outline = _trigger(name, Scanner(lines[0]))
    parser = _Parser(lines[1:])
    settings = parser.rules()
    return msgspec.structs.replace(outline, settings=settings, steps=parser.steps(), line=lines[0].number)


class Scanner:
    """Reads one line from left to right. Each method consumes what its name says, or raises InvalidAutomationError."""

    def __init__(self, line: Line) -> None:
        self._source = line
        self._text = line.text
        self._at = 0

    def expected(self, what: str) -> NoReturn:
        """Raise InvalidAutomationError with the position, what was expected there, and what is there."""
        rest = self._text[self._at :]
        actual = f"{rest[:_SHOWN_CHARACTERS]}{'…' if len(rest) > _SHOWN_CHARACTERS else ''}" or "the end of the line"
        column = self._source.indent + self._at + 1
        raise InvalidAutomationError(f"line {self._source.number}, column {column}: expected {what}, found {actual}")

    def sees(self, *literals: str) -> str | None:
        """Return the literal that comes next, without taking it."""
        return next((literal for literal in literals if self._text.startswith(literal, self._at)), None)

    def maybe(self, *literals: str) -> str | None:
        """Take and return the next literal, if there is one."""
        literal = self.sees(*literals)
        self._at += len(literal or "")
        return literal

    def take(self, *literals: str) -> str:
        return self.maybe(*literals) or self.expected(" or ".join(f"“{literal.strip()}”" for literal in literals))

    def end(self) -> None:
        if self._at < len(self._text):
            self.expected("the end of the line")

    def text(self, what: str) -> str:
        """Take a text: “like this” or "like JSON"."""
        if self.sees("“"):
            closing = self._text.find("”", self._at)
            if closing < 0:
                self.expected(f"{what} closed with ”")
            content, self._at = self._text[self._at + 1 : closing], closing + 1
            return content
        if not self.sees('"'):
            self.expected(f"{what} in “quotes”")
        return str(self._json(what))

    def value(self) -> Any:
        """Take a value: a text or JSON."""
        return self.text("a text") if self.sees("“") else self._json("a value: “a text”, a number, true, false, null")

    def event(self) -> str:
        return self._match(PLAIN_EVENT) or self.text("the name of an event")

    def path(self) -> str:
        return self._match(PLAIN_PATH) or self.text("the name of a value")

    def url(self) -> str:
        return self._match(PLAIN_URL) or self.text("a URL")

    def integer(self) -> int:
        return int(self._match(_INTEGER) or self.expected("a whole number"))

    def address(self) -> str | None:
        """Take an address, if there is one."""
        return self._match(ADDRESS)

    def pattern(self, pattern: re.Pattern[str], what: str) -> str:
        return self._match(pattern) or self.expected(what)

    def span(self) -> int:
        """Take a duration like `1 day 2 hours`; return seconds."""
        text = self._match(_SPANS) or self.expected("a duration, like 2 days 3 hours")
        return sum(int(number) * _UNIT_SIZES_S[noun] for number, noun in _SPAN.findall(text))

    def label(self) -> str | None:
        """Take an id in brackets, if there is one."""
        self.maybe(" ")
        if not self.maybe("["):
            return None
        node_id = self._match(_LABEL) or self.text("the id of a step")
        self.take("]")
        return node_id

    def last_label(self, closing: str = "") -> str | None:
        """Take `closing`, and the id in brackets that may end the line."""
        if closing:
            self.take(closing)
        node_id = self.label()
        self.end()
        return node_id

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match[0] if match else None

    def _json(self, what: str) -> Any:
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
        except (ValueError, ArithmeticError, RecursionError):  # an exponent too large for Decimal; nesting too deep
            self.expected(what)
        return value


def _reject_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")  # Python's decoder would accept them


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_reject_constant)  # Decimal keeps every digit


def _trigger(name: str, line: Scanner) -> Outline:
    opening = line.maybe(*_TRIGGER_OPENINGS) or line.expected("“When”")
    kind = _TRIGGERS[opening]
    is_other = kind == "app_event" and bool(line.sees("“", '"'))
    fields = {field.key: field for field in TRIGGERS[kind].fields} | {"type": _TRIGGER_TYPE}
    data: JsonObject = {"type": "", "events": [], "filters": []}
    for index, part in enumerate(parts(OTHER_TRIGGER if is_other else TRIGGERS[kind].sentence)):
        if index and part.optional and not line.maybe(part.before):
            data.setdefault(part.key, 0)
            continue
        if index and not part.optional:
            line.take(part.before)
        if part.key:
            data[part.key] = _trigger_field(fields[part.key], line)
    label = line.last_label(":")
    trigger = {field.key: data[field.key] for field in TRIGGERS[kind].fields}
    return Outline(name, kind, trigger, id=TRIGGER_ID if label is None else label, other=data["type"])


def _trigger_field(field: FormField, line: Scanner) -> Any:
    match field.control:
        case "events":
            if line.take("any event", "a ") == "any event":
                return []
            events = [line.event()]
            while line.maybe(", ", " or "):
                events.append(line.event())
            line.take(" event")
            return events
        case "filters":
            return _conditions(line)
        case "checkbox":
            return field.words.index(line.take(*field.words)) == 1
        case "missed":
            return MISSED[field.words.index(line.take(*field.words))]
        case "number":
            number = line.integer()
            if field.words:
                line.take(f" {field.words[0]}s", f" {field.words[0]}")
            return number
        case _:
            return line.address() or line.text(field.hint[:1].lower() + field.hint[1:].rstrip("."))


def _zone_attribute(line: Scanner) -> str:
    return line.path() if line.maybe(", in the time zone of ") else TIMEZONE_ATTRIBUTE


def _conditions(line: Scanner) -> list[JsonObject]:
    conditions: list[JsonObject] = []
    while True:
        if line.maybe(EXPRESSION):
            conditions.append({WHERE: line.text("an expression")})
            if not line.maybe(" and "):
                return conditions
            continue
        path = line.path()
        name = _OPERATORS[line.take(*_PHRASES)]
        condition: JsonObject = {"path": path, "operator": name}
        match OPERATORS[name].operand:
            case "value":
                condition["value"] = line.value()
            case "list":
                options: list[Any] = []  # a filter may have an empty list, which is written as “none”
                if not line.maybe("none"):
                    options.append(line.value())
                    while line.maybe(", ", " or "):
                        options.append(line.value())
                condition["value"] = options
            case "nothing":
                pass
        conditions.append(condition)
        if not line.maybe(" and "):
            return conditions


class _Parser:
    """The lines after the trigger, and the index of the next one."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._next = 0

    def rules(self) -> JsonObject:
        """Take the rules in parentheses; return the settings."""
        settings: JsonObject = {}
        while (line := self._peek()) is not None and line.text.startswith("("):
            self._next += 1
            settings |= _rule(Scanner(line))
        return settings

    def steps(self) -> Block:
        """Take all lines that are left."""
        line = self._peek()
        if line is not None and line.text == NO_STEPS:
            self._next += 1
            line = self._peek()
        steps = self._block(0) if line is not None and line.text.startswith("•") else ()
        if (rest := self._peek()) is not None:
            Scanner(rest).expected("a step that begins with •, indented like the other steps of its branch")
        return steps

    def _peek(self) -> Line | None:
        return self._lines[self._next] if self._next < len(self._lines) else None

    def _block(self, outer_indent: int) -> Block:
        """Take the steps that are indented further than `outer_indent`; all must be indented like the first."""
        steps: list[OutlineStep | GoTo | End] = []
        first = self._peek()
        if first is None or first.indent <= outer_indent:
            return ()
        while (line := self._peek()) is not None and line.indent == first.indent and line.text.startswith("•"):
            self._next += 1
            steps += self._step(line)
        return tuple(steps)

    def _step(self, line: Line) -> Block:
        scanner = Scanner(line)
        scanner.take("• ")
        if scanner.maybe(NOTHING_MORE):
            scanner.end()
            return ()
        if scanner.maybe(END):
            scanner.end()
            return (End(),)
        if scanner.maybe("Continue at"):
            node_id = scanner.label() or scanner.expected("the id of a step, like [send_inapp]")
            scanner.take(".")
            scanner.end()
            return (GoTo(node_id, line.number),)
        opening = scanner.maybe(*_OPENINGS)
        if opening is None:
            scanner.expected(f"the start of a step: {', '.join(start.strip() for start in (*_KINDS, _RAW))}")
        return (msgspec.structs.replace(self._sentence(opening, scanner, line), line=line.number),)

    def _sentence(self, opening: str, scanner: Scanner, line: Line) -> OutlineStep:
        if opening == _RAW:
            return self._raw(scanner, line)
        kind = _KINDS[opening]
        row, data = STEPS[kind], JsonObject()
        types = {field.key: field.type for field in FIELDS[kind]}
        nouns = {field.key: field.label.lower() for field in row.fields}
        for index, part in enumerate(parts(row.sentence)):
            if part.before == LINES:
                return self._message(kind, data, part.key, scanner, line, optional=types[part.key] == "body")
            if index and part.optional and not scanner.maybe(part.before):
                continue
            if index and not part.optional:
                scanner.take(part.before)
            if part.key and types[part.key] == "branches":
                return self._shares(kind, part.key, scanner, line)
            if part.key:
                data[part.key] = _field(types[part.key], nouns[part.key], scanner)
        if len(handles_of(kind, data)) < 2:
            return OutlineStep(kind, data, scanner.last_label("."))
        (first, second), (heading, other_heading) = row.branches, row.headings
        label = scanner.last_label(f"{heading}:")
        then = self._block(line.indent)
        otherwise: Block = ()
        if (other := self._heading(line)) is not None:
            other.take(f"{other_heading}:")
            other.end()
            otherwise = self._block(line.indent)
        return OutlineStep(kind, data, label, ((first, then), (second, otherwise)))

    def _message(
        self, kind: str, data: JsonObject, key: str, scanner: Scanner, line: Line, *, optional: bool
    ) -> OutlineStep:
        """Take the last field of a step: a text after a colon or, for an `optional` field, JSON after “with”."""
        if optional and scanner.maybe(" with "):
            return OutlineStep(kind, data | {key: scanner.value()}, scanner.last_label("."))
        if optional and not scanner.sees(":"):
            return OutlineStep(kind, data, scanner.last_label("."))
        scanner.take(":")
        if scanner.sees(" “", ' "'):
            scanner.take(" ")
            return OutlineStep(kind, data | {key: scanner.text("a text")}, scanner.last_label("."))
        # The text is below the step, on lines that begin with |.
        label = scanner.last_label()
        lines: list[str] = []
        while (below := self._peek()) is not None and below.indent > line.indent and below.text.startswith("|"):
            self._next += 1
            lines.append(below.text[1:].removeprefix(" "))
        if not lines:
            scanner.expected("a text in “quotes”, or below it lines that begin with |")
        return OutlineStep(kind, data | {key: "\n".join(lines)}, label)

    def _shares(self, kind: str, key: str, scanner: Scanner, line: Line) -> OutlineStep:
        """Take the branches of a split, the first of which is on its own line."""
        shares = [_share(scanner)]
        label = scanner.last_label()
        branches = [(shares[0]["handle"], self._block(line.indent))]
        while (heading := self._heading(line)) is not None:
            shares.append(_share(heading))
            heading.end()
            branches.append((shares[-1]["handle"], self._block(line.indent)))
        return OutlineStep(kind, {key: shares}, label, tuple(branches))

    def _raw(self, scanner: Scanner, line: Line) -> OutlineStep:
        """Take a step that is written with its data: `Run “teleport” with {"to": "moon"}`."""
        kind = scanner.text("the type of a node")
        scanner.take(" with ")
        data = scanner.value()
        if not isinstance(data, dict):
            scanner.expected("the node's data, a JSON object, before this")
        if not scanner.maybe(". Branch "):
            return OutlineStep(kind, data, scanner.last_label("."), raw=True)
        handle = scanner.text("the name of a branch")
        label = scanner.last_label(":")
        branches = [(handle, self._block(line.indent))]
        while (heading := self._heading(line)) is not None:
            heading.take("Branch ")
            handle = heading.text("the name of a branch")
            heading.take(":")
            heading.end()
            branches.append((handle, self._block(line.indent)))
        return OutlineStep(kind, data, label, tuple(branches), raw=True)

    def _heading(self, fork: Line) -> Scanner | None:
        """Take the heading of the next branch, if there is one more."""
        line = self._peek()
        if line is None or line.indent <= fork.indent or line.text.startswith("•"):
            return None
        self._next += 1
        return Scanner(line)


def _field(field_type: FieldType, noun: str, scanner: Scanner) -> Any:
    match field_type:
        case "line" | "text" | "tag" | "connection" | "topic":
            return scanner.text(f"a {noun}")
        case "url":
            return scanner.url()
        case "body" | "object" | "branches" | "recipient":
            return scanner.value()
        case "attributes" | "fields":
            attributes = {}
            while True:
                key = scanner.path()
                scanner.take(" = ")
                attributes[key] = scanner.value()
                if not scanner.maybe(", ", " and "):
                    return attributes
        case "filters":
            return _conditions(scanner)
        case "duration":
            return scanner.span()
        case "event":
            return scanner.event()
        case "locales":
            locales = {}
            while True:
                locale, texts = scanner.path(), JsonObject()
                locales[locale] = texts
                scanner.take(" (")
                while True:
                    key = scanner.path()
                    scanner.take(" ")
                    texts[key] = scanner.text(f"a {key}")
                    if not scanner.maybe(", "):
                        break
                scanner.take(")")
                if not scanner.maybe(AND_FOR):
                    return locales
        case "missing":
            scanner.take(NOTHING_MISSING)
            return "skip"
        case "switch":
            return True
        case "clock":
            return scanner.pattern(_TIME_OF_DAY, "a time of day, like 09:00")
        case "weekdays":
            days = [scanner.take(*WEEKDAYS)]
            while scanner.maybe(", ", " or "):
                days.append(scanner.take(*WEEKDAYS))
            return [WEEKDAYS.index(day) + 1 for day in days]
        case "date" | "zone" | "path":
            return scanner.path()
        case "number":
            number = scanner.integer()
            scanner.take(" events")
            return number
        case "shift":
            seconds = scanner.span()
            return seconds if scanner.take(" earlier", " later") == " later" else -seconds


def _share(scanner: Scanner) -> JsonObject:
    percent = scanner.integer()
    scanner.take(" % to ")
    handle = scanner.text("the name of a branch")
    scanner.take(":")
    return {"handle": handle, "percent": percent}


def _rule(line: Scanner) -> JsonObject:
    line.take("(")
    opening = line.take(
        "once per contact",
        "once in ",
        "not while it runs for the contact",
        "until ",
        "quiet from ",
        "by the clock of ",
        "at most ",
        "hold out ",
        "texts in the locale of ",
        "default texts in ",
    )
    setting: JsonObject
    match opening:
        case "once per contact":
            setting = {"reentry": {"policy": "once"}}
        case "once in ":
            setting = {"reentry": {"policy": "once_per", "days": line.integer()}}
            line.take(" days per contact", " day per contact")
        case "not while it runs for the contact":
            setting = {"reentry": {"policy": "not_while_running"}}
        case "until ":
            event = line.event()
            setting = {
                "goal": {"event": event, **condition_fields(_conditions(line) if line.maybe(", where ") else [])}
            }
        case "quiet from ":
            start = line.pattern(_TIME_OF_DAY, "a time of day, like 22:00")
            line.take(" to ")
            end = line.pattern(_TIME_OF_DAY, "a time of day, like 08:00")
            setting = {"quietHours": {"from": start, "to": end, "timezoneAttribute": _zone_attribute(line)}}
        case "by the clock of ":
            setting = {"timezone": line.pattern(_ZONE_NAME, "a time zone, like Europe/Zurich")}
            line.take(" if the contact has no time zone")
        case "at most ":
            messages = line.integer()
            line.take(" messages", " message")
            if line.take(" in ", " per calendar day") == " in ":
                setting = {"frequencyCap": {"messages": messages, "seconds": line.span()}}
            else:
                day = {"messages": messages, "per": "day", "timezoneAttribute": _zone_attribute(line)}
                setting = {"frequencyCap": day}
        case "hold out ":
            setting = {"holdout": line.integer()}
            line.take(" % of contacts")
        case "texts in the locale of ":
            setting = {"localeAttribute": line.path()}
        case "default texts in ":
            setting = {"defaultLocale": line.path()}
        case _:
            raise AssertionError(opening)
    line.take(")")
    line.end()
    return setting
