"""Whether a port is free to listen on."""

import errno
import socket

from api.commands import CommandError


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
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True
