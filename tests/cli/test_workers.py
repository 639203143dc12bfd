"""An API worker process starts, is renewed and is restarted after a crash."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from api.cli import serve
from api.cli.network import RestartDelay
from api.cli.serve import ApiProcess, WorkerSlot
from tests.cli.conftest import Run

SERVES = "from api.cli import network; import signal; network.follow_parent(); network.report_ready(); signal.pause()"
CRASHES = "raise SystemExit(3)"
IGNORES_SIGTERM = f"import signal; signal.signal(15, signal.SIG_IGN); {SERVES}"
IDLE = "import signal; signal.pause()"


class Spawner:
    """Starts a process for each piece of code, the last one repeatedly; all of them are killed after the test."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.started: list[ApiProcess] = []

    def __call__(self) -> ApiProcess:
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        self.started.append(ApiProcess([sys.executable, "-c", code], os.environ, []))
        return self.started[-1]


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    spawner = Spawner()
    yield spawner
    for process in spawner.started:
        while process.poll() is None:
            process.kill()


def supervise_until(slot: WorkerSlot, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        slot.supervise()


def test_a_new_process_serves_before_the_old_one_drains(spawner: Spawner) -> None:
    spawner.codes = [SERVES]
    slot = WorkerSlot(spawner)
    supervise_until(slot, lambda: slot.settled)
    slot.renew()
    supervise_until(slot, lambda: spawner.started[0].draining)
    assert spawner.started[1].serves
    supervise_until(slot, lambda: slot.settled)
    assert slot.processes == [spawner.started[1]]


def test_the_old_process_keeps_serving_when_the_new_one_does_not_start(spawner: Spawner) -> None:
    spawner.codes = [SERVES, CRASHES]
    slot = WorkerSlot(spawner)
    supervise_until(slot, lambda: slot.settled)
    slot.renew()
    supervise_until(slot, lambda: len(spawner.started) == 3)
    assert spawner.started[0] in slot.processes
    assert not spawner.started[0].draining


def test_a_process_that_crashes_is_restarted_after_increasing_delays(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    spawner.codes = [CRASHES]
    slot = WorkerSlot(spawner)
    supervise_until(slot, lambda: len(spawner.started) == 3)
    pauses = [(record.message, vars(record)["again_in_seconds"]) for record in caplog.records]
    assert pauses == [("worker_died", 0.25), ("worker_died", 0.5)]


def test_a_process_that_cannot_be_started_counts_as_crashed(spawner: Spawner, caplog: pytest.LogCaptureFixture) -> None:
    spawner.codes = [SERVES]
    attempts = [OSError("no memory"), OSError("no memory"), None]

    def spawn() -> ApiProcess:
        if (error := attempts.pop(0)) is not None:
            raise error
        return spawner()

    slot = WorkerSlot(spawn)
    supervise_until(slot, lambda: slot.settled)
    pauses = [(record.message, vars(record).get("again_in_seconds")) for record in caplog.records]
    assert pauses[:2] == [("worker_not_started", 0.25), ("worker_not_started", 0.5)]


def test_the_pause_between_restarts_is_bounded_however_often_a_process_crashes() -> None:
    delay = RestartDelay(0.25)
    pauses = [delay.crashed(1.0) for _ in range(2_000)]
    assert (pauses[:3], pauses[-1], delay.crashed(61.0)) == ([0.25, 0.5, 1.0], 30, 0.25)


def test_a_process_that_ignores_sigterm_is_killed(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "DRAIN_TIMEOUT_S", 0)
    spawner.codes = [IGNORES_SIGTERM, SERVES]
    slot = WorkerSlot(spawner)
    supervise_until(slot, lambda: slot.settled)
    slot.renew()
    supervise_until(slot, lambda: slot.settled)
    assert spawner.started[0].poll() == -signal.SIGKILL


def test_a_process_that_never_serves_is_killed_and_restarted(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "START_TIMEOUT_S", 0)
    spawner.codes = [IDLE]
    slot = WorkerSlot(spawner)
    supervise_until(slot, lambda: len(spawner.started) == 2)
    assert spawner.started[0].poll() == -signal.SIGKILL


@pytest.mark.parametrize("number", ["0", "-1", "many", "257"])
def test_an_invalid_number_of_workers_is_rejected(workbench: Run, number: str) -> None:
    result = workbench("serve", f"--workers={number}")
    assert result.returncode == 2
    assert f"{number!r} is not a valid number of workers; use 1 to 256, or auto" in result.stderr
