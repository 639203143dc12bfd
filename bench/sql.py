"""A million events with payloads through `wb.sql` into polars, compared with a direct ADBC read: time and memory.

Each read runs in a separate process, so the peak memory is that of one read. The two ways alternate.
"""

import subprocess
import sys
import time
from typing import Literal

import msgspec

from bench import filling, postgres, site
from bench.effort import Effort, Measurement
from bench.figures import Slice, cpu_us, rates
from bench.postgres import Database, Postgres
from bench.processes import Service
from bench.reading import ReadArguments, ReadResult
from bench.sending import cpu_so_far
from bench.table import at_most, ratio_at_least, ratio_at_most, row

_MILLION = 1_000_000
_FEW = 100_000
_STREAMS = 3
_TIMEOUT_S = 300.0
_MB = 1_000_000  # bytes


def measure(effort: Effort) -> Measurement:
    """Alternate between `wb.sql` and ADBC; then stream some rows and all rows."""
    rows = effort.stored_millions * _MILLION
    with postgres.running() as server:
        database = postgres.prepared(server, "sql")
        filling.fill(database, rows)
        with site.bare_apis(server, database, 1) as (service,):
            filling.settle(server)
            readers = _Readers(server, database, service)
            rounds = [(readers.read("frame", rows), readers.read("adbc", rows)) for _ in range(effort.rounds)]
            streams = [(readers.read("stream", _FEW), readers.read("stream", rows)) for _ in range(_STREAMS)]
    (ours, our_slices), (theirs, their_slices) = (zip(*(pair[side] for pair in rounds), strict=True) for side in (0, 1))
    if len({frame.schema for frame in (*ours, *theirs)}) != 1:
        raise RuntimeError(f"the frames differ: {ours[0].schema}, {theirs[0].schema}")
    reference = "ADBC"
    return Measurement(
        [
            row(
                f"wb.sql of {rows:,} events into polars",
                "rows/s",
                rates(our_slices),
                (reference, rates(their_slices)),
                ratio_at_least(0.6),
            ),
            row(
                "  CPU in Postgres",
                "µs/row",
                cpu_us(our_slices, "postgres"),
                (reference, cpu_us(their_slices, "postgres")),
            ),
            row("  CPU in the service", "µs/row", cpu_us(our_slices, "service")),
            row(
                "  CPU in the notebook", "µs/row", cpu_us(our_slices, "load"), (reference, cpu_us(their_slices, "load"))
            ),
            row(
                "  peak of memory over the frame's size",
                "times",
                [our.peak_bytes / our.frame_bytes for our in ours],
                (reference, [their.peak_bytes / their.frame_bytes for their in theirs]),
                at_most(2.5),
            ),
            row(
                "  streamed, peak of memory",
                "MB",
                [many.peak_bytes / _MB for _, (many, _) in streams],
                (f"of {_FEW:,} rows", [few.peak_bytes / _MB for (few, _), _ in streams]),
                ratio_at_most(1.2),
            ),
        ],
        {"sql": list(our_slices), "adbc": list(their_slices)},
    )


class _Readers:
    """Processes that read one after the other."""

    def __init__(self, server: Postgres, database: Database, service: Service) -> None:
        self._server, self._database, self._service = server, database, service

    def read(self, how: Literal["frame", "stream", "adbc"], rows: int) -> tuple[ReadResult, Slice]:
        """Read in a separate process; return its output and its slice."""
        url = f"http://127.0.0.1:{self._service.port}"
        arguments = ReadArguments(how, rows, url, self._database.workbench_key, self._database.dsn)
        before, begun = cpu_so_far(self._server, [self._service.pid]), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "bench.reading", msgspec.json.encode(arguments).decode()],
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-2000:])
        cpu = {name: spent - before[name] for name, spent in cpu_so_far(self._server, [self._service.pid]).items()}
        others = cpu.pop("others") / (time.perf_counter() - begun)
        read = msgspec.json.decode(done.stdout, type=ReadResult)
        if read.rows != rows:
            raise RuntimeError(f"{read.rows} of {rows} rows came")
        cpu["load"] = read.cpu
        return read, Slice(rows, rows, 0, read.seconds, {}, [], cpu, others)
