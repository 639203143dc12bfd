"""The same backend with each client: `producer.py` and, after `make node`, `producer.mjs`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PRODUCERS = {
    "python": [sys.executable, "-m", "tests.clients.producer"],
    "node": ["node", str(Path(__file__).with_name("producer.mjs"))],
}
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["python", pytest.param("node", marks=pytest.mark.node)])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Start a producer, whose events wait below `tmp_path`: `start("endless", url, key)`."""
    command = PRODUCERS[request.param]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def started(action: str, url: str, key: str) -> "subprocess.Popen[str]":
        arguments = [*command, action, url, key, str(tmp_path / "spool")]
        return subprocess.Popen(arguments, text=True, cwd=Path(__file__).parents[2], **pipes)

    return started
