"""Sentences, read back: the inverse of `display.sentences`. Every error names the line and what was expected there."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from workbench.display.outline import TRIGGER_ID, Block, End, GoTo, JsonObject, Outline, Step
from workbench.display.sentences import ADDRESS, END, NOTHING_MORE, NOTHING_YET
from workbench.errors import DraftError
from workbench.texts.scanner import Scanner

_CLOCK = re.compile(r"\d\d:\d\d", re.ASCII)


class Line(msgspec.Struct, frozen=True):
    """A line: its number from 1, how far it stands to the right, and what it says."""

    number: int
    indent: int
    said: str

    def scanner(self) -> Scanner:
        """Return something that reads it."""
        return Scanner(self.number, self.said, self.indent)


def lines_of(text: str) -> list[Line]:
    """Return the lines of a text that say something. A step may begin with `-` or `*` as well: not every keyboard has a bullet."""
    numbered = enumerate(text.split("\n"), 1)
    found = [Line(number, len(line) - len(line.lstrip(" ")), _said(line)) for number, line in numbered]
    return [line for line in found if line.said]


def _said(line: str) -> str:
    said = line.strip(" \t\r")
    return f"• {said[2:]}" if said.startswith(("- ", "* ")) else said


def read(name: str, lines: Sequence[Line]) -> Outline:
    """Return the outline that sentences tell; raise DraftError naming the line that does not."""
    if not lines:
        raise DraftError("expected sentences: “When a deposit event arrives:”, and a step on each line after it")
    outline = _trigger(name, lines[0].scanner())
    reading = _Reading(lines[1:])
    settings = reading.rules()
    steps = reading.steps()
    return msgspec.structs.replace(outline, settings=settings, steps=steps, line=lines[0].number)


def _trigger(name: str, line: Scanner) -> Outline:
    line.take("When ")
    events: list[str] = []
    logs: JsonObject = {}
    other = line.text("the type of a trigger") if line.sees("“", '"') else ""
    opening = line.take(*([" happens"] if other else ["any event arrives", "a ", "contract "]))
    if opening == "a ":
        events = _events(line)
    elif opening == "contract ":
        logs = _logs(line)
    filters = _conditions(line) if line.maybe(", and ") else []
    line.take(":")
    label = line.label()
    line.end()
    trigger_id = TRIGGER_ID if label is None else label
    return Outline(name, tuple(events), tuple(filters), id=trigger_id, logs=logs, other=other)


def _events(line: Scanner) -> list[str]:
    events = [line.name()]
    while line.maybe(", ", " or "):
        events.append(line.name())
    line.take(" event arrives")
    return events


def _logs(line: Scanner) -> JsonObject:
    contract = line.pattern(ADDRESS, "the address of a contract, 0x and 40 digits")
    line.take(" on chain ")
    chain_id = line.whole()
    line.take(" logs ")
    signature = line.text("an event, like “Transfer(address,address,uint256)”,")
    creates = line.take(" about the wallet in ", " about the known wallet in ") == " about the wallet in "
    wallet_arg = line.text("a parameter of the event")
    deep = 0
    if line.maybe(", once "):
        deep = line.whole()
        line.take(" blocks stand on top of it", " block stands on top of it")
    return {
        "chainId": chain_id,
        "contract": contract,
        "signature": signature,
        "walletArg": wallet_arg,
        "confirmations": deep,
        "createContacts": creates,
    }


class _Reading:
    """The lines that have not been read yet."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._next = 0

    def rules(self) -> JsonObject:
        """Take the rules in parentheses."""
        found: JsonObject = {}
        while (line := self._seen()) is not None and line.said.startswith("("):
            self._next += 1
            found |= _rule(line.scanner())
        return found

    def steps(self) -> Block:
        """Take everything that is left: the steps behind the trigger."""
        line = self._seen()
        if line is not None and line.said == NOTHING_YET:
            self._next += 1
            line = self._seen()
        steps = self._block(0) if line is not None and line.said.startswith("•") else ()
        if (left := self._seen()) is not None:
            left.scanner().expected("a step that begins with •, as far to the right as those it belongs to")
        return steps

    def _seen(self) -> Line | None:
        return self._lines[self._next] if self._next < len(self._lines) else None

    def _block(self, more_than: int) -> Block:
        """Take the steps that stand further to the right than `more_than`, all as far as the first of them."""
        told: list[Step | GoTo | End] = []
        first = self._seen()
        indent = first.indent if first is not None else 0
        if indent <= more_than:
            return ()
        while (line := self._seen()) is not None and line.indent == indent and line.said.startswith("•"):
            self._next += 1
            told += self._step(line)
        return tuple(told)

    def _step(self, line: Line) -> Block:
        scanner = line.scanner()
        scanner.take("• ")
        if scanner.maybe(NOTHING_MORE):
            scanner.end()
            return ()
        if scanner.maybe(END):
            scanner.end()
            return (End(),)
        if scanner.maybe("Go on with"):
            found = scanner.label() or scanner.expected("the id of a step, like [send_inapp]")
            scanner.take(".")
            scanner.end()
            return (GoTo(found, line.number),)
        told = next((tell for opening, tell in _OPENINGS if scanner.maybe(opening)), None)
        if told is None:
            scanner.expected(f"how a step begins: {', '.join(opening.strip() for opening, _ in _OPENINGS)}")
        return (msgspec.structs.replace(told(self, scanner, line), line=line.number),)

    # One kind of step each

    def inapp(self, scanner: Scanner, line: Line) -> Step:
        title = scanner.text("a title")
        extra = {"data": scanner.value()} if scanner.maybe(" with ") else {}
        body, label = self._body(scanner, line)
        data = {"recipientMode": "triggering_profile", "title": title, "body": body, **extra}
        return Step("send_inapp", data, label)

    def email(self, scanner: Scanner, line: Line) -> Step:
        subject = scanner.text("a subject")
        body, label = self._body(scanner, line)
        return Step("send_email", {"subject": subject, "body": body}, label)

    def webhook(self, scanner: Scanner, line: Line) -> Step:
        url = scanner.url()
        if scanner.maybe(" with "):
            return Step("send_webhook", {"url": url, "body": scanner.value()}, _closed(scanner))
        if scanner.sees(":"):
            body, label = self._body(scanner, line)
            return Step("send_webhook", {"url": url, "body": body}, label)
        return Step("send_webhook", {"url": url}, _closed(scanner))

    def add_tag(self, scanner: Scanner, _: Line) -> Step:
        return Step("add_tag", {"tag": scanner.text("a tag")}, _closed(scanner))

    def remove_tag(self, scanner: Scanner, _: Line) -> Step:
        return Step("remove_tag", {"tag": scanner.text("a tag")}, _closed(scanner))

    def update(self, scanner: Scanner, _: Line) -> Step:
        attributes = {}
        while True:
            key = scanner.path()
            scanner.take(" = ")
            attributes[key] = scanner.value()
            if not scanner.maybe(", ", " and "):
                return Step("update_contact", {"attributes": attributes}, _closed(scanner))

    def delay(self, scanner: Scanner, _: Line) -> Step:
        return Step("delay", {"seconds": scanner.span()}, _closed(scanner))

    def exit(self, scanner: Scanner, _: Line) -> Step:
        return Step("exit", {}, _closed(scanner))

    def wait_for(self, scanner: Scanner, line: Line) -> Step:
        seconds = scanner.span()
        scanner.take(" for ")
        event = scanner.name()
        filters = _conditions(scanner) if scanner.maybe(", where ") else []
        scanner.take(". When it comes:")
        data = {"event": event, "filters": filters, "timeoutSeconds": seconds}
        return self._fork(Step("wait_for_event", data, _labelled(scanner)), ("matched", "timeout"), line)

    def condition(self, scanner: Scanner, line: Line) -> Step:
        filters = _conditions(scanner)
        scanner.take(":")
        return self._fork(Step("condition", {"filters": filters}, _labelled(scanner)), ("true", "false"), line)

    def split(self, scanner: Scanner, line: Line) -> Step:
        branches = [_share(scanner)]
        label = _labelled(scanner)
        ways = [(branches[0]["handle"], self._block(line.indent))]
        while (heading := self._heading(line)) is not None:
            branches.append(_share(heading))
            heading.end()
            ways.append((branches[-1]["handle"], self._block(line.indent)))
        return Step("split", {"branches": branches}, label, tuple(ways))

    def whole(self, scanner: Scanner, line: Line) -> Step:
        kind = scanner.text("the type of a node")
        scanner.take(" with ")
        data = scanner.value()
        if not isinstance(data, dict):
            scanner.expected("the node's data, a JSON object, before this")
        if not scanner.maybe(". Along "):
            return Step(kind, data, _closed(scanner), whole=True)
        names = [scanner.text("a way out")]
        scanner.take(":")
        label = _labelled(scanner)
        ways = [(names[0], self._block(line.indent))]
        while (heading := self._heading(line)) is not None:
            heading.take("Along ")
            way = heading.text("a way out")
            heading.take(":")
            heading.end()
            ways.append((way, self._block(line.indent)))
        return Step(kind, data, label, tuple(ways), whole=True)

    # What they share

    def _fork(self, step: Step, ways: tuple[str, str], line: Line) -> Step:
        yes = self._block(line.indent)
        heading = self._heading(line)
        no: Block = ()
        if heading is not None:
            heading.take("Otherwise:")
            heading.end()
            no = self._block(line.indent)
        return msgspec.structs.replace(step, ways=((ways[0], yes), (ways[1], no)))

    def _heading(self, of: Line) -> Scanner | None:
        """Take the line over the next way of a fork, if there is one more."""
        line = self._seen()
        if line is None or line.indent <= of.indent or line.said.startswith("•"):
            return None
        self._next += 1
        return line.scanner()

    def _body(self, scanner: Scanner, of: Line) -> tuple[str, str | None]:
        """Take the text after a colon, on the same line or on those below, and the step's id."""
        scanner.take(":")
        if not scanner.sees(" “", ' "'):
            label = _labelled(scanner)
            below = self._below(of)
            if not below:
                scanner.expected("a text in “quotes”, or below it lines that begin with |")
            return "\n".join(below), label
        scanner.take(" ")
        body = scanner.text("a text")
        return body, _closed(scanner)

    def _below(self, of: Line) -> list[str]:
        lines: list[str] = []
        while (line := self._seen()) is not None and line.indent > of.indent and line.said.startswith("|"):
            self._next += 1
            lines.append(line.said[1:].removeprefix(" "))
        return lines


