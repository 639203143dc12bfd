"""Sockets that are refused, ended or dropped, and the reasons; other sockets are not affected."""

import asyncio
import socket
import struct
from contextlib import suppress

import pytest
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from api.inapp.sockets import SocketTimeouts
from tests.inapp.conftest import PAGE, Person
from tests.routes.conftest import Org, serving


@pytest.mark.parametrize(
    "first",
    [
        '{"type":"AUTH","token":"no token"}',
        '{"type":"AUTH","token":"AAAA"}',
        '{"type":"AUTH","token":"é"}',
        '{"type":"AUTH"}',
        '{"type":"ACK","id":"00000000-0000-7000-8000-000000000000"}',
        "no JSON",
        "[]",
    ],
)
async def test_a_socket_needs_a_token(ann: Person, first: str) -> None:
    line = await ann.dial(PAGE)
    await line.connection.send(first)
    assert await line.code() == 4401


async def test_a_changed_token_is_not_valid(ann: Person) -> None:
    session = await ann.token()
    line = await ann.dial(PAGE)
    await line.send_frame(type="AUTH", token=session[:60] + ("A" if session[60] != "A" else "B") + session[61:])
    assert await line.code() == 4401


async def test_a_socket_without_a_token_is_ended_after_five_seconds(ann: Person) -> None:
    line = await ann.dial(PAGE)
    assert await line.code() == 4401


async def test_a_token_in_the_address_is_not_read(ann: Person) -> None:
    service = ann.org.service
    answer = await service.exchange(_handshake(f"/api/v1/inapp/socket?token={await ann.token()}"))
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert await ann.receive("secret")
    assert b"secret" not in answer


@pytest.mark.parametrize("page", ["https://evil.example", "http://localhost:1"])
async def test_another_pages_token_is_refused(ann: Person, page: str) -> None:
    line = await ann.dial(page)
    await line.send_frame(type="AUTH", token=await ann.token())
    assert await line.code() == 4403


async def test_an_invalid_origin_is_refused_before_the_handshake(ann: Person) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await ann.dial("null")
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "fields",
    ["", "Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n",
     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 8\r\n"],
)  # fmt: skip
async def test_a_bad_handshake_is_a_400(acme: Org, fields: str) -> None:
    head = f"GET /api/v1/inapp/socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{fields}\r\n"
    assert (await acme.service.exchange(head.encode())).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Frame(Opcode.TEXT, b"x" * 4_097)], 1009),
        ([Frame(Opcode.TEXT, b"x" * 2**20)], 1009),
        ([Frame(Opcode.TEXT, b"x" * 3_000, fin=False), Frame(Opcode.CONT, b"x" * 3_000)], 1009),
        ([Frame(Opcode.TEXT, b"", fin=False)] + [Frame(Opcode.CONT, b"", fin=False)] * 2_000, 1008),
        ([Frame(Opcode.TEXT, b"\xff\xfe")], 1007),
        ([Frame(Opcode.BINARY, b"x")], 1003),
        ([Frame(Opcode.PONG, b"x")] * 2_000, 1008),
        ([Frame(Opcode.PING, b"x")] * 2_000, 1008),
        ([Frame(Opcode.TEXT, b'{"type":"ACK","id":"00000000-0000-7000-8000-000000000000"}')] * 10_000, 1008),
        ([Frame(Opcode.TEXT, b"{}")], 1008),
        ([Frame(Opcode.CONT, b"x")], 1002),
        ([Frame(Opcode.CLOSE, struct.pack("!H", 1000))], 1000),
    ],
)
async def test_a_client_that_breaks_the_protocol_is_disconnected(
    ann: Person, bob: Person, frames: list[Frame], code: int
) -> None:
    async with bob.socket() as other:
        async with ann.socket() as line:
            await ann.receive("signed in")
            await line.acknowledge(1)
            line.connection.transport.write(b"".join(frame.serialize(mask=True) for frame in frames))
            assert await line.code() == code
        await bob.receive("still there")
        assert await other.acknowledge(1) == ["still there"]


async def test_frames_without_a_mask_are_refused(ann: Person) -> None:
    async with ann.socket() as line:
        line.connection.transport.write(Frame(Opcode.TEXT, b"{}").serialize(mask=False))
        assert await line.code() == 1002


