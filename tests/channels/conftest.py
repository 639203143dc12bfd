"""Endpoints and mail servers on real sockets with scripted answers, and a certificate authority for them."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_network

import pytest
import trustme

from api.channels.address_guard import AddressGuard
from api.channels.webhook import WebhookSender

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1"))
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Request:
    """A received request."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.line, *lines = head.decode("latin-1").split("\r\n")
        self.headers = dict(line.lower().split(": ", 1) for line in lines if line)
        self.raw_headers = dict(line.split(": ", 1) for line in lines if line)
        self.body = body


class Endpoint:
    """A server that records requests and answers with its replies in turn; the last one repeats."""

    def __init__(self, *replies: Reply | bytes) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._replies = list(replies)

    def url(self, host: str = "127.0.0.1", path: str = "/hook", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(Request(head, b"").headers.get("content-length", "0"))
                self.requests.append(Request(head, await reader.readexactly(length)))
                reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
                if isinstance(reply, bytes):
                    writer.write(reply)
                    await writer.drain()
                else:
                    await reply(writer)
        writer.close()


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """Return an answer as bytes."""
    lines = [f"HTTP/1.1 {code} Whatever", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@contextlib.asynccontextmanager
async def endpoint(*replies: Reply | bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """Run an endpoint until the block ends."""
    made = Endpoint(*replies)
    open_ones: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        await made.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for writer in open_ones:
            writer.transport.abort()


class Authority:
    """A certificate authority for tests."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self.believer = ssl.create_default_context()
        self._authority.configure_trust(self.believer)

    def server(self, *names: str) -> ssl.SSLContext:
        """Return the TLS context of a server with these names."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert(*names).configure_cert(context)
        return context


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def webhooks(authority: Authority) -> AsyncIterator[WebhookSender]:
    """A sender that may dial loopback addresses."""
    made = WebhookSender(AddressGuard(LOOPBACK), authority.believer, deadline_s=5)
    yield made
    await made.close()