_Tell = Callable[[_Reading, Scanner, Line], Step]
_OPENINGS: tuple[tuple[str, _Tell], ...] = (
    ("Send the in-app message ", _Reading.inapp),
    ("Send the email ", _Reading.email),
    ("Post to ", _Reading.webhook),
    ("Add the tag ", _Reading.add_tag),
    ("Remove the tag ", _Reading.remove_tag),
    ("Set ", _Reading.update),
    ("Wait up to ", _Reading.wait_for),
    ("Wait ", _Reading.delay),
    ("If ", _Reading.condition),
    ("Split: ", _Reading.split),
    ("Stop", _Reading.exit),
    ("Do ", _Reading.whole),
)


def _closed(scanner: Scanner) -> str | None:
    scanner.take(".")
    return _labelled(scanner)


def _labelled(scanner: Scanner) -> str | None:
    label = scanner.label()
    scanner.end()
    return label


def _share(scanner: Scanner) -> JsonObject:
    percent = scanner.whole()
    scanner.take(" % go along ")
    handle = scanner.text("the name of a way")
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
    found = _RULES[opening](line)
    line.take(")")
    line.end()
    return found


def _once_per(line: Scanner) -> JsonObject:
    days = line.whole()
    line.take(" days per contact", " day per contact")
    return {"reentry": {"policy": "once_per", "days": days}}


