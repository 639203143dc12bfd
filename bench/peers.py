"""The libraries that the engine is compared with: two processes each, in a separate database on the same server."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.figures import Slice
from bench.postgres import Postgres, connect, create
from bench.processes import beside
from bench.timing import timed

PROCESSES = 2
_EFFECTS = Path(__file__).with_name("fill") / "effects.sql"


class PeerWorkers(msgspec.Struct, frozen=True):
    """Processes controlled by lines on stdin: `lay N` enqueues jobs, `work FIRST END` runs them."""

    server: Postgres
    dsn: str
    processes: Sequence["subprocess.Popen[bytes]"]
    has_queue: bool

    def work(self, count: int) -> Slice:
        """Run the two steps `count` times; return the slice, without the time in which they were enqueued."""
        with connect(self.dsn) as connection:
            connection.execute("UPDATE contacts SET tags = '{}'")
        if self.has_queue:
            self._order([f"lay {count}"])
        bounds = [count * number // PROCESSES for number in range(PROCESSES + 1)]
        shares = [f"work {first} {end}" for first, end in pairwise(bounds)]
        before, pids = self._written(), [process.pid for process in self.processes]
        done = timed(self.server, pids, count, lambda: self._order(shares))
        if (written := self._written() - before) != count:
            raise RuntimeError(f"{count} were to be done, {written} have been")
        return done

    def _written(self) -> int:
        with connect(self.dsn) as connection:
            row = connection.execute("SELECT count(*) FROM messages").fetchone()
        assert row is not None
        return int(row[0])

    def _order(self, orders: Sequence[str]) -> None:
        """Send one command to each process, and wait until all are done."""
        for order, process in zip(orders, self.processes, strict=False):
            assert process.stdin is not None
            process.stdin.write(order.encode() + b"\n")
            process.stdin.flush()
        for _, process in zip(orders, self.processes, strict=False):
            _hear(process)


@contextlib.contextmanager
def procrastinate(server: Postgres) -> Iterator[PeerWorkers]:
    """Run workers of procrastinate."""
    with _processes(server, "procrastinate", "bench.procrastinate_jobs") as (dsn, processes):
        yield PeerWorkers(server, dsn, processes, has_queue=True)


@contextlib.contextmanager
def dbos(server: Postgres) -> Iterator[PeerWorkers]:
    """Run processes of DBOS."""
    with _processes(server, "dbos", "bench.dbos_workflows") as (dsn, processes):
        yield PeerWorkers(server, dsn, processes, has_queue=False)


@contextlib.contextmanager
def _processes(server: Postgres, name: str, module: str) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    dsn = create(server, name)
    with connect(dsn) as connection:
        connection.execute(_EFFECTS.read_bytes())
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(PROCESSES):  # one after the other: the first creates the schema
            command = ("-m", module, dsn, f"{name}-{number}")
            processes.append(stack.enter_context(beside(*command, log=server.home / f"{name}.log", talks=True)))
            _hear(processes[-1])
        yield dsn, processes


def _hear(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the empty line that ends a command."""
    assert process.stdout is not None
    if process.stdout.readline() != b"\n":
        raise RuntimeError(f"{process.args!r} did not answer the command")
