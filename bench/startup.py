"""How long a user waits: `import workbench`, and a warm `workbench up` until it is ready."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench.ingest import row
from bench.processes import free_port


def measure() -> list[dict[str, Any]]:
    """Return the rows of the table."""
    imports = [_timed([sys.executable, "-c", "import workbench; workbench.Workbench"]) for _ in range(5)]
    bare = [_timed([sys.executable, "-c", "pass"]) for _ in range(5)]
    with tempfile.TemporaryDirectory(prefix="bench-up-") as folder:
        cold = _up(folder)
        warm = statistics.median(_up(folder) for _ in range(3))
    return [
        row("import workbench", statistics.median(imports) - statistics.median(bare), "s", None, 1.0),
        row("workbench up, first time, without the installation", cold, "s", None, None),
        row("workbench up, warm", warm, "s", None, 10.0),
    ]


def _timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - started


def _up(folder: str) -> float:
    """Start everything, JupyterLab too; return the seconds until it says that it is ready, then stop it."""
    command = [sys.executable, "-m", "api", "up", "--port", str(free_port()), "--lab-port", str(free_port())]
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    started = time.perf_counter()
    with subprocess.Popen(
        [*command, "--data-dir", f"{folder}/data"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said = ""
        for line in process.stdout or ():
            said += line
            if "Ctrl-C" in line:
                break
        else:
            raise RuntimeError(said)
        took = time.perf_counter() - started
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    return took
