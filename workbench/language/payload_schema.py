"""The properties inside the payloads of an event: their paths, types, nulls and values, as observed in samples.

`summarise_paths` describes one sample of payloads. `schema_changes` compares two samples of different times: it reports
paths and types that are new, gone, or clearly more or less frequent, with the counts of both samples. A difference is
reported only if it would hardly ever arise by chance between two samples of the same traffic.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from math import sqrt
from typing import Any, Literal

import msgspec

from workbench.language.codec import encode

MAX_SAMPLES = 5
MAX_PATHS = 500  # payloads with computed keys could have any number
MAX_TOP_VALUES = 5
MAX_TOP_VALUE_LENGTH = 200  # characters

MIN_PAYLOADS = 20  # in each sample; smaller samples are not compared
_MAX_CHANCE = 1e-4  # probability that a sample misses a path that is as frequent as in the other sample
_MIN_STANDARD_ERRORS = 4.0  # between two shares
_MIN_DIFFERENCE = 0.1  # between two shares

ChangeKind = Literal["new", "gone", "more", "less"]


class FrequentValue(msgspec.Struct, frozen=True):
    """A value, and the number of payloads that contain it."""

    value: Any
    count: int


class PropertyPath(msgspec.Struct, frozen=True, rename="camel"):
    """One property path: the number of payloads with and without it, its types, nulls, and some of its values.

    `shares`: the share of each type among the values, null included. `top_values`: strings, numbers and booleans that
    occur more than once; `distinct`: the number of different values, without null.
    """

    path: str
    count: int = 0
    types: dict[str, int] = {}
    nulls: int = 0
    null_rate: float = 0.0
    samples: tuple[Any, ...] = ()
    missing: int = 0
    missing_rate: float = 0.0
    shares: dict[str, float] = {}
    top_values: tuple[FrequentValue, ...] = ()
    distinct: int = 0


class Frequency(msgspec.Struct, frozen=True):
    """`count` occurrences in `of` payloads or values."""

    count: int
    of: int

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,}"


class SchemaChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change in the frequency of a path among the payloads, or of a type among the values of a path."""

    path: str
    what: ChangeKind
    before: Frequency
    recent: Frequency
    type: str | None = None


def summarise_paths(payloads: Iterable[dict[str, Any]]) -> tuple[PropertyPath, ...]:
    """Return the property paths of payloads, sorted by path. Objects are descended into, arrays are not."""
    sample = tuple(payloads)
    values = _values_by_path(sample, MAX_PATHS)
    return tuple(_summarise(path, values[path], len(sample)) for path in sorted(values))


def schema_changes(before: Sequence[dict[str, Any]], recent: Sequence[dict[str, Any]]) -> tuple[SchemaChange, ...]:
    """Return the changes between two samples of payloads, sorted by path; () if a sample is too small."""
    if min(len(before), len(recent)) < MIN_PAYLOADS:
        return ()
    changes: list[SchemaChange] = []
    types_before, types_recent = (
        {path: Counter(map(_type_name, values)) for path, values in _values_by_path(sample).items()}
        for sample in (before, recent)
    )
    for path in sorted({*types_before, *types_recent})[:MAX_PATHS]:
        old, new = types_before.get(path, Counter()), types_recent.get(path, Counter())
        names: list[str | None] = [None]  # the path itself, then the types of its values
        if min(old.total(), new.total()) >= MIN_PAYLOADS:
            names += sorted({*old, *new})
        for name in names:
            if name is None:
                frequencies = Frequency(old.total(), len(before)), Frequency(new.total(), len(recent))
            else:
                frequencies = Frequency(old[name], old.total()), Frequency(new[name], new.total())
            if kind := _change_kind(*frequencies):
                changes.append(SchemaChange(path, kind, *frequencies, name))
    return tuple(changes)


def _values_by_path(payloads: Iterable[dict[str, Any]], max_paths: int | None = None) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for payload in payloads:
        for path, value in _leaves(payload):
            if max_paths is None or path in values or len(values) < max_paths:
                values.setdefault(path, []).append(value)
    return values


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, child in value.items():
        if isinstance(child, dict) and child:
            yield from _leaves(child, f"{prefix}{key}.")
        else:
            yield prefix + key, child


def _summarise(path: str, values: list[Any], payloads: int) -> PropertyPath:
    types = Counter(map(_type_name, values))
    shares = {name: count / len(values) for name, count in types.most_common()}
    nulls = types.pop("null", 0)
    missing = max(payloads - len(values), 0)
    samples: list[Any] = []
    for value in values:
        if value is not None and value not in samples:
            samples.append(value)
            if len(samples) == MAX_SAMPLES:
                break
    scalars = [value for value in values if isinstance(value, str | bool | int | float | Decimal)]
    # Values are counted with their types, because 1, 1.0 and True are equal keys in Python.
    counts = Counter((_type_name(value), value) for value in scalars if len(str(value)) <= MAX_TOP_VALUE_LENGTH)
    top_values = [FrequentValue(value, count) for (_, value), count in counts.most_common(MAX_TOP_VALUES) if count > 1]
    return PropertyPath(
        path,
        len(values),
        dict(types),
        nulls,
        nulls / len(values),
        tuple(samples),
        missing,
        missing / payloads,
        shares,
        tuple(top_values),
        len({encode(value) for value in values if value is not None}),
    )


def _type_name(value: Any) -> str:
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


def _change_kind(before: Frequency, recent: Frequency) -> ChangeKind | None:
    share_before, share_recent = before.count / before.of, recent.count / recent.of
    if not before.count:
        return "new" if (1 - share_recent) ** before.of < _MAX_CHANCE else None
    if not recent.count:
        return "gone" if (1 - share_before) ** recent.of < _MAX_CHANCE else None
    pooled = (before.count + recent.count) / (before.of + recent.of)
    standard_error = sqrt(pooled * (1 - pooled) * (1 / before.of + 1 / recent.of))
    if abs(share_recent - share_before) < max(_MIN_DIFFERENCE, _MIN_STANDARD_ERRORS * standard_error):
        return None
    return "more" if share_recent > share_before else "less"
