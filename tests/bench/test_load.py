import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bench.load import LoadSpec, carry_out

ACCEPTED = b'{"accepted":true}'
REFUSED = b'{"error":"no"}'


@asynccontextmanager
async def serving(answer: Callable[[], tuple[int, bytes]]) -> AsyncIterator[int]:
    """Run an HTTP server that reads whole requests and answers with `answer()`; yield its port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                status, body = answer()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def load_spec(port: int, connections: int = 4, seconds: float = 0.2, rate: float = 0.0) -> LoadSpec:
    return LoadSpec(path="/", key="k", connections=connections, seconds=seconds, ports=(port,), rate=rate)


async def test_a_closed_loop_counts_what_was_accepted() -> None:
    async with serving(lambda: (202, ACCEPTED)) as port:
        result = await carry_out(load_spec(port))
    assert result.requests == result.accepted == result.statuses["202"] > 0
    assert (result.refused, len(result.latencies_ms)) == (0, 201)


async def test_refused_events_are_not_counted_as_accepted() -> None:
    async with serving(lambda: (503, REFUSED)) as port:
        result = await carry_out(load_spec(port))
    assert (result.accepted, result.refused) == (0, result.statuses["503"])


async def test_a_batch_counts_its_events_one_by_one() -> None:
    async with serving(lambda: (202, ACCEPTED * 99 + REFUSED)) as port:
        result = await carry_out(
            LoadSpec(path="/", key="k", connections=1, seconds=0.1, ports=(port,), events_per_request=100, new_every=10)
        )
    assert (result.accepted, result.refused) == (99 * result.requests, result.requests)


async def test_an_open_loop_sends_due_requests_even_when_all_connections_are_busy() -> None:
    async with serving(lambda: (202, ACCEPTED)) as port:
        single, several = [await carry_out(load_spec(port, connections, rate=500.0)) for connections in (1, 16)]
    assert single.requests == several.requests == single.accepted > 0


async def test_a_connection_that_ends_without_an_answer_ends_the_run() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        with pytest.raises(ConnectionError):
            await carry_out(load_spec(server.sockets[0].getsockname()[1]))
