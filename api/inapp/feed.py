"""Between sockets and the database: one loop per process carries messages out and acknowledgements back.

The row is what counts: a notification only says where to look, and every few seconds the loop looks everywhere. A round
writes acknowledgements first and reads then, so that what a socket has acknowledged is never read again; what is on its way
over a socket (`under_way`) is left out, so that it goes there once. Rounds gather: a burst of hints is one statement for
every 250 inboxes.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from api.clock import Clock
from api.inapp.frames import renewed
from api.inapp.origins import may_ask
from api.inapp.sessions import Session, Sessions, ends_at
from api.inapp.sockets import FORBIDDEN, MOST_UNDER_WAY, UNAUTHORIZED, Socket, Sockets
from api.store import inbox as store
from api.store.database import ConflictError, Database, UnavailableError
from api.store.inbox import Acknowledged, Inbox, find_inbox_channel
from api.store.wake import Listener
from api.wire.websocket import WebSocket

SWEEP_SECONDS = 1.0
JUDGE_SECONDS = 2.0  # between questions whether keys still hold
POLL_SECONDS = 5.0  # between looks into every inbox
INBOXES_AT_ONCE = 250
MESSAGES_AT_ONCE = 8  # of an inbox
ACKS_AT_ONCE = 2_000

_GATHER_SECONDS = 0.005
_AWAY_SECONDS = 1.0

_log = logging.getLogger("workbench.inapp")


class Feed:
    """The in-app messages of one process."""

    def __init__(self, dsn: str, sessions: Sessions, clock: Clock) -> None:
        self.sockets = Sockets(self._look_into, self._note)
        self._database = Database(dsn, size=2, hot=True)
        self._sessions = sessions
        self._clock = clock
        self._listener = Listener(dsn, find_inbox_channel, self._hear)
        self._moved: dict[Inbox, None] = {}
        self._acknowledged: list[Acknowledged] = []
        self._strangers: list[Socket] = []
        self._judged_at = self._swept_at = self._polled_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to carry."""
        await self._database.open()
        self._tasks = [asyncio.create_task(self._listener.listen()), asyncio.create_task(self._run())]

    async def stop(self) -> None:
        """Write the acknowledgements in hand and end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(UnavailableError, ConflictError):
            await self._acknowledge()
        await self._database.close()

    def send_away(self) -> None:
        """Send every client to the processes that go on; what they have not acknowledged waits for them there."""
        self.sockets.send_away()

    async def serve(self, websocket: WebSocket, origin: str | None) -> None:
        """Let a socket take part until it ends."""
        socket = self.sockets.add(websocket, origin, self._sign_in)
        try:
            await websocket.ended
        finally:
            self.sockets.remove(socket)

    def _sign_in(self, socket: Socket, token: str) -> None:
        session = self._sessions.open(token)
        if session is None:
            socket.websocket.end(UNAUTHORIZED, "the token is not valid: sign in again")
        elif socket.origin not in (None, session.origin):
            socket.websocket.end(FORBIDDEN, "the token is another page's")
        else:
            socket.session = session
            self._strangers.append(socket)
            self._listener.wake()

    def _look_into(self, inbox: Inbox) -> None:
        self._moved[inbox] = None
        self._listener.wake()

    def _note(self, acknowledged: Acknowledged) -> None:
        self._acknowledged.append(acknowledged)
        self._listener.wake()

    def _hear(self, hint: str) -> None:
        org_id, *marks = hint.split(" ")
        if org_id.isascii() and org_id.isdigit():
            self._moved.update(dict.fromkeys(self.sockets.marked(int(org_id), marks)))
        else:
            self._polled_at = 0.0  # anything may have happened

    async def _run(self) -> None:
        while True:
            await self._listener.wait(SWEEP_SECONDS)
            await asyncio.sleep(_GATHER_SECONDS)
            try:
                await self._round()
            except (UnavailableError, ConflictError) as error:
                _log.warning("inapp_delayed", extra={"reason": str(error)})
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception:  # noqa: BLE001  the loop's edge: a bug in one round must not stop the process's messages
                _log.exception("inapp_failed")
                await asyncio.sleep(_AWAY_SECONDS)

    async def _round(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            self.sockets.sweep()
        strangers, self._strangers = self._strangers, []
        if now - self._judged_at >= JUDGE_SECONDS:
            self._judged_at = now
            strangers = self.sockets.signed_in()
        if strangers:
            await self._judge(strangers)
        await self._acknowledge()
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            self._moved.update(dict.fromkeys(self.sockets.inboxes))
        await self._carry()

    async def _judge(self, sockets: list[Socket]) -> None:
        """End those sockets whose key, page or time may no longer have messages; open the inboxes of the others."""
        sessions = [(socket, socket.session) for socket in sockets if socket.session is not None]
        async with self._database.transaction() as tx:
            standing = await store.standing_keys(tx, {session.key for _, session in sessions}, self._clock.now())
        for socket, session in sessions:
            origins = standing.get(session.key)
            if origins is None:
                self._expel(socket, UNAUTHORIZED, "the key has ended")
            elif not may_ask(session.origin, origins):
                self._expel(socket, FORBIDDEN, "pages of this origin may not ask")
            elif not self._sessions.holds(session):
                self._expel(socket, UNAUTHORIZED, "the session has ended: sign in again")
            else:
                self.sockets.open_inbox(socket, session)
                self._renew(socket, session)

    def _renew(self, socket: Socket, session: Session) -> None:
        longer = self._sessions.renewed(session)
        if longer is not None:
            socket.session = longer
            socket.websocket.send(renewed(self._sessions.seal(longer), ends_at(longer)))

    def _expel(self, socket: Socket, code: int, reason: str) -> None:
        socket.websocket.end(code, reason)
        self.sockets.remove(socket)

    async def _acknowledge(self) -> None:
        while some := self._acknowledged[:ACKS_AT_ONCE]:
            async with self._database.transaction() as tx:
                await store.acknowledge(tx, some, self._clock.now())
            del self._acknowledged[: len(some)]
            for each in some:
                self._forget(each)

    def _forget(self, acknowledged: Acknowledged) -> None:
        for socket in self.sockets.of(acknowledged.inbox):
            if len(socket.under_way) == MOST_UNDER_WAY:
                self._moved[acknowledged.inbox] = None  # there is room again
            socket.under_way.discard(acknowledged.id)

    async def _carry(self) -> None:
        """Send what waits in the inboxes that moved, a bounded part of each at a time."""
        moved, self._moved = self._moved, {}
        left = [inbox for inbox in moved if any(socket.has_room for socket in self.sockets.of(inbox))]
        for some in _parts(left):
            await self._carry_some(some)
        if self._moved:
            self._listener.wake()

    async def _carry_some(self, inboxes: list[Inbox]) -> None:
        under_way = [each for inbox in inboxes for each in self._everywhere(inbox)]
        async with self._database.transaction() as tx:
            found = await store.read_inboxes(tx, inboxes, under_way, MESSAGES_AT_ONCE)
        counts = dict.fromkeys(inboxes, 0)
        for inbox, message in found:
            counts[inbox] += 1
            for socket in self.sockets.of(inbox):
                socket.send(message)
        self._moved.update((inbox, None) for inbox, count in counts.items() if count == MESSAGES_AT_ONCE)

    def _everywhere(self, inbox: Inbox) -> set[str]:
        """Return what is under way over every socket of an inbox that has room."""
        ready = [socket.under_way for socket in self.sockets.of(inbox) if socket.has_room]
        return set.intersection(*ready) if ready else set()


def _parts(inboxes: list[Inbox]) -> Iterator[list[Inbox]]:
    for start in range(0, len(inboxes), INBOXES_AT_ONCE):
        yield inboxes[start : start + INBOXES_AT_ONCE]
