"""The progress bar of an import is readable in a notebook cell, which overwrites lines without clearing them."""

import os
import pty
import subprocess
import sys

PROGRAM = """
from types import SimpleNamespace
from api.cli.import_ import ProgressDisplay

with ProgressDisplay() as progress:
    for tenth in range(11):
        report = SimpleNamespace(read=tenth * 1000, stored=tenth * 1000, duplicates=0, rejected=0)
        progress(SimpleNamespace(share=tenth / 10, file="history.ndjson", report=report))
        progress._bar.refresh()
"""


def test_a_line_overwrites_the_previous_line() -> None:
    terminal, end = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=end, env=os.environ | {"COLUMNS": "80"}) as process:
        os.close(end)
        output = b"".join(iter(lambda: _read(terminal), b"")).decode()
    assert process.returncode == 0
    lines = output.replace("\r\n", "").replace("\x1b[?25l", "").replace("\x1b[?25h", "").split("\r")[1:]
    assert len(lines) > 10
    assert {len(line) for line in lines} == {len("\x1b[2K") + 80}
    assert "0 s left" not in lines[-1]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the program has ended
        return b""
