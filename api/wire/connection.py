"""Client connections: HTTP requests, and WebSockets without tasks.

`HttpConnection` is Sanic's protocol with strict parsing of requests; it drops a client that stops reading its answers.

`WebSocket` takes bytes, hands messages to a callback and writes frames. The sans-I/O protocol of `websockets` parses
frames (RFC 6455), so an idle socket costs only its memory; Sanic's own implementation runs three tasks for each. The
owner of a socket pings and ends it.
"""

import asyncio
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from typing import Any

from sanic import Request
from sanic.server.protocols.websocket_protocol import WebSocketProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from api.wire.http1 import StrictHttp, TransportError

MAX_MESSAGE_BYTES = 4_096  # from a client, over all fragments
CREDIT_FRAMES = 100  # a client may send this many frames beyond its allowance
MIN_READ_BYTES = 65_536  # a slow client has to read this much within RESPONSE_TIMEOUT

_LINGER_S = 2.0
_MAX_REASON_BYTES = 123  # RFC 6455: a control frame carries 125 bytes, and the code takes two
_DATA = (Opcode.TEXT, Opcode.CONT)


class HttpConnection(WebSocketProtocol):
    """One connection. Writing pauses when 64 KB wait to be sent; from then on the client has to read."""

    HTTP_CLASS = StrictHttp
    __slots__ = ("_unread_timer",)
    websocket: "WebSocket | None"  # type: ignore[assignment]  # has all that Sanic uses of its own class

    def connection_made(self, transport: Any) -> None:
        self._unread_timer: TimerHandle | None = None
        super().connection_made(transport)  # type: ignore[no-untyped-call]

    async def websocket_handshake(self, request: Request, subprotocols: Any = None) -> "WebSocket":
        """Turn the connection into a WebSocket; answer 400 if the handshake is not valid."""
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
        self._refusing = (
            False  # set when we close: later messages are ignored, but not those before the client's own close frame
        )
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
                self._loop.call_later(_LINGER_S, self._transport.abort)
