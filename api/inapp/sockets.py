"""Who is connected to this process: sockets that have not said who they are, and those of each inbox.

Nothing here waits or asks the database. A socket costs no task; one look a second over all of them ends those that were
silent too long, do not read, or did not sign in. Clients that may come back are told when, and thousands that are sent away
at once are told different moments.
"""

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from api.inapp.frames import Ack, Auth, push, read_frame
from api.inapp.sessions import Session
from api.store.inbox import Acknowledged, Inbox, Waiting, mark
from api.wire.websocket import CREDIT, WebSocket

MOST_SOCKETS = 20_000  # of a process
MOST_OF_WALLET = 20  # of them
MOST_UNDER_WAY = 1_000  # messages sent over a socket and not acknowledged
RETURNS = 500  # clients a second that may come back to the processes that go on; one can open 800

UNAUTHORIZED = 4401  # close codes: sign in again
FORBIDDEN = 4403  # this page may not ask
_MALFORMED = 1008
_RESTART = 1012
_BUSY = 1013

_AT_ONCE = 1.0  # seconds
_LATER = 60.0


class Patience(msgspec.Struct, frozen=True):
    """Seconds: until a token has come, of silence until a ping and until the end, for a client that does not read."""

    auth: float = 5.0
    ping: float = 20.0
    silent: float = 40.0
    unread: float = 5.0


class Socket:
    """One connection. `session` is None until it has said who it is."""

    __slots__ = ("begun_at", "origin", "pinged_at", "session", "under_way", "websocket")

    def __init__(self, websocket: WebSocket, origin: str | None) -> None:
        self.websocket = websocket
        self.origin = origin
        self.begun_at = self.pinged_at = websocket.heard_at
        self.session: Session | None = None
        self.under_way: set[str] = set()

    @property
    def has_room(self) -> bool:
        """Whether more can be sent."""
        return self.websocket.has_room and len(self.under_way) < MOST_UNDER_WAY and self.websocket.open

    def send(self, message: Waiting) -> None:
        """Send a message, once."""
        if message.id not in self.under_way and self.has_room:
            self.under_way.add(message.id)
            self.websocket.credit += 2  # its acknowledgement, and whatever else it causes
            self.websocket.send(push(message))


class Sockets:
    """The sockets of one process. `moved` is told of an inbox that has to be looked into, `acknowledged` of what was said."""

    def __init__(self, moved: Callable[[Inbox], None], acknowledged: Callable[[Acknowledged], None]) -> None:
        self.patience = Patience()
        self._closed = False
        self._moved = moved
        self._acknowledged = acknowledged
        self._all: set[Socket] = set()
        self._inboxes: dict[Inbox, list[Socket]] = {}
        self._marks: dict[tuple[int, str], set[Inbox]] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        """Whether no further socket is taken."""
        return self._closed or len(self._all) >= MOST_SOCKETS

    @property
    def inboxes(self) -> list[Inbox]:
        """Every inbox with a socket."""
        return list(self._inboxes)

    def of(self, inbox: Inbox) -> list[Socket]:
        """Return the sockets of an inbox."""
        return self._inboxes.get(inbox, [])

    def marked(self, org_id: int, marks: list[str]) -> Iterator[Inbox]:
        """Give the inboxes that the marks of a notification stand for."""
        for each in marks:
            yield from self._marks.get((org_id, each), ())

    def signed_in(self) -> list[Socket]:
        """Return every socket that has said who it is."""
        return [socket for socket in self._all if socket.session is not None]

    def add(self, websocket: WebSocket, origin: str | None, sign_in: Callable[[Socket, str], None]) -> Socket:
        """Take a socket; `sign_in` is given it and the token with which it begins."""
        socket = Socket(websocket, origin)
        self._all.add(socket)
        websocket.listen(lambda text: self._hear(socket, text, sign_in), lambda: self._has_room(socket))
        return socket

    def remove(self, socket: Socket) -> None:
        """Forget a socket."""
        self._all.discard(socket)
        inbox = None if socket.session is None else socket.session.inbox
        if inbox is None or socket not in (others := self._inboxes.get(inbox, [])):
            return
        others.remove(socket)
        if not others:
            del self._inboxes[inbox]
            name = inbox[0], mark(inbox[1])
            self._marks[name].discard(inbox)
            if not self._marks[name]:
                del self._marks[name]

    def open_inbox(self, socket: Socket, session: Session) -> None:
        """Let a socket have what is in its inbox."""
        if not socket.websocket.open or socket in self.of(session.inbox):
            return
        if len(self.of(session.inbox)) >= MOST_OF_WALLET:
            socket.websocket.end(_BUSY, _come_back("this wallet has too many sockets", _LATER))
            return
        self._inboxes.setdefault(session.inbox, []).append(socket)
        self._marks.setdefault((session.org_id, mark(session.wallet)), set()).add(session.inbox)
        self._moved(session.inbox)

    def sweep(self) -> None:
        """End the sockets that are dead, slow or nameless, and ask the silent ones for a sign of life."""
        now, patience = asyncio.get_running_loop().time(), self.patience
        for socket in tuple(self._all):
            websocket = socket.websocket
            websocket.credit = max(websocket.credit, CREDIT)
            if websocket.unread_since is not None and now - websocket.unread_since > patience.unread:
                websocket.end(_BUSY, _come_back("too slow, nothing is lost", _AT_ONCE))
            elif now - websocket.heard_at > patience.silent:
                websocket.abort()
            elif socket.session is None and now - socket.begun_at > patience.auth:
                websocket.end(UNAUTHORIZED, "no token came in time")
            elif now - max(websocket.heard_at, socket.pinged_at) > patience.ping:
                socket.pinged_at = now
                websocket.ping()

    def send_away(self) -> None:
        """End every socket and take no more: this process stops, others go on."""
        self._closed = True
        for number, socket in enumerate(tuple(self._all)):
            socket.websocket.end(_RESTART, _come_back("the server restarts", _AT_ONCE + number / RETURNS))

    def _hear(self, socket: Socket, text: str, sign_in: Callable[[Socket, str], None]) -> None:
        match read_frame(text):
            case Auth(token=token) if socket.session is None:
                sign_in(socket, token)
            case Ack(id=message_id) if socket.session is not None:
                self._acknowledged(Acknowledged(socket.session.inbox, message_id))
            case None | Auth() | Ack():
                socket.websocket.end(_MALFORMED if socket.session else UNAUTHORIZED, "the frame is not understood")

    def _has_room(self, socket: Socket) -> None:
        if socket.session is not None:
            self._moved(socket.session.inbox)


def _come_back(reason: str, seconds: float) -> str:
    """Return a reason that tells the client when to come back."""
    return f"{reason}; retry-after={seconds:.1f}"
