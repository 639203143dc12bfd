"""`python -m tests.fidelity`: plays random worlds, and prints each that two interpreters tell differently as a test.

The cases are drawn in parts, each with a seed of its own, so a seed draws the same worlds in any number of
processes. `--seed week` repeats what `make test` plays this week. Exit code 1: something differs, or
limits leave out too many entries of backtests.
"""

import argparse
import asyncio
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from multiprocessing.queues import Queue
from queue import Empty
from typing import Any

from api.embedded import Server
from api.store.migrate import migrate
from tests.fidelity.compare import LEFT_OUT, UNKNOWN
from tests.fidelity.machine import parts_of, seed_of, work
from tests.servers import create_database, database_dsn, drop_database, open_server

INTERVAL_S = 10.0
MAX_UNKNOWN = 0.2  # of the entries for backtests; of fewer than a thousand, chance may leave out more


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", default="now", help="a number, `now`, or `week`")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    seed = seed_of(arguments.seed, datetime.now(UTC).date())
    _say(f"seed {seed}: {arguments.cases:,} cases in {arguments.processes} processes")
    os.environ["PGOPTIONS"] = "-c workbench.org=*"  # as in tests/conftest.py
    parts = parts_of(seed, arguments.cases)
    with ExitStack() as stack:
        server = stack.enter_context(open_server("fidelity"))
        context = multiprocessing.get_context("spawn")
        results: Queue[Any] = context.Queue()
        workers = []
        for number in range(min(arguments.processes, len(parts))):
            dsn = stack.enter_context(_database(server, f"fidelity_{os.getpid()}_{number}"))
            worker = context.Process(
                target=work, args=(dsn, parts[number :: arguments.processes], results), daemon=True
            )
            worker.start()
            workers.append(worker)
        counts, failures, is_complete = _collect(results, workers, arguments.cases)
        for worker in workers:
            if not is_complete:
                worker.terminate()
            worker.join()
    reductions, not_run = counts.pop("reductions", 0), arguments.cases - counts["cases"]
    _say(
        f"seed {seed}: compared {counts.pop('cases', 0):,} cases, {failures} differences"
        + (f"; {reductions:,} further worlds to reduce them" if reductions else "")
        + (f"; {not_run:,} cases were not run" if not_run else "")
        + ("" if is_complete else "; stopped")
    )
    entries, unknown = counts["entries for backtests"], counts[UNKNOWN]
    too_many = entries >= 1_000 and unknown > MAX_UNKNOWN * entries
    left_out = {name: count for name, count in sorted(counts.items()) if name.startswith(LEFT_OUT)}
    _say(", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()) if name not in left_out))
    _say("Not compared, by limit (tests/fidelity/limits.py):")
    for name, count in left_out.items():
        _say(f"  {name.removeprefix(LEFT_OUT)}: {count:,}")
    _say(f"Left out are {unknown / max(entries, 1):.1%} of the entries for backtests; {MAX_UNKNOWN:.0%} are allowed.")
    return 1 if failures or not is_complete or too_many else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _collect(results: "Queue[Any]", workers: list[Any], cases: int) -> tuple[Counter[str], int, bool]:
    """Print progress and failures until all workers are done; False: one died, or an interrupt came first."""
    counts, failures, begun, shown = Counter[str](), 0, time.monotonic(), time.monotonic()
    running = len(workers)
    try:
        while running:
            try:
                result = results.get(timeout=INTERVAL_S)
            except Empty:
                if any(worker.exitcode for worker in workers):
                    return counts, failures, False  # its traceback is on stderr
                continue
            match result:
                case None:
                    running -= 1
                case str() as failure:
                    failures += 1
                    _say(f"\nDIFFERENCE {failures}\n{failure}")
                case compared:
                    counts += compared
            now = time.monotonic()
            if now - shown > INTERVAL_S:
                shown, rate = now, counts["cases"] / (now - begun)
                _say(f"{counts['cases']:,} of {cases:,} cases, {rate:.1f} per second")
    except KeyboardInterrupt:
        return counts, failures, False
    return counts, failures, True


@contextmanager
def _database(server: Server, name: str) -> Iterator[str]:
    create_database(server, name)
    dsn = database_dsn(server.dsn, name)
    asyncio.run(migrate(dsn, admin_dsn=database_dsn(server.admin_dsn, name)))
    try:
        yield dsn
    finally:
        drop_database(server, name)


if __name__ == "__main__":
    sys.exit(main())
