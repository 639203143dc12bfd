"""The engine: entries per second compared with two libraries, and the time from an event to its effect.

`workbench engine` runs twice to use both cores, so each library gets two processes, too. All three alternate, and run
the same two steps in one Postgres with durable commits.
"""

import subprocess
import sys

import msgspec

from bench import engines, peers, postgres, simulating, site
from bench.automations import thanks
from bench.effort import Effort, Measurement
from bench.figures import Slice, cpu_us, percentile, rates
from bench.load import ANSWER_TIMEOUT_S
from bench.postgres import Database, Postgres
from bench.processes import Service
from bench.reach import ReachArguments
from bench.table import Row, at_least, at_most, ratio_at_least, ratio_at_most, row

EVENTS_PER_SECOND = 200.0
_LONGER = 2  # times a slice of throughput: a 99th percentile needs many events
_ENTRIES, _JOBS, _WORKFLOWS = 8_000, 600, 120  # approximate number that each completes in a second
_START_TIMEOUT_S = 30.0


def measure(effort: Effort) -> Measurement:
    """Measure latency, then backlogs of the engine and of the libraries in turn, then simulations."""
    with postgres.running() as server:
        database = postgres.prepared(server, "engine")
        with site.apis(server, database, 1) as (api,):
            automation_id = site.publish(api, database, thanks())
            with engines.engines(server, database, 1):
                reached = [_reach(database, api, effort) for _ in range(effort.rounds + 1)][1:]
        ours, jobs, workflows = _side_by_side(server, database, automation_id, effort)
    simulated, with_where = simulating.runs_per_second(effort)
    return Measurement(
        [
            *_throughput(ours, jobs, workflows),
            row("event accepted to message, 200/s, p50", "ms", _at(50, reached), None, at_most(50)),
            row("event accepted to message, 200/s, p99", "ms", _at(99, reached), None, at_most(250)),
            row("simulate, five nodes, one process", "runs/s", simulated, None, at_least(20_000)),
            row(
                "  with where instead of filters",
                "µs/run",
                _us(with_where),
                ("filters", _us(simulated)),
                ratio_at_most(1.5),
            ),
        ],
        {"engine": ours, "procrastinate": jobs, "dbos": workflows, "reach": reached},
    )


def _throughput(ours: list[Slice], jobs: list[Slice], workflows: list[Slice]) -> list[Row]:
    of_jobs = ("procrastinate", rates(jobs))
    of_workflows = ("DBOS", rates(workflows))
    service, database = ([us / engines.STEPS for us in cpu_us(ours, process)] for process in ("service", "postgres"))
    return [
        row("entries: tag, in-app, done; two engines", "entries/s", rates(ours), None, at_least(7_000)),
        row("  against procrastinate", "entries/s", rates(ours), of_jobs, ratio_at_least(8)),
        row("  against DBOS", "entries/s", rates(ours), of_workflows, ratio_at_least(40)),
        row("  CPU in the engines", "µs/step", service),
        row("  CPU in Postgres", "µs/step", database),
    ]


def _side_by_side(
    server: Postgres, database: Database, automation_id: str, effort: Effort
) -> tuple[list[Slice], list[Slice], list[Slice]]:
    """Return the slices of the engine, procrastinate and DBOS; a first round warms up and is not returned."""
    with (
        engines.accounted(database) as ours,
        engines.engines(server, database, peers.PROCESSES) as pids,
        peers.procrastinate(server) as procrastinate,
        peers.dbos(server) as dbos,
    ):
        jobs, workflows = [], []
        for _ in range(effort.rounds + 1):
            ours.append(engines.work_off(server, database, pids, automation_id, int(_ENTRIES * effort.seconds)))
            jobs.append(procrastinate.work(int(_JOBS * effort.seconds)))
            workflows.append(dbos.work(int(_WORKFLOWS * effort.seconds)))
    return ours[1:], jobs[1:], workflows[1:]


def _reach(database: Database, api: Service, effort: Effort) -> Slice:
    seconds = _LONGER * effort.seconds
    arguments = ReachArguments(
        dsn=database.dsn, port=api.port, key=database.live_key, rate=EVENTS_PER_SECOND, seconds=seconds
    )
    done = subprocess.run(
        [sys.executable, "-m", "bench.reach", msgspec.json.encode(arguments).decode()],
        capture_output=True,
        check=False,
        timeout=seconds + ANSWER_TIMEOUT_S + _START_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return msgspec.json.decode(done.stdout, type=Slice)


def _us(runs_per_second: list[float]) -> list[float]:
    return [1e6 / rate for rate in runs_per_second]


def _at(percent: float, slices: list[Slice]) -> list[float]:
    return [percentile(slice_.latencies_ms, percent) for slice_ in slices]
