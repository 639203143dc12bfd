"""A WebSocket without tasks: bytes come in, messages go to a callback, frames go out. Its owner pings it and ends it in time.

The sans-I/O protocol of `websockets` reads the frames (RFC 6455), so a socket on which nobody speaks costs its memory and
nothing else; Sanic's own has three tasks. The attributes that begin with `ws_` or stand under "Sanic" are what Sanic asks for.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

MAX_MESSAGE = 4_096  # bytes from a client, over all fragments
CREDIT = 100  # frames a client may send ahead of its allowance

_LINGER_SECONDS = 2.0
_REASON_BYTES = 123
_NO_PAYLOAD = b""
_DATA = (Opcode.TEXT, Opcode.CONT)


class WebSocket:
    """One open socket. Times are the event loop's."""

    __slots__ = ("_begun", "_early", "_loop", "_on_room", "_on_text", "_refused", "_transport", "credit", "ended", "heard_at", "loop",
                 "unread_since", "ws_proto")  # fmt: skip

    def __init__(self, protocol: ServerProtocol, transport: asyncio.Transport) -> None:
        self.ws_proto = protocol
        self.loop = None  # else Sanic would start a task to close it
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._begun: list[bytes] = []
        self._early: list[str] = []
        self._refused = False  # what comes now is not looked at; what came with the client's own goodbye is
        self._on_text: Callable[[str], None] = self._early.append
        self._on_room: Callable[[], None] = _ignore
        self.credit = CREDIT
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self._loop.time()
        self.unread_since: float | None = None

    @property
    def open(self) -> bool:
        """Whether messages may still be exchanged."""
        return self.ws_proto.state is State.OPEN and not self._transport.is_closing()

    @property
    def has_room(self) -> bool:
        """Whether the client reads: less than 64 KB wait to be sent."""
        return self.unread_since is None

    def listen(self, on_text: Callable[[str], None], on_room: Callable[[], None]) -> None:
        """Hand over messages, also those that came already, and the news that there is room again."""
        self._on_text, self._on_room = on_text, on_room
        early, self._early = self._early, []
        for text in early:
            on_text(text)

    def send(self, text: bytes) -> None:
        """Send a text message; nothing happens on a socket that has ended."""
        if self.open:
            self.ws_proto.send_text(text)
            self._flush()

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self.open:
            self.ws_proto.send_ping(_NO_PAYLOAD)
            self._flush()

    def end(self, code: int, reason: str = "") -> None:
        """Say goodbye and close; what is not read within two seconds is lost."""
        self._refused = True
        if self.open:
            self.ws_proto.fail(code, reason[:_REASON_BYTES])
            self._flush()

    def abort(self) -> None:
        """Close at once: for a client that does not read."""
        self._transport.abort()

    def pause(self) -> None:
        """Take note that the client reads too slowly."""
        self.unread_since = self._loop.time()

    def resume(self) -> None:
        """Take note that the client has read."""
        self.unread_since = None
        self._on_room()

    # Sanic

    def data_received(self, data: bytes) -> None:
        """Take what arrived."""
        self.heard_at = self._loop.time()
        self.ws_proto.receive_data(data)
        for event in self.ws_proto.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()

    def eof_received(self) -> bool:
        """Take note that the client sends nothing more; return False: the transport closes."""
        self.ws_proto.receive_eof()
        self._flush()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Take note that the connection is gone."""
        self.ws_proto.state = State.CLOSED
        if not self.ended.done():
            self.ended.set_result(None)

    def end_connection(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and close."""
        self.end(code, reason)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and close."""
        self.end(code, reason)

    def _take(self, frame: Frame) -> None:
        self.credit -= 1
        if self.credit < 0:
            self.end(1008, "too many frames")
        elif frame.opcode is Opcode.BINARY:
            self.end(1003, "only text is understood here")
        elif frame.opcode in _DATA and not self._refused:
            self._begun.append(bytes(frame.data))
            if frame.fin:
                self._hand_over()

    def _hand_over(self) -> None:
        message, self._begun = b"".join(self._begun), []
        try:
            text = message.decode()
        except UnicodeDecodeError:
            self.end(1007, "not UTF-8")
            return
        self._on_text(text)

    def _flush(self) -> None:
        for piece in self.ws_proto.data_to_send():
            if self._transport.is_closing():
                return
            if piece:
                self._transport.write(piece)
            else:  # everything is said; the client closes, or is closed
                self._transport.write_eof()
                self._loop.call_later(_LINGER_SECONDS, self._transport.abort)


def accept(protocol: ServerProtocol, request: Any) -> bytes | None:
    """Return the bytes that answer a handshake, or None when it is not valid."""
    response = protocol.accept(request)
    return response.serialize() if response.status_code == 101 else None


def _ignore() -> None:
    pass
