"""The feed: one loop per process that sends messages to sockets and writes their acknowledgements.

The rows in Postgres are authoritative. A notification only hints at inboxes to read, and every five seconds the loop
reads them all. A round writes acknowledgements before it reads, so it does not read acknowledged messages again. The
read leaves out messages that were sent over a socket and not acknowledged yet, so they are sent once. Hints are
gathered for a moment, and 250 inboxes are read by one statement.
"""

import asyncio
import contextlib
import logging

from api.clock import Clock
from api.inapp.sessions import Sessions
from api.inapp.sign_in import is_origin_allowed
from api.inapp.sockets import FORBIDDEN, MAX_UNACKNOWLEDGED, UNAUTHORIZED, Socket, Sockets, session_frame
from api.store import messages as store
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError
from api.store.engines import Listener
from api.store.messages import Acknowledgement, InboxKey, find_inbox_channel
from api.wire.connection import WebSocket

SWEEP_S = 1.0
SESSION_CHECK_S = 2.0  # between checks that keys and origins are still valid: a revoked key ends within 5 s
POLL_S = 5.0  # between reads of every inbox
GATHER_S = 0.005  # delays each message a little, but lets one statement read most of a burst
RETRY_S = 1.0  # after an error
INBOXES_PER_READ = 250
MESSAGES_PER_INBOX = 8  # in one read
ACKNOWLEDGEMENTS_PER_WRITE = 2_000

_log = logging.getLogger("workbench.inapp")


class Feed:
    """The in-app messages of one process."""

    def __init__(self, dsn: str, sessions: Sessions, clock: Clock) -> None:
        self.sockets = Sockets(self._inbox_changed, self._message_acknowledged)
        self._database = Database(dsn, size=2, hot=True)
        self._sessions = sessions
        self._clock = clock
        self._listener = Listener(dsn, find_inbox_channel, self._on_notification)
        self._changed: dict[InboxKey, None] = {}  # inboxes to read, in order
        self._acknowledgements: list[Acknowledgement] = []
        self._signing_in: list[Socket] = []
        self._checked_at = self._swept_at = self._polled_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._database.open()
        self._tasks = [asyncio.create_task(self._listener.listen()), asyncio.create_task(self._run())]

    async def stop(self) -> None:
        """Stop, and write the acknowledgements that have been received."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A lost acknowledgement does no harm: the message is sent again, and the client ignores the duplicate.
        with contextlib.suppress(DatabaseUnavailableError, TransactionConflictError):
            await self._write_acknowledgements()
        await self._database.close()

    async def serve(self, websocket: WebSocket, origin: str | None) -> None:
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
            socket.websocket.end(FORBIDDEN, "the token belongs to another origin")
        else:
            socket.session = session
            self._signing_in.append(socket)
            self._listener.wake()

    def _inbox_changed(self, inbox: InboxKey) -> None:
        self._changed[inbox] = None
        self._listener.wake()

    def _message_acknowledged(self, acknowledgement: Acknowledgement) -> None:
        self._acknowledgements.append(acknowledgement)
        self._listener.wake()

    def _on_notification(self, payload: str) -> None:
        org_id, *marks = payload.split(" ")
        if org_id.isascii() and org_id.isdigit():
            self._changed.update(dict.fromkeys(self.sockets.inboxes_by_marks(int(org_id), marks)))
        else:
            self._polled_at = 0.0  # not a list of inboxes (as after a reconnect): read them all

    async def _run(self) -> None:
        while True:
            await self._listener.wait(SWEEP_S)
            await asyncio.sleep(GATHER_S)
            try:
                now = asyncio.get_running_loop().time()
                if now - self._swept_at >= SWEEP_S:
                    self._swept_at = now
                    self.sockets.sweep()
                to_check, self._signing_in = self._signing_in, []
                if now - self._checked_at >= SESSION_CHECK_S:
                    self._checked_at = now
                    to_check = self.sockets.signed_in()
                if to_check:
                    await self._check_sessions(to_check)
                # Written before inboxes are read, so that an acknowledged message is not read again.
                await self._write_acknowledgements()
                if now - self._polled_at >= POLL_S:
                    self._polled_at = now
                    self._changed.update(dict.fromkeys(self.sockets.inboxes))
                await self._send_messages()
            except (DatabaseUnavailableError, TransactionConflictError) as error:
                _log.warning("inapp_delayed", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)
            except Exception:  # noqa: BLE001  a bug in one round must not stop the messages of the process
                _log.exception("inapp_failed")
                await asyncio.sleep(RETRY_S)

    async def _check_sessions(self, sockets: list[Socket]) -> None:
        """End sockets that may no longer receive messages; open the inboxes and renew the sessions of the others."""
        sessions = [(socket, socket.session) for socket in sockets if socket.session is not None]
        keys = {session.key for _, session in sessions}
        async with self._database.transaction() as tx:
            origins_by_key = await store.find_valid_keys(tx, keys, self._clock.now())
        for socket, session in sessions:
            origins = origins_by_key.get(session.key)
            if origins is None:
                self._expel(socket, UNAUTHORIZED, "the key was revoked or has expired")
            elif not is_origin_allowed(session.origin, origins):
                self._expel(socket, FORBIDDEN, "this origin is not allowed")
            elif not self._sessions.is_valid(session):
                self._expel(socket, UNAUTHORIZED, "the session has expired: sign in again")
            else:
                self.sockets.open_inbox(socket, session)
                renewed = self._sessions.renew(session)
                if renewed is not None:
                    socket.session = renewed
                    socket.websocket.send(session_frame(self._sessions.seal(renewed), renewed.ends_at))

    def _expel(self, socket: Socket, code: int, reason: str) -> None:
        socket.websocket.end(code, reason)
        self.sockets.remove(socket)

    async def _write_acknowledgements(self) -> None:
        while batch := self._acknowledgements[:ACKNOWLEDGEMENTS_PER_WRITE]:
            async with self._database.transaction() as tx:
                await store.acknowledge(tx, batch, self._clock.now())
            # Dropped only after the commit: if the write fails, they are written in the next round.
            del self._acknowledgements[: len(batch)]
            for acknowledgement in batch:
                for socket in self.sockets.of(acknowledgement.inbox):
                    if len(socket.unacknowledged) == MAX_UNACKNOWLEDGED:
                        self._changed[acknowledgement.inbox] = None  # the socket has room again
                    socket.unacknowledged.discard(acknowledgement.id)

    async def _send_messages(self) -> None:
        """Send the messages of inboxes that changed, a bounded number of each at a time."""
        changed, self._changed = self._changed, {}
        inboxes = [inbox for inbox in changed if any(socket.has_room for socket in self.sockets.of(inbox))]
        for start in range(0, len(inboxes), INBOXES_PER_READ):
            part = inboxes[start : start + INBOXES_PER_READ]
            # A message that every socket with room has already been sent is not read again.
            sent_ids: list[str] = []
            for inbox in part:
                sent = [socket.unacknowledged for socket in self.sockets.of(inbox) if socket.has_room]
                sent_ids += set.intersection(*sent) if sent else set()
            async with self._database.transaction() as tx:
                messages = await store.read_inboxes(tx, part, sent_ids, MESSAGES_PER_INBOX)
            counts = dict.fromkeys(part, 0)
            for inbox, message in messages:
                counts[inbox] += 1
                for socket in self.sockets.of(inbox):
                    socket.send(message)
            self._changed.update((inbox, None) for inbox, count in counts.items() if count == MESSAGES_PER_INBOX)
        if self._changed:  # a full read: there may be more
            self._listener.wake()
