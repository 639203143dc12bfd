"""The counting behind the built-in reports: passes of numpy over events that are sorted by contact and moment.

A report is counted bucket by bucket: all events of a contact are in one bucket, so numbers of contacts add up. Within a
bucket the order is (contact, moment, id), as in the window functions of `sql/reports`, which give the same numbers; no
pass sorts or hashes events. `counted()` returns what `report_query` takes instead of the events.
"""

import threading
from abc import ABC, abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from workbench.language.reports import (
    SPANS,
    ActiveUsers,
    Cohorts,
    Every,
    Funnel,
    Paths,
    ReportBody,
    Retention,
    Revenue,
    TimeToConvert,
)

Array: TypeAlias = npt.NDArray[Any]
Moments: TypeAlias = npt.NDArray[np.int64]
"""Microseconds since 1970."""

MAX_RECORDS = 50_000  # of an answer, which Postgres reads as one JSON text
MILLION = 1_000_000

_DAY_US = 86_400 * MILLION
_NEVER = np.iinfo(np.int64).max
_SPAN_UNITS_S = {"minute": 60, "hour": 3_600, "day": 86_400}
_EXACT_FLOAT = 2**53
_DIGITS = Context(prec=400)  # a sum of 2^63 numbers below 10^24 with less than a hundred decimals has fewer


class UncountableError(Exception):
    """The kernels cannot give exactly the answer of the SQL."""


class Numbers(msgspec.Struct, frozen=True):
    """The numbers at a path of the payload, one place per event.

    `millionths`: where `is_exact`. `decimals`: their digits after the point as sent, where they end in zeros. `others`:
    the numbers that do not fit, by place.
    """

    millionths: Array
    is_exact: Array
    decimals: Array
    others: dict[int, Decimal]

    def at(self, rows: Array) -> "Numbers":
        """Return the numbers of some events, given by their places in ascending order."""
        others = {}
        if self.others:
            places = np.fromiter(self.others, np.int64, len(self.others))
            places.sort()
            for new, old in zip(*_places_of(places, rows), strict=True):
                others[int(new)] = self.others[int(old)]
        return Numbers(self.millionths[rows], self.is_exact[rows], self.decimals[rows], others)


def _places_of(places: Array, rows: Array) -> tuple[Array, Array]:
    """Return where `places` are in `rows`, and those that are in it; both are ascending."""
    new = np.searchsorted(rows, places)
    found = (new < len(rows)) & (rows[np.minimum(new, max(len(rows) - 1, 0))] == places) if len(rows) else new < 0
    return new[found], places[found]


class Bucket(msgspec.Struct, frozen=True):
    """Events of some contacts, sorted by (contact, moment, id).

    `contacts`: numbers of contacts in ascending order, of which some may have no event. `rank`: of each event, the
    place of its contact in `contacts`. `group`: numbers of the texts at `by`, or -1.
    """

    contacts: Array
    rank: Array
    at: Moments
    event: Array
    group: Array | None = None
    numbers: Numbers | None = None

    def take(self, rows: Array) -> "Bucket":
        """Return the events at some places, in ascending order."""
        return Bucket(
            self.contacts,
            self.rank[rows],
            self.at[rows],
            self.event[rows],
            None if self.group is None else self.group[rows],
            None if self.numbers is None else self.numbers.at(rows),
        )

    def since(self, moment: int) -> "Bucket":
        """Return the events from a moment on."""
        is_later = self.at >= moment
        return self if is_later.all() else self.take(np.flatnonzero(is_later))

    def first_of_each(self, rows: Array, missing: int) -> Array:
        """Return for each contact the first of `rows` that is its own, or `missing`."""
        first = np.full(len(self.contacts), missing, np.int64)
        chosen = rows[begins(self.rank[rows])]
        first[self.rank[chosen]] = chosen
        return first


class Texts:
    """Texts, each with a number: names of events, or the values at a path. More may come while buckets are added."""

    def __init__(self, numbers: Mapping[str, int] | None = None) -> None:
        self._numbers = dict(numbers or {})
        self._texts = {number: text for text, number in self._numbers.items()}
        self._end = max(self._texts, default=-1) + 1
        self._lock = threading.Lock()  # several threads read files

    @property
    def end(self) -> int:
        """The number of the next text: some before it may have no text."""
        return self._end

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def number(self, text: str | None) -> int:
        """Return the number of a text; -1 for none."""
        if text is None:
            return -1
        with self._lock:
            number = self._numbers.setdefault(text, self._end)
            if number == self._end:
                self._texts[number] = text
                self._end += 1
        return number


