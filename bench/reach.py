"""From event to effect: the time between the 202 for an event and the commit of the message that it causes.

An open loop in a separate process: events are due at times that are drawn beforehand. The commit is seen by the
notification that API processes wait for. It carries a digest of the wallet, and every event of a run has another
wallet. Run as a module, it takes a `ReachArguments` (JSON) as its argument and prints a `Slice`.
"""

import asyncio
import itertools
import re
import sys
import time

import msgspec
import psycopg
import uvloop

from api.store.messages import find_inbox_channel, wallet_mark
from bench import site, traffic
from bench.figures import Slice, quantiles
from bench.load import ANSWER_TIMEOUT_S, moments

_CONNECTIONS = 16
_WALLET = re.compile(rb'"walletAddress":"(\w+)"')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class ReachArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What to send to which API, and where its messages are stored."""

    dsn: str
    port: int
    key: str
    rate: float  # events per second
    seconds: float


class _HttpConnection:
    """One keep-alive connection with one request in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        self._reader = reader
        self._writer = writer
        self._head = (
            f"POST {site.SINGLES} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()

    async def post(self, body: bytes) -> bytes:
        """Send an event; return the status of the answer."""
        self._writer.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None
        await self._reader.readexactly(int(length[1]))
        return head[9:12]

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class _Run:
    """The events in flight, and the times at which each was accepted and its message committed."""

    def __init__(self, arguments: ReachArguments) -> None:
        self._arguments = arguments
        self._idle: asyncio.Queue[_HttpConnection] = asyncio.Queue()
        self._accepted: dict[str, float] = {}
        self._committed: dict[str, float] = {}

    async def carry_out(self) -> Slice:
        """Send everything, and wait for every message."""
        arguments = self._arguments
        connections = [
            _HttpConnection(*await asyncio.open_connection("127.0.0.1", arguments.port), arguments.key)
            for _ in range(_CONNECTIONS)
        ]
        for connection in connections:
            self._idle.put_nowait(connection)
        due = list(moments(arguments.seconds, arguments.rate))
        async with await psycopg.AsyncConnection.connect(arguments.dsn, autocommit=True) as database:
            await database.execute(f"LISTEN {await find_inbox_channel(database)}".encode())
            begun = time.perf_counter()
            bodies = itertools.islice(traffic.bodies(1, 0), len(due))
            sending = [asyncio.create_task(self._send(begun + at, body)) for at, body in zip(due, bodies, strict=True)]
            await asyncio.wait_for(self._listen(database, len(due)), arguments.seconds + ANSWER_TIMEOUT_S)
            await asyncio.gather(*sending)
        for connection in connections:
            connection.close()
        return self._slice(time.perf_counter() - begun)

    async def _send(self, due: float, body: bytes) -> None:
        wallet = _WALLET.search(body)
        assert wallet is not None
        await asyncio.sleep(due - time.perf_counter())
        connection = await self._idle.get()
        status = await connection.post(body)
        self._accepted[wallet_mark(wallet[1].decode())] = time.perf_counter()
        self._idle.put_nowait(connection)
        if status != b"202":
            raise RuntimeError(f"an event was answered {status.decode()}")

    async def _listen(self, connection: psycopg.AsyncConnection, count: int) -> None:
        async for notification in connection.notifies():
            at = time.perf_counter()
            for event_id in notification.payload.split()[1:]:
                self._committed.setdefault(event_id, at)
            if len(self._committed) >= count:
                return

    def _slice(self, seconds: float) -> Slice:
        """Return the slice; a message that was committed before its event was answered took no time."""
        taken = [max(self._committed[event_id] - at, 0.0) for event_id, at in self._accepted.items()]
        return Slice(
            requests=len(taken),
            accepted=len(taken),
            refused=0,
            seconds=seconds,
            statuses={"202": len(taken)},
            latencies_ms=[round(quantile * 1000, 3) for quantile in quantiles(taken)],
            cpu={},
        )


if __name__ == "__main__":
    ordered = msgspec.json.decode(sys.argv[1], type=ReachArguments)
    print(msgspec.json.encode(uvloop.run(_Run(ordered).carry_out())).decode())
