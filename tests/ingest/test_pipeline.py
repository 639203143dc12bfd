"""Many requests share one transaction: their order and cost hold, and an event that fails is isolated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from api.clock import Clock
from api.ingest.parse import AcceptedEvent, Rejected, Unavailable
from api.ingest.pipeline import QUEUE_CAPACITY, Pipeline
from api.ingest.queue import TokenBuckets
from api.store.database import Database, Transaction, load
from tests.ingest.conftest import Intake, Org, event
from workbench.language.problem import Problem

REFUSED = Rejected((Problem("", "cannot be stored"),))


async def test_a_bad_event_fails_without_the_others(own_intake: Intake) -> None:
    acme, globex = await own_intake.organization(), await own_intake.organization()
    await own_intake.rows("ALTER TABLE events ADD CONSTRAINT healthy CHECK (event <> 'poison')")
    first = acme.send(event("1"), event("2", event="poison", external_id="new"), event("3"), event("1"))
    second = globex.send(event("1"), event("2", event="poison"))
    assert await asyncio.gather(first, second) == [
        [AcceptedEvent("1"), REFUSED, AcceptedEvent("3"), *(await acme.send(event("1")))],
        [AcceptedEvent("1"), REFUSED],
    ]
    assert await acme.traces() == {"events": 2, "idempotency_keys": 2, "contacts": 1, "identities": 1}
    assert await acme.rows("external_id", "contacts") == [("u1",)]


async def test_a_bad_dry_run_fails_without_the_others(own_intake: Intake) -> None:
    acme = await own_intake.organization()
    await own_intake.rows("ALTER TABLE dry_runs ADD CONSTRAINT healthy CHECK (event <> 'poison')")
    live, dry = await acme.send(event("1"), event("2", event="poison", test=True))
    assert (live, dry) == (AcceptedEvent("1"), REFUSED)


class UnforeseenError(Exception):
    """A bug."""


class BuggyDatabase(Database):
    """A database that raises a bug in the first batch."""

    has_raised = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with super().transaction() as tx:
            if not self.has_raised:
                self.has_raised = True
                raise UnforeseenError
            yield tx


async def test_after_a_bug_in_a_batch_its_events_are_stored_one_by_one(own_intake: Intake) -> None:
    acme = await own_intake.organization()
    pipeline = Pipeline(
        BuggyDatabase(own_intake.dsn, size=1),
        own_intake.keyring,
        Clock(),
        TokenBuckets(0, 1),
        own_intake.notices,
        writers=1,
    )
    await pipeline.start()
    assert await acme.send(event("1"), event("2"), through=pipeline) == [AcceptedEvent("1"), AcceptedEvent("2")]
    assert pipeline.alive
    await pipeline.stop()


async def test_events_that_take_long_to_read_keep_no_other_request_waiting(acme: Org) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(take_turns())
    chance = Random(1)  # 40 unknown fields an event, each compared with the names of all fields
    names = iter("".join(chance.sample("walletaddressidempotencykey", 14)) for _ in range(4_000))
    sent = [
        event(contact={next(names): 1 for _ in range(20)}, **{next(names): 1 for _ in range(20)}) for _ in range(100)
    ]
    outcomes = await acme.send(*sent)
    others.cancel()
    assert {type(outcome) for outcome in outcomes} == {Rejected}  # so no turn was taken during a transaction
    assert turns > 20


async def test_outcomes_are_in_the_order_of_the_events(acme: Org) -> None:
    keys = [f"k{(n * 53) % 97}" for n in range(97)]
    sent = [
        event(key) if n % 3 else event(key, event="no name") if n % 2 else event(key, test=True)
        for n, key in enumerate(keys)
    ]
    outcomes = await acme.send(*sent)
    expected = ["AcceptedEvent" if n % 3 else "Rejected" if n % 2 else "DryRun" for n in range(97)]
    assert [type(outcome).__name__ for outcome in outcomes] == expected
    assert [getattr(outcome, "idempotency_key", key) for outcome, key in zip(outcomes, keys, strict=True)] == keys
    stored = await acme.rows("idempotency_key", "events", "id")  # ids grow in the order of arrival
    assert [key for (key,) in stored] == [key for n, key in enumerate(keys) if n % 3]


class CountingDatabase(Database):
    """The real database, counting the round trips of each transaction."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, size=1, hot=True)
        self.counts: list[int] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with super().transaction() as tx:
            trips = 0
            wait = tx.wait

            async def counted(*args: Any) -> Any:
                nonlocal trips
                trips += 1
                return await wait(*args)

            tx.wait = counted  # type: ignore[method-assign]
            yield tx
            del tx.wait
            self.counts.append(trips)


