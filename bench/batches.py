"""Batches of a hundred events on two API processes, compared with a bare `COPY` of the same rows."""

from bench import copying, postgres, site
from bench.effort import Effort, Measurement
from bench.figures import Slice, cpu_us, rates
from bench.load import LoadSpec
from bench.processes import peak_memory
from bench.sending import accounted, send
from bench.table import at_least, at_most, ratio_at_least, row
from bench.traffic import BATCH

CONNECTIONS = 16
_LONGER = 2  # times a slice of singles, so that the COPY of the rows takes long enough to be timed
_MIB = 2**20


def order_of_batches(database: postgres.Database, effort: Effort) -> LoadSpec:
    """Return a load that keeps two API processes busy."""
    return LoadSpec(
        path=site.BATCHES,
        key=database.live_key,
        connections=CONNECTIONS,
        seconds=_LONGER * effort.seconds,
        events_per_request=BATCH,
        new_every=effort.new_every,
    )


def measure(effort: Effort) -> Measurement:
    """Alternate between ingest and the `COPY` of what it just stored."""
    copied: list[Slice] = []
    with postgres.running() as server:
        database, twin = postgres.prepared(server, "batches"), postgres.prepared(server, "copied")
        order, beginning = order_of_batches(database, effort), copying.now(database)
        with site.apis(server, database, 2) as apis:
            send(server, order, *apis)
            copying.copy_rows(server, database, twin, beginning)
            with accounted(database) as ours:
                for _ in range(effort.rounds):
                    since = copying.now(database)
                    ours.append(send(server, order, *apis))
                    copied.append(copying.copy_rows(server, database, twin, since))
            memory = [max(peak_memory(api.pid) for api in apis) / _MIB]
    by_copy = ("COPY", cpu_us(copied, "postgres"))
    return Measurement(
        [
            row("batches of 100, two APIs on two cores", "events/s", rates(ours), None, at_least(20_000)),
            row("  against bare COPY", "events/s", rates(ours), ("COPY", rates(copied)), ratio_at_least(0.35)),
            row("  CPU in the APIs", "µs/event", cpu_us(ours, "service")),
            row("  CPU in Postgres", "µs/event", cpu_us(ours, "postgres"), by_copy),
            row("  CPU in the load generator", "µs/event", cpu_us(ours, "load")),
            row("memory of an API process, at its most", "MiB", memory, None, at_most(200)),
        ],
        {"batches": ours, "copy": copied},
    )
