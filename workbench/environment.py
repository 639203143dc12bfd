"""The only module of the package that reads the environment or the clock, sleeps, or draws random numbers.

It also detects where the package runs: in the kernel of a notebook, and on how many cores.
"""

import os
import random
import sys
import threading
import time
import uuid
from datetime import UTC, datetime

DEFAULT_URL = "http://127.0.0.1:8000"
EVENTS_KEY_VARIABLE = "WORKBENCH_EVENTS_KEY"
STATE_FOLDER = ".local/state/event-workbench"  # in the home of the user


def variable(name: str) -> str | None:
    """Return an environment variable, or None when it is unset or empty."""
    return os.environ.get(name) or None


def now() -> datetime:
    """Return the current time in UTC by this machine's clock."""
    return datetime.now(UTC)


def new_uuid() -> str:
    return str(uuid.uuid4())


def new_key() -> str:
    """Return 32 random hex digits, in a quarter of the time that a UUID takes."""
    return os.urandom(16).hex()


def monotonic_s() -> float:
    """Return seconds on a clock that is never set back, for measuring durations."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def wait(event: threading.Event, seconds: float) -> None:
    """Wait until an event is set, for at most `seconds`."""
    event.wait(seconds)


def random_fraction() -> float:
    """Return a number from 0 up to, but not including, 1, for jitter."""
    return random.random()  # noqa: S311  spreads retries; no secret depends on it


def in_kernel() -> bool:
    """Return whether this process is the kernel of a notebook, where widgets can be shown."""
    ipython = sys.modules.get("IPython")  # not imported: a kernel has already loaded IPython
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def line_before_cursor() -> str:
    """Return the text before the cursor in the line that IPython completes."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "" if shell is None else str(getattr(shell.Completer, "text_until_cursor", ""))


def all_variables() -> dict[str, str]:
    """Return a copy of the environment, for a child process."""
    return dict(os.environ)


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    # A container or taskset limits the affinity, which cpu_count ignores. macOS has no sched_getaffinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
