import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli import up
from api.cli.errors import Interrupted, Signals
from api.cli.up import Child

CHILD = "import os, signal; print('started', flush=True); signal.pause()"


def child(tmp_path: Path, code: str, reports: list[str]) -> Child:
    return Child("api", [sys.executable, "-c", code], os.environ, tmp_path / "api.log", reports.append)


def wait_for(started: Child, lines: int) -> None:
    while not started.log.exists() or started.log.read_text().count("started") < lines:
        started.restart_if_crashed()


def test_stop_ends_a_child_and_keeps_its_output_in_the_log(tmp_path: Path) -> None:
    running = child(tmp_path, CHILD, [])
    running.start()
    wait_for(running, 1)
    running.stop()
    running.stop()
    assert running.tail() == "started"


def test_a_crashed_child_is_restarted_and_the_crash_is_reported(tmp_path: Path) -> None:
    reports: list[str] = []
    running = child(tmp_path, "print('started', flush=True); raise SystemExit(3)", reports)
    running.start()
    wait_for(running, 2)
    running.stop()
    assert reports[0] == f"api stopped (exit code 3); restarting it in 1 s; see {tmp_path / 'api.log'}"


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "_STOP_TIMEOUT_S", 0.2)
    running = child(tmp_path, "import signal; signal.signal(15, signal.SIG_IGN);" + CHILD, [])
    running.start()
    wait_for(running, 1)
    running.stop()
    assert running.tail() == "started"


def test_a_leashed_process_ends_when_its_parent_dies() -> None:
    code = f"from api.cli.network import follow_parent; follow_parent(); {CHILD}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as leashed:
        assert leashed.stdout is not None
        assert leashed.stdin is not None
        assert leashed.stdout.readline() == b"started\n"
        leashed.stdin.close()
        assert leashed.wait(10) == -signal.SIGTERM


def test_an_interruption_is_deferred_and_raised_only_once() -> None:
    signals, reached = Signals(), []

    def interrupt_while_deferring() -> None:
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("deferred")

    with signals.handled():
        with pytest.raises(Interrupted):
            interrupt_while_deferring()
        os.kill(os.getpid(), signal.SIGTERM)
        reached.append("later signals are ignored")
    assert reached == ["deferred", "later signals are ignored"]
