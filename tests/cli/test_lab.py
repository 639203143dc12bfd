"""A notebook of `workbench up` finds the command and its data folder."""

import shutil
import sys
from pathlib import Path

import pytest

from api.cli import lab


def test_a_cell_finds_the_command_and_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("DATABASE_URL", "postgresql://somewhere")
    environment = lab.environment(tmp_path, {"WORKBENCH_KEY": "wb_key"})
    ours = Path(sys.executable).with_name("workbench")
    assert shutil.which("workbench", path=environment["PATH"]) == str(ours)
    assert environment["PATH"].endswith("/usr/bin")
    assert environment["WORKBENCH_DATA_DIR"] == str(tmp_path)
    assert environment["WORKBENCH_KEY"] == "wb_key"
    assert "DATABASE_URL" not in environment
