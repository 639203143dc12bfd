"""In-app messages: the time from the acceptance of an event to its push on a socket, and many idle sockets.

Events are posted to two API processes at random times that are drawn beforehand. One engine runs the automation that
they start. The wallets have signed in and have sockets to both processes, so half of the pushes are sent by the process
that did not receive the event.
"""

import asyncio
import random
import time
from collections.abc import Sequence

import httpx

from bench import crowd, postgres, site
from bench.effort import Effort, Measurement
from bench.figures import percentile, quantiles
from bench.postgres import SECRET, Database, Postgres
from bench.processes import Service, beside
from bench.sockets import ANSWER_TIMEOUT_S, Arrivals, connect, sign_in
from bench.table import Row, at_most, row
from tests.inapp.wallet import Wallet

RATE = 100.0  # events a second
WALLETS = 100
_LONGER = 4  # times a slice of throughput
_WARM_UP_S = 2.0

_MESSAGE = {"recipientMode": "triggering_profile", "title": "{{ number }}", "body": "Your deposit arrived."}
_AUTOMATION = {
    "name": "thanks",
    "triggerSpec": {"type": "app_event", "event": "deposit"},
    "graph": {
        "nodes": [
            {"id": "t", "type": "app_event", "data": {"actionType": "app_event", "event": "deposit"}},
            {"id": "n", "type": "send_inapp", "data": {"actionType": "send_inapp", **_MESSAGE}},
        ],
        "edges": [{"id": "e", "source": "t", "target": "n"}],
    },
}


def measure(effort: Effort) -> Measurement:
    """Measure the latencies of each round, then the idle sockets."""
    with postgres.running() as server:
        return Measurement([*_latency(server, effort), *crowd.rows(server, effort)], {})


def _latency(server: Postgres, effort: Effort) -> list[Row]:
    database = postgres.prepared(server, "inapp")
    environment = {"DATABASE_URL": database.dsn, "WORKBENCH_SECRET": SECRET}
    with (
        site.bare_apis(server, database, 2) as services,
        beside("-m", "api", "engine", log=server.home / "engine.log", environment=environment),
    ):
        made = site.ask(services[0], database, site.AUTOMATIONS, _AUTOMATION)
        site.ask(services[0], database, f"{site.AUTOMATIONS}/{made['id']}/publish", {})
        rounds = asyncio.run(_rounds(database, services, effort))
    name = f"event accepted to push, {RATE:.0f}/s"
    return [
        row(f"{name}, p50", "ms", [percentile(round_, 50) for round_ in rounds], None, at_most(60)),
        row(f"{name}, p99", "ms", [percentile(round_, 99) for round_ in rounds], None, at_most(300)),
    ]


async def _rounds(database: Database, services: Sequence[Service], effort: Effort) -> list[list[float]]:
    """Return the latencies of each round in milliseconds, as made by `quantiles`."""
    wallets = [Wallet(number.to_bytes(32, "big")) for number in range(1, WALLETS + 1)]
    tokens = await sign_in(database, services[0].port, wallets)
    deposits = _Deposits(database, services, wallets)
    lines = await connect([service.port for service in services], tokens, deposits.arrivals)
    async with deposits.client:
        await deposits.send(_WARM_UP_S)
        rounds = [await deposits.send(_LONGER * effort.seconds) for _ in range(effort.rounds)]
    for line in lines:
        line.close()
    return rounds


class _Deposits:
    """Numbered events, and the pushes that they cause."""

    def __init__(self, database: Database, services: Sequence[Service], wallets: Sequence[Wallet]) -> None:
        self.client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {database.live_key}"}, timeout=ANSWER_TIMEOUT_S
        )
        self.arrivals = Arrivals()
        self._urls = [f"http://127.0.0.1:{service.port}{site.SINGLES}" for service in services]
        self._wallets = wallets
        self._accepted: dict[str, float] = {}

    async def send(self, seconds: float) -> list[float]:
        """Post events for some seconds; return the latencies once the last push has arrived."""
        first, begun = len(self._accepted), time.perf_counter()
        moments = _moments(first, seconds)
        await asyncio.gather(*(self._post(first + number, begun + due) for number, due in enumerate(moments)))
        await self.arrivals.until(len(self._accepted))
        numbers = map(str, range(first, len(self._accepted)))
        return quantiles([(self.arrivals.at[number] - self._accepted[number]) * 1e3 for number in numbers])

    async def _post(self, number: int, due: float) -> None:
        wallet, url = self._wallets[number % WALLETS], self._urls[number // 2 % len(self._urls)]
        event = {"event": "deposit", "contact": {"walletAddress": wallet.address}, "payload": {"number": str(number)}}
        await asyncio.sleep(due - time.perf_counter())
        response = await self.client.post(url, json=event)
        self._accepted[str(number)] = time.perf_counter()
        response.raise_for_status()


def _moments(seed: int, seconds: float) -> list[float]:
    chance, due, moments = random.Random(seed), 0.0, []
    while (due := due + chance.expovariate(RATE)) < seconds:
        moments.append(due)
    return moments
