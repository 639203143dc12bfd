"""HTTP/1 as Sanic speaks it, with our own reading of requests: strictly, whole and in time, before a handler sees anything.

A failure in the middle of a request ends the connection: nobody can say where the next request would begin.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from sanic.compat import Header
from sanic.exceptions import SanicException
from sanic.http import Http, Stage
from sanic.request import Request

from api.wire.chunks import Chunks
from api.wire.head import MAX_HEAD, TOO_MANY_FIELDS, Head, is_spoilt, read_head
from api.wire.request_id import given_id

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LARGE = 65_536  # bytes of a body; who sends more shows a valid key first
_LINGER_SECONDS = 1.0
_REST_SECONDS = 0.1


class TransportError(SanicException):
    """A request refused before a route is looked for: 400, 408, 413, 417, 431 or 503. The message is for the client."""

    quiet = True


class Reception:
    """What an application lets in: large bodies of those whom `admit` does not refuse (it raises), `room` bytes at a time."""

    def __init__(self, admit: Callable[[Request], Awaitable[object]], room: int) -> None:
        self.admit = admit
        self._room = room

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold room for a body while it is on its way; raise TransportError when there is none."""
        if size > self._room:
            raise TransportError("too many large requests are on their way, try again", 503)
        self._room -= size
        try:
            yield
        finally:
            self._room += size


class StrictHttp(Http):
    """The requests of one connection, one after the other.

    `REQUEST_TIMEOUT` bounds the time from a request's first byte to its last. A body has at most `BODY_LIMITS[path]`
    bytes, where a `*` stands for one part of the address, at other addresses `REQUEST_MAX_SIZE`. Large ones go by `ctx.reception`.
    """

    __slots__ = ("_due", "_lingers", "_rests")

    async def http1(self) -> None:
        """Answer requests until the connection ends."""
        self._lingers = False
        await super().http1()  # type: ignore[no-untyped-call]
        if self._lingers:
            await self._linger()

    async def http1_request_header(self) -> None:
        """Receive one request, its head and its body, into `self.request`."""
        if self._rests:
            await asyncio.sleep(_REST_SECONDS)
        self._due = self.protocol.loop.time() + self.protocol.request_timeout
        head = await self._receive_head()
        self._begin(head)
        if head.version == "1.1" and not head.expect_continue and "expect" in self.request.headers:
            raise TransportError("Expect can only be 100-continue", 417)
        if head.chunked or head.content_length:
            self.request.body = await self._receive_body(head)

    def init_for_request(self) -> None:
        """Forget the last request; after a 503 the connection rests, so that a client who comes back at once costs little."""
        last = getattr(self, "response", None)  # none before the first
        self._rests = last is not None and last.status == 503
        super().init_for_request()  # type: ignore[no-untyped-call]

    async def error_response(self, exception: Exception) -> None:
        """Answer a failure; in the middle of a request its rest is still on the way."""
        self._lingers = self.stage is Stage.REQUEST
        await super().error_response(exception)

    async def _receive_head(self) -> Head:
        buffer = self.recv_buffer
        while (end := buffer.find(b"\r\n\r\n")) < 0 and len(buffer) <= MAX_HEAD:
            if is_spoilt(buffer):
                raise _malformed("the head has control characters or bare line ends")
            await self._receive_in_time()
        if not 0 <= end <= MAX_HEAD:
            raise TransportError(f"the head of the request is too large: at most {MAX_HEAD} bytes are taken", 431)
        head = read_head(bytes(buffer[:end]))
        if head is TOO_MANY_FIELDS:
            raise TransportError(head, 431)
        if isinstance(head, str):
            raise _malformed(head)
        del buffer[: end + 4]
        return head

    def _begin(self, head: Head) -> None:
        protocol = self.protocol
        request = protocol.request_class(
            url_bytes=head.target.encode("ascii"),
            headers=Header(head.fields),
            version=head.version,
            method=head.method,
            transport=protocol.transport,  # type: ignore[arg-type]
            app=protocol.app,
        )
        request._id = given_id(head.fields)  # None: Sanic makes one when it is asked for
        protocol.request_class._current.set(request)
        protocol.state["requests_count"] += 1
        request.stream = self
        self.request = request
        self.keep_alive = head.keep_alive and protocol.app.config.KEEP_ALIVE
        self.head_only = head.method == "HEAD"
        self.upgrade_websocket = request.headers.get("upgrade", "").lower() == "websocket"

    async def _receive_body(self, head: Head) -> bytes:
        limit = _limit(self.protocol.app.config.BODY_LIMITS, head.target) or self.protocol.request_max_size
        if (head.content_length or 0) > limit:
            raise _too_large(limit)
        with ExitStack() as held:
            if (head.content_length or 0) > LARGE:
                await self._be_admitted(held, head.content_length or 0)
            if head.expect_continue:
                await self._send(_CONTINUE)
            if head.content_length is None:
                return await self._receive_chunks(limit, held)
            return await self._receive_bytes(head.content_length)

    async def _be_admitted(self, held: ExitStack, size: int) -> None:
        reception: Reception = self.protocol.app.ctx.reception
        await reception.admit(self.request)
        held.enter_context(reception.taken(size))

    async def _receive_bytes(self, length: int) -> bytes:
        buffer = self.recv_buffer
        while len(buffer) < length:
            await self._receive_in_time()
        body = bytes(buffer[:length])
        del buffer[:length]
        return body

    async def _receive_chunks(self, limit: int, held: ExitStack) -> bytes:
        chunks, admitted = Chunks(limit), False
        while (progress := chunks.take(self.recv_buffer)) == "unfinished":
            if not admitted and len(chunks.body) + len(self.recv_buffer) > LARGE:
                await self._be_admitted(held, limit)
                admitted = True
            await self._receive_in_time()
        match progress:
            case "malformed":
                raise _malformed("a chunk of the body is not valid")
            case "too_large":
                raise _too_large(limit)
            case "whole":
                return bytes(chunks.body)

    async def _receive_in_time(self) -> None:
        try:
            async with asyncio.timeout_at(self._due):
                await self._receive_more()
        except TimeoutError:
            raise TransportError("the request did not arrive in time", 408) from None

    async def _linger(self) -> None:
        """Let the client read the answer: to close with bytes unread is a reset, which would take it away."""
        transport = self.protocol.transport
        if transport is None or transport.is_closing():
            return
        self.stage = Stage.FAILED
        transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while True:
                    self.recv_buffer.clear()
                    await self._receive_more()


def _limit(limits: Mapping[str, int], target: str) -> int | None:
    path = target.partition("?")[0].rstrip("/")
    if path in limits:
        return limits[path]
    parts = path.split("/")
    return next((limit for pattern, limit in limits.items() if _alike(pattern.split("/"), parts)), None)


def _alike(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(map(lambda known, part: known in ("*", part), pattern, parts))


def _malformed(reason: str) -> TransportError:
    return TransportError(f"the request is not valid HTTP: {reason}", 400)


def _too_large(limit: int) -> TransportError:
    return TransportError(f"the body is too large: at most {limit} bytes are taken here", 413)
