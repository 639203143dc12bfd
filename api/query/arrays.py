"""Postgres's text form of an array, `{a,"b c",NULL}`, as a list of its elements' texts."""

import re

_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|((?:[^,"{}\\]|\\.)+)|(\{)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_BOUNDS = re.compile(rb"^(?:\[-?\d+:-?\d+\])+=")


def elements(cell: bytes) -> list[bytes | None]:
    """Return the elements of an array of one dimension; of an array of arrays, the texts of the inner ones."""
    body = _BOUNDS.sub(b"", cell)[1:-1]
    found: list[bytes | None] = []
    at = 0
    while (match := _ELEMENT.match(body, at)) is not None:
        quoted, plain, _ = match.groups()
        if quoted is not None:
            found.append(_ESCAPED.sub(rb"\1", quoted))
            at = match.end()
        elif plain is not None:
            found.append(None if plain == b"NULL" else _ESCAPED.sub(rb"\1", plain))
            at = match.end()
        else:
            end = _inner_end(body, at)
            found.append(body[at:end])
            at = end
        at += 1  # the comma
    return found


def _inner_end(body: bytes, at: int) -> int:
    """Return the position after the brace that closes the one at `at`."""
    depth, quoted = 0, False
    index = at
    while index < len(body):
        character = body[index : index + 1]
        if character == b"\\":
            index += 1
        elif character == b'"':
            quoted = not quoted
        elif not quoted and character in b"{}":
            depth += 1 if character == b"{" else -1
            if depth == 0:
                return index + 1
        index += 1
    return len(body)
