"""One organization floods the API: it is rejected quickly with Retry-After, and others are unaffected (trust.md A6)."""

import asyncio
import json

from tests.acceptance.conftest import Api, House
from tests.promises.conftest import until
from tests.promises.lines import Answer, Line

SOON = 5.0  # seconds: the two that are promised, and what the flood adds when it is made on the same processors
FLOODING = 100  # connections
BATCH = json.dumps({"events": [{"event": "flood", "contact": {"externalId": f"f{n}"}} for n in range(100)]}).encode()


class Flood:
    """Connections that send one full batch after another, and come back at once when they are refused."""

    def __init__(self, api: Api, key: str) -> None:
        self.answers: list[Answer] = []
        self._api, self._key = api, key
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._send()) for _ in range(FLOODING)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError)

    def with_status(self, status: int) -> list[Answer]:
        return [answer for answer in self.answers if answer.status == status]

    async def _send(self) -> None:
        async with Line(self._api.url, self._key) as line:
            while True:
                self.answers.append(await line.post("/api/v1/events/batch", BATCH))


async def test_a6_a_flooding_organization_is_rejected_quickly_and_others_are_served(house: House) -> None:
    loud, quiet = await house.organization("loud"), await house.organization("quiet")
    api = house.start_api()
    flood = Flood(api, loud["live"])
    flood.start()
    await until(lambda: len(flood.with_status(503)) >= 20)
    async with Line(api.url, quiet["live"]) as line:
        heard = [await line.post("/api/v1/events", event(number)) for number in range(50)]
    await flood.stop()
    assert [answer.status for answer in heard] == [202] * 50
    assert max(answer.seconds for answer in heard + flood.answers) < SOON
    assert len(flood.with_status(202)) + len(flood.with_status(503)) == len(flood.answers)
    assert {answer.headers["retry-after"] for answer in flood.with_status(503)} == {"1"}
    assert {json.loads(answer.body)["code"] for answer in flood.with_status(503)} == {"INGEST_UNAVAILABLE"}


def event(number: int) -> dict[str, object]:
    return {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": f"k{number}"}
