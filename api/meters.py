"""Counts and spans of one process, kept as plain numbers where things happen; `api/observe` gives them their form.

Labels are bounded: whatever words arrive, a tally tells so many apart and no more.
"""

from bisect import bisect_left
from collections.abc import Iterator

OTHER = "other"


class Tally:
    """Counts by words, one for each of `labels`. Past `most` combinations, new ones are counted together as `other`."""

    def __init__(self, *labels: str, most: int = 500) -> None:
        self.labels = labels
        self._most = most
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *words: str, times: int = 1) -> None:
        """Count."""
        try:
            self._counts[words] += times
        except KeyError:
            if len(self._counts) >= self._most:
                words = (OTHER,) * len(self.labels)
            self._counts[words] = self._counts.get(words, 0) + times

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Give every combination of words with its count."""
        return iter(tuple(self._counts.items()))


class Spans:
    """How long things took: how many up to each of the bounds (seconds), and the sum."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counts = [0] * (len(self.BOUNDS) + 1)

    def note(self, nanoseconds: int) -> None:
        """Count one."""
        seconds = nanoseconds / 1e9
        self.seconds += seconds
        self._counts[bisect_left(self.BOUNDS, seconds)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Return how many took at most so long, for each bound as text, the last without one."""
        names = [*map(str, self.BOUNDS), "+Inf"]
        return [(name, float(sum(self._counts[: place + 1]))) for place, name in enumerate(names)]
