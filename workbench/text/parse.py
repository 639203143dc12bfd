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

from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, JsonObject, Outline, OutlineStep
from workbench.display.sentences import (
    ADDRESS,
    END,
    IF_RECEIVED,
    NO_STEPS,
    NOTHING_MORE,
    PLAIN_EVENT,
    PLAIN_PATH,
    PLAIN_URL,
    UNITS_S,
)
from workbench.errors import InvalidAutomationError

_OPENINGS = (
    "Send the in-app message ",
    "Send the email ",
    "Post to ",
    "Add the tag ",
    "Remove the tag ",
    "Set ",
    "Wait up to ",  # before “Wait ”, which it begins with
    "Wait ",
    "If ",
    "Split: ",
    "Stop",
    "Run ",
)
_OPERATORS = {" is ": "eq", " is not ": "neq", " contains ": "contains"}
_UNIT_SIZES_S = {noun: size for size, noun in UNITS_S}
# re.ASCII: without it \d and \w also match the digits and letters of other scripts.
_SPAN = re.compile(r"(\d+) (day|hour|minute|second)s?", re.ASCII)
_SPANS = re.compile(rf"{_SPAN.pattern}(?: {_SPAN.pattern})*", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_TIME_OF_DAY = re.compile(r"\d\d:\d\d", re.ASCII)
_LABEL = re.compile(r"[\w.:-]+", re.ASCII)
_SHOWN_CHARACTERS = 40


class Line(msgspec.Struct, frozen=True):
    """A line that is not empty: its number from 1, its indentation and its text."""

    number: int
    indent: int
    text: str

    def scanner(self) -> "Scanner":
        """Return a scanner at the start of the text."""
        return Scanner(self)


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
    outline = _trigger(name, lines[0].scanner())
    parser = _Parser(lines[1:])
    settings = parser.rules()
    return msgspec.structs.replace(outline, settings=settings, steps=parser.steps(), line=lines[0].number)


class Scanner:
    """Reads one line from left to right. Methods take what they name, or raise InvalidAutomationError."""

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
        """Take and return the literal that comes next, if one does."""
        literal = self.sees(*literals)
        self._at += len(literal or "")
        return literal

    def take(self, *literals: str) -> str:
        """Take one of the literals."""
        return self.maybe(*literals) or self.expected(" or ".join(f"“{literal.strip()}”" for literal in literals))

    def end(self) -> None:
        """Check that the line ends here."""
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
        """Take the path of a value or the name of an attribute."""
        return self._match(PLAIN_PATH) or self.text("the name of a value")

    def url(self) -> str:
        return self._match(PLAIN_URL) or self.text("a URL")

    def integer(self) -> int:
        return int(self._match(_INTEGER) or self.expected("a whole number"))

    def pattern(self, pattern: re.Pattern[str], what: str) -> str:
        """Take text that matches a pattern."""
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
    line.take("When ")
    events: list[str] = []
    logs: JsonObject = {}
    other = line.text("the type of a trigger") if line.sees("“", '"') else ""
    opening = line.take(*([" happens"] if other else ["any event arrives", "a ", "contract "]))
    if opening == "a ":
        events.append(line.event())
        while line.maybe(", ", " or "):
            events.append(line.event())
        line.take(" event arrives")
    elif opening == "contract ":
        logs = _logs(line)
    filters = _conditions(line) if line.maybe(", and ") else []
    label = line.last_label(":")
    trigger_id = TRIGGER_ID if label is None else label
    return Outline(name, tuple(events), tuple(filters), id=trigger_id, logs=logs, other=other)


def _logs(line: Scanner) -> JsonObject:
    contract = line.pattern(ADDRESS, "the address of a contract, 0x and 40 hex digits")
    line.take(" on chain ")
    chain_id = line.integer()
    line.take(" emits ")
    signature = line.text("an event, like “Transfer(address,address,uint256)”,")
    creates_contacts = line.take(" for the wallet in ", " for the known wallet in ") == " for the wallet in "
    wallet_arg = line.text("a parameter of the event")
    confirmations = 0
    if line.maybe(", after "):
        confirmations = line.integer()
        line.take(" confirmations", " confirmation")
    return {
        "chainId": chain_id,
        "contract": contract,
        "signature": signature,
        "walletArg": wallet_arg,
        "confirmations": confirmations,
        "createContacts": creates_contacts,
    }


def _conditions(line: Scanner) -> list[JsonObject]:
    conditions: list[JsonObject] = []
    while True:
        path = line.path()
        # The longer phrases come first, because “ is ” begins most of them.
        match line.take(" is not ", " is one of ", " is set", " is ", " contains "):
            case " is set":
                conditions.append({"path": path, "operator": "exists"})
            case " is one of ":
                options = []  # a filter may have an empty list, which is written as “none”
                if not line.maybe("none"):
                    options.append(line.value())
                    while line.maybe(", ", " or "):
                        options.append(line.value())
                conditions.append({"path": path, "operator": "in", "value": options})
            case verb:
                conditions.append({"path": path, "operator": _OPERATORS[verb], "value": line.value()})
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
            settings |= _rule(line.scanner())
        return settings

    def steps(self) -> Block:
        """Take all lines that are left."""
        line = self._peek()
        if line is not None and line.text == NO_STEPS:
            self._next += 1
            line = self._peek()
        steps = self._block(0) if line is not None and line.text.startswith("•") else ()
        if (rest := self._peek()) is not None:
            rest.scanner().expected("a step that begins with •, indented like the other steps of its branch")
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
        scanner = line.scanner()
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
            scanner.expected(f"the start of a step: {', '.join(start.strip() for start in _OPENINGS)}")
        return (msgspec.structs.replace(self._sentence(opening, scanner, line), line=line.number),)

    def _sentence(self, opening: str, scanner: Scanner, line: Line) -> OutlineStep:
        match opening:
            case "Send the in-app message ":
                title = scanner.text("a title")
                extra = {"data": scanner.value()} if scanner.maybe(" with ") else {}
                body, label = self._body(scanner, line)
                data = {"recipientMode": "triggering_profile", "title": title, "body": body, **extra}
                return OutlineStep("send_inapp", data, label)
            case "Send the email ":
                subject = scanner.text("a subject")
                body, label = self._body(scanner, line)
                return OutlineStep("send_email", {"subject": subject, "body": body}, label)
            case "Post to ":
                url = scanner.url()
                if scanner.maybe(" with "):
                    return OutlineStep("send_webhook", {"url": url, "body": scanner.value()}, scanner.last_label("."))
                if scanner.sees(":"):
                    body, label = self._body(scanner, line)
                    return OutlineStep("send_webhook", {"url": url, "body": body}, label)
                return OutlineStep("send_webhook", {"url": url}, scanner.last_label("."))
            case "Add the tag ":
                return OutlineStep("add_tag", {"tag": scanner.text("a tag")}, scanner.last_label("."))
            case "Remove the tag ":
                return OutlineStep("remove_tag", {"tag": scanner.text("a tag")}, scanner.last_label("."))
            case "Set ":
                attributes = {}
                while True:
                    key = scanner.path()
                    scanner.take(" = ")
                    attributes[key] = scanner.value()
                    if not scanner.maybe(", ", " and "):
                        return OutlineStep("update_contact", {"attributes": attributes}, scanner.last_label("."))
            case "Wait ":
                return OutlineStep("delay", {"seconds": scanner.span()}, scanner.last_label("."))
            case "Stop":
                return OutlineStep("exit", {}, scanner.last_label("."))
            case "Wait up to ":
                timeout = scanner.span()
                scanner.take(" for ")
                event = scanner.event()
                filters = _conditions(scanner) if scanner.maybe(", where ") else []
                data = {"event": event, "filters": filters, "timeoutSeconds": timeout}
                label = scanner.last_label(f"{IF_RECEIVED}:")
                return OutlineStep("wait_for_event", data, label, self._yes_no("matched", "timeout", line))
            case "If ":
                data = {"filters": _conditions(scanner)}
                label = scanner.last_label(":")
                return OutlineStep("condition", data, label, self._yes_no("true", "false", line))
            case "Split: ":
                shares = [_share(scanner)]
                label = scanner.last_label()
                branches = [(shares[0]["handle"], self._block(line.indent))]
                while (heading := self._heading(line)) is not None:
                    shares.append(_share(heading))
                    heading.end()
                    branches.append((shares[-1]["handle"], self._block(line.indent)))
                return OutlineStep("split", {"branches": shares}, label, tuple(branches))
            case _:
                return self._raw(scanner, line)

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

    def _yes_no(self, yes: str, no: str, line: Line) -> tuple[tuple[str, Block], ...]:
        """Take the branch below a line, and the one below “Otherwise:” if there is one."""
        then = self._block(line.indent)
        otherwise: Block = ()
        if (heading := self._heading(line)) is not None:
            heading.take("Otherwise:")
            heading.end()
            otherwise = self._block(line.indent)
        return (yes, then), (no, otherwise)

    def _heading(self, fork: Line) -> Scanner | None:
        """Take the heading of the next branch, if there is one more."""
        line = self._peek()
        if line is None or line.indent <= fork.indent or line.text.startswith("•"):
            return None
        self._next += 1
        return line.scanner()

    def _body(self, scanner: Scanner, step: Line) -> tuple[str, str | None]:
        """Take the text after a colon, on the same line or on lines that begin with |, and the step's id."""
        scanner.take(":")
        if scanner.sees(" “", ' "'):
            scanner.take(" ")
            body = scanner.text("a text")
            return body, scanner.last_label(".")
        label = scanner.last_label()
        lines: list[str] = []
        while (line := self._peek()) is not None and line.indent > step.indent and line.text.startswith("|"):
            self._next += 1
            lines.append(line.text[1:].removeprefix(" "))
        if not lines:
            scanner.expected("a text in “quotes”, or below it lines that begin with |")
        return "\n".join(lines), label


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
        "at most ",
        "hold out ",
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
            setting = {"goal": {"event": event, "filters": _conditions(line) if line.maybe(", where ") else []}}
        case "quiet from ":
            start = line.pattern(_TIME_OF_DAY, "a time of day, like 22:00")
            line.take(" to ")
            end = line.pattern(_TIME_OF_DAY, "a time of day, like 08:00")
            timezone = line.path() if line.maybe(", in the time zone of ") else "timezone"
            setting = {"quietHours": {"from": start, "to": end, "timezoneAttribute": timezone}}
        case "at most ":
            messages = line.integer()
            line.take(" messages in ", " message in ")
            setting = {"frequencyCap": {"messages": messages, "seconds": line.span()}}
        case _:
            setting = {"holdout": line.integer()}
            line.take(" % of contacts")
    line.take(")")
    line.end()
    return setting
