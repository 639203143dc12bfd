"""Enough of Postgres's lexical rules to tell names, parameters and function calls from strings and comments.

Nothing here decides what a statement means: Postgres does. A string or comment that is never closed extends to the end.
"""

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

TokenKind = Literal["word", "quoted", "name", "positional", "other"]

# Identifiers of Postgres are ASCII letters, digits, _ and $, and every character beyond ASCII.
_START = re.compile(
    r"""
      (?P<line>      --[^\n\r]*)
    | (?P<block>     /\*)
    | (?P<escaped>   [eE]')
    | (?P<string>    ')
    | (?P<quoted>    ")
    | (?P<dollar>    \$ (?: [A-Za-z_\u0080-\U0010ffff] [A-Za-z0-9_\u0080-\U0010ffff]* )? \$)
    | (?P<positional>\$ \d+)
    | (?P<word>      [A-Za-z_\u0080-\U0010ffff] [A-Za-z0-9_$\u0080-\U0010ffff]*)
    | (?P<number>    \d [\w.]*)
    | (?P<cast>      :: | :=)
    | (?P<name>      (?<! [\w)\]] ) : [A-Za-z_]\w*)      # not the bound of a slice: tags[1:n]
    | (?P<space>     \s+)
    | (?P<other>     .)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_BLOCK_EDGE = re.compile(r"/\*|\*/")
_PLAIN_END = re.compile(r"''|'")
_ESCAPED_END = re.compile(r"\\.|''|'", re.DOTALL)
_QUOTED_END = re.compile(r'""|"')
# A string continues after white space with a line break; an E string remains an E string.
_CONTINUED = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:\s|--[^\n\r]*(?=[\n\r]))*'", re.ASCII)


class SqlToken(msgspec.Struct, frozen=True):
    """A piece of the text; strings, comments, numbers and white space are no tokens."""

    kind: TokenKind
    text: str
    start: int


def tokenize(text: str) -> Iterator[SqlToken]:
    """Yield the words, quoted names, parameters and other single characters of a statement, in order."""
    at = 0
    while (match := _START.match(text, at)) is not None:
        start = at
        at = _end(text, match)
        match match.lastgroup:
            case "word" | "name" | "positional" | "other" as kind:
                yield SqlToken(kind, match[0], start)
            case "quoted":
                yield SqlToken("quoted", text[start + 1 : at - 1].replace('""', '"'), start)
            case _:
                pass


def _end(text: str, match: re.Match[str]) -> int:
    at = match.end()
    match match.lastgroup:
        case "block":
            return _block_end(text, at)
        case "string":
            return _closing(text, at, _PLAIN_END)
        case "quoted":
            return _closing(text, at, _QUOTED_END)
        case "dollar":
            found = text.find(match[0], at)
            return len(text) if found < 0 else found + len(match[0])
        case "escaped":
            at = _closing(text, at, _ESCAPED_END)
            while (more := _CONTINUED.match(text, at)) is not None:
                at = _closing(text, more.end(), _ESCAPED_END)
            return at
        case _:
            return at


def _closing(text: str, at: int, edge: re.Pattern[str]) -> int:
    """Return the position after the closing quote; doubled and escaped ones do not close."""
    for found in edge.finditer(text, at):
        if len(found[0]) == 1:
            return found.end()
    return len(text)


def _block_end(text: str, at: int) -> int:
    """Return the position after a comment, which may contain others."""
    depth = 1
    for found in _BLOCK_EDGE.finditer(text, at):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(text)
