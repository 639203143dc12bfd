import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli import up
from api.cli.errors import Interrupted, Signals
from api.cli.up import Child

ROOT = Path(__file__).parents[2]
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


def test_a_deleted_log_folder_is_created_again(tmp_path: Path) -> None:
    running = Child("api", [sys.executable, "-c", CHILD], os.environ, tmp_path / "logs" / "api.log", print)
    running.start()
    wait_for(running, 1)
    running.stop()
    shutil.rmtree(tmp_path / "logs")
    assert "cannot be read" in running.tail()
    running.start()
    wait_for(running, 1)
    running.stop()


def test_a_child_whose_log_cannot_be_opened_writes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reports: list[str] = []
    (tmp_path / "api.log").mkdir()
    running = child(tmp_path, "print('started', flush=True)", reports)
    running.start()
    while len(reports) < 2:
        running.restart_if_crashed()
    running.stop()
    assert capfd.readouterr().err == "started\n"
    assert reports[0].startswith("api writes to this terminal, because its log cannot be opened: ")
    assert reports[1].startswith("api stopped (exit code 0); restarting it in 1 s")


def test_a_child_that_cannot_be_started_counts_as_crashed(tmp_path: Path) -> None:
    reports: list[str] = []
    running = Child("api", [str(tmp_path / "missing")], os.environ, tmp_path / "api.log", reports.append)
    running.start()
    running.stop()
    while len(reports) < 2:
        running.restart_if_crashed()
    assert [report.rpartition("; ")[2] for report in reports] == ["trying again in 1 s", "trying again in 2 s"]


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


def test_no_child_imports_from_the_working_directory() -> None:
    """`-P`: a user's folder `api` or `workbench` must not shadow ours in API workers, the lab or backtests."""
    sources = [path.read_text() for package in ("api", "workbench") for path in (ROOT / package).rglob("*.py")]
    commands = [command for text in sources for command in re.findall(r"\[sys\.executable,[^\]]*", text)]
    assert len(commands) >= 4
    assert [command for command in commands if not command.startswith('[sys.executable, "-P", "-m", ')] == []