async def test_sockets_are_closed_when_their_key_is_revoked(ann: Person, eve: Person) -> None:
    async with ann.socket() as line, eve.socket() as other:
        await ann.receive("1")
        await line.acknowledge(1)
        await ann.org.service.rows("UPDATE api_keys SET revoked_at = now() WHERE org_id = %s", ann.org.id)
        async with asyncio.timeout(5):
            assert await line.code() == 4401
        await eve.receive("2")
        assert await other.acknowledge(1) == ["2"]


async def test_a_token_is_invalid_when_its_key_is_revoked(ann: Person) -> None:
    session = await ann.token()
    await ann.receive("1")
    await ann.org.service.rows("UPDATE api_keys SET revoked_at = now() WHERE org_id = %s", ann.org.id)
    async with ann.socket(session) as line:
        assert await line.code() == 4401


async def test_sockets_are_closed_when_their_origin_is_removed(ann: Person) -> None:
    async with ann.socket() as line:
        await ann.receive("1")
        await line.acknowledge(1)
        await ann.org.service.rows("UPDATE organizations SET origins = '{}' WHERE id = %s", ann.org.id)
        async with asyncio.timeout(5):
            assert await line.code() == 4403


async def test_a_wallet_has_at_most_twenty_sockets(ann: Person) -> None:
    session = await ann.token()
    lines = [await ann.dial(PAGE) for _ in range(21)]
    for line in lines:
        await line.send_frame(type="AUTH", token=session)
    async with asyncio.timeout(5):
        done, waiting = await asyncio.wait(
            [asyncio.ensure_future(line.code()) for line in lines], return_when=asyncio.FIRST_COMPLETED
        )
    assert [task.result() for task in done] == [1013]
    assert len(waiting) == 20
    for line in lines:
        await line.connection.close()
    await asyncio.wait(waiting)


async def test_a_client_that_does_not_read_is_dropped_and_catches_up(ann: Person, bob: Person) -> None:
    titles = [str(number) for number in range(200)]
    async with bob.socket() as other:
        reader, writer = await _raw(ann)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ann.receive(*titles, body="x" * 100_000)
        await bob.receive("not held up")
        assert await other.acknowledge(1) == ["not held up"]
        async with asyncio.timeout(15):
            while len(ann.org.service.services.feed.sockets) > 1:
                await asyncio.sleep(0.05)
        writer.close()
        with suppress(ConnectionError):
            await reader.read(1)
    async with ann.socket() as line:
        assert await line.acknowledge(200) == titles


async def test_a_client_that_vanished_is_dropped_and_loses_nothing(ann: Person) -> None:
    async with serving(ann.org.service.dsn) as ann.org.service:
        sockets = ann.org.service.services.feed.sockets
        sockets.timeouts = SocketTimeouts(ping=0.5, silent=2)
        async with ann.socket() as line:
            _, writer = await _raw(ann)  # answers no ping from here on, and closes nothing
            await ann.receive("1")
            assert await line.titles(1) == ["1"]
            assert len(sockets) == 2
            async with asyncio.timeout(10):
                while len(sockets) > 1:
                    await asyncio.sleep(0.05)
            await ann.receive("2")
            assert await line.acknowledge(1) == ["2"]
        writer.close()
        async with ann.socket() as line:
            assert await line.acknowledge(1) == ["1"]


async def test_closed_sockets_no_longer_count(ann: Person) -> None:
    sockets = ann.org.service.services.feed.sockets
    async with ann.socket() as line:
        await ann.receive("1")
        await line.acknowledge(1)
        assert len(sockets) >= 1
    async with asyncio.timeout(5):
        while len(sockets):
            await asyncio.sleep(0.02)
    assert sockets.inboxes == []


async def _raw(person: Person) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sign in over a raw socket with small buffers, which the test does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", person.org.service.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4_096)
    writer.write(_handshake("/api/v1/inapp/socket"))
    await reader.readuntil(b"\r\n\r\n")
    text = b'{"type":"AUTH","token":"%s"}' % (await person.token()).encode()
    writer.write(Frame(Opcode.TEXT, text).serialize(mask=True))
    await writer.drain()
    return reader, writer


def _handshake(path: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: {PAGE}\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
