"""Filters: JSON equality without coercion (docs/contract.md 4.7.3 and 4.7.4).

Only this module decides whether a filter passes; SQL may pre-select rows.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.language.codec import json_equal

Context: TypeAlias = Mapping[str, Any]

MISSING: Any = object()


class Filter(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One condition on the context. An operator that is not in `OPERATORS` is dropped: the filter always passes."""

    path: str
    operator: str
    value: Any = None


class Verdict(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The result of one filter, with the actual value at its path. `present` False: the path is missing."""

    path: str
    operator: str
    value: Any
    passed: bool
    present: bool
    actual: Any = None


def matches(filters: Iterable[Filter], context: Context) -> bool:
    """Return whether all filters pass."""
    return all(passes(filter_, context) for filter_ in filters)


def explain(filters: Iterable[Filter], context: Context) -> tuple[Verdict, ...]:
    """Return the verdict on every filter, in order."""
    verdicts = []
    for filter_ in filters:
        actual = value_at(filter_.path, context)
        present, passed = actual is not MISSING, _accepts(filter_, actual)
        shown = actual if present else None
        verdicts.append(Verdict(filter_.path, filter_.operator, filter_.value, passed, present, shown))
    return tuple(verdicts)


def passes(filter_: Filter, context: Context) -> bool:
    """Return whether one filter passes; never raises, whatever the values."""
    return _accepts(filter_, value_at(filter_.path, context))


def value_at(path: str, context: Context) -> Any:
    """Return the value at a path, or MISSING: first a literal key of the context, then dots descend into objects."""
    if path in context:
        return context[path]
    value: Any = context
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def equated_values(filter_: Filter) -> list[Any] | None:
    """Return the only values that can pass; None if the operator does not restrict them to a list."""
    operator = OPERATORS.get(filter_.operator)
    if operator is None or not operator.equates:
        return None
    if operator.operand != "list":
        return [filter_.value]
    return filter_.value if isinstance(filter_.value, list) else []


def _accepts(filter_: Filter, actual: Any) -> bool:
    operator = OPERATORS.get(filter_.operator)
    return operator is None or operator.accepts(actual, filter_.value)


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