class Kernel(ABC):
    """Counts one report.

    `events`: numbers of the names whose events it counts, None for all. `start`: the only one whose events before the
    period count, too; `history`: those of all do. `by_event`, `value_event`: the events with the values at `by` and
    `value`. `is_ordered`: whether the order of events at the same microsecond matters.
    """

    events: tuple[int, ...] | None = None
    start: int | None = None
    history = False
    by_event = value_event = -1
    is_ordered = False

    @abstractmethod
    def add(self, bucket: Bucket) -> None:
        """Count events of some contacts, at least one: those that the kernel reads, before the end of the period."""

    @abstractmethod
    def counted(self) -> dict[str, Any]:
        """Return the sets of records that the template of the report reads; raise UncountableError."""


def kernel_of(report: ReportBody, since: int, names: Texts, texts: Texts) -> Kernel:
    """Return the kernel of a report over events since a moment. `names`: of events; `texts`: of groups."""
    match report:
        case Funnel():
            return FunnelKernel(report, since, names, texts)
        case Retention():
            return RetentionKernel(report, since, names)
        case Cohorts():
            return CohortsKernel(report, since, names)
        case ActiveUsers():
            return ActiveUsersKernel(report, since, names)
        case Paths():
            return PathsKernel(report, since, names)
        case Revenue():
            return RevenueKernel(report, since, names, texts)
        case TimeToConvert():
            return TimeToConvertKernel(report, since, names)
        case _:
            raise UncountableError(report.name)


# --- Contacts and periods


def begins(*keys: Array) -> Array:
    """Return the places at which a key differs from the one before, in any of the arrays."""
    is_new = np.ones(len(keys[0]), bool)
    for number, key in enumerate(keys):
        if number:
            is_new[1:] |= key[1:] != key[:-1]
        else:
            np.not_equal(key[1:], key[:-1], out=is_new[1:])
    return np.flatnonzero(is_new)


def ordinals(at: Moments, every: Every) -> Array:
    """Return the days, weeks (from Monday) or months since 1970 of moments, in UTC."""
    match every:
        case "day":
            return at // _DAY_US
        case "week":
            return (at // _DAY_US + 3) // 7
        case "month":
            return at.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)


def start_text(ordinal: int, every: Every) -> str:
    """Return the start of a day, week or month as Postgres reads it."""
    if every == "month":
        return f"{np.datetime64(ordinal, 'M').astype('datetime64[D]')}T00:00:00Z"
    day = np.datetime64(ordinal if every == "day" else ordinal * 7 - 3, "D")
    return f"{day}T00:00:00Z"


def _count(counter: Counter[tuple[int, int]], first: Array, second: Array) -> None:
    """Count pairs of whole numbers."""
    if not len(first):
        return
    keys, pair_of = _pair_keys(first, second)
    different, counts = _counts(keys)
    for key, count in zip(different.tolist(), counts.tolist(), strict=True):
        counter[pair_of(key)] += count


def _counts(keys: Array) -> tuple[Array, Array]:
    """Return the different whole numbers in an array, which is not empty, and how often each occurs."""
    least = int(keys.min())
    if int(keys.max()) - least > len(keys):
        different, counts = np.unique(keys, return_counts=True)
        return different, counts
    counts = np.bincount(keys - least)
    different = np.flatnonzero(counts)
    return different + least, counts[different]


def _pair_keys(first: Array, second: Array) -> tuple[Array, Callable[[int], tuple[int, int]]]:
    """Return pairs of whole numbers as one number each, in the order of the pairs, and what finds a pair again."""
    least, width = int(second.min()), int(second.max()) - int(second.min()) + 1

    def pair_of(key: int) -> tuple[int, int]:
        one, other = divmod(key, width)
        return one, other + least

    return first * width + (second - least), pair_of


