"""All examples in docs/import-and-export.md run."""

import re
import shlex
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.running import Running
from tests.workbench.test_export import Operator

PAGE = Path(__file__).parents[2] / "docs" / "import-and-export.md"
FILES = {"json": "events.ndjson", "csv": "orders.csv"}


def test_the_examples_of_the_docs_run(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    operator, shell, outputs = Operator(running), InteractiveShell(), []
    operator.run("org", "create", "acme")
    monkeypatch.setenv("WORKBENCH_URL", running.url)
    monkeypatch.setenv("WORKBENCH_KEY", operator.key("acme", "sql:read,pii:read"))
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        match language:
            case "json" | "csv":
                Path(FILES[language]).write_text(text)
            case "python":
                shell.run_cell(text, store_history=False).raise_error()
            case "sh":
                _, *arguments = shlex.split(text)
                if arguments[-1] == "copy":
                    operator.run("org", "create", "copy-of-acme")
                    arguments[-1] = "copy-of-acme"
                outputs.append(operator.run(*arguments).splitlines())
    assert outputs == [
        ["2 read: 2 stored, 0 duplicates, 0 rejected"],
        ["1 read: 1 stored, 0 duplicates, 0 rejected", "event 'Order Completed' is stored as order_completed"],
        ["3 read: 3 stored, 0 duplicates, 0 rejected"],
    ]
    assert repr(shell.user_ns["exported"]) == "history: 3 events, 1 contacts; 2 files written"
