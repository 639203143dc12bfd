"""One line of sentences, read from left to right. What does not fit is said with its line and what was expected there."""

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

from workbench.display.sentences import PLAIN_NAME, PLAIN_PATH, PLAIN_URL, UNITS
from workbench.errors import DraftError


def _no_number(_: str) -> NoReturn:
    raise ValueError("JSON has no such number")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_number)
_SIZES = {noun: size for size, noun in UNITS}
_SPAN = re.compile(r"(\d+) (day|hour|minute|second)s?", re.ASCII)
_SPANS = re.compile(rf"{_SPAN.pattern}(?: {_SPAN.pattern})*", re.ASCII)
_WHOLE = re.compile(r"-?\d+", re.ASCII)
_LABEL = re.compile(r"[\w.:-]+", re.ASCII)
_SHOWN = 40


class Scanner:
    """The rest of a line, and where it stands."""

    def __init__(self, number: int, line: str, indent: int = 0) -> None:
        self.number = number
        self._line = line
        self._indent = indent
        self._at = 0

    def expected(self, what: str) -> NoReturn:
        """Raise DraftError: here should stand something else."""
        rest = self._line[self._at :]
        there = f"{rest[:_SHOWN]}{'…' if len(rest) > _SHOWN else ''}" if rest else "the end of the line"
        raise DraftError(f"line {self.number}, column {self._indent + self._at + 1}: expected {what}, found {there}")

    def sees(self, *literals: str) -> str | None:
        """Return the first of some words that come next, without taking it."""
        return next((each for each in literals if self._line.startswith(each, self._at)), None)

    def maybe(self, *literals: str) -> str | None:
        """Take the first of some words that come next, and return it."""
        seen = self.sees(*literals)
        self._at += len(seen or "")
        return seen

    def take(self, *literals: str) -> str:
        """Take one of some words, which has to come next."""
        return self.maybe(*literals) or self.expected(" or ".join(f"“{each.strip()}”" for each in literals))

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._at < len(self._line):
            self.expected("the end of the line")

    def text(self, what: str) -> str:
        """Take a text: “like this” or "like JSON"."""
        if self.sees("“"):
            closing = self._line.find("”", self._at)
            if closing < 0:
                self.expected(f"{what} closed with ”")
            found, self._at = self._line[self._at + 1 : closing], closing + 1
            return found
        if not self.sees('"'):
            self.expected(f"{what} in “quotes”")
        return str(self._json(what))

    def value(self) -> Any:
        """Take a value: a text, a number, true, false, null, or JSON."""
        return self.text("a text") if self.sees("“") else self._json("a value: “a text”, a number, true, false, null")

    def name(self) -> str:
        """Take the name of an event."""
        return self._matched(PLAIN_NAME) or self.text("the name of an event")

    def path(self) -> str:
        """Take the path of a value, or the name of an attribute."""
        return self._matched(PLAIN_PATH) or self.text("the name of a value")

    def url(self) -> str:
        """Take the address of a webhook."""
        return self._matched(PLAIN_URL) or self.text("an address")

    def whole(self) -> int:
        """Take a whole number."""
        return int(self._matched(_WHOLE) or self.expected("a whole number"))

    def pattern(self, pattern: re.Pattern[str], what: str) -> str:
        """Take what fits a pattern."""
        return self._matched(pattern) or self.expected(what)

    def span(self) -> int:
        """Take a span of time in seconds: `1 day 2 hours`."""
        found = self._matched(_SPANS) or self.expected("a span of time, like 2 days 3 hours")
        return sum(int(number) * _SIZES[noun] for number, noun in _SPAN.findall(found))

    def label(self) -> str | None:
        """Take an id in brackets, if there is one."""
        self.maybe(" ")
        if not self.maybe("["):
            return None
        found = self._matched(_LABEL) or self.text("the id of a step")
        self.take("]")
        return found

    def rest(self) -> str:
        """Take everything that is left of the line."""
        found, self._at = self._line[self._at :], len(self._line)
        return found

    def _matched(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._line, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else None

    def _json(self, what: str) -> Any:
        try:
            found, self._at = _DECODER.raw_decode(self._line, self._at)
        except (ValueError, ArithmeticError, RecursionError):
            self.expected(what)
        return found
