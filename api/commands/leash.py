"""A child process ends when its parent dies, even by kill -9: its stdin is a pipe, or a socket, that only the parent holds open."""

import contextlib
import os
import signal
import sys
import threading


def follow_parent() -> None:
    """Send ourselves SIGTERM as soon as stdin ends."""
    threading.Thread(target=_wait, name="leash", daemon=True).start()


def tell_parent() -> None:
    """Tell the parent that we serve, when our stdin is a socket."""
    with contextlib.suppress(BrokenPipeError):  # it is gone: then we have been told to end
        os.write(sys.stdin.fileno(), b".")


def _wait() -> None:
    with contextlib.suppress(ConnectionResetError):  # it died before it heard us
        while os.read(sys.stdin.fileno(), 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
