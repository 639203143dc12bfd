"""The result of a slice, and the arithmetic of the table: medians, their spread, paired ratios, quantiles."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec

QUANTILES = 200  # steps in which a distribution of latencies is kept: half a percent each


class Slice(msgspec.Struct, frozen=True):
    """The result of a load: counts, seconds from the first request to the last answer, latencies, CPU seconds.

    `cpu` has the CPU seconds by process: `load` (the generator), `service`, `postgres`.
    """

    requests: int
    accepted: int  # events
    refused: int  # events
    seconds: float
    statuses: dict[str, int]
    latencies_ms: list[float]  # as made by `quantiles`
    cpu: dict[str, float]
    others: float | None = None  # cores that other processes of the machine used meanwhile


class Spread(msgspec.Struct, frozen=True):
    """A figure measured in several rounds: the median, and the lowest and highest round."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Return the spread of at least one value."""
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[0], ordered[-1])


def paired(subject: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return the ratio of each round.

    Both sides of a pair are measured within a minute, so the noise of the machine cancels out.
    """
    return [mine / its for mine, its in zip(subject, reference, strict=True)]


def quantiles(values: Sequence[float]) -> list[float]:
    """Return the smallest value, the largest, and those between in steps of half a percent; nothing for no values."""
    ordered = sorted(values)
    return [ordered[round(step * (len(ordered) - 1) / QUANTILES)] for step in range(QUANTILES + 1)] if ordered else []


def percentile(distribution: Sequence[float], percent: float) -> float:
    """Return a percentile of a distribution made by `quantiles`; `percent` is a multiple of one half."""
    return distribution[round(percent * QUANTILES / 100)]


def rates(slices: Sequence[Slice]) -> list[float]:
    """Return the accepted events per second of each slice."""
    return [slice_.accepted / slice_.seconds for slice_ in slices]


def per_core(slices: Sequence[Slice], process: str) -> list[float]:
    """Return the accepted events per CPU second of a kind of process in each slice."""
    return [slice_.accepted / slice_.cpu[process] for slice_ in slices]


def cpu_us(slices: Sequence[Slice], process: str) -> list[float]:
    """Return the CPU microseconds per accepted event of a kind of process in each slice."""
    return [slice_.cpu[process] / slice_.accepted * 1e6 for slice_ in slices]
