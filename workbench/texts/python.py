"""Calls of verbs written down as Python, formatted as people do: a verb a line, branches as functions of their steps."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from api.language.codec import encode
from workbench.texts.besides import Besides
from workbench.texts.calls import Along, Call

_WIDTH = 100
_INDENT = "    "


def code(opening: str, calls: Iterable[Call], besides: Besides) -> str:
    """Return a statement that writes an automation: `a = (wb.automation("…").on("…")…)`."""
    lines = [line for call in [*calls, *_noted(besides)] for line in _call(call, 1)]
    body = "\n".join(["a = (", f"{_INDENT}{opening}", *lines, ")"])
    return f"from decimal import Decimal\n\n{body}" if "Decimal(" in body else body


def _noted(besides: Besides) -> list[Call]:
    if not besides:
        return []
    without = {"without": [*besides.without]} if besides.without else {}
    return [Call("besides", (besides.values,), without)]


def _call(call: Call, depth: int) -> list[str]:
    """Return the lines of a call: one where it fits."""
    margin = _INDENT * depth
    if not any(isinstance(each, Along) for each in call.arguments):
        written = [literal(each) for each in call.arguments] + [f"{k}={literal(v)}" for k, v in call.named.items()]
        line = f"{margin}.{call.verb}({', '.join(written)})"
        return [line] if len(line) <= _WIDTH or not written else [*_broken(call, margin)]
    *before, along = call.arguments
    opening = "".join(f"{literal(each)}, " for each in before)
    short = _on_one_line(along)
    line = f"{margin}.{call.verb}({opening}lambda b: {short})" if short is not None else ""
    if line and len(line) <= _WIDTH:
        return [line]
    alone = not before
    return [
        f"{margin}.{call.verb}(",
        *(f"{margin}{_INDENT}{literal(each)}," for each in before),
        *_function(along, depth + 1, "" if alone else ","),
        f"{margin})",
    ]


def _function(along: Along, depth: int, comma: str) -> Iterable[str]:
    """Yield the lines of a branch: its only call as it is, several in parentheses."""
    margin = _INDENT * depth
    several = len(along.calls) > 1
    inner = depth + 1 if several else depth
    (first, *rest) = [line for each in along.calls for line in _call(each, inner)]
    opening = f"b{first.strip()}"
    if several:
        yield from (f"{margin}lambda b: (", f"{margin}{_INDENT}{opening}", *rest, f"{margin}){comma}")
        return
    (*lines, last) = [f"{margin}lambda b: {opening}", *rest]
    yield from (*lines, f"{last}{comma}")


def _broken(call: Call, margin: str) -> Iterable[str]:
    yield f"{margin}.{call.verb}("
    for each in call.arguments:
        yield from _argument("", each, margin + _INDENT)
    for name, each in call.named.items():
        yield from _argument(f"{name}=", each, margin + _INDENT)
    yield f"{margin})"


def _argument(opening: str, value: Any, margin: str) -> Iterable[str]:
    """Yield the lines of one argument: an object with a key a line, a text with a line of its own a line."""
    line = f"{margin}{opening}{literal(value)},"
    if len(line) <= _WIDTH:
        yield line
    elif isinstance(value, dict) and value:
        yield f"{margin}{opening}{{"
        for key, each in value.items():
            yield from _argument(f"{literal(key)}: ", each, margin + _INDENT)
        yield f"{margin}}},"
    elif isinstance(value, str) and "\n" in value:
        yield f"{margin}{opening}("
        for part in filter(None, re.split(r"(?<=\n)", value)):
            yield f"{margin}{_INDENT}{literal(part)}"
        yield f"{margin}),"
    else:
        yield line


def _on_one_line(along: Along) -> str | None:
    """Return a branch as an expression on one line; None where a branch has branches of its own."""
    parts = ["b"]
    for call in along.calls:
        if any(isinstance(each, Along) for each in call.arguments):
            return None
        written = [literal(each) for each in call.arguments] + [f"{k}={literal(v)}" for k, v in call.named.items()]
        parts.append(f".{call.verb}({', '.join(written)})")
    return "".join(parts) if len(parts) <= 3 else None


def literal(value: Any) -> str:
    """Return a value of JSON as Python writes it; texts in double quotes, numbers to the last digit."""
    match value:
        case str():
            return _text(value)
        case Decimal():
            return _number(value)
        case Mapping():
            return "{" + ", ".join(f"{literal(key)}: {literal(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(literal, value)) + "]"
        case _:
            return repr(value)


def _text(value: str) -> str:
    written = repr(value)
    if written.startswith("'") and '"' not in value:
        inside = written[1:-1]
        return f'"{inside}"'
    return written


def _number(value: Decimal) -> str:
    written = repr(float(value))
    exact = encode(float(value)) == encode(value)
    return written if exact else f'Decimal("{encode(value).decode()}")'
