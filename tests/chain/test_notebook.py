"""The tutorial about chains runs twice from top to bottom, on a real node."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.canvas.test_canvas import RecordingCanvas
from tests.chain.anvil import Anvil
from tests.notebooks.test_notebooks import ON_CHAIN, execute_twice
from tests.running import Running

pytestmark = pytest.mark.filterwarnings(
    "default::ResourceWarning", "default::DeprecationWarning"
)  # of the Jupyter client


@pytest.fixture
def followed(running: Running, anvil: Anvil) -> Iterator[str]:
    """A node that the running system follows."""
    with following(running, anvil):
        yield anvil.url


@contextmanager
def following(running: Running, anvil: Anvil) -> Iterator[None]:
    """Run the process that follows a node."""
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environment |= {"WORKBENCH_EVM_RPC": anvil.url, "WORKBENCH_DATA_DIR": str(running.folder / "data")}
    log = (running.folder / "chain.log").open("ab")
    with (
        log,
        subprocess.Popen([sys.executable, "-m", "api", "chain"], env=environment, stdout=log, stderr=log) as process,
    ):
        yield
        process.terminate()


def test_the_tutorial_shows_the_results_it_describes(
    running: Running, followed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVM_NODE", followed)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    for cells in asyncio.run(execute_twice(ON_CHAIN.read_text(), running)):
        assert "31337" in cells["connect"]
        assert "data:image/svg+xml;base64," in cells["write"]
        assert "Approval" in cells["abi"]
        assert "1000000000000000000000 tokens for you" in cells["simulate"]
        assert "live" in cells["publish"]
        assert "Completed." in cells["mint"]
        assert "1000000000000000000000 tokens for you" in cells["mint"]
        assert "Transfer" in cells["sql"]
        assert ":Transfer" in cells["chains"]
        assert "Backtest: 1 event" in cells["backtest"]
        assert "1000000000000000000000 tokens for you" in cells["backtest"]
        assert "started “Tokens have arrived”" in cells["explain"]
        assert "true" in cells["reorg"]
    canvas = RecordingCanvas(running.workbench().automation("Tokens have arrived"))
    newest = canvas.request("samples")[0]
    sample = {"event": newest["event"], "payload": newest["payload"], "contact": newest["contactId"]}
    assert newest["contactId"]
    assert [message["title"] for message in canvas.request("simulate", sample=sample)["messages"]] == [
        "1000000000000000000000 tokens for you"
    ]
    (value,) = [path for path in canvas.request("choices")["paths"].popitem()[1] if path["path"] == "value"]
    assert value == {"path": "value", "types": ["uint256"], "samples": ["“1000000000000000000000”"]}
