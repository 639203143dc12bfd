"""HTTP servers that run in a thread of the test and give scripted answers."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, TypeVar

AnyServer = TypeVar("AnyServer", bound=HTTPServer)


class Handler(BaseHTTPRequestHandler):
    """Sends answers with their length, and prints no line for each request."""

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        """Send an answer; `headers` may replace the Content-Length."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def answer_json(self, status: int, body: Any) -> None:
        """Send an answer of JSON."""
        self.answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def read_body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(server: AnyServer) -> Iterator[AnyServer]:
    """Serve requests in a thread until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