def _goal(line: Scanner) -> JsonObject:
    event = line.name()
    return {"goal": {"event": event, "filters": _conditions(line) if line.maybe(", where ") else []}}


def _quiet(line: Scanner) -> JsonObject:
    start = line.pattern(_CLOCK, "a time of day, like 22:00")
    line.take(" to ")
    end = line.pattern(_CLOCK, "a time of day, like 08:00")
    zone = line.path() if line.maybe(", on the clock of ") else "timezone"
    return {"quietHours": {"from": start, "to": end, "timezoneAttribute": zone}}


def _cap(line: Scanner) -> JsonObject:
    messages = line.whole()
    line.take(" messages in ", " message in ")
    return {"frequencyCap": {"messages": messages, "seconds": line.span()}}


def _holdout(line: Scanner) -> JsonObject:
    percent = line.whole()
    line.take(" % of contacts")
    return {"holdout": percent}


_RULES: dict[str, Callable[[Scanner], JsonObject]] = {
    "once per contact": lambda _: {"reentry": {"policy": "once"}},
    "once in ": _once_per,
    "not while it runs for the contact": lambda _: {"reentry": {"policy": "not_while_running"}},
    "until ": _goal,
    "quiet from ": _quiet,
    "at most ": _cap,
    "hold out ": _holdout,
}


def _conditions(line: Scanner) -> list[JsonObject]:
    found = [_condition(line)]
    while line.maybe(" and "):
        found.append(_condition(line))
    return found


def _condition(line: Scanner) -> JsonObject:
    path = line.path()
    match line.take(" is not ", " is one of ", " is present", " is ", " contains "):
        case " is present":
            return {"path": path, "operator": "exists"}
        case " is one of ":
            return {"path": path, "operator": "in", "value": _options(line)}
        case verb:
            return {"path": path, "operator": _OPERATORS[verb], "value": line.value()}


def _options(line: Scanner) -> list[Any]:
    if line.maybe("none"):
        return []
    found = [line.value()]
    while line.maybe(", ", " or "):
        found.append(line.value())
    return found


_OPERATORS = {" is ": "eq", " is not ": "neq", " contains ": "contains"}