def events_of_new_contacts(size: int, turn: int) -> list[dict[str, Any]]:
    return [
        event(f"{turn}-{n}", wallet=f"0x{turn}-{n}", email=f"a{turn}-{n}@example.com", attributes={"n": n})
        for n in range(size)
    ]


def events_of_known_contacts(size: int, turn: int) -> list[dict[str, Any]]:
    return [event(f"{turn}-{n}", external_id=f"u{n % 10}", payload={"n": n}) for n in range(size)]


def changing(size: int, turn: int) -> list[dict[str, Any]]:
    return [event(f"{turn}-{n}", external_id=f"u{n % 10}", attributes={"turn": f"{turn}-{n}"}) for n in range(size)]


def dry(size: int, turn: int) -> list[dict[str, Any]]:
    return [event(f"{turn}-{n}", external_id=f"u{n % 10}", test=True) for n in range(size)]


@pytest.mark.parametrize(
    ("sent", "most"), [(events_of_new_contacts, 3), (events_of_known_contacts, 2), (changing, 2), (dry, 5)]
)
async def test_a_batch_costs_the_same_few_round_trips_whatever_its_size(
    acme: Org, intake: Intake, sent: Any, most: int
) -> None:
    await acme.automate("deposit")
    database = CountingDatabase(intake.dsn)
    pipeline = Pipeline(database, intake.keyring, intake.clock, TokenBuckets(0, 1), intake.notices, writers=1)
    await pipeline.start()
    await acme.send(*events_of_known_contacts(10, 0), through=pipeline)
    database.counts.clear()
    for turn, size in enumerate((1, 10, 100), 1):
        await acme.send(*sent(size, turn), through=pipeline)
    await pipeline.stop()
    assert len(set(database.counts)) == 1
    assert database.counts[0] <= most


async def test_requests_that_arrive_during_a_batch_form_the_next_one(acme: Org, intake: Intake) -> None:
    database = CountingDatabase(intake.dsn)
    pipeline = Pipeline(database, intake.keyring, intake.clock, TokenBuckets(0, 1), intake.notices, writers=1)
    await pipeline.start()
    await acme.send(event("first"), through=pipeline)
    database.counts.clear()
    await asyncio.gather(*[acme.send(event(str(n)), through=pipeline) for n in range(200)])
    await pipeline.stop()
    assert len(database.counts) <= 4


