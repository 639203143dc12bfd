"""Startup times: `import workbench`, and a warm `workbench up` until it is ready."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.embedded.paths import find_paths
from bench.effort import Effort, Measurement
from bench.processes import free_port
from bench.table import at_most, row

_IMPORTS, _STARTS = 5, 3
_TIMEOUT_S = 120.0


def measure(_effort: Effort) -> Measurement:
    """Start everything once in a new folder, then repeatedly."""
    imports, bare = [], []
    for _ in range(_IMPORTS):
        imports.append(_seconds("import workbench; workbench.Workbench"))
        bare.append(_seconds("pass"))
    with _home() as home:
        cold = _seconds_until_up(home)
        warm = [_seconds_until_up(home) for _ in range(_STARTS)]
    return Measurement(
        [
            row("import workbench", "s", imports, ("bare Python", bare), at_most(1.0)),
            row("workbench up, the first time", "s", [cold]),
            row("workbench up, warm", "s", warm, None, at_most(10.0)),
        ],
        {},
    )


def _seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=_TIMEOUT_S)
    return time.perf_counter() - started


@contextmanager
def _home() -> Iterator[Path]:
    """Yield a new data folder; it is removed afterwards, with the files that `workbench up` keeps outside it."""
    with tempfile.TemporaryDirectory(prefix="bench-up-") as folder:
        home = Path(folder) / "data"
        yield home
        if (paths := find_paths(home)) is not None:
            shutil.rmtree(paths.state, ignore_errors=True)


def _seconds_until_up(home: Path) -> float:
    """Start everything including JupyterLab; return the seconds until it reports that it is ready, and stop it."""
    command = [sys.executable, "-m", "api", "up", "--port", str(free_port()), "--lab-port", str(free_port())]
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    started = time.perf_counter()
    with (
        subprocess.Popen(
            [*command, "--data-dir", home], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        _ended_in_time(process),
    ):
        output = ""
        for line in process.stdout or ():
            output += line
            if "Ctrl-C" in line:
                return time.perf_counter() - started
        raise RuntimeError(output)


@contextmanager
def _ended_in_time(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Stop the process when the block ends; kill it if stopping, or the block, takes too long.

    Its children end with it.
    """
    timer = threading.Timer(_TIMEOUT_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
        timer.cancel()
