"""The receivers: a webhook endpoint and a mail server on real sockets that record every delivery and misbehave.

They answer slowly, reject, or close the connection before or during the answer. Like a good receiver they recognize an
accepted message by its id and never reject it again; only the answer may be slow or lost. Of forty ids, one is always
rejected with a temporary error and one with a permanent one.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from random import Random

import msgspec
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.torture.log import now_us

_SLOW = (0.2, 2.0)  # seconds
_ONE_IN = 40
CONNECTION_PATH = "/chat"
"""The end of the paths that connections send to, whose receiver also limits: 429 with `Retry-After`."""
_MESSAGE_ID = re.compile(rb"^Message-ID: <([^@>]+)@", re.MULTILINE)


class Reaction(StrEnum):
    """The reaction to a message."""

    NORMAL = "normal"
    SLOW = "slow"
    REFUSING = "refusing"
    CLOSED = "closed"  # rejected permanently
    SILENT = "silent"  # accepted, then closed without an answer
    CUT = "cut"  # accepted, then closed in the middle of the answer
    LIMITING = "limiting"  # too many requests


_TAKING = {Reaction.NORMAL: 70, Reaction.SLOW: 6, Reaction.SILENT: 4, Reaction.CUT: 4}
_LIMITED_ONE_IN = 4  # deliveries by connections, beginning with the first
_ANY = _TAKING | {Reaction.REFUSING: 10}


class Delivery(msgspec.Struct, frozen=True):
    """A complete copy of a message.

    `at` is when its first byte arrived, `target` the path or the recipient's address.
    """

    channel: str
    id: str
    at: int
    target: str
    body: bytes
    reaction: Reaction

    @property
    def is_taken(self) -> bool:
        """Whether the receiver accepted the message, whatever status it returned."""
        return self.reaction in _TAKING


class Sinks:
    """Both receivers, their deliveries and their ports."""

    def __init__(self, seed: int) -> None:
        self.arrivals: list[Delivery] = []
        self.webhook_port = 0
        self.smtp_port = 0
        self._chance = Random(f"{seed}/sinks")
        self._taken: set[str] = set()
        self._by_connection = itertools.count()

    def record_delivery(self, channel: str, message_id: str, at: int, target: str, body: bytes) -> Reaction:
        """Record a delivery and return the reaction to it."""
        reaction = self._reaction(message_id)
        is_new = target.endswith(CONNECTION_PATH) and message_id not in self._taken
        if is_new and next(self._by_connection) % _LIMITED_ONE_IN == 0:
            reaction = Reaction.LIMITING
        self.arrivals.append(Delivery(channel, message_id, at, target, body, reaction))
        if reaction in _TAKING:
            self._taken.add(message_id)
        return reaction

    async def wait_randomly(self) -> None:
        await asyncio.sleep(self._chance.uniform(*_SLOW))

    def _reaction(self, message_id: str) -> Reaction:
        match int(message_id[:8], 16) % _ONE_IN:
            case 0:
                return Reaction.REFUSING
            case 1:
                return Reaction.CLOSED
            case _:
                moods = _TAKING if message_id in self._taken else _ANY
                (reaction,) = self._chance.choices(list(moods), list(moods.values()))
                return reaction


_HTTP = {
    Reaction.NORMAL: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK",
    Reaction.SLOW: b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    Reaction.REFUSING: b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
    Reaction.CLOSED: b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n",
    Reaction.LIMITING: b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
    Reaction.SILENT: b"",
    Reaction.CUT: b"HTTP/1.1 2",
}


async def _receive(sinks: Sinks, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection in order."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        reaction = Reaction.NORMAL
        while reaction not in (Reaction.SILENT, Reaction.CUT):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            at, (line, *lines) = now_us(), head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            reaction = sinks.record_delivery("webhook", headers["webhook-id"], at, line.split()[1], body)
            if reaction is Reaction.SLOW:
                await sinks.wait_randomly()
            writer.write(_HTTP[reaction])
            await writer.drain()
    writer.close()


class _Mailbox:
    """Handles the emails of one connection. An email begins to arrive with its RCPT command."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._began = 0

    async def handle_RCPT(  # noqa: N802  as the library has it
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self._began = now_us()
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802  the library's name
        content = envelope.original_content or b""
        match = _MESSAGE_ID.search(content)
        message_id = match[1].decode() if match else ""
        reaction = self._sinks.record_delivery("email", message_id, self._began, envelope.rcpt_tos[0], content)
        match reaction:
            case Reaction.SLOW:
                await self._sinks.wait_randomly()
            case Reaction.REFUSING | Reaction.LIMITING:
                return "451 try again"
            case Reaction.CLOSED:
                return "550 never"
            case Reaction.SILENT | Reaction.CUT:
                assert isinstance(server.transport, asyncio.Transport)
                server.transport.write(b"25" if reaction is Reaction.CUT else b"")
                server.transport.close()
            case Reaction.NORMAL:
                pass
        return "250 OK"


@asynccontextmanager
async def sinks(seed: int) -> AsyncIterator[Sinks]:
    """Run both receivers until the block ends; then open connections are aborted."""
    made = Sinks(seed)
    mailboxes: list[SMTP] = []
    writers: set[asyncio.StreamWriter] = set()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        await _receive(made, reader, writer)
        writers.discard(writer)

    def connect() -> SMTP:
        mailboxes.append(SMTP(_Mailbox(made), hostname="mail.example", loop=asyncio.get_running_loop()))
        return mailboxes[-1]

    webhooks = await asyncio.start_server(receive, "127.0.0.1", 0)
    mail = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
    made.webhook_port, made.smtp_port = (server.sockets[0].getsockname()[1] for server in (webhooks, mail))
    try:
        yield made
    finally:
        webhooks.close()
        mail.close()
        for transport in [*(writer.transport for writer in writers), *(mailbox.transport for mailbox in mailboxes)]:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        await asyncio.sleep(0)
