"""The Python in the documents runs against the real service and prints the output that they show."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running
from workbench.language.channel import EmailMessage
from workbench.testing import simulate

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"^```(python|sql|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


PAGES = ("automations-as-code.md", "client.md", "connections.md", "consent.md", "start.md", "watch.md")


@pytest.mark.parametrize("document", PAGES)
def test_the_output_in_the_docs_is_current(document: str, running: Running, monkeypatch: Any) -> None:
    for name in ("WORKBENCH_URL", "WORKBENCH_KEY", "WORKBENCH_EVENTS_KEY"):
        monkeypatch.setenv(name, running.environment()[name])
    monkeypatch.setenv("HOME", str(running.folder))  # where a client keeps its file
    names: dict[str, Any] = {}
    printed = ""
    for language, block in BLOCKS.findall((DOCS / document).read_text()):
        if language == "text":
            assert printed == block
        if language != "python":
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(block, names)
        printed = output.getvalue()


def test_the_digest_in_the_docs_has_the_subject_that_they_show(running: Running) -> None:
    page = (DOCS / "automation-language.md").read_text()
    (block,) = [block for language, block in BLOCKS.findall(page) if language == "python"]
    names: dict[str, Any] = {"wb": running.workbench()}
    exec(block, names)
    run = simulate(names["a"], "deposit", {"amountUsd": 100, "asset": "USDC"})
    run = run.advance("5m").send("deposit", {"amountUsd": 250, "asset": "ETH"})
    run = run.advance("35m").send("deposit", {"amountUsd": 900, "asset": "USDC"}).advance("20m")
    (message,) = run.messages
    assert isinstance(message, EmailMessage)
    assert message.subject == "3 deposits, 1,250 USD"
    assert f"`{message.subject}`" in page
    assert message.body.splitlines() == ["Thank you for:", "- 100 USDC", "- 250 ETH", "- 900 USDC"]


@pytest.mark.parametrize("document", ["consent.md", "contacts.md", "messages.md"])
def test_the_sql_in_the_docs_runs(document: str, running: Running) -> None:
    statements = [block for language, block in BLOCKS.findall((DOCS / document).read_text()) if language == "sql"]
    assert statements
    for statement in statements:
        assert len(running.workbench().sql(statement).columns) > 1
