"""Our own processes: those that run here, requests to them, ports to listen on, and the link of a child to its parent.

When a child crashes, its parent restarts it after a pause (`RestartDelay`).

A child process ends when its parent ends, even by SIGKILL: the child's stdin is a pipe or socket that only the parent
holds open. Requests do not use the proxy that the environment may name.
"""

import argparse
import contextlib
import errno
import http.client
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from api.cli import CommandError
from api.clock import monotonic_ns
from api.settings import DEFAULT_DATA_DIR, absolute_path

ACCEPT_BACKLOG = 4096
DEFAULT_PORT = 8000
DEFAULT_LAB_PORT = 8888
MAX_RESTART_DELAY_S = 30
STABLE_AFTER_S = 60
_STATUS_TIMEOUT_S = 2.0
_METRICS_TIMEOUT_S = 5.0


def status(port: int, path: str) -> int | None:
    """Return the HTTP status of a GET on this machine, or None without a response within two seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_STATUS_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class RunningUp(msgspec.Struct, frozen=True):
    """A `workbench up` of this user that is running on this machine."""

    data_dir: Path
    port: int
    lab_port: int


def running_ups() -> list[RunningUp]:
    """Return the `workbench up` of this user that are running."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--lab-port", type=int, default=DEFAULT_LAB_PORT)
    parser.add_argument("--data-dir")
    running = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or belongs to another user
            line = [part for part in process.cmdline() if part != "-P"]
            match line:
                case [_, "-m", "api", "up", *arguments]:
                    pass
                case [_, script, "up", *arguments] if Path(script).name == "workbench":
                    pass
                case _:
                    continue
            if "python" in Path(line[0]).name and process.uids().effective == os.geteuid():
                with contextlib.suppress(argparse.ArgumentError, SystemExit):  # it is about to report a wrong usage
                    args, _ = parser.parse_known_args(arguments)
                    folder = args.data_dir or process.environ().get("WORKBENCH_DATA_DIR") or DEFAULT_DATA_DIR
                    running.append(RunningUp(Path(process.cwd(), folder).resolve(), args.port, args.lab_port))
    return running


def ports_of(data_dir: Path) -> tuple[int, int]:
    """Return the ports of API and JupyterLab of the `workbench up` with this data folder, or the default ones."""
    ports = [(up.port, up.lab_port) for up in running_ups() if up.data_dir == data_dir.resolve()]
    return ports[0] if ports else (DEFAULT_PORT, DEFAULT_LAB_PORT)


def require_own_data_dir(data_dir: Path) -> None:
    """Raise CommandError if the data folder is the default one, and `workbench up` is running with another one only.

    Otherwise a command that is given in another folder would start a second Postgres, and use that.
    """
    is_default = data_dir == absolute_path(DEFAULT_DATA_DIR)
    running = list(dict.fromkeys(str(up.data_dir) for up in running_ups())) if is_default else []
    if running and str(data_dir.resolve()) not in running:
        raise CommandError(
            f"`workbench up` is running with the data folder {', '.join(running)}, and the default here is {data_dir}; "
            f"name the one that you mean, for example --data-dir {running[0]}"
        )


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
