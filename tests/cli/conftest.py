"""Runs the command line as a user does: as a separate process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from api.__main__ import main

Run = Callable[..., subprocess.CompletedProcess[str]]
Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def workbench(tmp_path: Path, database_url: str) -> Run:
    """Run `workbench …` with the database and the data folder of the test."""
    environment = {**os.environ, "DATABASE_URL": database_url, "WORKBENCH_DATA_DIR": str(tmp_path / "data")}

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "api", *arguments]
        return subprocess.run(
            command, env=environment | changes, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, database_url: str) -> Here:
    """Run `workbench …` in this process; return its exit code, stdout and stderr."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("WORKBENCH_DATA_DIR", str(tmp_path))

    def called(*arguments: str, secret: str = "") -> tuple[int, str, str]:
        monkeypatch.setenv("WORKBENCH_SECRET", secret)
        capsys.readouterr()
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return called
