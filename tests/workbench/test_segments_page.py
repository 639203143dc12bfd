"""All examples in docs/segments.md run."""

import re
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.running import Running

PAGE = Path(__file__).parents[2] / "docs" / "segments.md"


def test_the_examples_of_the_docs_run(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = running.environment()
    for name in ("WORKBENCH_URL", "WORKBENCH_KEY", "WORKBENCH_EVENTS_KEY"):
        monkeypatch.setenv(name, environment[name])
    shell = InteractiveShell()
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for example in examples:
        shell.run_cell(example, store_history=False).raise_error()
    names = shell.user_ns
    assert len(examples) == 8
    assert names["whales"].size == names["members"].height == names["history"]["size"][-1] > 0
    assert [remark for remark in names["thanks"].check() if "segment" in remark.message] == []
    assert 0 < names["report"]["total"].sum() < names["wb"].revenue("deposit", "amountUsd")["total"].sum()
    assert names["invited"].provenance["queryHash"] == names["frame"].query_hash
