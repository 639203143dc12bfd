"""Opens sockets for servers that run in the event loop of the test."""

import socket


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 selects a free one."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock
