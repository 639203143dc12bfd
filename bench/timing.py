"""Times a piece of work from start to end, with the CPU time of every process involved."""

import time
from collections.abc import Callable, Sequence

from bench.figures import Slice
from bench.postgres import Postgres
from bench.sending import cpu_so_far


def timed(server: Postgres, pids: Sequence[int], count: int, work: Callable[[], None]) -> Slice:
    """Run `work`, which handles `count` pieces, and return its slice; the processes `pids` and Postgres do the work."""
    before, begun = cpu_so_far(server, pids), time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    cpu = {name: spent - before[name] for name, spent in cpu_so_far(server, pids).items()}
    others = cpu.pop("others") / seconds
    return Slice(
        requests=count, accepted=count, refused=0, seconds=seconds, statuses={}, latencies_ms=[], cpu=cpu, others=others
    )
