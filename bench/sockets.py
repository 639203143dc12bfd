"""Clients of sockets: wallets sign in as on a page; each socket records when messages arrive and acknowledges them."""

import asyncio
import time
from collections.abc import Sequence
from typing import cast

import httpx
import msgspec
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from api.auth import keys
from api.crypto import Keyring
from bench.postgres import SECRET, Database
from tests.inapp.wallet import Wallet

ANSWER_TIMEOUT_S = 30.0  # seconds for an answer, or for the last message
_ROOT = "127.0.0.1:{}/api/v1/inapp"
_AT_ONCE = 100  # connections that are opened at the same time


class Arrivals:
    """The time at which the message with each title first arrived, by `time.perf_counter`."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self._wanted = 0
        self._enough = asyncio.Event()

    def note(self, title: str) -> None:
        self.at.setdefault(title, time.perf_counter())
        if len(self.at) == self._wanted:
            self._enough.set()

    async def until(self, number: int) -> None:
        """Wait until `count` have arrived."""
        self._wanted = number
        self._enough.clear()
        if len(self.at) < number:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._enough.wait()


class _Line(asyncio.Protocol):
    """One socket, opened with a token."""

    def __init__(self, port: int, token: str, arrivals: Arrivals) -> None:
        self._protocol = ClientProtocol(parse_uri(f"ws://{_ROOT.format(port)}/socket"))
        self._token = token
        self._arrivals = arrivals
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._protocol.send_request(self._protocol.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response) and event.status_code == 101:
                self._say(type="AUTH", token=self._token)
                self.opened.set_result(None)
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                push = msgspec.json.decode(event.data, type=_Push)
                self._arrivals.note(push.title)
                self._say(type="ACK", id=push.id)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the service refused a socket"))

    def close(self) -> None:
        self._transport.abort()

    def _say(self, **frame: str) -> None:
        self._protocol.send_text(msgspec.json.encode(frame))

    def _flush(self) -> None:
        for piece in self._protocol.data_to_send():
            if piece:
                self._transport.write(piece)


class _Push(msgspec.Struct):
    id: str
    title: str


async def sign_in(database: Database, port: int, wallets: Sequence[Wallet]) -> list[str]:
    """Sign wallets in as a page does; return their tokens."""
    key = await keys.create(database.dsn, Keyring(SECRET), "bench", "publishable", None, "bench")
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=f"http://{_ROOT.format(port)}", headers=headers, timeout=ANSWER_TIMEOUT_S
    ) as client:
        return [await _token(client, wallet) for wallet in wallets]


async def _token(client: httpx.AsyncClient, wallet: Wallet) -> str:
    response = await client.post("/challenge", json={"walletAddress": wallet.address})
    message = response.raise_for_status().json()["message"]
    signed = await client.post("/session", json={"message": message, "signature": wallet.sign(message)})
    return str(signed.raise_for_status().json()["token"])


async def connect(ports: Sequence[int], tokens: Sequence[str], arrivals: Arrivals) -> list[_Line]:
    """Open a socket for every token, spread over the ports."""
    places = asyncio.Semaphore(_AT_ONCE)
    loop = asyncio.get_running_loop()

    async def one(number: int, token: str) -> _Line:
        port = ports[number % len(ports)]
        async with places:
            _, line = await loop.create_connection(lambda: _Line(port, token, arrivals), "127.0.0.1", port)
            await line.opened
        return line

    return list(await asyncio.gather(*(one(number, token) for number, token in enumerate(tokens))))
