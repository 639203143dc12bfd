"""What changed in the payloads of an event lately: paths and types that are new, gone, or clearly more or less frequent.

Samples of two times are compared. A difference is reported when it would hardly ever arise by chance between two samples of the
same traffic, and it comes with the counts of both sides, so that the reader can judge.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any, Literal

import msgspec

from api.language.shape import MAX_PATHS, leaves, type_name

FEWEST = 20  # payloads on either side; fewer are not compared
_UNLIKELY = 1e-4  # that a sample shows none of what is as frequent as on the other side
_DEVIATIONS = 4.0  # of two shares, in standard errors
_DIFFERENCE = 0.1  # of two shares, at least

What = Literal["new", "gone", "more", "less"]


class Part(msgspec.Struct, frozen=True):
    """In how many of so many."""

    count: int
    of: int


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path among the payloads, or a type among the values of a path: how frequent it was, and is."""

    path: str
    what: What
    before: Part
    recent: Part
    type: str | None = None


def changes(before: Sequence[dict[str, Any]], recent: Sequence[dict[str, Any]]) -> tuple[Change, ...]:
    """Return what changed between two samples of payloads, by path; nothing when one of them is small."""
    if min(len(before), len(recent)) < FEWEST:
        return ()
    then, now = _types(before), _types(recent)
    return tuple(
        change
        for path in sorted({*then, *now})[:MAX_PATHS]
        for change in _changes(path, (then.get(path, Counter()), len(before)), (now.get(path, Counter()), len(recent)))
    )


def _changes(path: str, before: tuple[Counter[str], int], recent: tuple[Counter[str], int]) -> Iterator[Change]:
    (then, before_all), (now, recent_all) = before, recent
    whole = _change(path, Part(then.total(), before_all), Part(now.total(), recent_all))
    if whole is not None:
        yield whole
    if min(then.total(), now.total()) < FEWEST:
        return
    for name in sorted({*then, *now}):
        typed = _change(path, Part(then[name], then.total()), Part(now[name], now.total()), name)
        if typed is not None:
            yield typed


def _change(path: str, before: Part, recent: Part, type_: str | None = None) -> Change | None:
    what = _what(before, recent)
    return None if what is None else Change(path, what, before, recent, type_)


def _what(before: Part, recent: Part) -> What | None:
    was, is_ = before.count / before.of, recent.count / recent.of
    if not before.count:
        return "new" if (1 - is_) ** before.of < _UNLIKELY else None
    if not recent.count:
        return "gone" if (1 - was) ** recent.of < _UNLIKELY else None
    together = (before.count + recent.count) / (before.of + recent.of)
    error = sqrt(together * (1 - together) * (1 / before.of + 1 / recent.of))
    if abs(is_ - was) < max(_DIFFERENCE, _DEVIATIONS * error):
        return None
    return "more" if is_ > was else "less"


def _types(payloads: Sequence[dict[str, Any]]) -> dict[str, Counter[str]]:
    types: dict[str, Counter[str]] = {}
    for payload in payloads:
        for path, value in leaves(payload):
            types.setdefault(path, Counter())[type_name(value)] += 1
    return types
