"""Backtests: duration and memory for stored events, when one event in ten starts the automation.

The graph has five nodes; one renders a text. Every contact has twenty events, and two of them start the automation.
Each backtest runs as in a notebook: in its own process, with one API process and two helper processes. Run as a module,
it takes an `Arguments` (JSON) as its argument and prints a `BacktestRun`.
"""

import resource
import subprocess
import sys
import time

import msgspec

from bench import filling, postgres, site
from bench.effort import Effort, Measurement
from bench.postgres import Database, Postgres
from bench.table import Row, at_most, ratio_at_most, row
from workbench import Workbench

PROCESSES = 2
_ROUNDS = 3
_MATCHING = 10  # one event in ten starts the automation
_SHORTEST_S, _EVENTS_PER_S = 8.0, 400_000  # promised: 8 s for a million events, 25 s for ten million
_TIMEOUT_S = 600.0
_THANKS = "Your deposit of {{ amountUsd }} {{ asset }} is here."


class Arguments(msgspec.Struct, frozen=True):
    """The URL of the server, and the key."""

    url: str
    key: str


class BacktestRun(msgspec.Struct, frozen=True):
    """Seconds from the call to the totals, entries, messages, and peak memory in bytes of the caller and the largest
    helper.
    """

    seconds: float
    entries: int
    messages: int
    own_memory: int
    helper_memory: int

    @property
    def memory(self) -> float:
        """The peak memory of all processes together, in MB."""
        return (self.own_memory + PROCESSES * self.helper_memory) / 1e6


def measure(effort: Effort) -> Measurement:
    """Alternate between a database with a million events (or the requested number) and one with a tenth of them."""
    many = effort.stored_millions * 1_000_000
    with postgres.running() as server:
        sizes: dict[int, list[BacktestRun]] = {}
        for events in (many // 10, many):
            database = postgres.prepared(server, f"of_{events}")
            filling.fill(database, events, ["deposit", *(f"other_{number}" for number in range(1, _MATCHING))])
            filling.settle(server)
            sizes[events] = _backtests(server, database, events)
    few, all_of_them = sizes.values()
    return Measurement(_rows(many, few, all_of_them), {})


def _rows(events: int, few: list[BacktestRun], many: list[BacktestRun]) -> list[Row]:
    seconds, memory = [backtest.seconds for backtest in many], [backtest.memory for backtest in many]
    tenth = [backtest.memory for backtest in few]
    promise = at_most(max(_SHORTEST_S, events / _EVENTS_PER_S))
    linear = ("10 times a tenth", [10 * backtest.seconds for backtest in few])  # ratio 1: in proportion to the events
    return [
        row(f"backtest of {events:,} events, a tenth matching", "s", seconds, linear, promise),
        row("  entries", "entries/s", [backtest.entries / backtest.seconds for backtest in many]),
        row("  memory, three processes", "MB", memory, ("a tenth of the events", tenth), ratio_at_most(1.5)),
    ]


def _backtests(server: Postgres, database: Database, events: int) -> list[BacktestRun]:
    with site.bare_apis(server, database, 1) as (service,):
        arguments = Arguments(f"http://127.0.0.1:{service.port}", database.workbench_key)
        results = [_one(arguments) for _ in range(_ROUNDS)]
    assert all(result.entries == result.messages == events // _MATCHING for result in results)
    return results


def _one(arguments: Arguments) -> BacktestRun:
    done = subprocess.run(
        [sys.executable, "-m", "bench.backtest", msgspec.json.encode(arguments).decode()],
        capture_output=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return msgspec.json.decode(done.stdout, type=BacktestRun)


def main() -> None:
    arguments = msgspec.json.decode(sys.argv[1], type=Arguments)
    automation = (
        Workbench(arguments.url, arguments.key)
        .automation("thanks")
        .on("deposit")
        .when("amountUsd", exists=True)
        .then(lambda b: b.add_tag("depositor").send_inapp("Thank you", _THANKS).exit())
    )
    begun = time.perf_counter()
    totals = automation.backtest(days=31, processes=PROCESSES).totals
    seconds = time.perf_counter() - begun
    own, helper = (
        resource.getrusage(process).ru_maxrss * 1024 for process in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(msgspec.json.encode(BacktestRun(seconds, totals.entries, totals.messages, own, helper)).decode())


if __name__ == "__main__":
    main()
