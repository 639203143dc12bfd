"""Two API processes and two engines, each against one, where neither the database nor the machine is the limit.

Each process gets the same small share of a core (`bench/shares.py`), so that two of them, Postgres and the load fit on
two cores. This measures the program: whether a second process does as much as the first, or waits for it. `singles`,
`batches` and `engine` measure the load that a database can take; docs/sizing.md combines both.
"""

from bench import engines, postgres, site
from bench.automations import thanks
from bench.effort import Effort, Measurement
from bench.figures import Slice, cpu_us, rates
from bench.postgres import Postgres
from bench.sending import accounted, send
from bench.shares import SHARE, limited
from bench.singles import order_of_singles
from bench.table import Row, ratio_at_least, row

_ENTRIES = 800  # approximate number that an engine with its share completes in a second
_LONGER = 2  # times other slices: the periods of a share are coarse


def measure(effort: Effort) -> Measurement:
    """Alternate between one and two API processes, then between one and two engines."""
    with postgres.running() as server:
        one_api, two_apis = _apis(server, effort)
        one_engine, two_engines = _engines(server, effort)
    rows = [
        *_rows("API processes", ("event", "events/s"), one_api, two_apis),
        *_rows("engines", ("entry", "entries/s"), one_engine, two_engines),
    ]
    slices = {"one_api": one_api, "two_apis": two_apis, "one_engine": one_engine, "two_engines": two_engines}
    return Measurement(rows, slices)


def _rows(who: str, units: tuple[str, str], one: list[Slice], two: list[Slice]) -> list[Row]:
    share = f"{SHARE:.0%} of a core each"
    piece, unit = units
    return [
        row(f"two {who}, {share}", unit, rates(two), ("one", rates(one)), ratio_at_least(1.6)),
        row("  CPU in them", f"µs/{piece}", cpu_us(two, "service"), ("one", cpu_us(one, "service"))),
        row("  CPU in Postgres", f"µs/{piece}", cpu_us(two, "postgres"), ("one", cpu_us(one, "postgres"))),
    ]


def _apis(server: Postgres, effort: Effort) -> tuple[list[Slice], list[Slice]]:
    database = postgres.prepared(server, "apis")
    order = order_of_singles(database, effort)
    with site.apis(server, database, 2) as services, accounted(database) as slices:
        for _ in range(effort.rounds + 1):
            for some in (services[:1], services):
                with limited(*(service.pid for service in some)):
                    slices.append(send(server, order, *some))
    return slices[2::2], slices[3::2]


def _engines(server: Postgres, effort: Effort) -> tuple[list[Slice], list[Slice]]:
    database = postgres.prepared(server, "engines")
    with site.apis(server, database, 1) as (api,):
        automation_id = site.publish(api, database, thanks())
    with engines.accounted(database) as slices:
        for _ in range(effort.rounds + 1):
            for count in (1, 2):
                entries = int(_ENTRIES * count * _LONGER * effort.seconds)
                with engines.engines(server, database, count) as pids, limited(*pids):
                    slices.append(engines.work_off(server, database, pids, automation_id, entries))
    return slices[2::2], slices[3::2]
