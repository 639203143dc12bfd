"""Growth: the cost of storing an event when millions are stored already.

One server has two databases, a new one and a full one, each with two API processes. Batches are sent to both in turn,
so the ratio shows the effect of the stored events alone.

Postgres writes a full page to the WAL when the page is first changed after a checkpoint. With random writes to a large
index this doubles the CPU time of Postgres for some seconds of the many minutes between two checkpoints. The
measurement therefore follows a checkpoint and a warm-up, in which most pages are written once.
"""

import msgspec

from bench import filling, postgres, site
from bench.batches import order_of_batches
from bench.effort import Effort, Measurement
from bench.figures import cpu_us, rates
from bench.sending import accounted, send
from bench.table import ratio_at_least, row

_WARM_UP_S = 10.0


def measure(effort: Effort) -> Measurement:
    """Alternate between a new database and one that has `effort.stored_millions` of events."""
    with postgres.running() as server:
        new, full = postgres.prepared(server, "new"), postgres.prepared(server, "full")
        filling.fill(full, effort.stored_millions * 1_000_000)
        with site.apis(server, new, 2) as of_new, site.apis(server, full, 2) as of_full:
            to_new, to_full = order_of_batches(new, effort), order_of_batches(full, effort)
            filling.settle(server)
            send(server, msgspec.structs.replace(to_new, seconds=_WARM_UP_S), *of_new)
            send(server, msgspec.structs.replace(to_full, seconds=_WARM_UP_S), *of_full)
            with accounted(new) as empty, accounted(full) as grown:
                for _ in range(effort.rounds):
                    empty.append(send(server, to_new, *of_new))
                    grown.append(send(server, to_full, *of_full))
    name, reference = f"batches at {effort.stored_millions} M stored events", "new database"
    return Measurement(
        [
            row(name, "events/s", rates(grown), (reference, rates(empty)), ratio_at_least(0.8)),
            row("  CPU in Postgres", "µs/event", cpu_us(grown, "postgres"), (reference, cpu_us(empty, "postgres"))),
        ],
        {"new": empty, "full": grown},
    )
