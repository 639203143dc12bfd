"""Whether a port is free to listen on, and the sockets that do."""

import errno
import socket
from typing import Any

from api.commands import CommandError

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