def median(values: Array) -> float | None:
    """Return `percentile_cont(0.5)` of numbers, calculated as Postgres does."""
    if not len(values):
        return None
    middle = 0.5 * (len(values) - 1)
    low, high = int(np.floor(middle)), int(np.ceil(middle))
    chosen = np.partition(values, (low, high))
    lowest, highest = float(chosen[low]), float(chosen[high])
    return lowest + (middle - low) * (highest - lowest)


# --- Funnel


class FunnelKernel(Kernel):
    """For each step and group, how long each contact took that reached it: the shortest of its ways."""

    is_ordered = True

    def __init__(self, report: Funnel, since: int, names: Texts, texts: Texts) -> None:
        self._names = [*report.events().values()]
        self.events = self._steps = tuple(map(names.number, self._names))
        self.by_event = self._steps[0]
        self._within = report.within_seconds * MILLION
        self._since, self._texts = since, texts
        self._grouped = report.by is not None
        # Of each step, arrays of microseconds, and of the groups of their contacts: of five million contacts, they are
        # most of what the process has in memory.
        self._took: list[list[Array]] = [[] for _ in self._steps]
        self._of: list[list[Array]] = [[] for _ in self._steps]

    def add(self, bucket: Bucket) -> None:
        bucket = bucket.since(self._since)
        rank, at = bucket.rank, bucket.at
        rows = np.flatnonzero(bucket.event == self._steps[0])
        if not len(rows):
            return
        groups = np.zeros(len(bucket.contacts), np.int64)
        if bucket.group is not None:
            firsts = rows[begins(rank[rows])]
            groups[rank[firsts]] = bucket.group[firsts]
        begun = at[rows]
        for number, step in enumerate(self._steps):
            if number:
                reached = np.flatnonzero(bucket.event == step)
                # The latest row of the step before that is strictly earlier. Of several begins, it carries the latest.
                is_before = np.zeros(len(at), bool)
                is_before[rows] = True
                before = np.cumsum(is_before)[reached] - is_before[reached] - 1
                reached, before = reached[before >= 0], before[before >= 0]
                on_the_way = (rank[rows[before]] == rank[reached]) & (at[reached] - begun[before] <= self._within)
                rows, begun = reached[on_the_way], begun[before[on_the_way]]
                if not len(rows):
                    return
            starts = begins(rank[rows])
            self._took[number].append(np.minimum.reduceat(at[rows] - begun, starts))
            if self._grouped:
                self._of[number].append(groups[rank[rows[starts]]].astype(np.int32))

    def counted(self) -> dict[str, Any]:
        groups = np.unique(_concatenated(self._of[0])).tolist() if self._grouped else [0]
        steps = []
        for step, name in enumerate(self._names):
            durations = _concatenated(self._took[step]) / MILLION
            self._took[step] = []  # makes room for the medians
            bounds: tuple[Any, Any] = ([0], [len(durations)])
            if self._grouped:
                owners = _concatenated(self._of[step])
                order = np.argsort(owners, kind="stable")
                durations, owners = durations[order], owners[order]
                bounds = np.searchsorted(owners, groups), np.searchsorted(owners, groups, "right")
            for group, begin, end in zip(groups, *bounds, strict=True):
                chosen = durations[begin:end]
                record = {"step": step + 1, "event": name, "contacts": len(chosen)}
                steps.append(record | {"seconds": median(chosen), "part": self._text(group)})
        return {"steps": steps}

    def _text(self, group: int) -> str | None:
        return self._texts[group] if self._grouped and group >= 0 else None


def _concatenated(arrays: list[Array]) -> Array:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


# --- Cohorts: retention, and sums


class _CohortKernel(Kernel):
    """Contacts by the period of their first start ever."""

    def __init__(self, every: Every, start: int, since: int) -> None:
        self.start = start
        self._every, self._since = every, since
        self._sizes: Counter[int] = Counter()

    def _members(self, bucket: Bucket) -> tuple[Array, Array]:
        """Return for each contact when it began, and its cohort, or `_NEVER`; count the cohorts."""
        starts = np.flatnonzero(bucket.event == self.start)
        first = bucket.first_of_each(starts, -1)
        began = np.where(first >= 0, bucket.at[first], _NEVER)
        began[began < self._since] = _NEVER
        is_member = began < _NEVER
        cohort = np.full(len(began), _NEVER)
        if is_member.any():
            cohort[is_member] = ordinals(began[is_member], self._every)
            for ordinal, size in zip(*map(Array.tolist, _counts(cohort[is_member])), strict=True):
                self._sizes[ordinal] += size
        return began, cohort

    def _cohorts(self) -> list[dict[str, Any]]:
        return [{"cohort": self._text(ordinal), "size": size} for ordinal, size in self._sizes.items()]

    def _text(self, ordinal: int) -> str:
        return start_text(ordinal, self._every)


