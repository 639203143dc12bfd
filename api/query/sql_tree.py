"""The tree of an SQL statement, as `api.query.sql_parser` reads it."""

from typing import Literal

import msgspec

Join = Literal["first", "inner", "left", "cross"]


class UnsupportedSqlError(Exception):
    """A part of the statement, `reason`, is not known here. `position` counts its characters from 1."""

    def __init__(self, reason: str, position: int) -> None:
        self.reason, self.position = reason, position
        super().__init__(f"{reason} is not supported (character {position})")


class SqlNode(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a statement; `start` and `end` are its offsets in the text."""

    start: int
    end: int


class Constant(SqlNode, frozen=True):
    """A literal or a parameter, as written."""

    text: str


class Column(SqlNode, frozen=True):
    """A column, with the name of its table if it is written; `name` `*` stands for all columns."""

    table: str | None
    name: str


class FunctionCall(SqlNode, frozen=True):
    """A call of a function. `filter` is the condition of an aggregate."""

    function: str
    arguments: tuple["Expression", ...]
    filter: "Expression | None" = None


class SqlOperation(SqlNode, frozen=True):
    """An operator, or a construct with words such as CASE, and its operands. Casts are named `::type`."""

    operator: str
    operands: tuple["Expression", ...]


class Subquery(SqlNode, frozen=True):
    """A query inside an expression: `exists`, `scalar`, or compared with `key` by `in` or `not in`."""

    kind: Literal["exists", "scalar", "in", "not in"]
    query: "Query"
    key: "Expression | None" = None


Expression = Constant | Column | FunctionCall | SqlOperation | Subquery


class ResultItem(SqlNode, frozen=True):
    """A column of a result, with its name if it is written."""

    value: Expression
    name: str | None


class Source(SqlNode, frozen=True):
    """A table, a query or a function (`value`) of FROM, under a name, with the names of its columns if written.

    `join`: how it is joined to the sources before it, with the condition `on`, or by the columns `using`.
    `has_ordinality`: the rows of the function are numbered.
    """

    value: "str | Query | FunctionCall"
    name: str
    columns: tuple[str, ...] = ()
    join: Join = "first"
    on: Expression | None = None
    using: tuple[str, ...] = ()
    has_ordinality: bool = False


class Select(SqlNode, frozen=True):
    """One SELECT."""

    items: tuple[ResultItem, ...]
    sources: tuple[Source, ...]
    where: Expression | None
    groups: tuple[Expression, ...]
    having: Expression | None


class Combination(SqlNode, frozen=True):
    """The UNION, INTERSECT or EXCEPT of two results."""

    left: "Select | Combination"
    right: "Select | Combination"


class Query(SqlNode, frozen=True):
    """A statement: its named queries (WITH), its body, and the expressions that order it."""

    named: tuple[tuple[str, tuple[str, ...], "Query"], ...]
    body: Select | Combination
    order: tuple[Expression, ...]
