"""Runs cases: hypothesis draws worlds from a seed, plays and compares them, and reduces a world that differs."""

import asyncio
import logging
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from multiprocessing.queues import Queue
from typing import Any

import uvloop
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from api import settings as api_settings
from api.app import create_app
from api.auth import keys
from api.auth.key_format import WORKBENCH, choose
from api.auth.keys import KeySpec
from api.channels.outgoing import open_transports
from api.clock import Clock, token
from api.store.database import Database, Transaction, libpq_dsn
from tests.engine.conftest import SECRET
from tests.engine.killing import RETRIES
from tests.fidelity.compare import check
from tests.fidelity.stage import Stage, StageBench
from tests.fidelity.worlds import World, worlds
from tests.in_process import served
from workbench.connection import Connection

OPTIONS = "-c workbench.org=* -c search_path=workbench"  # a server that is given sets no path
PART = 50  # cases of one seed of hypothesis: one test of the week, which has to end within 300 s on a busy machine


@asynccontextmanager
async def open_stage(dsn: str) -> AsyncIterator[Stage]:
    """Open a stage on a migrated database, with an API for its notebook."""
    name = f"fidelity-{token(4).hex()}"  # parts that share a database have organizations of their own
    org_id = await keys.create_org(dsn, name)
    app = create_app(api_settings.Settings(ingest_rate=0, retry_delays=RETRIES.delays_s), dsn, SECRET, name)
    with tempfile.TemporaryDirectory() as folder:
        transports = open_transports(api_settings.read({"WORKBENCH_DATA_DIR": folder}))
        async with (
            Database(dsn, size=4, lock_ms=10_000, hot=True) as database,
            await Transaction.connect(libpq_dsn(dsn), autocommit=True, options=OPTIONS) as connection,
            served(app) as port,
        ):
            for job in app.ctx.jobs:  # they go by the real time, and would complete moves and erasures of the world
                job.cancel()
            bench = StageBench(database, org_id, transports, connection)
            spec = KeySpec(org_id, name, "workbench", choose("workbench", WORKBENCH), "")
            async with database.transaction() as tx:
                key, _ = await keys.issue(tx, bench.keyring, spec, Clock().now())
            stage = Stage(bench, Connection(f"http://127.0.0.1:{port}", key))
            await stage.prepare()
            yield stage
            await stage.clear()  # the next organization of this database must find no due entries
        await transports.close()


class FailedWorldError(AssertionError):
    """A world that two interpreters tell differently, reduced, as a test that can be pasted into `test_worlds.py`."""

    def __init__(self, reason: Exception, world: World, number: int) -> None:
        test = f"async def test_of_seed_{number}(stage: Stage) -> None:\n    await check(stage, {world!r})"
        super().__init__(f"{reason}\n\nseed {number}; as a test of tests/fidelity/test_worlds.py:\n\n{test}\n")


def run_cases(dsn: str, number: int, cases: int, report: Callable[[Counter[str]], None] = lambda _: None) -> None:
    """Compare `cases` worlds that a seed draws; `report` gets the counts of each. Raises FailedWorldError.

    After a difference, further worlds are tried to reduce it, which are counted as `reductions`.
    """
    latest: list[World] = []
    is_reducing = False
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        context = open_stage(dsn)
        stage = runner.run(context.__aenter__())

        @seed(number)
        @settings(
            max_examples=cases,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=[*HealthCheck],
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @given(world=worlds())
        def compare(world: World) -> None:
            nonlocal is_reducing
            latest[:] = [world]
            kind = "reductions" if is_reducing else "cases"
            try:
                counts = runner.run(check(stage, world))
            except Exception:
                is_reducing = True
                report(Counter({kind: 1}))
                raise
            report(Counter({kind: 1}) if is_reducing else counts + Counter(cases=1))

        try:
            compare()
        except Exception as error:
            raise FailedWorldError(error, latest[0], number) from error  # hypothesis runs the reduced world last
        finally:
            runner.run(context.__aexit__(None, None, None))


def work(dsn: str, parts: list[tuple[int, int]], results: "Queue[Any]") -> None:
    """Run parts in a process of its own; put counts, failures as text, and None at the end into the queue."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    logging.disable(logging.WARNING)  # leases of killed engines expire
    for number, cases in parts:
        try:
            run_cases(dsn, number, cases, results.put)
        except FailedWorldError as failure:
            results.put(str(failure))
    results.put(None)


def parts_of(seed_number: int, cases: int) -> list[tuple[int, int]]:
    """Return the seeds of the parts of so many cases, each with the number of its cases."""
    return [(seed_number * 1_000 + part, min(PART, cases - first)) for part, first in enumerate(range(0, cases, PART))]


def seed_of(text: str, today: date) -> int:
    """Return the seed that `now`, `week` or a number names."""
    match text:
        case "now":
            return int(datetime.now(UTC).timestamp())
        case "week":
            year, week, _ = today.isocalendar()
            return year * 100 + week
        case _:
            return int(text)
