"""Runs the command line, in the process of the tests unless the process is what a test is about."""

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
def process(tmp_path: Path, database_url: str) -> Run:
    """Run `workbench …` as a user does, with the database and the data folder of the test: 1 s of CPU time."""
    environment = {**os.environ, "DATABASE_URL": database_url, "WORKBENCH_DATA_DIR": str(tmp_path / "data")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "api", *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture
def workbench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, database_url: str
) -> Run:
    """Run `workbench …` in this process, with the database and the data folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("WORKBENCH_DATA_DIR", str(tmp_path / "data"))

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as changed:
            for name, value in changes.items():
                changed.setenv(name, value)
            try:
                code = main(list(arguments))
            except SystemExit as wrong_usage:  # of argparse
                code = int(wrong_usage.code or 0)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

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
