"""What is inside the payloads of an event: property paths, the share of each type, nulls, values. Evidence, never a schema."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from api.language.codec import encode

MAX_SAMPLES = 5
MAX_PATHS = 500
MAX_TOP = 5
_LONGEST = 200  # characters of a top value


class Frequent(msgspec.Struct, frozen=True):
    """A value, and in how many payloads it is."""

    value: Any
    count: int


class Path(msgspec.Struct, frozen=True, rename="camel"):
    """One property path: in how many payloads it is and is not, of which types, how often null, and some of its values.

    `shares`: of each type among the values, null included. `top_values`: texts, numbers and booleans that came more than once;
    `distinct`: how many different values there are, null not counted.
    """

    path: str
    count: int
    types: dict[str, int]
    nulls: int
    null_rate: float
    samples: tuple[Any, ...]
    missing: int
    missing_rate: float
    shares: dict[str, float]
    top_values: tuple[Frequent, ...]
    distinct: int


def paths_of(payloads: Iterable[dict[str, Any]]) -> tuple[Path, ...]:
    """Return the property paths of payloads by name. Objects are descended into; elements of arrays are not."""
    seen: dict[str, list[Any]] = {}
    number = 0
    for number, payload in enumerate(payloads, 1):  # noqa: B007  read below
        for path, value in leaves(payload):
            if path in seen or len(seen) < MAX_PATHS:
                seen.setdefault(path, []).append(value)
    return tuple(_summary(path, values, number) for path, values in sorted(seen.items()))


def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the property paths of a payload with their values."""
    for key, child in value.items():
        if isinstance(child, dict) and child:
            yield from leaves(child, f"{prefix}{key}.")
        else:
            yield prefix + key, child


def _summary(path: str, values: list[Any], payloads: int) -> Path:
    kinds = Counter(map(type_name, values))
    shares = {name: count / len(values) for name, count in kinds.most_common()}
    nulls = kinds.pop("null", 0)
    missing = max(payloads - len(values), 0)
    written = [encode(value) for value in values if value is not None]
    return Path(
        path,
        len(values),
        dict(kinds),
        nulls,
        nulls / len(values),
        _samples(values),
        missing,
        missing / payloads,
        shares,
        _top(values),
        len(set(written)),
    )


def _top(values: Sequence[Any]) -> tuple[Frequent, ...]:
    plain = [value for value in values if isinstance(value, str | bool | int | float | Decimal)]
    counts = Counter((type_name(value), value) for value in plain if len(str(value)) <= _LONGEST)
    return tuple(Frequent(value, count) for (_, value), count in counts.most_common(MAX_TOP) if count > 1)


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
