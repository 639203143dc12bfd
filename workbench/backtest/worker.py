"""Processes that live through buckets beside this one. Their own interpreters, not forks: a notebook's kernel is full of threads.

A process that lives through buckets: `python -m workbench.backtest.worker`.

The order is the first line it reads; each line after it is a bucket, answered by a line when it is done. It ends with its input.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from workbench import environment as workbench_environment
from workbench.backtest.simulate_bucket import BucketSimulation, BucketSummary, BucketTask, read_lived, read_order
from workbench.errors import StoppedError

_ENDS_WITHIN = 10.0


class WorkerPool:
    """So many processes; none: this one does all of it."""

    def __init__(self, order: BucketTask, processes: int) -> None:
        self._order = order
        self._log = Path(order.folder) / "workers.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(processes):
                self._processes.append(_started(order, self._log))
        except BaseException:
            self.close()
            raise

    def live(self, buckets: Iterable[int]) -> Iterator[BucketSummary]:
        """Live through buckets; say what is said of each when it is done. Raise StoppedError when a process ends by itself."""
        if not self._processes:
            from workbench.backtest.simulate_bucket import BucketSimulation

            yield from map(BucketSimulation(self._order).live, buckets)
            return
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes:
            idle.put(process)

        def one(bucket: int) -> BucketSummary:
            process = idle.get()
            try:
                return self._ask(process, bucket)
            finally:
                idle.put(process)

        pool = ThreadPoolExecutor(len(self._processes))
        try:
            for done in as_completed([pool.submit(one, bucket) for bucket in buckets]):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End all processes, whatever they are at."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_WITHIN)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _ask(self, process: subprocess.Popen[bytes], bucket: int) -> BucketSummary:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it has ended: then there is no answer
            process.stdin.write(b"%d\n" % bucket)
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise StoppedError(self._why(process))
        return read_lived(line)

    def _why(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait(_ENDS_WITHIN)
        said = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        return f"a process of the backtest ended by itself ({said or f'exit code {code}'}), so nothing is kept of it"


def _started(order: BucketTask, log: Path) -> "subprocess.Popen[bytes]":
    environment = workbench_environment.all_variables() | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "POLARS_MAX_THREADS": "1",
    }
    with log.open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "workbench.backtest.worker"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        )
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(order.line())
        process.stdin.flush()
    return process


def main() -> None:
    """Work until there is no more to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interrupt button is for the notebook, which then ends us
    lines, answers = sys.stdin.buffer, sys.stdout.buffer
    lives = BucketSimulation(read_order(lines.readline()))
    for line in lines:
        answers.write(lives.live(int(line)).line())
        answers.flush()


if __name__ == "__main__":
    main()
