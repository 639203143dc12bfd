"""Refused events and duplicates are recorded with field and reason, without personal values, per organization."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from api.catalog import maintenance
from api.clock import monotonic_ns, uuid7
from api.ingest import rejected
from api.ingest.parse import AcceptedEvent, DryRun, Duplicate, Rejected, Unavailable
from api.ingest.pipeline import Pipeline
from api.ingest.queue import TokenBuckets
from api.ingest.rejected import MAX_BODY_BYTES, ORG_SHARE, Notices
from api.store.database import Database, DatabaseUnavailableError, Transaction
from api.store.events import delete_old_misspelt
from tests.ingest.conftest import Intake, Org, event
from tests.ingest.test_blocked_writers import key_held
from workbench.language.codec import encode
from workbench.language.event import unknown_field
from workbench.language.problem import Problem

CANARY = "canary-7d1f"
PROBLEMS = (Problem("contact", "is required"), Problem("event", "is required"))


@pytest.fixture
def notices(intake: Intake) -> Notices:
    """The notices of a process, written only by `flush`."""
    return Notices(intake.database, intake.clock)


@pytest.fixture
async def pipeline(intake: Intake, notices: Notices) -> AsyncIterator[Pipeline]:
    database = Database(intake.dsn, size=1, hot=True)
    started = Pipeline(database, intake.keyring, intake.clock, TokenBuckets(0, 1), notices, writers=1)
    await started.start()
    yield started
    await started.stop()


async def flush(notices: Notices) -> None:
    """Write all notices, as a process does when it stops."""
    await notices.start()
    await notices.stop()


async def read_notices(
    org: Org, columns: str = "outcome, event, idempotency_key, field, reason"
) -> list[tuple[Any, ...]]:
    return await org.rows(columns, "event_notices n", "id")


async def test_a_refused_event_of_a_batch_is_found_with_its_field_and_reason(
    acme: Org, pipeline: Pipeline, notices: Notices
) -> None:
    bad = event("k2", email=CANARY, payload={"card": CANARY}, attributes={"name": CANARY}, unknown=CANARY)
    await acme.send(event("k1"), bad | {"event": "First_Deposit"}, through=pipeline)
    await flush(notices)
    assert await read_notices(acme) == [
        ("rejected", "First_Deposit", "k2", "contact.email", "not a valid email address")
    ]
    ((row, body),) = await read_notices(acme, "n::text, body")
    assert CANARY not in row
    assert body == {
        "event": "First_Deposit",
        "contact": {"email": "string"},
        "payload": {"card": "string"},
        "attributes": {"name": "string"},
        "unknown": "string",
        "idempotencyKey": "k2",
    }


async def test_an_unreadable_event_is_noted_with_the_reason_only(
    acme: Org, pipeline: Pipeline, notices: Notices
) -> None:
    (outcome,) = await pipeline.ingest(acme.id, [b'{"event": "' + CANARY.encode()], test_key=False)
    assert isinstance(outcome, Rejected)
    await flush(notices)
    assert await read_notices(acme) == [("rejected", None, None, None, outcome.problems[0].reason)]
    assert CANARY not in (await read_notices(acme, "n::text"))[0][0]


async def test_repeated_events_are_noted_live_and_dry(acme: Org, pipeline: Pipeline, notices: Notices) -> None:
    outcomes = await acme.send(event("a"), event("a"), event("b", test=True), event("b", test=True), through=pipeline)
    assert (outcomes[1], outcomes[3]) == (Duplicate("a"), DryRun("b", 0, True))
    await flush(notices)
    assert await read_notices(acme) == [
        ("deduplicated", "deposit", "a", None, None),
        ("deduplicated", "deposit", "b", None, None),
    ]


async def test_an_event_refused_by_the_database_is_noted_too(acme: Org, pipeline: Pipeline, notices: Notices) -> None:
    async with acme.intake.database.transaction() as tx:
        await tx.execute("ALTER TABLE events ADD CONSTRAINT unlucky CHECK (event <> 'unlucky') NOT VALID")
    outcomes = await acme.send(event("1"), event("2", event="unlucky"), through=pipeline)
    assert outcomes == [AcceptedEvent("1"), Rejected((Problem("", "cannot be stored"),))]
    await flush(notices)
    assert await read_notices(acme) == [("rejected", "unlucky", "2", None, "cannot be stored")]


async def test_misspelt_fields_are_counted_over_flushes_and_kept_for_seven_days(acme: Org, notices: Notices) -> None:
    key_id = uuid7(acme.intake.clock.unique_now_us())
    for count in (2, 3):
        for _ in range(count):
            notices.note_misspelt(acme.id, key_id, (unknown_field("properties"), unknown_field("contact.e-mail\0")))
        await flush(notices)
    counts = [("contact.e-mail\ufffd", 5), ("properties", 5)]
    assert await acme.rows("field, count", "misspelt_fields") == counts
    async with acme.intake.database.transaction() as tx:
        assert await delete_old_misspelt(tx, acme.id, acme.intake.clock.now() + timedelta(days=6), 100) == 0
        assert await delete_old_misspelt(tx, acme.id, acme.intake.clock.now() + timedelta(days=9), 100) == 2


async def test_misspelt_fields_of_an_event_that_is_sent_again_are_counted_once(
    acme: Org, pipeline: Pipeline, notices: Notices
) -> None:
    raw, key_id = encode(event("held", properties={})), uuid7(acme.intake.clock.unique_now_us())
    with key_held(acme.intake, acme, "held"):
        (refused,) = await pipeline.ingest(acme.id, [raw], False, key_id=key_id)
        assert isinstance(refused, Unavailable)
    assert isinstance((await pipeline.ingest(acme.id, [raw], False, key_id=key_id))[0], AcceptedEvent | Duplicate)
    answered = asyncio.get_running_loop().create_future()
    assert pipeline.accept(acme.id, raw, False, monotonic_ns(), answered.set_result, key_id=key_id, strict=False)
    assert isinstance((await answered)[0], Duplicate)
    await flush(notices)
    assert await acme.rows("field, count", "misspelt_fields") == [("properties", 1)]


async def test_a_flood_of_misspelt_fields_is_bounded(acme: Org, notices: Notices) -> None:
    key_id = uuid7(acme.intake.clock.unique_now_us())
    for number in range(10 * ORG_SHARE):
        notices.note_misspelt(acme.id, key_id, (Problem(f"payload{number}", "unknown field, did you mean payload?"),))
    assert notices.dropped == 9 * ORG_SHARE
    await flush(notices)
    assert await acme.rows("count(*)", "misspelt_fields") == [(ORG_SHARE,)]


async def test_a_flood_of_one_organization_hides_nothing_of_another(acme: Org, globex: Org, notices: Notices) -> None:
    for number in range(10 * ORG_SHARE):
        notices.note_rejected(acme.id, encode(event(f"k{number}")), PROBLEMS)
    notices.note_rejected(globex.id, encode(event("only")), PROBLEMS)
    await flush(notices)
    assert [key for (key,) in await read_notices(acme, "idempotency_key")] == [
        f"k{9 * ORG_SHARE + n}" for n in range(ORG_SHARE)
    ]
    assert await read_notices(globex, "idempotency_key") == [("only",)]
    assert notices.dropped == 9 * ORG_SHARE


async def test_many_organizations_that_flood_fill_a_bounded_buffer(acme: Org, notices: Notices) -> None:
    for number in range(10_000):
        notices.note_rejected(-number, b"{}" + b" " * MAX_BODY_BYTES, PROBLEMS)
        notices.note_rejected(-number, b"{}" + b" " * (MAX_BODY_BYTES - 2), PROBLEMS)
    assert notices.dropped == 20_000 - rejected.MAX_NOTICES
    raws = [notice.raw for share in notices._shares.values() for notice in share]
    assert sum(map(len, raws)) <= rejected.MAX_BUFFERED_BYTES


async def test_a_huge_body_is_noted_with_the_reason_only(acme: Org, notices: Notices) -> None:
    notices.note_rejected(acme.id, encode(event("huge", payload={"x": "y" * MAX_BODY_BYTES})), PROBLEMS)
    await flush(notices)
    assert await read_notices(acme, "field, reason, body") == [("contact", "is required", None)]


class FailingDatabase(Database):
    """A database that is down for the first three transactions; `written` is set by the first commit."""

    tries = 0

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, size=1)
        self.written = asyncio.Event()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.tries += 1
        if self.tries <= 3:
            raise DatabaseUnavailableError("no connection")
        async with super().transaction() as tx:
            yield tx
        self.written.set()


async def test_while_the_database_is_down_the_newest_notices_wait(
    acme: Org, intake: Intake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rejected, "RETRY_INTERVAL_S", 0.01)
    database = FailingDatabase(intake.dsn)
    await database.open()
    notices = Notices(database, intake.clock)
    for number in range(3 * ORG_SHARE):
        notices.note_rejected(acme.id, encode(event(f"k{number}")), PROBLEMS)
    await notices.start()
    await asyncio.wait_for(database.written.wait(), 10)
    await notices.stop()
    await database.close()
    assert [key for (key,) in await read_notices(acme, "idempotency_key")] == [
        f"k{2 * ORG_SHARE + n}" for n in range(ORG_SHARE)
    ]
    (line,) = [vars(record) for record in caplog.records if record.message == "notices_behind"]
    assert (line["dropped"], line["waiting"], line["reason"]) == (2 * ORG_SHARE, ORG_SHARE, "no connection")


async def test_notices_are_deleted_after_seven_days(acme: Org, globex: Org, intake: Intake, notices: Notices) -> None:
    for org in (acme, globex):
        notices.note_rejected(org.id, b"{}", PROBLEMS)
    await flush(notices)
    await maintenance.delete_expired(intake.database, acme.id, intake.clock.now() + timedelta(days=6, hours=23))
    assert len(await read_notices(acme)) == 1
    await maintenance.delete_expired(intake.database, acme.id, intake.clock.now() + timedelta(days=7, seconds=1))
    assert (len(await read_notices(acme)), len(await read_notices(globex))) == (0, 1)
