"""Latency at half load: an open loop at half the rate that a closed loop has just reached.

Latency is measured from the time at which a request was due. The bare route gets the same requests at the same times.
Its latency is that of the machine and the generator; the difference is that of the API.
"""

import msgspec

from bench import postgres, site
from bench.effort import Effort, Measurement
from bench.figures import Slice, percentile, rates
from bench.sending import accounted, send
from bench.singles import order_of_singles
from bench.table import at_most, row

_LONGER = 2  # times a slice of throughput: a 99th percentile needs many requests


def measure(effort: Effort) -> Measurement:
    """Alternate between a closed loop that finds the rate and open loops at half of it, on API and bare route."""
    bare: list[Slice] = []
    half: list[Slice] = []
    with postgres.running() as server:
        database = postgres.prepared(server, "latency")
        full_load = order_of_singles(database, effort)
        with site.noop(server) as noop, site.apis(server, database, 1) as (api,), accounted(database) as full:
            full.append(send(server, full_load, api))
            for _ in range(effort.rounds):
                full.append(send(server, full_load, api))
                rate = rates(full)[-1] / 2
                half_load = msgspec.structs.replace(full_load, seconds=_LONGER * effort.seconds, rate=rate)
                half.append(send(server, half_load, api))
                bare.append(send(server, half_load, noop))
            full.extend(half)
    return Measurement(
        [
            row("latency at half load, p50", "ms", _at(50, half), ("bare route", _at(50, bare))),
            row("latency at half load, p99", "ms", _at(99, half), ("bare route", _at(99, bare)), at_most(25)),
            row("  the load", "events/s", rates(half)),
        ],
        {"half": half, "bare": bare},
    )


def _at(percent: float, slices: list[Slice]) -> list[float]:
    return [percentile(slice_.latencies_ms, percent) for slice_ in slices]
