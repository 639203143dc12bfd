"""Worker processes for backtests, and their main program (`python -m workbench.backtest.worker`).

Workers are new interpreters, not forks: the kernel of a notebook has many threads, and a fork of a process with threads
may deadlock. A worker reads its task from the first line of its input. Every following line is the number of a bucket,
which it answers with one line. It ends when its input is closed.
"""

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import msgspec

from workbench import environment
from workbench.backtest.simulate_bucket import BucketSimulator, BucketSummary, BucketTask
from workbench.errors import StoppedError
from workbench.language.codec import decode, encode

_EXIT_TIMEOUT_S = 10.0


class WorkerPool:
    """A number of worker processes; with 0 processes the buckets are simulated in this process."""

    def __init__(self, task: BucketTask, processes: int) -> None:
        self._task = task
        self._log = Path(task.folder) / "workers.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(processes):
                self._processes.append(_start_worker(task, self._log))
        except BaseException:  # also an interrupt: no worker may outlive the backtest
            self.close()
            raise

    def simulate(self, buckets: Iterable[int]) -> Iterator[BucketSummary]:
        """Simulate buckets and yield the summary of each as it is done; raise StoppedError if a worker dies."""
        if not self._processes:
            yield from map(BucketSimulator(self._task).simulate, buckets)
            return
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes:
            idle.put(process)

        def simulate_one(bucket: int) -> BucketSummary:
            process = idle.get()
            try:
                return self._request(process, bucket)
            finally:
                idle.put(process)

        threads = ThreadPoolExecutor(len(self._processes))
        try:
            for future in as_completed([threads.submit(simulate_one, bucket) for bucket in buckets]):
                yield future.result()
        finally:
            # The threads are not awaited: after an interrupt they still wait for workers, which `close` kills.
            threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_TIMEOUT_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _request(self, process: subprocess.Popen[bytes], bucket: int) -> BucketSummary:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # the worker is dead, so its output ends
            process.stdin.write(b"%d\n" % bucket)
            process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return msgspec.convert(decode(line), BucketSummary)
        code = process.wait(_EXIT_TIMEOUT_S)
        last_line = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        reason = last_line or f"exit code {code}"
        raise StoppedError(f"A worker process of the backtest ended unexpectedly ({reason}). There is no result.")


def _start_worker(task: BucketTask, log: Path) -> "subprocess.Popen[bytes]":
    variables = environment.all_variables() | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "POLARS_MAX_THREADS": "1",  # the worker processes already use all cores
    }
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "workbench.backtest.worker"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # a worker that died at once is reported at the first request
        process.stdin.write(encode(task) + b"\n")
        process.stdin.flush()
    return process


def main() -> None:
    """Simulate buckets until the input is closed."""
    # The interrupt button sends SIGINT to the whole process group. The notebook handles it and then kills its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    simulator = BucketSimulator(msgspec.convert(decode(requests.readline()), BucketTask))
    # Looking for cycles while the rows of a bucket are made takes a tenth of the time. Only errors make any; these are
    # freed after the bucket.
    gc.disable()
    gc.freeze()
    for line in requests:
        answers.write(encode(simulator.simulate(int(line))) + b"\n")
        answers.flush()
        gc.collect()


if __name__ == "__main__":
    main()
