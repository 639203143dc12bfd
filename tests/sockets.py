"""Sockets for servers that run in a test's own event loop."""

import socket


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 is any that is free."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock
