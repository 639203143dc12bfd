"""Client connections: HTTP requests, and WebSockets without tasks.

`HttpConnection` is Sanic's protocol, and `StrictHttp` its handling of HTTP/1, with strict parsing (`api.wire.http1`):
a request is complete, valid and in time before a handler sees it. An error in the middle of a request ends the
connection, because nothing says where the next request would begin. A client that stops reading responses is dropped.

This is the only file that uses private attributes of Sanic, or overrides its undocumented methods: `_receive_more`,
`_send`, `http1_request_header`, `init_for_request` and `error_response` of `Http`, `_can_write` and `_time` of its
protocol, and `_id` and `_current` of `Request`. A minor version of Sanic may change any of them, so
`packaging/server/pyproject.toml` pins it. Sanic's signal for heads does not suffice (docs/decisions/0014).

`WebSocket` takes bytes, hands messages to a callback and writes frames. The sans-I/O protocol of `websockets` parses
frames (RFC 6455), so an idle socket costs only its memory; Sanic's own implementation runs three tasks for each. The
owner of a socket pings and ends it.
"""

import asyncio
from asyncio import TimerHandle, Transport
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import Any

from sanic import Request
from sanic.compat import Header
from sanic.exceptions import SanicException
from sanic.http import Http, Stage
from sanic.server.protocols.websocket_protocol import WebSocketProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from api.wire.http1 import (
    MAX_HEAD_BYTES,
    TOO_MANY_FIELDS,
    ChunkedBody,
    Head,
    caller_request_id,
    can_never_be_valid,
    read_head,
)

MIN_ADMITTED_BYTES = 65_536  # for a larger body, the client has to show a valid key first
MAX_MESSAGE_BYTES = 4_096  # from a client, over all fragments
CREDIT_FRAMES = 100  # that a client may send before the owner of the socket adds credit
MIN_READ_BYTES = 65_536  # a slow client has to read this much within RESPONSE_TIMEOUT

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LINGER_S = 1.0
_PAUSE_AFTER_503_S = 0.1
PROBE_INTERVAL_S = 0.5  # ingest usually answers sooner; two probes show that a client has left
_WEBSOCKET_LINGER_S = 2.0
_MAX_REASON_BYTES = 123  # RFC 6455: a control frame carries 125 bytes, and the code takes two
_DATA = (Opcode.TEXT, Opcode.CONT)


class TransportError(SanicException):
    """A request refused before routing: 400, 408, 413, 417, 431 or 503. The message is for the client."""

    quiet = True


