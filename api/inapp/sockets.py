"""The sockets of this process: their frames, the sockets of each inbox, and the rules for ending them.

Frames are JSON text: AUTH and ACK from the client, PUSH and SESSION to it. Nothing here waits or uses the database. A
socket has no task of its own (measured: 16 KB with Sanic's two); one sweep a second over all of them ends those that
have been silent too long, do not read, or did not sign in. The close reason tells a client when to reconnect;
thousands of clients that are disconnected together get different times.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec

from api.inapp.sessions import InappSession
from api.store.messages import Acknowledgement, InboxKey, WaitingMessage, wallet_mark
from api.wire.connection import CREDIT_FRAMES, WebSocket
from workbench.language.codec import encode

MAX_SOCKETS = 20_000  # per process
MAX_SOCKETS_PER_WALLET = 20  # per process
MAX_UNACKNOWLEDGED = 1_000  # messages sent over one socket
RECONNECTS_PER_S = 500  # spread after a process stops; the other processes can open 800 sockets a second
RETRY_SOON_S = 1.0
RETRY_LATER_S = 60.0

UNAUTHORIZED = 4401  # close code: sign in again
FORBIDDEN = 4403  # close code: this origin is not allowed
_POLICY_VIOLATION = 1008
_SERVICE_RESTART = 1012
_TRY_AGAIN_LATER = 1013

_MESSAGE_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)
_NULL = msgspec.Raw(b"null")


class Auth(msgspec.Struct, frozen=True, tag_field="type", tag="AUTH"):
    """The first frame of a client: the token of a session."""

    token: str


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ACK"):
    """The client has received a message."""

    id: str


_DECODER = msgspec.json.Decoder(Auth | Ack)


def read_frame(text: str) -> Auth | Ack | None:
    """Return a client's frame, or None if it is not valid. Unknown fields are ignored."""
    try:
        frame = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return frame if isinstance(frame, Auth) or _MESSAGE_ID.fullmatch(frame.id) else None


def push_frame(message: WaitingMessage) -> bytes:
    data = _NULL if message.extra is None else msgspec.Raw(message.extra)
    fields = {"id": message.id, "title": message.title, "body": message.body, "data": data}
    return encode({**fields, "createdAt": message.created_at, "type": "PUSH"})


def session_frame(token: str, expires_at: datetime) -> bytes:
    """Return the frame with a renewed token, for the client's next sockets."""
    return encode({"token": token, "expiresAt": expires_at, "type": "SESSION"})


class SocketTimeouts(msgspec.Struct, frozen=True):
    """The timeouts of a socket, in seconds.

    `auth`: how long to wait for the token. `ping`: how long without a frame before a ping is sent. `silent`: how long
    without a frame before the socket is ended. `unread`: how long the send buffer may be full before the socket is
    ended.
    """

    auth: float = 5.0
    ping: float = 20.0
    silent: float = 40.0
    unread: float = 5.0


class Socket:
    """One connection. `session` is None before the wallet has signed in."""

    __slots__ = ("opened_at", "origin", "pinged_at", "session", "unacknowledged", "websocket")

    def __init__(self, websocket: WebSocket, origin: str | None) -> None:
        self.websocket = websocket
        self.origin = origin
        self.opened_at = self.pinged_at = websocket.heard_at
        self.session: InappSession | None = None
        self.unacknowledged: set[str] = set()

    @property
    def has_room(self) -> bool:
        return self.websocket.has_room and len(self.unacknowledged) < MAX_UNACKNOWLEDGED and self.websocket.open

    def send(self, message: WaitingMessage) -> None:
        """Send a message, unless it was sent over this socket before."""
        if message.id not in self.unacknowledged and self.has_room:
            self.unacknowledged.add(message.id)
            self.websocket.credit += 2  # the client may send two frames for it: the acknowledgement and one more
            self.websocket.send(push_frame(message))


