"""The numbers of a process of ours: those of its own parts, and those that every process has."""

import os
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import InfoMetricFamily, Metric

from api import logs
from api.clock import monotonic_ns, token
from api.observe.families import counter, gauge

Collect = Callable[[], Iterable[Metric]]


class Process:
    """One process; `name` tells it from all others, also from those of other containers that share the folder."""

    def __init__(self, role: str, collect: Collect) -> None:
        self.name = f"{role}-{token(3).hex()}"
        self._role = role
        self._own = collect
        self._usual = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """Give the numbers of this moment."""
        yield InfoMetricFamily(
            "workbench_process", "What process this is.", value={"role": self._role, "pid": str(os.getpid())}
        )
        yield gauge("clock_seconds", "The clock of this process when these numbers were read.", monotonic_ns() / 1e9)
        yield counter("log_lines_dropped", "Lines of the log that could not be written.", logs.dropped())
        yield from self._own()
        yield from self._usual.collect()

    def text(self) -> bytes:
        """Return the numbers of this moment in the text format of Prometheus."""
        return generate_latest(self)
