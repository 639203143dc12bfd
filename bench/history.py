"""The cost of the history of contacts: an API process with it, and one without it, on the same database.

CPU time of API and Postgres is compared, in turn, for events of new contacts, of returning contacts that stay as they
are, and of those that change one attribute or five.
"""

import itertools

import msgspec

from bench import batches, postgres, singles, site
from bench.effort import Effort, Measurement
from bench.figures import Slice, cpu_us
from bench.load import LoadSpec
from bench.processes import Service
from bench.sending import accounted, send
from bench.table import Row, ratio_at_most, row

_KINDS = {"new": (1, 0), "unchanged": (0, 0), "one attribute": (0, 1), "five attributes": (0, 5)}  # new_every, changing
_UNCHANGED, _CHANGED = 1.01, 1.05
_TRIES = 3  # on a busy machine, all batches of a slice may be answered 503


def measure(effort: Effort) -> Measurement:
    """Alternate between the two processes, for each kind of event, alone and in batches."""
    slices: dict[str, list[Slice]] = {}
    rows: list[Row] = []
    with postgres.running() as server:
        database = postgres.prepared(server, "history")
        with (
            site.apis(server, database, 1) as (api,),
            site.bare_apis(server, database, 1, module="bench.without_history") as (without,),
            accounted(database) as sent,
        ):
            sizes = {"alone": singles.order_of_singles, "in batches": batches.order_of_batches}
            for (kind, (new_every, changing)), (size, order_of) in itertools.product(_KINDS.items(), sizes.items()):
                order = msgspec.structs.replace(order_of(database, effort), new_every=new_every, changing=changing)
                ours, reference = _alternate(server, order, [api, without], effort.rounds, sent)
                name, bound = f"history: {kind}, {size}", _CHANGED if changing else _UNCHANGED
                rows.append(row(name, "µs/event", _cpu(ours), ("no history", _cpu(reference)), ratio_at_most(bound)))
                slices[name], slices[f"{name}, none"] = ours, reference
    return Measurement(rows, slices)


def _alternate(
    server: postgres.Postgres, order: LoadSpec, services: list[Service], rounds: int, sent: list[Slice]
) -> tuple[list[Slice], list[Slice]]:
    """Send a load to two services in turn, after a round that is not counted."""
    taken: tuple[list[Slice], list[Slice]] = ([], [])
    for number in range(rounds + 1):
        for position in (0, 1) if number % 2 else (1, 0):
            tries = [send(server, order, services[position])]
            while not tries[-1].accepted and len(tries) < _TRIES:
                tries.append(send(server, order, services[position]))
            sent += tries
            if not tries[-1].accepted:
                raise RuntimeError(f"{_TRIES} times in a row no event was accepted: {tries[-1].statuses}")
            if number:
                taken[position].append(tries[-1])
    return taken


def _cpu(slices: list[Slice]) -> list[float]:
    """Return the CPU time of API and Postgres per event."""
    return [sum(parts) for parts in zip(cpu_us(slices, "service"), cpu_us(slices, "postgres"), strict=True)]
