import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.commands import children
from api.commands.children import Child
from api.commands.signals import Interrupted, Signals

CHILD = "import os, signal; print('started', flush=True); signal.pause()"


def child(tmp_path: Path, code: str, said: list[str]) -> Child:
    return Child("api", [sys.executable, "-c", code], os.environ, tmp_path / "api.log", said.append)


def wait_for(started: Child, lines: int) -> None:
    while not started.log.exists() or started.log.read_text().count("started") < lines:
        started.watch()


def test_a_stopped_child_is_gone_and_its_words_are_in_the_log(tmp_path: Path) -> None:
    running = child(tmp_path, CHILD, [])
    running.start()
    wait_for(running, 1)
    running.stop()
    running.stop()
    assert running.tail() == "started"


def test_a_crashed_child_is_started_again_and_the_crash_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    running = child(tmp_path, "print('started', flush=True); raise SystemExit(3)", said)
    running.start()
    wait_for(running, 2)
    running.stop()
    assert said[0] == f"api stopped (exit code 3); starting it again in 1 s; see {tmp_path / 'api.log'}"


def test_a_child_deaf_to_sigterm_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_STOP_SECONDS", 0.2)
    running = child(tmp_path, "import signal; signal.signal(15, signal.SIG_IGN);" + CHILD, [])
    running.start()
    wait_for(running, 1)
    running.stop()
    assert running.tail() == "started"


def test_a_leashed_process_ends_when_its_parent_is_gone() -> None:
    code = f"from api.commands.leash import follow_parent; follow_parent(); {CHILD}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as leashed:
        assert leashed.stdout is not None
        assert leashed.stdin is not None
        assert leashed.stdout.readline() == b"started\n"
        leashed.stdin.close()
        assert leashed.wait(10) == -signal.SIGTERM


def test_the_first_interruption_is_raised_once_and_held_back_where_needed() -> None:
    signals, reached = Signals(), []

    def be_interrupted_while_holding() -> None:
        with signals.held():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("held")

    with signals.heard():
        with pytest.raises(Interrupted):
            be_interrupted_while_holding()
        os.kill(os.getpid(), signal.SIGTERM)
        reached.append("later ones change nothing")
    assert reached == ["held", "later ones change nothing"]
