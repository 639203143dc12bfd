"""Parses HTTP answers that were read from a socket."""

import json
from typing import Any


class Answer:
    """The first answer in `raw`, and the bytes after it."""

    def __init__(self, raw: bytes) -> None:
        head, _, rest = raw.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(self.headers.get(b"content-length", 0))
        self.body, self.rest = rest[:length], rest[length:]

    @property
    def error(self) -> dict[str, Any]:
        """The body, which must have the shape of an error."""
        body: dict[str, Any] = json.loads(self.body)
        assert set(body) <= {"error", "field", "errors", "code", "requestId", "doc"}
        assert {"error", "requestId", "doc"} <= set(body)
        return body
