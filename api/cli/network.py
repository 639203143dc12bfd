"""One question to a process of ours, past any proxy.

A child process ends when its parent dies, even by kill -9: its stdin is a pipe, or a socket, that only the parent holds open.

Whether a port is free to listen on, and the sockets that do.
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


def status(port: int, path: str) -> int | None:
    """Return the HTTP status of a GET, or None when nobody answers within two seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def text(url: str) -> str:
    """Return the text at an address `http://HOST:PORT/PATH`; raise CommandError when there is none."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise CommandError(f"{url} is not an address like http://127.0.0.1:9464/metrics")
    connection = http.client.HTTPConnection(parts.netloc, timeout=5.0)
    try:
        connection.request("GET", parts.path or "/metrics")
        answer = connection.getresponse()
        if answer.status != 200:
            raise CommandError(f"{url} answers {answer.status}")
        return answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(f"{url} cannot be read: {error}") from error
    finally:
        connection.close()


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


BACKLOG = 4096


def must_be_free(host: str, port: int, flag: str) -> None:
    """Raise CommandError, naming the flag that chooses another port, unless we could listen there now."""
    try:
        if not is_free(host, port):
            raise CommandError(f"port {port} is already in use; stop what listens there, or choose another with {flag}")
    except PermissionError:
        raise CommandError(f"port {port} is reserved for root; choose one above 1023 with {flag}") from None
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}: {error.strerror or error}; choose another address with --host"
        ) from None


def is_free(host: str, port: int) -> bool:
    """Tell whether nobody listens there; raise OSError for an address that is not ours."""
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def listen(host: str, port: int, sockets: int = 1) -> list[socket.socket]:
    """Return sockets that listen there; the kernel spreads connections over several by a hash of their addresses."""
    return [_listen(host, port, shared=sockets > 1) for _ in range(sockets)]


def _listen(host: str, port: int, shared: bool) -> socket.socket:
    family, address = _resolve(host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(address)
    listening.listen(BACKLOG)
    return listening


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, address