async def test_a_full_queue_refuses_at_once_and_queued_events_are_written(acme: Org, intake: Intake) -> None:
    pipeline = Pipeline(
        Database(intake.dsn, size=1), intake.keyring, intake.clock, TokenBuckets(0, 1), intake.notices, writers=1
    )
    await pipeline.start()
    requests = [[event(f"{n}-{m}") for m in range(100)] for n in range(QUEUE_CAPACITY // 100 + 2)]
    answers = await asyncio.gather(*[acme.send(*request, through=pipeline) for request in requests])
    await pipeline.stop()
    refused = [outcomes for outcomes in answers if isinstance(outcomes[0], Unavailable)]
    stored = {
        outcome.idempotency_key for outcomes in answers for outcome in outcomes if isinstance(outcome, AcceptedEvent)
    }
    assert len(refused) >= 1
    assert {key for (key,) in await acme.rows("idempotency_key", "events")} >= stored


@pytest.mark.parametrize("writers", [1, 2, 3])
async def test_stopping_writes_queued_events_and_refuses_later_ones(acme: Org, intake: Intake, writers: int) -> None:
    pipeline = Pipeline(
        Database(intake.dsn, size=3), intake.keyring, intake.clock, TokenBuckets(0, 1), intake.notices, writers
    )
    await pipeline.start()
    await acme.send(event("first"), through=pipeline)
    waiting = []
    for n in range(20):  # some are being written and some wait, for any order of the writers
        waiting.append(asyncio.create_task(acme.send(event(str(n)), through=pipeline)))
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await pipeline.stop()
    assert [await task for task in waiting] == [[AcceptedEvent(str(n))] for n in range(20)]
    (late,) = await acme.send(event("late"), through=pipeline)
    assert isinstance(late, Unavailable)
    assert not pipeline.alive


async def test_an_abandoned_request_does_not_affect_others(acme: Org) -> None:
    leaving = [asyncio.create_task(acme.send(event(f"left {n}"))) for n in range(20)]
    staying = [asyncio.create_task(acme.send(event(f"stays {n}"))) for n in range(20)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    assert [await task for task in staying] == [[AcceptedEvent(f"stays {n}")] for n in range(20)]
    await asyncio.gather(*leaving, return_exceptions=True)
    assert await acme.send(event("after")) == [AcceptedEvent("after")]


UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"
HOT: dict[str, tuple[str, dict[str, Any]]] = {
    "claim_keys": (
        "",
        {
            "org_ids": "{1}",
            "key_digests": [UNKNOWN_ID],
            "event_ids": [UNKNOWN_ID],
            "body_digests": [UNKNOWN_ID],
            "created_at": "now",
        },
    ),
    "find_key_holders": ("idempotency_keys_pkey", {"org_ids": "{1}", "key_digests": f"{{{UNKNOWN_ID}}}"}),
    "find_owners": (
        "identities_pkey contacts_pkey",
        {"org_ids": "{1}", "kinds": "{1}", "digests": f"{{{UNKNOWN_ID}}}", "attributes": ""},
    ),
    "merge_attributes": (
        "contacts_pkey",
        {"org_ids": "{1}", "ids": f"{{{UNKNOWN_ID}}}", "attributes": ['{"a": 1}'], "updated_at": "now"}
        | {"max_attributes": 1_000, "max_bytes": 262_144, "steps": [0], "updated_us": [None]},
    ),
    "remove_emails": (
        "contacts_pkey",
        {"org_ids": "{1}", "ids": f"{{{UNKNOWN_ID}}}", "updated_at": "now", "steps": [0], "updated_us": [None]},
    ),
    "add_contact_identifiers": (
        "contacts_pkey",
        dict.fromkeys(("emails", "email_domains", "wallets", "raw_wallets", "external_ids"))
        | {"org_ids": "{1}", "ids": f"{{{UNKNOWN_ID}}}", "updated_at": "now", "steps": [0], "updated_us": [None]},
    ),
}


@pytest.mark.plain
@pytest.mark.parametrize("contacts", [0, 20_000])
async def test_hot_statements_use_primary_keys_without_statistics(own_intake: Intake, contacts: int) -> None:
    acme = await own_intake.organization()
    await own_intake.rows(
        "ALTER TABLE contacts SET (autovacuum_enabled = off); ALTER TABLE identities SET (autovacuum_enabled = off)"
    )
    if contacts:
        await own_intake.rows(
            "INSERT INTO contacts (org_id, id, created_at, updated_at)"
            " SELECT %(org_id)s, gen_random_uuid(), now(), now() FROM generate_series(1, %(contacts)s)",
            org_id=acme.id,
            contacts=contacts,
        )
        await own_intake.rows("INSERT INTO identities SELECT org_id, 1, gen_random_uuid(), id, now() FROM contacts")
    database = Database(own_intake.dsn, size=1, hot=True)
    await database.open()
    for name, (indexes, values) in HOT.items():
        async with database.transaction() as tx:
            rows = await (await tx.execute("EXPLAIN " + load("events")[name], values)).fetchall()
        plan = "\n".join(line for (line,) in rows)
        assert "Seq Scan" not in plan, plan
        assert all(f"Index Scan using {index}" in plan for index in indexes.split()), plan
    await database.close()
