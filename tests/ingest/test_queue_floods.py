"""An organization that floods fills its own share of the queue; events of the others are accepted and stored soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from api.ingest.pipeline import MAX_BATCH_WEIGHT, QUEUE_CAPACITY, Pipeline
from api.ingest.queue import TokenBuckets
from api.store.database import Database, Transaction
from tests.ingest.conftest import Intake, Org, event

REQUESTS = QUEUE_CAPACITY // 100


class GatedDatabase(Database):
    """A database that blocks all transactions until its gate is open."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, size=1, hot=True)
        self.gate = asyncio.Event()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        await self.gate.wait()
        async with super().transaction() as tx:
            yield tx


@pytest.fixture
async def blocked_pipeline(intake: Intake) -> AsyncIterator[tuple[Pipeline, asyncio.Event]]:
    """A pipeline with a writer that is blocked until the event is set."""
    database = GatedDatabase(intake.dsn)
    pipeline = Pipeline(database, intake.keyring, intake.clock, TokenBuckets(0, 1), intake.notices, writers=1)
    await pipeline.start()
    yield pipeline, database.gate
    database.gate.set()
    await pipeline.stop()


async def test_an_organization_that_floods_is_refused_at_once_and_the_others_are_served_soon(
    acme: Org, intake: Intake, blocked_pipeline: tuple[Pipeline, asyncio.Event]
) -> None:
    (pipeline, gate), globex = blocked_pipeline, await intake.organization()
    answered: list[str] = []

    async def send(org: Org, name: str, size: int) -> None:
        (first, *_) = await org.send(*[event(f"{name}-{n}") for n in range(size)], through=pipeline)
        answered.append(f"{name} {type(first).__name__}")

    flood = [asyncio.create_task(send(acme, "flood", 100)) for _ in range(REQUESTS)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    assert set(answered) == {"flood Unavailable"}
    refused = len(answered)
    quiet = asyncio.create_task(send(globex, "quiet", 1))
    await asyncio.sleep(0)  # it joins the queue
    gate.set()
    await asyncio.gather(*flood, quiet)
    before = answered.index("quiet AcceptedEvent") - refused
    assert REQUESTS // 3 < refused < REQUESTS
    # Those of the batch that was being written, and of the batch with the quiet event.
    assert before <= 2 * MAX_BATCH_WEIGHT // 100
