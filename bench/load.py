"""The load generator: raw HTTP/1.1 over keep-alive connections, in a separate process.

It shares the machine with the service that it measures, so it does as little as possible: requests are built before the
clock starts, and answers are counted and not parsed. Its own CPU time is part of the result. Run as a module, it takes
a `LoadSpec` (JSON) as its argument and prints a `Slice`.

A closed loop sends the next request of a connection when the previous one is answered; it finds the maximum rate of a
service. An open loop sends at times that are drawn beforehand, however fast the service answers. It measures latency
from these times, so a stall counts for every request that it delayed.
"""

import asyncio
import itertools
import random
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator
from typing import cast

import msgspec
import uvloop

from bench import traffic
from bench.figures import Slice, quantiles

ANSWER_TIMEOUT_S = 15.0  # seconds for answers after the last request
_TICK_S = 0.001
_PREPARED = 25_000  # events per second, built beforehand; for a faster service the others are built while sending
_HOST = "127.0.0.1"


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, where, how, and for how long."""

    path: str
    key: str
    connections: int
    seconds: float
    ports: tuple[int, ...] = ()  # connections are spread over them
    events_per_request: int = 1
    new_every: int = 0  # one event in `new_every` is from a new contact; 0: none
    changing: int = 0  # attributes of returning contacts that each event changes
    rate: float = 0.0  # requests per second of an open loop; 0: a closed loop
    introduce: bool = False  # send every returning contact once, instead of for `seconds`


class _Loop(ABC):
    """The state that all connections share: the remaining requests, the counts of answers, and the end of the load."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.accepted = 0
        self.statuses: Counter[bytes] = Counter()
        self.latencies: list[float] = []
        self.done = asyncio.get_running_loop().create_future()

    def count(self, status: bytes, accepted: int, seconds: float) -> None:
        self.statuses[status] += 1
        self.accepted += accepted
        self.latencies.append(seconds)

    def lost(self) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the service closed a connection instead of answering"))

    @abstractmethod
    def start(self, connections: list["_Connection"]) -> None:
        """Send the first requests."""

    @abstractmethod
    def free(self, connection: "_Connection") -> None:
        """Count the answer of a connection."""


class _Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._buffer = b""
        self._since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def ask(self, request: bytes, since: float) -> None:
        """Send a request that was due at a given time."""
        self._since = since
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        head_end = buffer.find(b"\r\n\r\n")
        if head_end < 0 or len(buffer) < head_end + 4 + _content_length(buffer[:head_end]):
            self._buffer = buffer
            return
        self._buffer = b""
        since, self._since = self._since, 0.0
        accepted = buffer.count(b'"accepted":true', head_end)
        self._loop.count(buffer[9:12], accepted, time.perf_counter() - since)
        self._loop.free(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._since:
            self._loop.lost()

    def close(self) -> None:
        self._transport.close()


def _content_length(head: bytes) -> int:
    start = head.lower().find(b"content-length:") + 15
    end = head.find(b"\r\n", start)
    return int(head[start : end if end > 0 else len(head)])


class _ClosedLoop(_Loop):
    """A closed loop: every connection sends its next request as soon as the previous one is answered."""

    def __init__(self, requests: Iterator[bytes], seconds: float) -> None:
        super().__init__(requests)
        self._seconds = seconds
        self._asking = 0

    def start(self, connections: list[_Connection]) -> None:
        self._until = time.perf_counter() + self._seconds
        self._asking = len(connections)
        for connection in connections:
            self.free(connection)

    def free(self, connection: _Connection) -> None:
        now = time.perf_counter()
        request = next(self.requests, None) if now < self._until else None
        if request is not None:
            connection.ask(request, now)
            return
        self._asking -= 1
        if not self._asking:
            self.done.set_result(None)


class _OpenLoop(_Loop):
    """An open loop: requests are due by a Poisson process, and each takes the first idle connection."""

    def __init__(self, requests: Iterator[bytes], seconds: float, rate: float) -> None:
        super().__init__(requests)
        self._moments = list(moments(seconds, rate))
        self._coming: deque[float] = deque()
        self._waiting: deque[float] = deque()
        self._idle: list[_Connection] = []

    def start(self, connections: list[_Connection]) -> None:
        begun = time.perf_counter()
        self._coming.extend(begun + moment for moment in self._moments)
        self._idle = connections.copy()
        self._tick()

    def free(self, connection: _Connection) -> None:
        self._idle.append(connection)
        self._send()
        if len(self.latencies) == len(self._moments):
            self.done.set_result(None)

    def _tick(self) -> None:
        now = time.perf_counter()
        while self._coming and self._coming[0] <= now:
            self._waiting.append(self._coming.popleft())
        self._send()
        if self._coming:
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _send(self) -> None:
        while self._waiting and self._idle:
            self._idle.pop().ask(next(self.requests), self._waiting.popleft())


def moments(seconds: float, rate: float) -> Iterator[float]:
    """Yield the times of a Poisson process, the same in every run."""
    chance = random.Random(1)
    moment = chance.expovariate(rate)
    while moment < seconds:
        yield moment
        moment += chance.expovariate(rate)


def _requests(order: LoadSpec) -> Iterator[bytes]:
    """Yield the requests of a load; about as many as it needs are built beforehand."""
    size, new_every = order.events_per_request, order.new_every
    bodies = traffic.introductions() if order.introduce else traffic.bodies(size, new_every, order.changing)
    head = (
        f"POST {order.path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {order.key}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()
    requests = (b"%b%d\r\n\r\n%b" % (head, len(body), body) for body in bodies)
    prepared = list(itertools.islice(requests, int(_PREPARED * order.seconds / order.events_per_request)))
    return itertools.chain(prepared, requests)


async def carry_out(order: LoadSpec) -> Slice:
    """Send the load; return its slice."""
    requests = _requests(order)
    loop: _Loop = _OpenLoop(requests, order.seconds, order.rate) if order.rate else _ClosedLoop(requests, order.seconds)
    ports = itertools.islice(itertools.cycle(order.ports), order.connections)
    connections = [await _connect(loop, port) for port in ports]
    cpu_before, begun = _cpu_seconds(), time.perf_counter()
    loop.start(connections)
    await asyncio.wait_for(loop.done, order.seconds + ANSWER_TIMEOUT_S)
    seconds, cpu = time.perf_counter() - begun, _cpu_seconds() - cpu_before
    for connection in connections:
        connection.close()
    return Slice(
        requests=len(loop.latencies),
        accepted=loop.accepted,
        refused=len(loop.latencies) * order.events_per_request - loop.accepted,
        seconds=seconds,
        statuses={status.decode(): count for status, count in loop.statuses.items()},
        latencies_ms=[round(quantile * 1000, 3) for quantile in quantiles(loop.latencies)],
        cpu={"load": cpu},
    )


async def _connect(loop: _Loop, port: int) -> _Connection:
    _, connection = await asyncio.get_running_loop().create_connection(lambda: _Connection(loop), _HOST, port)
    return connection


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(carry_out(msgspec.json.decode(sys.argv[1], type=LoadSpec)))).decode())
