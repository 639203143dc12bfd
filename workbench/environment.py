"""The only place of the package that reads the environment or the clock, sleeps, takes chances, or asks where it runs."""

import os
import random
import sys
import time
import uuid
from datetime import UTC, datetime

DEFAULT_URL = "http://127.0.0.1:8000"
EVENTS_KEY_VARIABLE = "WORKBENCH_EVENTS_KEY"


def variable(name: str) -> str | None:
    """Return an environment variable, or None when it is unset or empty."""
    return os.environ.get(name) or None


def now() -> datetime:
    """Return this moment in UTC by this machine's clock."""
    return datetime.now(UTC)


def new_uuid() -> str:
    """Return a random UUID."""
    return str(uuid.uuid4())


def monotonic_s() -> float:
    """Return seconds on a clock that never steps back, for measuring spans."""
    return time.monotonic()


def sleep(span: float) -> None:
    """Wait for `span` seconds."""
    time.sleep(span)


def random_fraction() -> float:
    """Return a number from 0 up to 1, for jitter."""
    return random.random()  # noqa: S311  spreads retries; no secret depends on it


def in_kernel() -> bool:
    """Tell whether this runs in the kernel of a notebook, where widgets can be shown."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def line_before_cursor() -> str:
    """Return what stands before the cursor in the line that IPython is asked to complete."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "" if shell is None else str(getattr(shell.Completer, "text_until_cursor", ""))


def all_variables() -> dict[str, str]:
    """Return a copy of the whole environment, for a program that is started."""
    return dict(os.environ)


def cores() -> int:
    """Return how many processor cores there are for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
