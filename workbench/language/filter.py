"""Filters: JSON equality without coercion (docs/contract.md 4.7.3 and 4.7.4), and `where`, an expression next to them.

Only this module decides whether a filter passes; SQL may pre-select rows.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from workbench.language.codec import MISSING as MISSING
from workbench.language.codec import json_equal
from workbench.language.codec import value_at as value_at
from workbench.language.template import MAX_WHERE as MAX_WHERE
from workbench.language.template import Context, TemplateError, compile_where


class Filter(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One condition on the context. An operator that is not in `OPERATORS` is dropped: the filter always passes."""

    path: str
    operator: str
    value: Any = None

    @property
    def paths(self) -> frozenset[str]:
        """The paths that it reads."""
        return frozenset((self.path,))

    @property
    def required(self) -> frozenset[str]:
        """The paths that must have a value for it to pass."""
        operator = OPERATORS.get(self.operator)
        return self.paths if operator is not None and operator.requires_value else frozenset()


WHERE = "where"


class Where(Filter, frozen=True, gc=False):
    """A `where` in a list of filters: `path` is the expression.

    It was valid when it was read, so compiling it does not fail.
    """

    operator: str = WHERE

    @property
    def paths(self) -> frozenset[str]:
        return compile_where(self.path).paths

    @property
    def required(self) -> frozenset[str]:
        return compile_where(self.path).required


def where_problem(expression: Any) -> str | None:
    """Return why a value cannot be a `where`, or None."""
    if not isinstance(expression, str):
        return "must be a text, such as amountUsd > 500"
    try:
        compile_where(expression)
    except TemplateError as error:
        return str(error)
    return None


def paths_of(expression: str) -> frozenset[str]:
    """Return the paths that an expression reads; none if it cannot be a `where`."""
    return frozenset() if where_problem(expression) is not None else compile_where(expression).paths


_PATH = re.compile(r"[\w$@./:-]+")


def is_expression(text: str) -> bool:
    """Return whether Python code and sentences take a text for an expression; any other text is a path."""
    return _PATH.fullmatch(text) is None


def written_conditions(owner: Mapping[str, Any]) -> list[Any]:
    """Return the filters of an object as they are written, and `{"where": expression}` for its `where`."""
    expression = owner.get("where")
    return [*(owner.get("filters") or ()), *([] if expression is None else [{WHERE: expression}])]


def condition_fields(conditions: Iterable[Any]) -> dict[str, Any]:
    """Return `filters` and `where` of an object that has these conditions, in the form of `written_conditions`."""
    filters, expressions = list[Any](), list[Any]()
    for item in conditions:
        if isinstance(item, dict) and item.keys() == {WHERE}:
            expressions.append(item[WHERE])
        else:
            filters.append(item)
    if len(expressions) > 1:  # `or` and `if` bind less tightly than `and`
        texts = [f"({text})" if re.search(r"\b(or|if)\b", str(text)) else str(text) for text in expressions]
        expressions = [" and ".join(texts)]
    return {"filters": filters} | ({WHERE: expressions[0]} if expressions else {})


class Verdict(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The result of one filter, with the actual value at its path. `present` False: the path is missing.

    Of `where`, `path` is the expression, and `actual` has the values that it reads, by their paths.
    """

    path: str
    operator: str
    value: Any
    passed: bool
    present: bool
    actual: Any = None


def matches(filters: Iterable[Filter], context: Context, at: datetime) -> bool:
    """Return whether all filters pass at a moment."""
    return all(passes(filter_, context, at) for filter_ in filters)


def explain(filters: Iterable[Filter], context: Context, at: datetime) -> tuple[Verdict, ...]:
    """Return the verdict on every filter, in order."""
    verdicts = []
    for filter_ in filters:
        passed, present = passes(filter_, context, at), True
        if isinstance(filter_, Where):
            paths = sorted(filter_.paths)
            actual = {path: value for path in paths if (value := value_at(path, context)) is not MISSING}
        else:
            actual = value_at(filter_.path, context)
            present = actual is not MISSING
        shown = actual if present else None
        verdicts.append(Verdict(filter_.path, filter_.operator, filter_.value, passed, present, shown))
    return tuple(verdicts)


def passes(filter_: Filter, context: Context, at: datetime) -> bool:
    """Return whether one filter passes; never raises, whatever the values."""
    if isinstance(filter_, Where):
        return compile_where(filter_.path).holds(context, at)
    operator = OPERATORS.get(filter_.operator)
    return operator is None or operator.accepts(value_at(filter_.path, context), filter_.value)


def equated_values(filter_: Filter) -> list[Any] | None:
    """Return the only values that can pass; None if the operator does not restrict them to a list."""
    operator = OPERATORS.get(filter_.operator)
    if operator is None or not operator.equates:
        return None
    if operator.operand != "list":
        return [filter_.value]
    return filter_.value if isinstance(filter_.value, list) else []


# MISSING is not equal to any JSON value, so a missing path passes only `neq`.


def _is_one_of(actual: Any, expected: Any) -> bool:
    return isinstance(expected, list | tuple) and any(json_equal(actual, option) for option in expected)


def _contains(actual: Any, expected: Any) -> bool:
    if isinstance(actual, str):
        return isinstance(expected, str) and expected in actual
    return isinstance(actual, list | tuple) and any(json_equal(element, expected) for element in actual)


class Operator(msgspec.Struct, frozen=True):
    """An operator of filters. `operand`: the shape of the value of its filters.

    `accepts(actual, value)`: whether a filter passes; `actual` is MISSING if nothing is at its path. `requires_value`:
    fails without a value at the path. `equates`: passes only for values that equal the filter's value, or an item of
    its list.
    """

    operand: Literal["value", "list", "nothing"]
    accepts: Callable[[Any, Any], bool]
    requires_value: bool
    equates: bool


OPERATORS: dict[str, Operator] = {
    "eq": Operator("value", json_equal, requires_value=True, equates=True),
    "neq": Operator("value", lambda actual, value: not json_equal(actual, value), requires_value=False, equates=False),
    "in": Operator("list", _is_one_of, requires_value=True, equates=True),
    "contains": Operator("value", _contains, requires_value=True, equates=False),
    "exists": Operator("nothing", lambda actual, _: actual is not MISSING, requires_value=True, equates=False),
}