class RetentionKernel(_CohortKernel):
    def __init__(self, report: Retention, since: int, names: Texts) -> None:
        start = names.number(report.start.lower())
        super().__init__(report.every, start, since)
        self._back = None if report.back is None else names.number(report.back.lower())
        self.events = None if self._back is None else (start, self._back)
        self._returned: Counter[tuple[int, int]] = Counter()

    def add(self, bucket: Bucket) -> None:
        began, cohort = self._members(bucket)
        rank, at = bucket.rank, bucket.at
        if self._back is not None:
            rows = np.flatnonzero((bucket.event == self._back) & (at >= began[rank]))
            rank, at = rank[rows], at[rows]
        at = ordinals(at, self._every)
        new = begins(rank, at)
        rank, at = rank[new], at[new]
        # If any event counts, the start itself does, and no other event of its period has to be compared with it.
        back = np.flatnonzero(at >= cohort[rank])
        _count(self._returned, cohort[rank[back]], at[back])

    def counted(self) -> dict[str, Any]:
        returned = [
            {"cohort": self._text(cohort), "at": self._text(at), "contacts": contacts}
            for (cohort, at), contacts in self._returned.items()
        ]
        return {"cohorts": self._cohorts(), "returned": returned}


class CohortsKernel(_CohortKernel):
    def __init__(self, report: Cohorts, since: int, names: Texts) -> None:
        start = names.number(report.start.lower())
        super().__init__(report.every, start, since)
        self.value_event = names.number(report.event.lower())
        self.events = start, self.value_event
        self._with_value = report.value is not None
        self._events: Counter[tuple[int, int]] = Counter()
        self._totals: dict[tuple[int, int], Total] = defaultdict(Total)

    def add(self, bucket: Bucket) -> None:
        began, cohort = self._members(bucket)
        rank = bucket.rank
        rows = np.flatnonzero((bucket.event == self.value_event) & (bucket.at >= began[rank]))
        cohorts, at = cohort[rank[rows]], ordinals(bucket.at[rows], self._every)
        _count(self._events, cohorts, at)
        if self._with_value and bucket.numbers is not None and len(rows):
            _add_numbers(self._totals, _grouped(cohorts, at), bucket.numbers.at(rows))

    def counted(self) -> dict[str, Any]:
        totals = []
        for (cohort, at), events in self._events.items():
            total = self._totals[cohort, at].text() if self._with_value else events
            totals.append({"cohort": self._text(cohort), "at": self._text(at), "events": events, "total": total})
        return {"cohorts": self._cohorts(), "totals": totals}


class _Groups(NamedTuple):
    """The rows of two arrays, grouped by their pair of values.

    `order` has the rows pair by pair; `starts`, where each pair begins in it.
    """

    pairs: list[tuple[int, int]]
    order: Array
    starts: Array

    def sizes(self) -> Array:
        return np.diff(self.starts, append=len(self.order))


def _grouped(first: Array, second: Array) -> _Groups:
    """Group the places of two arrays, which are not empty."""
    keys, pair_of = _pair_keys(first, second)
    order = _ordered(keys)
    starts = begins(keys[order])
    return _Groups([pair_of(key) for key in keys[order[starts]].tolist()], order, starts)


def _ordered(keys: Array) -> Array:
    """Return the places of whole numbers in ascending order, equal ones in their order."""
    least = keys.min()
    if keys.max() - least < 1 << 16:  # numpy sorts these without comparing them
        keys = (keys - least).astype(np.uint16)
    return np.argsort(keys, kind="stable")


