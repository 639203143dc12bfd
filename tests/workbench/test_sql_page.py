"""All examples in docs/sql.md run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.running import Running

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"


def direct_login(environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "api", "reader", "create", "--org", "demo"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_examples_of_the_docs_run(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = running.environment()
    for name in ("WORKBENCH_URL", "WORKBENCH_KEY", "WORKBENCH_EVENTS_KEY"):
        monkeypatch.setenv(name, environment[name])
    shell = InteractiveShell()
    monkeypatch.setenv(
        "WORKBENCH_DSN", direct_login(environment | {"WORKBENCH_DATA_DIR": str(running.folder / "data")})
    )
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for example in examples:
        shell.run_cell(example, store_history=False).raise_error()
    names = shell.user_ns
    assert len(examples) == 10
    assert set(names["by_event"]["event"]) >= {"deposit", "signup"}
    names["engine"].dispose()
    assert set(names["counts"]["event"]) == {"deposit", "signup"} & set(names["frame"]["event"])
    assert names["path"].stat().st_size > names["rows"] > 0
    shell.run_line_magic("unload_ext", "workbench")
