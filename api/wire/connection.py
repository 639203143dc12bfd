"""A client's connection: its requests are read strictly, and it ends when the client stops reading its answers."""

from asyncio import TimerHandle, Transport
from typing import Any

from sanic import Request
from sanic.server.protocols.websocket_protocol import WebSocketProtocol
from websockets.protocol import State
from websockets.server import ServerProtocol

from api.wire.http1 import StrictHttp, TransportError
from api.wire.websocket import MAX_MESSAGE, WebSocket, accept

LEAST_READ = 65_536  # bytes a client has to take within RESPONSE_TIMEOUT once so much waits for it


class Connection(WebSocketProtocol):
    """One connection. Writing pauses when 64 KB wait to be sent; from then on the client has to read."""

    HTTP_CLASS = StrictHttp
    __slots__ = ("_impatience",)
    websocket: WebSocket | None  # type: ignore[assignment]  # ours does all that Sanic asks of its own

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._impatience: TimerHandle | None = None
        super().connection_made(transport)  # type: ignore[no-untyped-call]

    async def websocket_handshake(self, request: Request, subprotocols: Any = None) -> WebSocket:
        """Turn the connection into a WebSocket; refuse with 400 what is no valid handshake."""
        protocol = ServerProtocol(max_size=MAX_MESSAGE, state=State.OPEN)
        answer = accept(protocol, self.sanic_request_to_ws_request(request))
        if answer is None or self.transport is None:
            raise TransportError("the WebSocket handshake is not valid", 400)
        self.transport.write(answer)
        websocket = WebSocket(protocol, self.transport)
        self.websocket = websocket
        if early := bytes(self.recv_buffer):
            self.recv_buffer.clear()
            websocket.data_received(early)
        return websocket

    def pause_writing(self) -> None:
        """Wait until the client has read; drop it when it does not."""
        super().pause_writing()  # type: ignore[no-untyped-call]
        if self.websocket is not None:
            self.websocket.pause()
        elif self.transport is not None:
            self._be_patient(self.transport)

    def resume_writing(self) -> None:
        """Write on. A connection that is lost comes here, too."""
        super().resume_writing()  # type: ignore[no-untyped-call]
        if self.websocket is not None:
            self.websocket.resume()
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _be_patient(self, transport: Transport) -> None:
        unread = transport.get_write_buffer_size()
        self._impatience = self.loop.call_later(self.response_timeout, self._drop_unless_read, transport, unread)

    def _drop_unless_read(self, transport: Transport, unread: int) -> None:
        if unread - transport.get_write_buffer_size() < LEAST_READ:
            transport.abort()
        else:
            self._be_patient(transport)
