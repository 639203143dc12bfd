"""The columns that a query of a segment may read, and which tables of a SELECT are tied by their contact.

Tables are tied if the conditions of the query demand that their rows are of one contact. `increments.py` proves with
these that a segment can be refreshed by increments.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import msgspec

from api.query.sql_tree import Column, Expression, SqlNode, SqlOperation, UnsupportedSqlError


class TimeColumn(msgspec.Struct, frozen=True, order=True):
    table: str
    column: str


OCCURRED, RECEIVED = TimeColumn("app_events", "occurred_at"), TimeColumn("app_events", "created_at")
CREATED = TimeColumn("contacts", "created_at")


class ValueFacts(msgspec.Struct, frozen=True):
    """What the proof knows of a value of a row.

    `is_key`: it is the id of the row's contact. `times`: the columns of which it may be the value, cut to the day if
    `by_day`. `is_moment`: it is a date or a time. `is_inexact`: it is a floating-point number, so a sum depends on the
    order of the rows. `is_untracked`: no table records when it changes.
    """

    is_key: bool = False
    times: frozenset[TimeColumn] = frozenset()
    by_day: bool = False
    is_moment: bool = False
    is_inexact: bool = False
    is_untracked: bool = False


PLAIN = ValueFacts()
SelectColumns = Sequence[tuple[str | None, ValueFacts]]
_MOMENT = ValueFacts(is_moment=True)
_KEY = ValueFacts(is_key=True)


def _columns(names: str, **values: ValueFacts) -> SelectColumns:
    return [(name, values.get(name, PLAIN)) for name in names.split()]


TABLES: Mapping[str, SelectColumns] = {
    "app_events": _columns(
        "id contact_id event occurred_at created_at payload idempotency_key sent_wallet_address sent_email "
        "sent_external_id merged_from",
        contact_id=_KEY,
        occurred_at=ValueFacts(times=frozenset((OCCURRED,)), is_moment=True),
        created_at=ValueFacts(times=frozenset((RECEIVED,)), is_moment=True),
    ),
    "contacts": _columns(
        "id email wallet_address external_id metadata tags created_at updated_at email_domain opted_out erased_at",
        id=_KEY,
        created_at=ValueFacts(times=frozenset((CREATED,)), is_moment=True),
        updated_at=ValueFacts(is_untracked=True),
        erased_at=_MOMENT,
    ),
    "segment_members": _columns("segment contact_id entered_at", contact_id=_KEY, entered_at=_MOMENT),
}
"""The columns of the views of `analyst_changed`."""


class SelectResult(msgspec.Struct, frozen=True):
    """The result of a query.

    `of_contacts`: it reads rows of contacts. `is_tied`: only those of the contact of the outer row.
    """

    columns: SelectColumns
    of_contacts: bool
    is_tied: bool


class SelectSource(msgspec.Struct):
    """A source of FROM.

    `is_function`: it is the result of a function. `is_optional`: its row may be missing, after a LEFT JOIN.
    """

    name: str
    columns: SelectColumns
    of_contacts: bool
    is_function: bool
    is_optional: bool = False


class SelectScope:
    """The sources of one SELECT, and which of them are tied to each other, or to the outer row (`_OUTER`)."""

    _OUTER = -1

    def __init__(self, outer: "SelectScope | None") -> None:
        self.outer = outer
        self.sources: list[SelectSource] = []
        self.aggregates = 0
        self._tied_to: dict[int, int] = {}
        self.merged: set[str] = set()  # columns of USING

    def find(self, column: Column) -> tuple["SelectScope", int, ValueFacts] | None:
        """Return where a column is: its scope, the number of its source, and its value."""
        return self._find_column(column) or self._find_row(column)

    def _find_column(self, column: Column) -> tuple["SelectScope", int, ValueFacts] | None:
        matches = [
            (number, value)
            for number, source in enumerate(self.sources)
            if column.table is None or column.table == source.name
            for name, value in source.columns
            if name == column.name
        ]
        if not matches:
            return None if self.outer is None else self.outer._find_column(column)
        if len(matches) > 1 and not (column.table is None and column.name in self.merged):
            refuse(column, f"the name {column.name}, which more than one table has,")
        number, value = matches[0]
        if self.sources[number].is_optional:
            value = msgspec.structs.replace(value, is_key=False)
        return self, number, value

    def _find_row(self, column: Column) -> tuple["SelectScope", int, ValueFacts] | None:
        """The name of a function's table stands for its row, if no column has this name."""
        if column.table is None:
            for number, source in enumerate(self.sources):
                if source.name == column.name:
                    return (self, number, source.columns[0][1]) if source.is_function else None
        return None if self.outer is None else self.outer._find_row(column)

    def tie(self, first: int, second: int) -> None:
        self._tied_to[self._root(first)] = self._root(second)

    def tie_by(self, condition: Expression) -> None:
        """Tie sources by the equalities of contacts that a condition demands."""
        for first, second in self._equalities(condition):
            self.tie(first, second)

    def tie_optional(self, condition: Expression) -> bool:
        """Tie the last source to another one by the condition of its LEFT JOIN; return whether that is possible."""
        last = len(self.sources) - 1
        for first, second in self._equalities(condition):
            if last in (first, second) and first != second:
                # Only to one: where this source has no row, it does not tie others to each other.
                self.tie(last, second if first == last else first)
                return True
        return False

    def merge(self, name: str) -> None:
        """Join the last source by a column of USING, which is then one column."""
        last = len(self.sources) - 1
        firsts = [n for n in range(last) if any(column == name for column, _ in self.sources[n].columns)]
        values = [value for n in (*firsts[:1], last) for column, value in self.sources[n].columns if column == name]
        if len(values) == 2 and all(value.is_key for value in values):
            self.tie(last, firsts[0])
        self.merged.add(name)

    def are_tied(self) -> bool:
        return len({self._root(number) for number in self._of_contacts()}) < 2

    def is_tied_to_outer(self) -> bool:
        return all(self._root(number) == self._root(self._OUTER) for number in self._of_contacts())

    def is_tied_to_others(self, number: int) -> bool:
        return any(self._root(number) == self._root(other) for other in range(self._OUTER, number))

    def _of_contacts(self) -> Iterator[int]:
        return (number for number, source in enumerate(self.sources) if source.of_contacts)

    def _root(self, number: int) -> int:
        while (tied := self._tied_to.get(number, number)) != number:
            number = tied
        return number

    def _equalities(self, condition: Expression) -> Iterator[tuple[int, int]]:
        match condition:
            case SqlOperation(operator="and", operands=operands):
                for operand in operands:
                    yield from self._equalities(operand)
            case SqlOperation(operator="()", operands=(inner,)):
                yield from self._equalities(inner)
            case SqlOperation(operator="=", operands=(Column() as left, Column() as right)):
                ends = [self._key_source(column) for column in (left, right)]
                if ends[0] is not None and ends[1] is not None:
                    yield ends[0], ends[1]
            case _:
                pass

    def _key_source(self, column: Column) -> int | None:
        place = self.find(column)
        if place is None:
            return None
        scope, number, _ = place
        # A contact that is missing equals no other one, so that of an optional source ties as well.
        is_key = any(name == column.name and value.is_key for name, value in scope.sources[number].columns)
        return (number if scope is self else self._OUTER) if is_key else None


def refuse(node: SqlNode, reason: str) -> NoReturn:
    raise UnsupportedSqlError(reason, node.start + 1)
