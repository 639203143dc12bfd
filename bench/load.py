"""A load generator: raw HTTP/1.1 over keep-alive connections, in a process of its own.

It costs about a fifth of what the server spends per request, so the server is what is measured. Run as a module it prints
one JSON line: requests, seconds, statuses, and latency percentiles in milliseconds.
"""

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import cast

import uvloop


class _Connection(asyncio.Protocol):
    """One keep-alive connection: a request, its answer, the next request."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._sent_at = 0.0
        self._buffer = b""
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        start = self._buffer.lower().find(b"content-length: ", 0, head_end)
        length = int(self._buffer[start + 16 : self._buffer.find(b"\r\n", start)])
        if len(self._buffer) >= head_end + 4 + length:
            self._load.answered(int(self._buffer[9:12]), time.perf_counter() - self._sent_at)
            self._buffer = b""
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._over:
            self._over = True
            self._load.finished()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        if self._sent_at < self._load.until:
            self._transport.write(next(self._load.requests))
        else:
            self._transport.close()


class Load:
    """What is sent, until when, and what came back."""

    def __init__(self, requests: Iterator[bytes], seconds: float, connections: int) -> None:
        self.requests = requests
        self.until = time.perf_counter() + seconds
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self._open = connections

    def answered(self, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        self.latencies.append(seconds)

    def finished(self) -> None:
        self._open -= 1
        if not self._open:
            self.done.set_result(None)


def request(path: str, key: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def event(number: int, contacts: int) -> bytes:
    """A typical event of about 350 bytes: three identifiers of a returning contact, two attributes, a small payload."""
    who = number * 7919 % contacts
    return (
        b'{"event":"deposit","contact":{"email":"user%d@example.com","walletAddress":"0x%040x","externalId":"user_%d"},'
        b'"attributes":{"plan":"pro","country":"DE"},"payload":{"amountUsd":%d.50,"asset":"USDC","method":"card",'
        b'"txHash":"0x%064x"},"idempotencyKey":"bench_%d_%d"}'
    ) % (who, who, who, number % 1000, number, START, number)


START = time.time_ns()

SHAPES: dict[str, Callable[[int, int], tuple[str, bytes]]] = {
    "noop": lambda number, contacts: ("/noop", event(number, contacts)),
    "single": lambda number, contacts: ("/api/v1/events", event(number, contacts)),
    "batch": lambda number, contacts: (
        "/api/v1/events/batch",
        b'{"events":[' + b",".join(event(number * 100 + each, contacts) for each in range(100)) + b"]}",
    ),
}


async def run(shape: str, port: int, key: str, seconds: float, connections: int, contacts: int) -> dict[str, object]:
    numbers = itertools.count()
    make = SHAPES[shape]
    prepared = (request(path, key, body) for path, body in (make(number, contacts) for number in numbers))
    load = Load(prepared, seconds, connections)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: _Connection(load), "127.0.0.1", port)
    await load.done
    took = time.perf_counter() - started
    ordered = sorted(load.latencies)
    percentile = (
        {f"p{each}": round(ordered[int(len(ordered) * each / 100)] * 1000, 2) for each in (50, 99)} if ordered else {}
    )
    return {
        "requests": len(ordered),
        "seconds": took,
        "rate": len(ordered) / took,
        "statuses": dict(load.statuses),
        **percentile,
    }


if __name__ == "__main__":
    shape, port, key, seconds, connections, contacts = sys.argv[1:7]
    result = uvloop.run(run(shape, int(port), key, float(seconds), int(connections), int(contacts)))
    print(json.dumps(result))