def _add_numbers(totals: dict[tuple[int, int], "Total"], groups: _Groups, numbers: Numbers) -> None:
    """Add numbers to the total of their pair. With hundreds of pairs, calls for each would take most of the time."""
    owner = np.repeat(np.arange(len(groups.pairs)), groups.sizes())
    is_exact = numbers.is_exact[groups.order]
    exact, owners = groups.order[is_exact], owner[is_exact]
    if len(exact):
        starts = begins(owners)
        millionths = numbers.millionths[exact]
        # Halves of 32 bits, because a sum of 64 bits could overflow.
        highs, lows = np.add.reduceat(millionths >> 32, starts), np.add.reduceat(millionths & 0xFFFFFFFF, starts)
        columns = (
            owners[starts],
            highs,
            lows,
            np.maximum.reduceat(millionths, starts),
            np.gcd.reduceat(millionths, starts),
            np.maximum.reduceat(numbers.decimals[exact], starts),
        )
        floats = np.split(_floats(millionths), starts[1:])
        for number, high, low, largest, divisor, decimals, values in zip(
            *map(Array.tolist, columns), floats, strict=True
        ):
            total = totals[groups.pairs[number]]
            total.add_exact((high << 32) + low, max(decimals, _decimals_of(divisor)), largest, values)
    if numbers.others:
        owners = np.empty_like(owner)
        owners[groups.order] = owner
        for place, decimal in numbers.others.items():
            totals[groups.pairs[owners[place]]].add_other(decimal)


class Total:
    """A sum of numbers, exact, with as many decimals as Postgres gives it; their count, the largest and the median."""

    def __init__(self) -> None:
        self._millionths = self._decimals = 0
        self._others = Decimal(0)
        self._largest: Decimal | None = None
        self._floats: list[Array] = []
        self._other_floats = array("d")
        self.count = 0

    def add_exact(self, millionths: int, decimals: int, largest: int, floats: Array) -> None:
        """Add numbers: their sum in millionths, their most decimals, the largest in millionths, and all as doubles."""
        self.count += len(floats)
        self._millionths += millionths
        self._decimals = max(self._decimals, decimals)
        self._offer(Decimal(largest).scaleb(-6))
        self._floats.append(floats)

    def add_other(self, number: Decimal) -> None:
        """Add a number that is not a whole number of millionths, or too large."""
        self.count += 1
        self._others = _DIGITS.add(self._others, number)
        self._decimals = max(self._decimals, -int(number.as_tuple().exponent))
        self._offer(number)
        self._other_floats.append(float(number))

    def _offer(self, number: Decimal) -> None:
        self._largest = number if self._largest is None else max(self._largest, number)

    def text(self) -> str | None:
        """Return the sum; None without a number."""
        if not self.count:
            return None
        total = _DIGITS.add(_DIGITS.scaleb(Decimal(self._millionths), -6), self._others)
        return f"{total:.{self._decimals}f}"

    def largest(self) -> str | None:
        return None if self._largest is None else f"{self._largest:f}"

    def median(self) -> float | None:
        return median(np.concatenate([*self._floats, np.array(self._other_floats)]))


def _decimals_of(millionths: int) -> int:
    """Return the digits after the point that all multiples of a number of millionths need at most."""
    decimals = 6
    while decimals and millionths % 10 == 0:
        millionths, decimals = millionths // 10, decimals - 1
    return decimals


def _floats(millionths: Array) -> Array:
    """Return the nearest doubles. Below 2^53, one division of doubles rounds once and is therefore exact."""
    floats = millionths / MILLION
    for place in np.flatnonzero(np.abs(millionths) >= _EXACT_FLOAT).tolist():
        floats[place] = int(millionths[place]) / MILLION
    return floats


# --- Active users


