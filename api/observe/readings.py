"""Two readings of the numbers of all processes, and what happened between them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from api.meters import Spans


class Reading(msgspec.Struct, frozen=True):
    """The samples of all processes; each process has read them by a clock of its own."""

    samples: list[Sample]

    def of(self, name: str) -> Iterator[Sample]:
        """Give the samples of a name, without our prefix."""
        return (each for each in self.samples if each.name in (f"workbench_{name}", name))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all processes, or those samples that have the labels."""
        return sum(each.value for each in self.of(name) if labels.items() <= each.labels.items())

    def largest(self, name: str) -> float | None:
        """Return the largest value of any process; None where there is none."""
        return max((each.value for each in self.of(name) if each.value == each.value), default=None)

    def processes(self) -> list[str]:
        """Return the names of the processes."""
        return sorted({each.labels["process"] for each in self.of("process_info")})


def read(families: Iterable[Metric]) -> Reading:
    """Return a reading."""
    return Reading([sample for family in families for sample in family.samples])


class Change(msgspec.Struct, frozen=True):
    """What happened between two readings, per second."""

    before: Reading
    after: Reading

    def rates(self, name: str, *by: str) -> defaultdict[tuple[str, ...], float]:
        """Return how much a count grew per second, by some of its labels; of a process that just began nothing."""
        spans = self._spans()
        known = {_key(each): each.value for each in self.before.of(name)}
        rates: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for each in self.after.of(name):
            span = spans.get(each.labels["process"], 0.0)
            words = tuple(each.labels[label] for label in by)
            rates[words] += (each.value - known.get(_key(each), 0.0)) / span if span else 0.0
        return rates

    def quantile(self, name: str, share: float) -> float | None:
        """Return within how many seconds such a share was done, as a bound of the histogram; None when nothing was."""
        counts = self.rates(f"{name}_bucket", "le")
        all_of_them = counts[("+Inf",)]
        for bound in Spans.BOUNDS:
            if all_of_them and counts[(str(bound),)] >= share * all_of_them:
                return bound
        return None

    def _spans(self) -> dict[str, float]:
        """Return the seconds between both readings by the clock of each process."""
        before, after = (
            {each.labels["process"]: each.value for each in reading.of("clock_seconds")}
            for reading in (self.before, self.after)
        )
        return {process: after[process] - before[process] for process in after.keys() & before.keys()}


def _key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name, tuple(sorted(sample.labels.items()))