class Sockets:
    """The sockets of one process.

    `inbox_changed` is called with an inbox that has to be read, `message_acknowledged` with each acknowledgement.
    """

    def __init__(
        self, inbox_changed: Callable[[InboxKey], None], message_acknowledged: Callable[[Acknowledgement], None]
    ) -> None:
        self.timeouts = SocketTimeouts()
        self._draining = False
        self._inbox_changed = inbox_changed
        self._message_acknowledged = message_acknowledged
        self._all: set[Socket] = set()
        self._inboxes: dict[InboxKey, list[Socket]] = {}
        self._marks: dict[tuple[int, str], set[InboxKey]] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        return self._draining or len(self._all) >= MAX_SOCKETS

    @property
    def inboxes(self) -> list[InboxKey]:
        return list(self._inboxes)

    def of(self, inbox: InboxKey) -> list[Socket]:
        return self._inboxes.get(inbox, [])

    def inboxes_by_marks(self, org_id: int, marks: list[str]) -> Iterator[InboxKey]:
        """Yield the inboxes to which the marks in a notification refer."""
        for mark in marks:
            yield from self._marks.get((org_id, mark), ())

    def signed_in(self) -> list[Socket]:
        return [socket for socket in self._all if socket.session is not None]

    def add(self, websocket: WebSocket, origin: str | None, sign_in: Callable[[Socket, str], None]) -> Socket:
        """Add a socket; `sign_in` is called with it and its token."""
        socket = Socket(websocket, origin)
        self._all.add(socket)
        websocket.listen(lambda text: self._on_frame(socket, text, sign_in), lambda: self._on_room(socket))
        return socket

    def remove(self, socket: Socket) -> None:
        self._all.discard(socket)
        inbox = None if socket.session is None else socket.session.inbox
        if inbox is None or socket not in (sockets := self._inboxes.get(inbox, [])):
            return
        sockets.remove(socket)
        if not sockets:
            del self._inboxes[inbox]
            key = inbox[0], wallet_mark(inbox[1])
            self._marks[key].discard(inbox)
            if not self._marks[key]:
                del self._marks[key]

    def open_inbox(self, socket: Socket, session: InappSession) -> None:
        """Let a socket receive the messages of its inbox; nothing happens if it already does."""
        if not socket.websocket.open or socket in self.of(session.inbox):
            return
        if len(self.of(session.inbox)) >= MAX_SOCKETS_PER_WALLET:
            socket.websocket.end(_TRY_AGAIN_LATER, _with_retry_after("this wallet has too many sockets", RETRY_LATER_S))
            return
        self._inboxes.setdefault(session.inbox, []).append(socket)
        self._marks.setdefault((session.org_id, wallet_mark(session.wallet)), set()).add(session.inbox)
        self._inbox_changed(session.inbox)

    def sweep(self) -> None:
        """End sockets that are dead, slow or not signed in; ping those that are silent."""
        now, timeouts = asyncio.get_running_loop().time(), self.timeouts
        for socket in tuple(self._all):
            websocket = socket.websocket
            # Frames cost credit: 100 are free each second, and two more for each message that was sent.
            websocket.credit = max(websocket.credit, CREDIT_FRAMES)
            if websocket.unread_since is not None and now - websocket.unread_since > timeouts.unread:
                websocket.end(_TRY_AGAIN_LATER, _with_retry_after("too slow, no message is lost", RETRY_SOON_S))
            elif now - websocket.heard_at > timeouts.silent:
                websocket.abort()  # no answer to the ping: a close frame would not be read either
            elif socket.session is None and now - socket.opened_at > timeouts.auth:
                websocket.end(UNAUTHORIZED, "no token within the time limit")
            elif now - max(websocket.heard_at, socket.pinged_at) > timeouts.ping:
                socket.pinged_at = now
                websocket.ping()

    def drain(self) -> None:
        """End every socket and refuse new ones: this process stops, and clients reconnect to others.

        The other processes deliver what the clients have not acknowledged.
        """
        self._draining = True
        for number, socket in enumerate(tuple(self._all)):
            retry_after_s = RETRY_SOON_S + number / RECONNECTS_PER_S
            socket.websocket.end(_SERVICE_RESTART, _with_retry_after("the server restarts", retry_after_s))

    def _on_frame(self, socket: Socket, text: str, sign_in: Callable[[Socket, str], None]) -> None:
        match read_frame(text):
            case Auth(token=token) if socket.session is None:
                sign_in(socket, token)
            case Ack(id=message_id) if socket.session is not None:
                self._message_acknowledged(Acknowledgement(socket.session.inbox, message_id))
            case None | Auth() | Ack():
                socket.websocket.end(_POLICY_VIOLATION if socket.session else UNAUTHORIZED, "the frame is not valid")

    def _on_room(self, socket: Socket) -> None:
        if socket.session is not None:
            self._inbox_changed(socket.session.inbox)


def _with_retry_after(reason: str, seconds: float) -> str:
    return f"{reason}; retry-after={seconds:.1f}"