class ActiveUsersKernel(Kernel):
    """Contacts by period: all, those without an earlier event, and those active in the period before as well."""

    history = True

    def __init__(self, report: ActiveUsers, since: int, names: Texts) -> None:
        self.events = None if report.event is None else (names.number(report.event.lower()),)
        self._every, self._since = report.every, since
        # The period before the one in which the report begins, for `stayed`
        self._before = ordinals(np.array([since]), report.every)[0] - 1
        self._counts: dict[int, Array] = defaultdict(lambda: np.zeros(4, np.int64))

    def add(self, bucket: Bucket) -> None:
        rank, at, in_period = bucket.rank, ordinals(bucket.at, self._every), bucket.at >= self._since
        first = begins(rank)
        ever_before = np.zeros(len(bucket.contacts), bool)
        ever_before[rank[first]] = ~in_period[first]
        if not in_period.all():
            lately = np.flatnonzero(at >= self._before)
            rank, at, in_period = rank[lately], at[lately], in_period[lately]
        if not in_period.any():
            return
        least, length = int(at.min()), int(at.max() - at.min()) + 1
        starts = begins(rank, at)
        events = np.bincount(at[in_period] - least, minlength=length)
        has_events = in_period[np.append(starts[1:], len(at)) - 1]  # the last one is the latest
        rank, at = rank[starts], at[starts]
        begin = np.ones(len(rank), bool)
        np.not_equal(rank[1:], rank[:-1], out=begin[1:])
        stayed = np.zeros(len(rank), bool)
        np.equal(at[1:] - at[:-1], 1, out=stayed[1:])
        stayed &= ~begin
        new = begin & ~ever_before[rank]
        place = at - least
        counts = [np.bincount(place[chosen], minlength=length) for chosen in (has_events, new, stayed & has_events)]
        for number in np.flatnonzero(counts[0]).tolist():
            self._counts[least + number] += np.array([*(count[number] for count in counts), events[number]])

    def counted(self) -> dict[str, Any]:
        names = ("contacts", "new", "stayed", "events")
        return {
            "periods": [
                {"at": start_text(ordinal, self._every)} | dict(zip(names, counts.tolist(), strict=True))
                for ordinal, counts in self._counts.items()
            ]
        }


# --- Paths


class PathsKernel(Kernel):
    """How many contacts took each path."""

    is_ordered = True

    def __init__(self, report: Paths, since: int, names: Texts) -> None:
        self._first = None if report.start is None else names.number(report.start.lower())
        self._steps, self._limit, self._within = report.steps, report.limit, report.within_seconds * MILLION
        self._since, self._names = since, names
        self._contacts: Counter[tuple[int, ...]] = Counter()

    def add(self, bucket: Bucket) -> None:
        bucket = bucket.since(self._since)
        if not len(bucket.at):
            return
        rank = bucket.rank
        starts = np.arange(len(rank)) if self._first is None else np.flatnonzero(bucket.event == self._first)
        first = bucket.first_of_each(starts, len(rank))
        last = np.full(len(first), np.iinfo(np.int64).min)
        has_begun = first < len(rank)
        last[has_begun] = bucket.at[first[has_begun]] + self._within
        rows = np.flatnonzero(bucket.at <= last[rank])
        rows = rows[rows >= first[rank[rows]]]
        rank, event = rank[rows], bucket.event[rows].astype(np.int64)
        if not len(rows):
            return
        new = begins(rank, event)
        rank, event = rank[new], event[new]
        starts = begins(rank)
        number = np.arange(len(rank)) - np.repeat(starts, np.diff(np.append(starts, len(rank))))
        kept = number < self._steps
        path = np.full((len(starts), self._steps), -1, np.int64)
        path[np.cumsum(number == 0)[kept] - 1, number[kept]] = event[kept]
        for events, contacts in _count_rows(path, self._names.end):
            self._contacts[events] += contacts

    def counted(self) -> dict[str, Any]:
        started = self._contacts.total()
        most = sorted(self._contacts.values(), reverse=True)[: self._limit]
        # Equally frequent paths are ordered by Postgres, in the order of its texts.
        paths = [(path, contacts) for path, contacts in self._contacts.items() if contacts >= most[-1]]
        return {
            "paths": [
                {"path": [self._names[event] for event in path], "contacts": contacts, "started": started}
                for path, contacts in paths
            ]
        }


