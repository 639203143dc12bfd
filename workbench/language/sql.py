"""A tokenizer with enough of Postgres's lexical rules to separate names and parameters from strings and comments.

It only tokenizes; Postgres decides what a statement means. An unclosed string or comment extends to the end of the
text.
"""

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

TokenKind = Literal["word", "quoted", "name", "positional", "other", "string", "number", "cast"]

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
    """A token with its offsets in the text. Comments and white space are not tokens."""

    kind: TokenKind
    text: str
    start: int
    end: int


def tokenize(text: str, *, values: bool = False) -> Iterator[SqlToken]:
    """Yield the words, quoted names, parameters and other single characters of a statement, in order.

    `values`: also the strings, with their quotes, numbers and casts.
    """
    at = 0
    while (match := _START.match(text, at)) is not None:
        start, at = at, match.end()
        match match.lastgroup:
            case "word" | "name" | "positional" | "other" as kind:
                yield SqlToken(kind, match[0], start, at)
            case "number" | "cast" as kind if values:
                yield SqlToken(kind, match[0], start, at)
            case "quoted":
                at = _closing_quote(text, at, _QUOTED_END)
                yield SqlToken("quoted", text[start + 1 : at - 1].replace('""', '"'), start, at)
            case "string":
                at = _closing_quote(text, at, _PLAIN_END)
            case "escaped":
                at = _closing_quote(text, at, _ESCAPED_END)
                while (more := _CONTINUED.match(text, at)) is not None:
                    at = _closing_quote(text, more.end(), _ESCAPED_END)
            case "dollar":
                closing = text.find(match[0], at)
                at = len(text) if closing < 0 else closing + len(match[0])
            case "block":  # Postgres nests comments
                depth = 1
                while depth and (edge := _BLOCK_EDGE.search(text, at)) is not None:
                    depth += 1 if edge[0] == "/*" else -1
                    at = edge.end()
                at = at if depth == 0 else len(text)
            case _:
                pass
        if values and match.lastgroup in ("string", "escaped", "dollar"):
            yield SqlToken("string", text[start:at], start, at)


def _closing_quote(text: str, at: int, edge: re.Pattern[str]) -> int:
    """Return the position after the closing quote; doubled and escaped ones do not close."""
    for match in edge.finditer(text, at):
        if len(match[0]) == 1:
            return match.end()
    return len(text)
