"""Writers survive a refused event, a lock or a hanging backend, and store the events of the others."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from api.ingest.parse import AcceptedEvent, Outcome, ParsedEvent, Rejected, Unavailable
from api.ingest.pipeline import QUEUE_CAPACITY, Pipeline
from api.ingest.queue import TokenBuckets
from api.store.database import Database, Transaction, libpq_dsn
from tests.ingest.conftest import Intake, Org, event
from tests.servers import connect_as


class CountingDatabase(Database):
    """The real database, counting transactions."""

    count = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.count += 1
        async with super().transaction() as tx:
            yield tx


class DisconnectingNotices:
    """A callback in place of the notices that makes the client disconnect when an outcome is noted."""

    def __init__(self) -> None:
        self.client: asyncio.Task[Any] | None = None

    def note_outcome(self, arrival: ParsedEvent, outcome: Outcome, key_id: str | None) -> None:
        if self.client is not None:
            self.client.cancel()


async def test_a_client_that_disconnects_during_its_answer_stops_no_writer(acme: Org, intake: Intake) -> None:
    leaving: Any = DisconnectingNotices()
    pipeline = Pipeline(
        Database(intake.dsn, size=1), intake.keyring, intake.clock, TokenBuckets(0, 1), leaving, writers=1
    )
    await pipeline.start()
    await acme.send(event("left"), through=pipeline)
    leaving.client = asyncio.create_task(acme.send(event("left"), through=pipeline))  # a duplicate, which is noted
    await asyncio.gather(leaving.client, return_exceptions=True)
    assert leaving.client.cancelled()
    leaving.client = None
    assert await acme.send(event("after"), through=pipeline) == [AcceptedEvent("after")]
    assert pipeline.alive
    await pipeline.stop()


async def test_a_refused_event_causes_few_extra_transactions(own_intake: Intake) -> None:
    acme, globex = await own_intake.organization(), await own_intake.organization()
    await own_intake.rows("ALTER TABLE events ADD CONSTRAINT healthy CHECK (event <> 'poison')")
    database = CountingDatabase(own_intake.dsn, size=1, hot=True)
    pipeline = Pipeline(
        database, own_intake.keyring, own_intake.clock, TokenBuckets(0, 1), own_intake.notices, writers=1
    )
    await pipeline.start()
    await globex.send(event("warm"), through=pipeline)
    database.count = 0
    poisoned = [acme.send(event(f"p{n}", event="poison" if n == 30 else "fine"), through=pipeline) for n in range(64)]
    others = [globex.send(event(f"g{n}"), through=pipeline) for n in range(128)]
    outcomes = [outcome for (outcome,) in await asyncio.gather(*poisoned, *others)]
    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)] == [30]
    assert sum(isinstance(outcome, AcceptedEvent) for outcome in outcomes) == 191
    # The batch, each organization, halves of 64, and events queued meanwhile
    assert database.count <= 1 + 2 + 2 * 6 + 4
    await pipeline.stop()


async def test_a_refused_event_does_not_affect_its_batch(own_intake: Intake) -> None:
    acme = await own_intake.organization()
    await own_intake.rows("ALTER TABLE events ADD CONSTRAINT healthy CHECK (event <> 'poison')")
    outcomes = await acme.send(*[event(f"{n}", event="poison" if n in (3, 70) else "fine") for n in range(100)])
    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)] == [3, 70]
    assert sum(isinstance(outcome, AcceptedEvent) for outcome in outcomes) == 98


@contextmanager
def key_held(intake: Intake, org: Org, key: str) -> Any:
    """Hold an idempotency key in a transaction that does not end."""
    with connect_as(libpq_dsn(intake.dsn)) as holder:
        claim = "INSERT INTO idempotency_keys VALUES (%s, %s, gen_random_uuid(), gen_random_uuid(), now())"
        holder.execute(claim, (org.id, org.keys.key_digest(key)))
        yield
        holder.rollback()


async def test_a_lock_stops_only_the_organization_that_waits_for_it(own_intake: Intake) -> None:
    acme, globex = await own_intake.organization(), await own_intake.organization()
    with key_held(own_intake, acme, "held"):
        waiting = asyncio.create_task(acme.send(event("held")))
        await asyncio.sleep(0.05)
        assert [await globex.send(event(f"g{n}")) for n in range(3)] == [[AcceptedEvent(f"g{n}")] for n in range(3)]
        together = await asyncio.gather(acme.send(event("held")), *[globex.send(event(f"t{n}")) for n in range(20)])
        assert together[1:] == [[AcceptedEvent(f"t{n}")] for n in range(20)]
        assert isinstance((await waiting)[0], Unavailable)
    assert await acme.send(event("held")) == [AcceptedEvent("held")]


async def test_stopping_does_not_wait_for_a_hanging_backend(own_intake: Intake) -> None:
    acme = await own_intake.organization()
    pipeline = Pipeline(
        Database(own_intake.dsn, size=1),
        own_intake.keyring,
        own_intake.clock,
        TokenBuckets(0, 1),
        own_intake.notices,
        1,
    )
    await pipeline.start()
    await acme.send(event("1"), through=pipeline)
    pids = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query = 'COMMIT'"
    standing = [pid for (pid,) in await own_intake.rows(pids)]
    assert standing
    try:
        for pid in standing:
            os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.create_task(acme.send(event("2"), through=pipeline))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(12):
            await pipeline.stop()
    finally:
        for pid in standing:
            os.kill(pid, signal.SIGCONT)
    assert isinstance((await waiting)[0], Unavailable)


async def test_the_queue_is_bounded_in_bytes_too(own_intake: Intake) -> None:
    acme = await own_intake.organization()
    large = {"text": "x" * 16_000}
    with key_held(own_intake, acme, "held"):
        sending = [asyncio.create_task(acme.send(event("held"))) for _ in range(2)]  # one for each writer
        await asyncio.sleep(0.05)
        sending += [asyncio.create_task(acme.send(event(f"{n}", payload=large))) for n in range(QUEUE_CAPACITY // 4)]
        done, _ = await asyncio.wait(sending, timeout=0.5)
        assert any(isinstance(task.result()[0], Unavailable) for task in done)
        await asyncio.gather(*sending)
