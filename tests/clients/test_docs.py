"""The first event of each client takes at most five lines, and the JavaScript of the docs runs.

tests/workbench/test_documents.py runs the Python, and test_segment.py Segment's library.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.running import Running

ROOT = Path(__file__).parents[2]
NODE = ROOT / "clients" / "node"
PAGE = (ROOT / "docs" / "client.md").read_text()
BLOCK = re.compile(r"^```js\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [*BLOCK.findall(PAGE), *BLOCK.findall((NODE / "README.md").read_text())]
PROGRAMS = {"curl": ["bash", "-c"], "Python": [sys.executable, "-c"], "Node": ["node", "--input-type=module", "-e"]}


def run(running: Running, command: list[str]) -> None:
    """Run a program in the folder of the package `event-workbench`, whose name it may import."""
    with tempfile.TemporaryDirectory() as folder:  # the path of `tmp_path` can be too long for the socket in it
        environment = {**running.environment(), "HOME": folder}
        done = subprocess.run(
            command, cwd=NODE, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr if command[0] == "node" else "") == (0, "")


def count(running: Running) -> int:
    frame = running.workbench().sql("SELECT count(*) AS n FROM app_events WHERE event = 'deposit'")
    return int(frame["n"][0])


@pytest.mark.parametrize("client", ["curl", "Python", pytest.param("Node", marks=pytest.mark.node)])
def test_the_first_event_takes_at_most_five_lines(running: Running, client: str) -> None:
    (row,) = re.findall(rf"^\| {client} \| (.*) \|$", PAGE, re.MULTILINE)
    program = "\n".join(line.strip("`") for line in row.split("<br>"))
    assert program.count("\n") < 5
    before = count(running)
    run(running, [*PROGRAMS[client], program])
    assert count(running) == before + 1


@pytest.mark.node
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_javascript_in_the_docs_runs(running: Running, number: int) -> None:
    block = BLOCKS[number].replace("orderId: 7", f"orderId: {70 + number}")  # an order counts once
    before = count(running)
    run(running, [*PROGRAMS["Node"], block])
    assert count(running) == before + 1