class LargeBodies:
    """Admission of large bodies: `admit` raises for clients that may not send them; `room` limits bytes in memory."""

    def __init__(self, admit: Callable[[Request], Awaitable[object]], room: int) -> None:
        self.admit = admit
        self._room = room

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve memory for a body while it is received and handled; raise TransportError if there is not enough."""
        if size > self._room:
            raise TransportError("too many large requests in progress, try again", 503)
        self._room -= size
        try:
            yield
        finally:
            self._room += size


class StrictHttp(Http):
    """The requests of one connection, one after the other.

    `REQUEST_TIMEOUT` bounds the time from the first to the last byte of a request. A body has at most
    `BODY_LIMITS[path]` bytes, where `*` stands for one segment of the path, and otherwise `REQUEST_MAX_SIZE`. Large
    bodies need admission by `ctx.large_bodies`.
    """

    __slots__ = ("_due", "_lingers", "_pauses")

    async def http1(self) -> None:
        """Answer requests until the connection ends."""
        self._lingers = False
        await super().http1()  # type: ignore[no-untyped-call]
        if self._lingers:
            await self._linger()

    async def http1_request_header(self) -> None:
        """Receive one request, head and body, into `self.request`."""
        if self._pauses:
            await asyncio.sleep(_PAUSE_AFTER_503_S)
        await self._skip_empty_lines()
        self._due = self.protocol.loop.time() + self.protocol.request_timeout
        head = await self._receive_head()
        self._create_request(head)
        if head.version == "1.1" and not head.expect_continue and "expect" in self.request.headers:
            raise TransportError("Expect can only be 100-continue", 417)
        if head.chunked or head.content_length:
            self.request.body = await self._receive_body(head)

    def init_for_request(self) -> None:
        """Reset the state between requests."""
        # After a 503 the connection pauses, so a client that retries at once costs little.
        last = getattr(self, "response", None)  # unset before the first request
        self._pauses = last is not None and last.status == 503
        super().init_for_request()  # type: ignore[no-untyped-call]

    async def error_response(self, exception: Exception) -> None:
        """Answer an error. If the request is incomplete, the client is still sending the rest of it."""
        if self.stage is Stage.IDLE:  # the connection ended after an empty line
            return
        self._lingers = self.stage is Stage.REQUEST
        await super().error_response(exception)

    async def _skip_empty_lines(self) -> None:
        """Skip empty lines before a request, as RFC 9112 (2.2) advises; the connection stays idle meanwhile."""
        buffer = self.recv_buffer
        self.stage = Stage.IDLE
        while not buffer or buffer[:2] in (b"\r", b"\r\n"):
            if len(buffer) < 2:
                await self._receive_more()
            if buffer[:2] == b"\r\n":
                del buffer[:2]
        self.stage = Stage.REQUEST

    async def _receive_head(self) -> Head:
        buffer = self.recv_buffer
        while (end := buffer.find(b"\r\n\r\n")) < 0 and len(buffer) <= MAX_HEAD_BYTES:
            if can_never_be_valid(buffer):
                raise _malformed("the head has control characters or bare line endings")
            await self._receive_in_time()
        if not 0 <= end <= MAX_HEAD_BYTES:
            raise TransportError(
                f"the head of the request is too large: at most {MAX_HEAD_BYTES} bytes are accepted", 431
            )
        head = read_head(bytes(buffer[:end]))
        if head is TOO_MANY_FIELDS:
            raise TransportError(head, 431)
        if isinstance(head, str):
            raise _malformed(head)
        del buffer[: end + 4]
        return head

    def _create_request(self, head: Head) -> None:
        protocol = self.protocol
        request = protocol.request_class(
            url_bytes=head.target.encode("ascii"),
            headers=Header(head.fields),
            version=head.version,
            method=head.method,
            transport=protocol.transport,  # type: ignore[arg-type]
            app=protocol.app,
        )
        request._id = caller_request_id(head.fields)  # with None, Sanic creates one on demand
        protocol.request_class._current.set(request)
        protocol.state["requests_count"] += 1
        request.stream = self
        self.request = request
        self.keep_alive = head.keep_alive and protocol.app.config.KEEP_ALIVE
        self.head_only = head.method == "HEAD"
        self.upgrade_websocket = request.headers.get("upgrade", "").lower() == "websocket"

    async def _receive_body(self, head: Head) -> bytes:
        limit = _body_limit(self.protocol.app.config.BODY_LIMITS, head.target) or self.protocol.request_max_size
        length = head.content_length or 0
        if length > limit:
            raise _too_large(limit)
        with ExitStack() as reserved:
            if length > MIN_ADMITTED_BYTES:
                await self._admit(reserved, length)
            if head.expect_continue:
                await self._send(_CONTINUE)
            if head.content_length is None:
                return await self._receive_chunks(limit, reserved)
            buffer = self.recv_buffer
            while len(buffer) < length:
                await self._receive_in_time()
            body = bytes(buffer[:length])
            del buffer[:length]
            return body

    async def _receive_chunks(self, limit: int, reserved: ExitStack) -> bytes:
        chunks, admitted = ChunkedBody(limit), False
        while (progress := chunks.take(self.recv_buffer)) == "unfinished":
            if not admitted and len(chunks.body) + len(self.recv_buffer) > MIN_ADMITTED_BYTES:
                await self._admit(reserved, limit)  # the length is not known, so the limit is reserved
                admitted = True
            await self._receive_in_time()
        match progress:
            case "malformed":
                raise _malformed("a chunk of the body is not valid")
            case "too_large":
                raise _too_large(limit)
            case "whole":
                return bytes(chunks.body)

    async def _admit(self, reserved: ExitStack, size: int) -> None:
        large_bodies: LargeBodies = self.protocol.app.ctx.large_bodies
        await large_bodies.admit(self.request)
        reserved.enter_context(large_bodies.reserve(size))

    async def _receive_in_time(self) -> None:
        try:
            async with asyncio.timeout_at(self._due):
                await self._receive_more()
        except TimeoutError:
            raise TransportError("the request did not arrive in time", 408) from None

    async def _linger(self) -> None:
        # Closing with unread bytes resets the connection, and the client could lose the response.
        transport = self.protocol.transport
        if transport is None or transport.is_closing():
            return
        self.stage = Stage.FAILED
        transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while True:
                    self.recv_buffer.clear()
                    await self._receive_more()


def _body_limit(limits: Mapping[str, int], target: str) -> int | None:
    path = target.partition("?")[0].rstrip("/")
    if path in limits:
        return limits[path]
    segments = path.split("/")
    for pattern, limit in limits.items():
        expected = pattern.split("/")
        if len(expected) == len(segments) and all(map(lambda part, own: part in ("*", own), expected, segments)):
            return limit
    return None


def _malformed(reason: str) -> TransportError:
    return TransportError(f"the request is not valid HTTP: {reason}", 400)


def _too_large(limit: int) -> TransportError:
    return TransportError(f"the body is too large: at most {limit} bytes are accepted here", 413)


class HttpConnection(WebSocketProtocol):
    """One connection. Writing pauses when 64 KB wait to be sent; from then on the client has to read.

    A client may end its side of the connection after a request (`input_ended`), and still gets its answer. A client
    that has left looks the same until something is sent to it, so `100 Continue` is sent every PROBE_INTERVAL_S until
    the answer begins. Clients of HTTP/1.1 skip it (RFC 9110, 15.2), and the system of a client that has left refuses
    it: the next write fails and the request is cancelled. HTTP/1.0 has no such response, so a request of that version
    runs to its end.
    """

    HTTP_CLASS = StrictHttp
    __slots__ = ("_unread_timer", "input_ended")
    websocket: "WebSocket | None"  # type: ignore[assignment]  # has all that Sanic uses of its own class

    def connection_made(self, transport: Any) -> None:
        self._unread_timer: TimerHandle | None = None
        self.input_ended = False
        super().connection_made(transport)  # type: ignore[no-untyped-call]

    def eof_received(self) -> bool:
        """Return whether the connection stays open, because a request is under way."""
        if self.websocket is not None:
            return self.websocket.eof_received()
        if self.http is None or self.is_idle:
            return False
        self.input_ended = True
        self._data_received.set()  # wakes `receive_more`, because nothing more will be received
        self.loop.call_later(PROBE_INTERVAL_S, self._probe)
        return True

    async def receive_more(self) -> None:
        """Wait for bytes; raise CancelledError, or TransportError within a request, if there will be no more."""
        received = len(self.recv_buffer)
        if not self.input_ended:
            await super().receive_more()  # type: ignore[no-untyped-call]
        if self.input_ended and len(self.recv_buffer) == received:
            if self.http is not None and self.http.stage is Stage.REQUEST:
                raise _malformed("it ended before it was complete")
            raise asyncio.CancelledError  # ends the task of the connection

    def _probe(self) -> None:
        http, transport = self.http, self.transport
        if http is None or transport is None or transport.is_closing():
            return
        if http.stage is Stage.HANDLER and http.request.version == "1.1":
            transport.write(_CONTINUE)
        self.loop.call_later(PROBE_INTERVAL_S, self._probe)

    async def websocket_handshake(self, request: Request, subprotocols: Any = None) -> "WebSocket":
        """Turn the connection into a WebSocket; answer 400 if the handshake is not valid."""
        if self.input_ended:
            raise TransportError("the client ended its side of the connection, so a WebSocket cannot be opened", 400)
        protocol = ServerProtocol(max_size=MAX_MESSAGE_BYTES, state=State.OPEN)
        response = protocol.accept(self.sanic_request_to_ws_request(request))
        if response.status_code != 101 or self.transport is None:
            raise TransportError("the WebSocket handshake is not valid", 400)
        self.transport.write(response.serialize())
        websocket = WebSocket(protocol, self.transport)
        self.websocket = websocket
        if early := bytes(self.recv_buffer):
            self.recv_buffer.clear()
            websocket.data_received(early)
        return websocket

    @property
    def is_idle(self) -> bool:
        """Whether every earlier request has a response that the client has read."""
        http = self.http
        return http is not None and http.stage is Stage.IDLE and not self.recv_buffer and self._can_write.is_set()

    def close_if_idle(self) -> bool:
        """Close the connection unless a request is under way; return whether it was closed."""
        return bool(super().close_if_idle())  # type: ignore[no-untyped-call]

    def restart_timer(self) -> None:
        """Restart the time after which an idle connection is closed."""
        self._time = monotonic()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[no-untyped-call]
        if self.websocket is not None:
            self.websocket.pause()
        elif self.transport is not None:
            self._start_unread_timer(self.transport)

    def resume_writing(self) -> None:
        """Called when the client has read, and when the connection is lost."""
        super().resume_writing()  # type: ignore[no-untyped-call]
        if self.websocket is not None:
            self.websocket.resume()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _start_unread_timer(self, transport: Transport) -> None:
        unread = transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self.response_timeout, self._drop_unless_read, transport, unread)

    def _drop_unless_read(self, transport: Transport, unread: int) -> None:
        if unread - transport.get_write_buffer_size() < MIN_READ_BYTES:
            transport.abort()
        else:
            self._start_unread_timer(transport)


class WebSocket:
    """One open socket. Times are those of the event loop."""

    __slots__ = (
        "_early",
        "_fragments",
        "_loop",
        "_on_room",
        "_on_text",
        "_refusing",
        "_transport",
        "credit",
        "ended",
        "heard_at",
        "loop",
        "unread_since",
        "ws_proto",
    )

    def __init__(self, protocol: ServerProtocol, transport: asyncio.Transport) -> None:
        self.ws_proto = protocol
        self.loop = None  # otherwise Sanic would start a task to close the socket
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._fragments: list[bytes] = []
        self._early: list[str] = []
        # Set when we close: later messages are ignored. Those before a close frame of the client are still read.
        self._refusing = False
        self._on_text: Callable[[str], None] = self._early.append
        self._on_room: Callable[[], None] = lambda: None
        self.credit = CREDIT_FRAMES
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self._loop.time()
        self.unread_since: float | None = None

    @property
    def open(self) -> bool:
        return self.ws_proto.state is State.OPEN and not self._transport.is_closing()

    @property
    def has_room(self) -> bool:
        """Whether the client keeps up: less than 64 KB wait to be sent."""
        return self.unread_since is None

    def listen(self, on_text: Callable[[str], None], on_room: Callable[[], None]) -> None:
        """Set the callbacks for messages, including those that arrived already, and for when there is room again."""
        self._on_text, self._on_room = on_text, on_room
        early, self._early = self._early, []
        for text in early:
            on_text(text)

    def send(self, text: bytes) -> None:
        """Send a text message; does nothing on a socket that has ended."""
        if self.open:
            self.ws_proto.send_text(text)
            self._flush()

    def ping(self) -> None:
        if self.open:
            self.ws_proto.send_ping(b"")
            self._flush()

    def end(self, code: int, reason: str = "") -> None:
        """Send a close frame and close; what the client does not read within two seconds is lost."""
        self._refusing = True
        if self.open:
            self.ws_proto.fail(code, reason[:_MAX_REASON_BYTES])
            self._flush()

    def abort(self) -> None:
        """Close at once, for a client that does not read."""
        self._transport.abort()

    def pause(self) -> None:
        self.unread_since = self._loop.time()

    def resume(self) -> None:
        self.unread_since = None
        self._on_room()

    # Called by Sanic's protocol

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self.ws_proto.receive_data(data)
        for event in self.ws_proto.events_received():
            if isinstance(event, Frame):
                self._handle_frame(event)
        self._flush()

    def eof_received(self) -> bool:
        self.ws_proto.receive_eof()
        self._flush()
        return False  # the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self.ws_proto.state = State.CLOSED
        if not self.ended.done():
            self.ended.set_result(None)

    def end_connection(self, code: int = 1000, reason: str = "") -> None:
        self.end(code, reason)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.end(code, reason)

    def _handle_frame(self, frame: Frame) -> None:
        self.credit -= 1
        if self.credit < 0:
            self.end(1008, "too many frames")
        elif frame.opcode is Opcode.BINARY:
            self.end(1003, "only text messages are supported")
        elif frame.opcode in _DATA and not self._refusing:
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                message, self._fragments = b"".join(self._fragments), []
                try:
                    text = message.decode()
                except UnicodeDecodeError:
                    self.end(1007, "not UTF-8")
                    return
                self._on_text(text)

    def _flush(self) -> None:
        for data in self.ws_proto.data_to_send():
            if self._transport.is_closing():
                return
            if data:
                self._transport.write(data)
            else:  # the protocol is done: wait for the client to close, but not for long
                self._transport.write_eof()
                self._loop.call_later(_WEBSOCKET_LINGER_S, self._transport.abort)