def _count_rows(table: Array, names: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield each different row of a table of whole numbers from -1, without its end of -1, and how often it occurs."""
    keys, width = np.zeros(len(table), np.int64), 1
    for column in table.T:
        if width > _NEVER // (names + 1):  # the next column does not fit, but numbers of the rows so far are smaller
            different, keys = np.unique(keys, return_inverse=True)
            width = len(different)
        keys, width = keys * (names + 1) + column + 1, width * (names + 1)
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    for row, count in zip(table[first].tolist(), counts.tolist(), strict=True):
        yield tuple(event for event in row if event >= 0), count


# --- Revenue


class RevenueKernel(Kernel):
    """Events, contacts and the sum of a number, by period and group."""

    def __init__(self, report: Revenue, since: int, names: Texts, texts: Texts) -> None:
        self.by_event = self.value_event = names.number(report.event.lower())
        self.events = (self.by_event,)
        self._every, self._since, self._texts = report.every, since, texts
        self._grouped = report.by is not None
        self._events: Counter[tuple[int, int]] = Counter()
        self._contacts: Counter[tuple[int, int]] = Counter()
        self._totals: dict[tuple[int, int], Total] = defaultdict(Total)

    def add(self, bucket: Bucket) -> None:
        bucket = bucket.since(self._since)
        if not len(bucket.at):
            return
        nothing = np.zeros(len(bucket.at), np.int64)
        at = nothing if self._every is None else ordinals(bucket.at, self._every)
        groups = _grouped(at, nothing if bucket.group is None else bucket.group.astype(np.int64))
        rank = bucket.rank[groups.order]
        is_new = np.ones(len(rank), np.int64)
        np.not_equal(rank[1:], rank[:-1], out=is_new[1:])
        is_new[groups.starts] = 1
        contacts = np.add.reduceat(is_new, groups.starts)
        for pair, events, of_contacts in zip(groups.pairs, groups.sizes().tolist(), contacts.tolist(), strict=True):
            self._events[pair] += events
            self._contacts[pair] += of_contacts
        if len(self._events) > MAX_RECORDS:  # such as of a path to identifiers: each has a total in memory
            raise UncountableError(f"the answer has more than {MAX_RECORDS} records")
        if bucket.numbers is not None:
            _add_numbers(self._totals, groups, bucket.numbers)

    def counted(self) -> dict[str, Any]:
        if self._every is None and not self._grouped:
            self._events[0, 0] += 0  # without groups there is always a row
        totals = []
        for (at, group), events in self._events.items():
            total = self._totals[at, group]
            record: dict[str, Any] = {"events": events, "contacts": self._contacts[at, group], "numbers": total.count}
            record |= {"total": total.text(), "median": total.median(), "largest": total.largest()}
            record["at"] = None if self._every is None else start_text(at, self._every)
            record["part"] = self._texts[group] if self._grouped and group >= 0 else None
            totals.append(record)
        return {"totals": totals}


# --- Time to convert


class TimeToConvertKernel(Kernel):
    """Contacts by how long they took from their first start in the period to the first goal after it."""

    def __init__(self, report: TimeToConvert, since: int, names: Texts) -> None:
        self.events = self._first, self._goal = names.number(report.start.lower()), names.number(report.goal.lower())
        self._since, self._within = since, report.within_seconds * MILLION
        spans = {_span_us(span) for span in SPANS} | {self._within}
        self._spans = np.array(sorted(span for span in spans if span <= self._within))
        self._contacts = np.zeros(len(self._spans), np.int64)
        self._started = 0

    def add(self, bucket: Bucket) -> None:
        in_period = bucket.at >= self._since
        rank = bucket.rank
        first = bucket.first_of_each(np.flatnonzero(in_period & (bucket.event == self._first)), -1)
        began = bucket.at[first]
        self._started += int((first >= 0).sum())
        took = bucket.at - began[rank]
        is_goal = (bucket.event == self._goal) & in_period & (first[rank] >= 0) & (took > 0) & (took <= self._within)
        goals = np.flatnonzero(is_goal)
        chosen = goals[begins(rank[goals])]
        self._contacts += np.bincount(np.searchsorted(self._spans, took[chosen]), minlength=len(self._spans))

    def counted(self) -> dict[str, Any]:
        durations: list[dict[str, Any]] = [
            {"duration": f"{span / MILLION:f} seconds", "contacts": contacts}
            for span, contacts in zip(self._spans.tolist(), self._contacts.tolist(), strict=True)
        ]
        durations.append({"duration": None, "contacts": self._started - int(self._contacts.sum())})
        return {"durations": durations}


def _span_us(span: str) -> int:
    number, unit = span.removesuffix("s").split(" ")
    return int(number) * _SPAN_UNITS_S[unit] * MILLION
