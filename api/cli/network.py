"""Requests to our own processes, ports to listen on, and the link between a child process and its parent.

When a child crashes, its parent restarts it after a pause (`RestartDelay`).

A child process ends when its parent ends, even by SIGKILL: the child's stdin is a pipe or socket that only the parent
holds open. Requests do not use the proxy that the environment may name.
"""

import contextlib
import errno
import http.client
import os
import signal
import socket
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

from api.cli import CommandError
from api.clock import monotonic_ns

ACCEPT_BACKLOG = 4096
MAX_RESTART_DELAY_S = 30
STABLE_AFTER_S = 60
_STATUS_TIMEOUT_S = 2.0
_METRICS_TIMEOUT_S = 5.0


def status(port: int, path: str) -> int | None:
    """Return the HTTP status of a GET on this machine, or None if there is no response within two seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_STATUS_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def read_metrics(url: str) -> str:
    """Return the metrics at `http://HOST:PORT/PATH`; raise CommandError if they cannot be read."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise CommandError(f"{url} is not a URL like http://127.0.0.1:9464/metrics")
    connection = http.client.HTTPConnection(parts.netloc, timeout=_METRICS_TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/metrics")
        response = connection.getresponse()
        if response.status != 200:
            raise CommandError(f"{url} returned status {response.status}")
        return response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(f"{url} cannot be read: {error}") from error
    finally:
        connection.close()


def follow_parent() -> None:
    """Send this process SIGTERM as soon as its stdin ends."""

    def wait() -> None:
        with contextlib.suppress(ConnectionResetError):  # the parent ended with our byte in its receive buffer
            while os.read(sys.stdin.fileno(), 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="leash", daemon=True).start()


class RestartDelay:
    """The pause before a crashed process is restarted: doubled after each crash, until one ran for STABLE_AFTER_S."""

    def __init__(self, first_s: float) -> None:
        self.crashes = 0
        self._first_s = self._delay_s = first_s
        self._restart_ns = 0

    def crashed(self, ran_s: float) -> float:
        """Record a crash; return the pause in seconds."""
        is_first = self.crashes == 0 or ran_s > STABLE_AFTER_S
        self.crashes = 1 if is_first else self.crashes + 1
        self._delay_s = self._first_s if is_first else min(self._delay_s * 2, MAX_RESTART_DELAY_S)
        self._restart_ns = monotonic_ns() + int(self._delay_s * 1e9)
        return self._delay_s

    def is_over(self) -> bool:
        return monotonic_ns() >= self._restart_ns


def report_ready() -> None:
    """Tell the parent that this process serves; stdin has to be a socket."""
    with contextlib.suppress(BrokenPipeError):  # the parent has ended, and `follow_parent` ends this process
        os.write(sys.stdin.fileno(), b".")


def require_free_port(host: str, port: int, flag: str) -> None:
    """Raise CommandError if a server could not listen there; the message names the flag that selects another port."""
    try:
        if not is_free(host, port):
            raise CommandError(
                f"port {port} is already in use; stop the program that uses it, or choose another with {flag}"
            )
    except PermissionError:
        raise CommandError(f"port {port} is reserved for root; choose one above 1023 with {flag}") from None
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}: {error.strerror or error}; choose another address with --host"
        ) from None


def is_free(host: str, port: int) -> bool:
    """Return whether no server listens there; raise OSError if the address does not belong to this machine."""
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Without it, closed connections of a server that ended a minute ago (TIME_WAIT) make the port look used.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def listen(host: str, port: int, count: int = 1) -> list[socket.socket]:
    """Return listening sockets; the kernel spreads connections over several by a hash of their addresses."""
    family, address = _resolve(host, port)
    sockets = []
    for _ in range(count):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A single server does not set this, so that a second one fails instead of taking half of the connections.
        if count > 1:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(ACCEPT_BACKLOG)
        sockets.append(listener)
    return sockets


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, address
