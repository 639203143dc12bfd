"""What is inside the payloads of an event: property paths, the share of each type, nulls, samples. Evidence, never a schema."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

MAX_SAMPLES = 5
MAX_PATHS = 500


class Path(msgspec.Struct, frozen=True, rename="camel"):
    """One property path: in how many payloads it is, of which types, how often null, and some of its values."""

    path: str
    count: int
    types: dict[str, int]
    nulls: int
    null_rate: float
    samples: tuple[Any, ...]


def paths_of(payloads: Iterable[dict[str, Any]]) -> tuple[Path, ...]:
    """Return the property paths of payloads by name. Objects are descended into; elements of arrays are not."""
    seen: dict[str, list[Any]] = {}
    for payload in payloads:
        for path, value in _leaves(payload, ""):
            if path in seen or len(seen) < MAX_PATHS:
                seen.setdefault(path, []).append(value)
    return tuple(_summary(path, values) for path, values in sorted(seen.items()))


def _leaves(value: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, child in value.items():
        if isinstance(child, dict) and child:
            yield from _leaves(child, f"{prefix}{key}.")
        else:
            yield prefix + key, child


def _summary(path: str, values: list[Any]) -> Path:
    types: dict[str, int] = {}
    for value in values:
        name = type_name(value)
        types[name] = types.get(name, 0) + 1
    nulls = types.pop("null", 0)
    return Path(path, len(values), types, nulls, nulls / len(values), _samples(values))


def _samples(values: list[Any]) -> tuple[Any, ...]:
    samples: list[Any] = []
    for value in values:
        if value is not None and value not in samples:
            samples.append(value)
            if len(samples) == MAX_SAMPLES:
                break
    return tuple(samples)


def type_name(value: Any) -> str:
    """Return the JSON type of a value: string, number, boolean, array, object or null."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float() | Decimal():
            return "number"
        case dict():
            return "object"
        case _:
            return "array"
