"""Filters: JSON equality without coercion (docs/contract.md 4.7.3 and 4.7.4).

Only this module decides whether a filter passes; SQL may pre-select rows.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.language.codec import json_equal

Operator: TypeAlias = Literal["eq", "neq", "in", "contains", "exists"]
OPERATORS: tuple[Operator, ...] = ("eq", "neq", "in", "contains", "exists")
Context: TypeAlias = Mapping[str, Any]

MISSING: Any = object()


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One condition on the context. An operator that is not in `OPERATORS` is dropped: the filter always passes."""

    path: str
    operator: str
    value: Any = None


class Verdict(msgspec.Struct, frozen=True, rename="camel"):
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


def _accepts(filter_: Filter, actual: Any) -> bool:
    expected = filter_.value
    match filter_.operator:
        case "eq":
            return actual is not MISSING and json_equal(actual, expected)
        case "neq":
            return actual is MISSING or not json_equal(actual, expected)
        case "in":
            # MISSING is not equal to any JSON value, so a missing path fails.
            return isinstance(expected, list | tuple) and any(json_equal(actual, option) for option in expected)
        case "contains":
            if isinstance(actual, str):
                return isinstance(expected, str) and expected in actual
            return isinstance(actual, list | tuple) and any(json_equal(element, expected) for element in actual)
        case "exists":
            return actual is not MISSING
        case _:
            return True
