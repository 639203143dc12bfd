"""Several processes share token buckets, so one limit applies to all of them."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from api.ingest.queue import BUCKETS_FILE_BYTES, TokenBuckets

SECOND = 1_000_000_000
TAKING = """
import sys, time
from api.ingest.queue import TokenBuckets
buckets, taken, until = TokenBuckets(1_000, 100, int(sys.argv[1])), 0, time.monotonic() + 0.5
while time.monotonic() < until:
    taken += buckets.take(7, 1, time.monotonic_ns())
print(taken)
"""


@pytest.fixture
def shared() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.truncate(BUCKETS_FILE_BYTES)
        yield file


def test_processes_share_one_bucket(shared: BinaryIO) -> None:
    first, second = (TokenBuckets(50, 100, shared.fileno()) for _ in range(2))
    assert [first.take(1, 70, 0), second.take(1, 70, 0), first.take(1, 1, 0), second.take(2, 70, 0)] == [70, 30, 0, 70]
    assert [second.take(1, 5, SECOND // 50), first.take(1, 5, SECOND // 50)] == [1, 0]


def test_a5_each_instance_has_its_own_rate() -> None:
    first, second = TokenBuckets(50, 100), TokenBuckets(50, 100)
    assert [first.take(1, 120, 0), second.take(1, 120, 0)] == [100, 100]
    assert [first.take(1, 120, SECOND), second.take(1, 120, SECOND)] == [50, 50]


def test_a_process_that_starts_later_sees_the_tokens_taken(shared: BinaryIO) -> None:
    assert TokenBuckets(50, 100, shared.fileno()).take(1, 100, 0) == 100
    assert TokenBuckets(50, 100, shared.fileno()).take(1, 100, SECOND) == 50


def test_processes_that_take_all_the_time_get_one_rate_together(shared: BinaryIO) -> None:
    command = [sys.executable, "-c", TAKING, str(shared.fileno())]
    since = time.monotonic()
    takers = [subprocess.Popen(command, pass_fds=[shared.fileno()], stdout=subprocess.PIPE) for _ in range(3)]
    taken = sum(int(taker.communicate(timeout=30)[0]) for taker in takers)
    forgotten = 100  # a process may be interrupted during a take; this adds at most one burst
    assert 100 <= taken <= 100 + 1_000 * (time.monotonic() - since) + forgotten
