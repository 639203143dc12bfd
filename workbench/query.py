"""SQL over the organization's tables, Arrow on the wire, polars in hand."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.connection import Answer, Connection
from workbench.errors import SqlError

if TYPE_CHECKING:  # polars takes 0.3 s to load; whoever never asks SQL does not pay for it
    import polars as pl

ARROW = "application/vnd.apache.arrow.stream"


def sql(connection: Connection, query: str, params: Mapping[str, Any] | None = None) -> "pl.DataFrame":
    """Return the result of one read-only statement; raise SqlError pointing at the spot Postgres complained about."""
    import polars as pl

    body = {"sql": query} | ({"params": {name: _sent(value) for name, value in params.items()}} if params else {})
    answer = connection.exchange("POST", "/sql", body=body, accept=ARROW)
    if answer.status == 400:
        raise _sql_error(query, answer)
    return pl.read_ipc_stream(connection.check(answer).raw)


def _sent(value: Any) -> Any:
    """Series and arrays travel as lists."""
    return value.to_list() if hasattr(value, "to_list") else value


def _sql_error(query: str, answer: Answer) -> SqlError:
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
