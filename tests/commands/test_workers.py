"""Processes behind one port, one by one: who replaces whom, and when. The whole is in tests/promises/test_workers.py."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from api.commands import workers
from api.commands.workers import Place, Process
from tests.commands.conftest import Run

SERVES = "from api.commands import leash; import signal; leash.follow_parent(); leash.tell_parent(); signal.pause()"
CRASHES = "raise SystemExit(3)"
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {SERVES}"
IDLE = "import signal; signal.pause()"


class Spawner:
    """Starts a process for each piece of code, the last one for ever; all are ended with the test."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.started: list[Process] = []

    def __call__(self) -> Process:
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        self.started.append(Process([sys.executable, "-c", code], os.environ, []))
        return self.started[-1]


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    spawner = Spawner()
    yield spawner
    for process in spawner.started:
        while process.look() is None:
            process.kill()


def look_until(place: Place, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        place.look()


def test_a_new_process_takes_over_before_the_old_one_leaves(spawner: Spawner) -> None:
    spawner.codes = [SERVES]
    place = Place(spawner)
    look_until(place, lambda: place.settled)
    place.renew()
    look_until(place, lambda: spawner.started[0].leaving)
    assert spawner.started[1].serves
    look_until(place, lambda: place.settled)
    assert place.processes == [spawner.started[1]]


def test_a_new_process_that_does_not_start_leaves_the_old_one_where_it_is(spawner: Spawner) -> None:
    spawner.codes = [SERVES, CRASHES]
    place = Place(spawner)
    look_until(place, lambda: place.settled)
    place.renew()
    look_until(place, lambda: len(spawner.started) == 3)
    assert spawner.started[0] in place.processes
    assert not spawner.started[0].leaving


def test_a_process_that_crashes_is_started_again_after_ever_longer_pauses(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    spawner.codes = [CRASHES]
    place = Place(spawner)
    look_until(place, lambda: len(spawner.started) == 3)
    pauses = [(record.message, vars(record)["again_in_seconds"]) for record in caplog.records]
    assert pauses == [("worker_died", 0.25), ("worker_died", 0.5)]


def test_a_process_deaf_to_its_order_to_leave_is_killed(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DRAIN_SECONDS", 0)
    spawner.codes = [DEAF, SERVES]
    place = Place(spawner)
    look_until(place, lambda: place.settled)
    place.renew()
    look_until(place, lambda: place.settled)
    assert spawner.started[0].look() == -signal.SIGKILL


def test_a_process_that_never_serves_is_killed_and_started_again(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "START_SECONDS", 0)
    spawner.codes = [IDLE]
    place = Place(spawner)
    look_until(place, lambda: len(spawner.started) == 2)
    assert spawner.started[0].look() == -signal.SIGKILL


@pytest.mark.parametrize("number", ["0", "-1", "many", "257"])
def test_a_number_of_workers_that_is_none_is_refused(workbench: Run, number: str) -> None:
    refused = workbench("serve", f"--workers={number}")
    assert refused.returncode == 2
    assert f"{number!r} is no number of workers; use 1 to 256, or auto" in refused.stderr
