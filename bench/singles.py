"""Durable single events, with and without the fast path, beside a bare route that only decodes them, and FastAPI."""

import msgspec

from bench import postgres, site
from bench.effort import Effort, Measurement
from bench.figures import Slice, cpu_us, per_core, rates
from bench.load import LoadSpec
from bench.sending import accounted, send
from bench.table import Row, ratio_at_least, row

CONNECTIONS = 128


def order_of_singles(database: postgres.Database, effort: Effort) -> LoadSpec:
    """Return a load that keeps one API process busy."""
    return LoadSpec(
        path=site.SINGLES,
        key=database.live_key,
        connections=CONNECTIONS,
        seconds=effort.seconds,
        new_every=effort.new_every,
    )


def measure(effort: Effort) -> Measurement:
    """Alternate between the bare route, one API process with and one without the fast path, and one FastAPI process."""
    bare: list[Slice] = []
    theirs: list[Slice] = []
    with postgres.running() as server:
        database = postgres.prepared(server, "singles")
        order = order_of_singles(database, effort)
        fewer = msgspec.structs.replace(order, connections=site.FASTAPI_POOL)  # more would only wait
        with (
            site.noop(server) as noop,
            site.fastapi(server, database.live_key) as fastapi,
            site.apis(server, database, 1) as (api,),
            site.bare_apis(server, database, 1, fast_path="off") as (ordinary,),
        ):
            for warmed_up in (noop, fastapi, api, ordinary):
                send(server, fewer, warmed_up)
            with accounted(database) as accepted:
                for _ in range(effort.rounds):
                    bare.append(send(server, order, noop))
                    accepted.append(send(server, order, api))
                    accepted.append(send(server, order, ordinary))
                    theirs.append(send(server, fewer, fastapi))
    ours, without = accepted[::2], accepted[1::2]
    slices = {"bare": bare, "singles": ours, "fast path off": without, "fastapi": theirs}
    return Measurement(_rows(bare, ours, without, theirs), slices)


def _rows(bare: list[Slice], ours: list[Slice], without: list[Slice], theirs: list[Slice]) -> list[Row]:
    def to_route(figure: list[float]) -> tuple[str, list[float]]:
        return "bare route", figure

    def to_endpoint(figure: list[float]) -> tuple[str, list[float]]:
        return "FastAPI", figure

    cores, of_route = per_core(ours, "service"), per_core(bare, "service")
    return [
        row("singles, durable", "events/s", rates(ours), to_route(rates(bare)), ratio_at_least(0.35)),
        row("  without the fast path", "events/s", rates(without), to_route(rates(bare))),
        row("  per core that the API uses", "events/s", cores, to_route(of_route), ratio_at_least(0.5)),
        row("  against FastAPI", "events/s", rates(ours), to_endpoint(rates(theirs)), ratio_at_least(12)),
        row("  CPU in the API", "µs/event", cpu_us(ours, "service"), to_route(cpu_us(bare, "service"))),
        row("  CPU without the fast path", "µs/event", cpu_us(without, "service"), to_route(cpu_us(bare, "service"))),
        row("  CPU in Postgres", "µs/event", cpu_us(ours, "postgres"), to_endpoint(cpu_us(theirs, "postgres"))),
        row("  CPU in the load generator", "µs/event", cpu_us(ours, "load"), to_route(cpu_us(bare, "load"))),
    ]
