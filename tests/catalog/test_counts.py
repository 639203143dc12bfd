"""The counts of the catalog equal those of the rows at any time, also with imports and two counting processes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from random import Random

import pytest

from api.catalog import counts
from api.catalog.counts import count_events, late_imported_events
from api.clock import uuid7
from api.ingest.match import Triggers
from api.ingest.parse import EventReader, ParsedEvent
from api.ingest.store import prepare, store_batch, store_history
from api.store import events
from api.store.database import Database, Transaction
from api.store.query import run
from tests.ingest.conftest import Intake, Org, event
from workbench.language.codec import encode

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ROWS = (
    "SELECT event, date_trunc('day', created_at), count(*) FROM events"
    " WHERE org_id = %(org_id)s AND created_at >= %(since)s GROUP BY 1, 2"
)


class Organization:
    """An organization that receives events of any date."""

    def __init__(self, org: Org) -> None:
        self.org, self.intake = org, org.intake
        self.now = org.intake.clock.now()
        self._notes_source = uuid7(1)
        self._triggers = Triggers(org.intake.keyring)

    def arrivals(self, *names: str) -> list[ParsedEvent]:
        """Return valid new events."""
        keys = (uuid7(self.intake.clock.unique_now_us()) for _ in names)
        return [
            self.org.arrival(event(key, event=name, external_id=key)) for key, name in zip(keys, names, strict=True)
        ]

    def dated(self, *dated: tuple[str, datetime]) -> list[ParsedEvent]:
        """Return events with these names and times as an import reads them."""
        reader, arrivals = EventReader(self.intake.clock, ""), list[ParsedEvent]()
        for name, at in dated:
            key = uuid7(self.intake.clock.unique_now_us())
            sent = event(key, event=name, external_id=key, occurredAt=at.isoformat())
            parsed = reader.read(self.org.id, self.org.keys, encode(sent), past=True)
            assert isinstance(parsed, ParsedEvent), parsed
            arrivals.append(parsed)
        return arrivals

    async def store_past(self, tx: Transaction, *dated: tuple[str, datetime]) -> None:
        """Store events in the transaction as an import does."""
        past = await store_history(tx, self.org.id, prepare(self.dated(*dated), self.now), self.now)
        late = [(event.body.name, event.occurred_us) for event in past.events]
        source = (self.org.id, self._notes_source)
        await run(tx, *past.writes, *late_imported_events(source, late, past.counting, self.now))

    async def store(self, at: datetime, *names: str, database: Database | None = None) -> None:
        """Store events as a batch of ingest received at `at`."""
        async with (database or self.intake.database).transaction() as tx:
            await store_batch(tx, self.arrivals(*names), self._triggers, at)

    async def load(self, *dated: tuple[str, datetime], database: Database | None = None) -> None:
        """Store events as an import does."""
        async with (database or self.intake.database).transaction() as tx:
            await self.store_past(tx, *dated)

    async def count(self, now: datetime | None = None, database: Database | None = None) -> None:
        await count_events(database or self.intake.database, now or self.now)

    async def catalog(self, since: datetime) -> dict[tuple[str, datetime], int]:
        """Return the counts of the catalog by event and day, after comparing its two statements with the rows."""
        async with self.intake.database.transaction() as tx:
            await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            counts = by_day(await events.count_events(tx, self.org.id, since, "", 200))
            rows = await (await tx.execute(ROWS, {"org_id": self.org.id, "since": since})).fetchall()
            assert counts == {(name, day): count for name, day, count in rows}
            assert counts == await self._one_by_one(tx, since, {name for name, _ in counts})
        return counts

    async def _one_by_one(self, tx: Transaction, since: datetime, names: set[str]) -> dict[tuple[str, datetime], int]:
        return by_day([await events.count_event(tx, self.org.id, name, since) for name in names])

    async def sum_counts(self, *tables: str) -> list[int]:
        """Return the sums of the counts in tables."""
        return [(await self.org.rows("coalesce(sum(count), 0)::int", table))[0][0] for table in tables]


def by_day(counted_events: list[events.CountedEvent]) -> dict[tuple[str, datetime], int]:
    counts = {(event.event, day): count for event in counted_events for day, count in event.days.items()}
    assert sum(counts.values()) == sum(event.count for event in counted_events)
    return counts


@pytest.fixture
async def acme(intake: Intake) -> Organization:
    return Organization(await intake.organization())


@pytest.fixture
async def second(intake: Intake) -> AsyncIterator[Database]:
    """The connections of another process."""
    database = Database(intake.dsn, size=4)
    await database.open()
    yield database
    await database.close()


async def test_hours_are_counted_once_and_the_rest_is_counted_live(acme: Organization) -> None:
    start = acme.now.replace(minute=0, second=0, microsecond=0) - DAY
    await acme.load(
        *[("a", start + n * timedelta(minutes=7)) for n in range(30)], ("b", start), ("old", start - 40 * DAY)
    )
    await acme.count()
    assert await acme.sum_counts("event_hours", "event_days", "late_events") == [31, 31, 0]
    await acme.store(acme.now, "a", "new")
    for since in (start, start + timedelta(minutes=20, microseconds=1), start + HOUR, acme.now, acme.now - 30 * DAY):
        await acme.catalog(since)
    assert sum((await acme.catalog(start)).values()) == 33


async def test_late_events_are_noted_and_then_counted(acme: Organization) -> None:
    await acme.store(acme.now - HOUR, "a")
    await acme.count()
    late = acme.now - timedelta(minutes=3) - DAY
    await acme.load(("a", late), ("a", late), ("b", acme.now - HOUR), ("b", acme.now - timedelta(seconds=1)))
    await acme.store(late, "a", "c")
    assert await acme.sum_counts("event_hours", "event_days", "late_events") == [1, 1, 5]
    for since in (late - HOUR, late, late + timedelta(microseconds=1)):
        await acme.catalog(since)
    await acme.count(acme.now + timedelta(minutes=6))
    assert await acme.sum_counts("event_hours", "event_days", "late_events") == [7, 7, 0]
    await acme.catalog(late - DAY)


async def test_counting_waits_for_transactions_from_before_an_hour_was_closed(
    acme: Organization, second: Database
) -> None:
    slow, go_on = asyncio.Event(), asyncio.Event()
    at = acme.now - timedelta(minutes=30)

    async def store_slowly() -> None:
        async with second.transaction() as tx:
            await acme.store_past(tx, ("a", at))
            slow.set()
            await go_on.wait()

    writing = asyncio.create_task(store_slowly())
    await slow.wait()
    counting_task = asyncio.create_task(acme.count())
    for _ in range(20):  # the job checks every 50 ms whether the writer has ended
        await acme.org.rows("*", "event_counting")
        await asyncio.sleep(0.01)
    assert await acme.org.rows("counted_until < closed_until", "event_counting") == [(True,)]
    await acme.store(at, "b")
    assert await acme.sum_counts("late_events") == [1]
    go_on.set()
    await asyncio.gather(writing, counting_task)
    assert await acme.sum_counts("event_hours", "event_days", "late_events") == [2, 2, 0]
    assert sum((await acme.catalog(at - HOUR)).values()) == 2


async def test_another_process_continues_after_one_that_died(acme: Organization, second: Database) -> None:
    await acme.store(acme.now - HOUR, "a")
    async with acme.intake.database.transaction() as tx:
        await counts.store.close_hours(tx, acme.now - DAY, acme.now)
    await acme.store(acme.now - HOUR, "a", "b")
    await asyncio.gather(acme.count(database=second), acme.count())
    await acme.count()  # organizations that each process skipped because the other one counted them
    assert await acme.sum_counts("event_hours", "event_days", "late_events") == [3, 3, 0]
    await acme.catalog(acme.now - DAY)


async def test_hours_older_than_the_catalog_shows_are_deleted(acme: Organization) -> None:
    await acme.load(("a", acme.now - 30 * DAY), ("a", acme.now - HOUR))
    await acme.count()
    assert await acme.sum_counts("event_hours", "event_days") == [2, 2]
    later = acme.now + 5 * DAY
    await acme.count(later)
    await counts.delete_old_counts(acme.intake.database, acme.org.id, later)
    assert await acme.sum_counts("event_hours", "event_days") == [1, 1]
    await acme.catalog(later - 30 * DAY)


async def test_counts_are_those_of_the_rows_at_any_moment(acme: Organization, second: Database) -> None:
    """Writers store events of the last two days while two processes count those days without a pause."""
    chance, done = Random(7), Counter[str]()
    over = asyncio.Event()

    def random_time() -> datetime:
        return acme.now - timedelta(seconds=chance.choice([1, 60, 300, 3_600, 172_800]) * chance.random())

    async def write(database: Database) -> None:
        while not over.is_set():
            names = chance.choices("abcdefgh", k=chance.randint(1, 6))
            if chance.random() < 0.5:
                await acme.store(random_time(), *names, database=database)
            else:
                await acme.load(*[(name, random_time()) for name in names], database=database)
            done["stored"] += len(names)

    async def read_catalog() -> None:
        while not over.is_set():
            await acme.catalog(acme.now - 3 * DAY * chance.random())
            done["looked"] += 1

    async def count(database: Database) -> None:
        for step in range(25):
            await acme.count(acme.now - 2 * DAY + step * 2 * HOUR, database)

    work = (write(acme.intake.database), write(second), write(second), read_catalog())
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    await asyncio.gather(count(acme.intake.database), count(second))
    over.set()
    await asyncio.gather(*tasks)
    assert sum((await acme.catalog(acme.now - 3 * DAY)).values()) == done["stored"] > 0 < done["looked"]


async def test_an_organization_without_new_events_is_not_counted_until_one_arrives(acme: Organization) -> None:
    await acme.store(acme.now - HOUR, "a")
    for minutes in (0, 5, 60, 120):
        await acme.count(acme.now + timedelta(minutes=minutes))
    ((version, resting),) = await acme.org.rows(
        "xmin::text, counted_until < now() + interval '10 minutes'", "event_counting"
    )
    assert resting
    later = acme.now + timedelta(minutes=180)
    await acme.store(later - timedelta(minutes=20), "a", "b")
    assert await acme.org.rows("xmin::text", "event_counting") == [(version,)]
    await acme.catalog(acme.now - DAY)
    await acme.count(later)
    assert await acme.sum_counts("event_hours", "event_days", "late_events") == [3, 3, 0]
    await acme.store(later, "b")
    await acme.catalog(acme.now - DAY)


async def test_an_import_notes_an_hour_once_however_many_pieces_it_has(acme: Organization) -> None:
    await acme.store(acme.now - HOUR, "a")
    await acme.count()
    for minute in range(4):
        await acme.load(("a", (acme.now - DAY).replace(minute=minute)))
    assert await acme.org.rows("count", "late_events", "event") == [(4,)]
    await acme.catalog(acme.now - 2 * DAY)


@pytest.mark.parametrize(("limit", "tried"), [("statement_ms", [60, 30, 15, 5]), ("lock_ms", [])])
async def test_a_slow_organization_does_not_delay_the_others(
    intake: Intake, acme: Organization, second: Database, limit: str, tried: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    other = Organization(await intake.organization())
    for org in (acme, other):
        await org.store(acme.now - HOUR, "a")
    async with second.transaction() as tx:
        first = acme.now.replace(minute=0, second=0, microsecond=0) - DAY
        await counts.store.close_hours(tx, first, acme.now)
    hasty = Database(intake.dsn, size=2, **{limit: 100})
    await hasty.open()
    async with second.transaction() as tx:  # acme's count waits until it times out
        await tx.execute("SELECT FROM event_counting WHERE org_id = %s FOR UPDATE", (acme.org.id,))
        await acme.count(database=hasty)
    await hasty.close()
    assert [await org.sum_counts("event_hours") for org in (acme, other)] == [[0], [1]]
    slow = [record.__dict__["minutes"] for record in caplog.records if record.message == "counting_slow"]
    assert slow == tried


async def test_organizations_are_counted_separately(intake: Intake, acme: Organization) -> None:
    other = Organization(await intake.organization())
    for org in (acme, other):
        await org.load(*[("a", org.now - n * HOUR) for n in range(5)])
    await acme.count()
    assert (
        await acme.sum_counts("event_hours", "event_days")
        == await other.sum_counts("event_hours", "event_days")
        == [4, 4]
    )
    await other.catalog(other.now - DAY)
