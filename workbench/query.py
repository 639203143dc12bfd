"""SQL over the organization's tables, Arrow on the wire, polars in hand."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from workbench.arrow import CutShortError, batches
from workbench.connection import Answer, Connection
from workbench.errors import DraftError, SqlError, UnknownOutcomeError
from workbench.statements import statement

if TYPE_CHECKING:  # polars takes 0.3 s to load; whoever never asks SQL does not pay for it
    from workbench.result import Result

ARROW = "application/vnd.apache.arrow.stream"


class Question(msgspec.Struct, frozen=True):
    """One read-only statement, the plain values of its `:name`s, and the watermark to which it goes back, if any."""

    text: str
    params: Mapping[str, Any] = {}
    as_of: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the question as the service takes it."""
        past = {"asOf": self.as_of} if self.as_of is not None else {}
        return {"sql": self.text} | ({"params": self.params} if self.params else {}) | past


def watermark(as_of: "str | Result | None") -> str | None:
    """Return what `as_of=` names: a watermark, or that of a result; None for "" (not given). Raise DraftError for what has none.

    A None that was given is refused: it comes from a frame that is no answer any more, and must not become the present.
    """
    mark = as_of if isinstance(as_of, str) else getattr(as_of, "watermark", None)
    if not isinstance(mark, str):
        raise DraftError(
            "as_of takes a result of wb.sql, or its .watermark; a frame that was made from a result has none, nor has one from Citus"
        )
    return mark or None


def sql(connection: Connection, question: Question) -> "Result":
    """Return all rows; raise SqlError pointing at the spot Postgres complained about."""
    from workbench.result import Origin, result

    with answered(connection, question) as (answer, pieces):
        return result(batches(pieces), answer.headers, Origin(question.text, question.params))


def named(connection: Connection, name: str, values: Mapping[str, Any]) -> "Result":
    """Return all rows of a query of `sql/reports`; raise what `sql` raises."""
    return sql(connection, Question(statement(name), values))


@contextmanager
def answered(connection: Connection, question: Question) -> Iterator[tuple[Answer, Iterator[bytes]]]:
    """Give the pieces of an Arrow stream; the query ends with the block. Raise SqlError, also when the answer breaks off."""
    begun = False
    try:
        with connection.pieces("/sql", question.body(), ARROW) as (answer, pieces):
            if answer.status == 400:
                raise sql_error(question.text, answer)
            connection.check(answer)
            begun = True
            yield answer, pieces
    except (UnknownOutcomeError, CutShortError):
        if not begun:
            raise
        raise SqlError(_BROKEN_OFF) from None


_BROKEN_OFF = (
    "the answer broke off, so rows are missing: one of the later ones failed (a division by zero, a value that Arrow cannot "
    "hold), it took longer than an answer may, or the connection was lost"
)


def sql_error(query: str, answer: Answer) -> SqlError:
    """Return what the service says against a query, pointing at the spot."""
    body = answer.body if isinstance(answer.body, dict) else {}
    position = body.get("position")
    at = position if isinstance(position, int) and 0 < position <= len(query) + 1 else None
    parts = [answer.error.removeprefix("sql: "), *_pointed(query, at), *_in_plain_words(query, answer.error)]
    if body.get("hint"):
        parts.append(f"Hint: {body['hint']}")
    error = SqlError("\n".join(parts), answer.problems, answer.request_id)
    error.position, error.sqlstate = at, body.get("sqlstate")
    return error


def _in_plain_words(query: str, said: str) -> list[str]:
    """Return what a rule of the service means that Postgres does not know of."""
    if "multiple commands" in said:
        return ["One statement at a time: call wb.sql once for each."]
    first = re.match(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(\w*)", query, re.DOTALL)
    if first is not None and first[1] and first[1].lower() not in _READING:
        return ["Only SELECT: queries read and change nothing (SELECT …, or WITH … SELECT …)."]
    return []


_READING = ("select", "with", "values", "table")


def _pointed(query: str, position: int | None) -> list[str]:
    """Return the offending line and a caret below the character at `position` (from 1)."""
    if position is None:
        return []
    before, after = query[: position - 1], query[position - 1 :]
    number = before.count("\n") + 1
    start = before.rpartition("\n")[2]
    line = start + after.partition("\n")[0]
    label = f"line {number}: "
    return ["", label + line.replace("\t", " "), " " * (len(label) + len(start)) + "^"]
