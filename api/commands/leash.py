"""A child of `workbench up` ends when `up` dies, even by kill -9: its stdin is a pipe that only `up` holds open."""

import os
import signal
import sys
import threading


def follow_parent() -> None:
    """Send ourselves SIGTERM as soon as stdin ends."""
    threading.Thread(target=_wait, name="leash", daemon=True).start()


def _wait() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
