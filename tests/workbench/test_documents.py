"""The Python in the documents runs against the real service and prints the output that they show."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", ["automations-as-code.md", "watch.md"])
def test_the_output_in_the_docs_is_current(document: str, running: Running, monkeypatch: Any) -> None:
    for name in ("WORKBENCH_URL", "WORKBENCH_KEY"):
        monkeypatch.setenv(name, running.environment()[name])
    names: dict[str, Any] = {}
    printed = ""
    for language, block in BLOCKS.findall((DOCS / document).read_text()):
        if language == "text":
            assert printed == block
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(block, names)
        printed = output.getvalue()
