"""A strict HTTP client: it keeps its connection until an answer has `Connection: close`, and never retries."""

import asyncio
import json
import time
from types import TracebackType
from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """An answer, and the seconds until it was complete."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


class HttpConnection:
    """One connection to an API at a time. A broken or refused connection is an error of the test."""

    def __init__(self, url: str, key: str = "") -> None:
        self._address = url.removeprefix("http://")
        self._key = key
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "HttpConnection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def get(self, path: str) -> Answer:
        return await self._request(f"GET {path} HTTP/1.1\r\nhost: {self._address}\r\n\r\n".encode())

    async def post(self, path: str, body: Any) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._address}\r\nauthorization: Bearer {self._key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        return await self._request(head.encode() + content)

    async def connect(self) -> None:
        host, port = self._address.split(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _request(self, request: bytes) -> Answer:
        since = time.monotonic()
        if self._writer is None:
            await self.connect()
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-1])}
        body = await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            await self.close()
        return Answer(int(head[0].split()[1]), headers, body, time.monotonic() - since)
