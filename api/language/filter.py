"""Filters: contract §4.7.3-4, with JSON equality and no coercion. This module decides, everywhere; SQL may only pre-select."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from api.language.codec import Json, json_equal

Operator: TypeAlias = Literal["eq", "neq", "in", "contains", "exists"]
OPERATORS: tuple[Operator, ...] = ("eq", "neq", "in", "contains", "exists")
Context: TypeAlias = Mapping[str, Any]

MISSING: Any = object()


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One condition on the context. An operator that is not one of `OPERATORS` is dropped: it always passes."""

    path: str
    operator: str
    value: Any = None


class Verdict(msgspec.Struct, frozen=True, rename="camel"):
    """Why a filter passed or failed: the value that was found (`present` False: none was)."""

    path: str
    operator: str
    value: Any
    passed: bool
    present: bool
    actual: Any = None


def matches(filters: Iterable[Filter], context: Context) -> bool:
    """Return whether all filters pass."""
    return all(passes(each, context) for each in filters)


def explain(filters: Iterable[Filter], context: Context) -> tuple[Verdict, ...]:
    """Return the verdict on every filter, in order."""
    return tuple([_verdict(each, find(each.path, context)) for each in filters])


def passes(each: Filter, context: Context) -> bool:
    """Return whether one filter passes; never raises, whatever the values."""
    return _accepts(each, find(each.path, context))


def _verdict(each: Filter, actual: Any) -> Verdict:
    present = actual is not MISSING
    passed = _accepts(each, actual)
    return Verdict(each.path, each.operator, each.value, passed, present, actual if present else None)


def _accepts(each: Filter, actual: Any) -> bool:
    match each.operator:
        case "eq":
            return actual is not MISSING and json_equal(actual, each.value)
        case "neq":
            return actual is MISSING or not json_equal(actual, each.value)
        case "in":
            return actual is not MISSING and _among(actual, each.value)
        case "contains":
            return actual is not MISSING and _contains(actual, each.value)
        case "exists":
            return actual is not MISSING
        case _:
            return True


def find(path: str, context: Context) -> Any:
    """Return the value at a path: a literal key of the context first, then dots into objects; else MISSING."""
    if path in context:
        return context[path]
    value: Any = context
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def _among(actual: Json, options: Any) -> bool:
    return isinstance(options, list | tuple) and any(json_equal(actual, option) for option in options)


def _contains(actual: Any, part: Json) -> bool:
    if isinstance(actual, str):
        return isinstance(part, str) and part in actual
    return isinstance(actual, list | tuple) and any(json_equal(element, part) for element in actual)
