"""The tail returns every outcome once and in order, whatever the order of the commits."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.catalog import tail as catalog_tail
from api.catalog.tail import Cursor, Followers, Tail, TailItem, TooManyFollowersError, read_cursor
from api.clock import to_us, uuid7
from api.ingest.parse import AcceptedEvent
from api.ingest.rejected import Notices
from api.store.database import Database, load
from tests.ingest.conftest import Intake, Org, event
from workbench.language.codec import decode, encode
from workbench.language.problem import Problem


def tail_of(org: Org, *outcomes: str) -> Tail:
    return Tail(org.intake.database, org.intake.clock, org.id, outcomes or catalog_tail.OUTCOMES)


def keys(items: list[TailItem]) -> list[str | None]:
    return [item.idempotency_key for item, _ in items]


async def write(org: Org, key: str, ago: timedelta = timedelta()) -> str:
    """Commit an event with an id of some time ago; return the id."""
    arrival = org.arrival(event(key))
    arrival.event_id = uuid7(to_us(org.intake.clock.now() - ago))
    assert await org.intake.write(arrival) == [AcceptedEvent(key)]
    return arrival.event_id


async def refuse(org: Org, key: str) -> None:
    notices = Notices(org.intake.database, org.intake.clock)
    notices.note_rejected(org.id, encode(event(key, payload={"a": 1})), (Problem("contact.email", "is no address"),))
    await notices.start()
    await notices.stop()


async def test_a_page_shows_the_outcome_of_every_event(acme: Org) -> None:
    await acme.automate("deposit")
    await acme.automate()
    await acme.send(event("new", payload={"usd": 5}))
    await acme.send(event("dry", payload={"usd": 6}, test=True))
    await refuse(acme, "bad")
    items = await tail_of(acme).begin(10)
    accepted, dry, rejected = (decode(encode(item)) for item, _ in items)
    assert accepted == {
        "id": accepted["id"],
        "at": accepted["at"],
        "outcome": "accepted",
        "event": "deposit",
        "contactId": accepted["contactId"],
        "idempotencyKey": "new",
        "payload": {"usd": 5},
        "entries": 2,
    }
    assert (dry["outcome"], dry["payload"], dry["matchedAutomations"]) == ("dry_run", {"usd": 6}, 2)
    assert rejected == {
        "id": rejected["id"],
        "at": rejected["at"],
        "outcome": "rejected",
        "event": "deposit",
        "idempotencyKey": "bad",
        "field": "contact.email",
        "error": "contact.email: is no address",
        "body": {
            "event": "deposit",
            "contact": {"externalId": "string"},
            "payload": {"a": "number"},
            "idempotencyKey": "bad",
        },
    }


async def test_a_page_is_the_newest_of_one_organization_and_of_some_outcomes(acme: Org, globex: Org) -> None:
    await globex.send(event("theirs"))
    await acme.send(*[event(str(number)) for number in range(5)])
    await acme.send(event("dry", test=True))
    assert keys(await tail_of(acme).begin(3)) == ["3", "4", "dry"]
    assert keys(await tail_of(acme, "accepted").begin(3)) == ["2", "3", "4"]
    assert keys(await tail_of(acme, "rejected", "dry_run").begin(3)) == ["dry"]
    assert await tail_of(acme, "deduplicated").begin(3) == []


async def test_a_tail_returns_every_new_event_once(acme: Org) -> None:
    await acme.send(event("before"))
    tail = tail_of(acme)
    assert await tail.begin(0) == []
    await acme.send(event("1"), event("2"))
    assert keys(await tail.more()) == ["1", "2"]
    await acme.send(event("3"))
    assert [keys(await tail.more()), keys(await tail.more())] == [["3"], []]


async def test_an_event_that_commits_late_is_returned_late(acme: Org) -> None:
    tail = tail_of(acme)
    await tail.begin(0)
    await write(acme, "new")
    assert keys(await tail.more()) == ["new"]
    await write(acme, "late", ago=timedelta(seconds=3))
    assert [keys(await tail.more()), keys(await tail.more())] == [["late"], []]


async def test_pages_of_a_long_tail_follow_each_other_without_a_gap(acme: Org) -> None:
    tail = tail_of(acme)
    await tail.begin(0)
    await acme.send(*[event(str(number)) for number in range(70)])
    pages = [keys(await tail.more(30)) for _ in range(4)]
    assert [key for page in pages for key in page] == [str(number) for number in range(70)]


async def test_a_cursor_resumes_after_every_single_event(acme: Org) -> None:
    tail = tail_of(acme)
    await tail.begin(0)
    await acme.send(*[event(str(number)) for number in range(6)])
    for place, (_, cursor) in enumerate(await tail.more()):
        again = tail_of(acme)
        await again.resume(read_cursor(str(cursor)) or pytest.fail("no cursor"))
        assert keys(await again.more()) == [str(number) for number in range(place + 1, 6)]


async def test_a_resumed_tail_may_repeat_late_events_but_misses_none(acme: Org) -> None:
    tail = tail_of(acme)
    await tail.begin(0)
    await write(acme, "1")
    await tail.more()
    await write(acme, "late", ago=timedelta(seconds=2))
    await write(acme, "2")
    again = tail_of(acme)
    await again.resume(tail.cursor)
    assert {"late", "2"} <= set(keys(await again.more()))
    assert await again.more() == []


async def test_the_id_of_an_event_is_a_cursor_too(acme: Org) -> None:
    first = await write(acme, "1")
    await write(acme, "2")
    tail = tail_of(acme)
    await tail.resume(read_cursor(first) or pytest.fail("no cursor"))
    assert keys(await tail.more()) == ["2"]


@pytest.mark.parametrize("settled", ["00000000-0000-7000-8000-000000000000", "ffffffff-ffff-7fff-bfff-ffffffffffff"])
async def test_a_cursor_out_of_range_becomes_the_nearest_valid_one(acme: Org, settled: str) -> None:
    tail = tail_of(acme)
    await tail.resume(Cursor(settled))
    await acme.send(event("1"))
    assert keys(await tail.more()) == ["1"]


@pytest.mark.parametrize(
    "text", ["", "x", "1", "00000000-0000-4000-8000-000000000000", "00000000-0000-7000-8000-000000000000.1", "' OR 1=1"]
)
def test_a_text_that_is_not_a_cursor_returns_none(text: str) -> None:
    assert read_cursor(text) is None


async def test_a_tail_that_begins_within_a_flood_skips_earlier_events(
    acme: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_tail, "_MAX_OVERLAP_IDS", 10)
    await acme.send(*[event(str(number)) for number in range(25)])
    tail = tail_of(acme)
    assert keys(await tail.begin(2)) == ["23", "24"]
    await acme.send(event("25"))
    assert keys(await tail.more()) == ["25"]


@pytest.mark.plain
async def test_a_poll_of_the_tail_reads_only_indexes(acme: Org, intake: Intake) -> None:
    await intake.rows(
        "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key)"
        " SELECT %(org_id)s, gen_random_uuid(), gen_random_uuid(), 'e', m, m, n::text"
        " FROM generate_series(1, 20000) n, LATERAL (SELECT clock_timestamp() AS m) t RETURNING 1",
        org_id=acme.id,
    )
    await intake.rows("ANALYZE events")
    plan = await explained(acme)
    assert "Seq Scan on events_2" not in plan
    assert "_pkey" in plan


async def explained(org: Org) -> str:
    values = {
        "org_id": org.id,
        "outcomes": "{accepted,rejected}",
        "after": uuid7(org.intake.clock.now_us()),
        "since": org.intake.clock.now() - timedelta(seconds=6),
        "exclude": "{}",
        "limit": 500,
    }
    rows = await org.intake.rows("EXPLAIN " + load("events")["list_ids_after"], **values)
    return "\n".join(line for (line,) in rows)


async def test_followers_are_limited_and_all_stop_when_ended_is_set(acme: Org) -> None:
    followers = Followers(max_per_org=2, max_total=3)
    tail = tail_of(acme)
    await tail.begin(0)
    with followers.join(1), followers.join(1), followers.join(2):
        for org_id in (1, 3):
            with pytest.raises(TooManyFollowersError), followers.join(org_id):
                pass
        looks: list[Any] = []
        async with asyncio.timeout(5):
            async for items in followers.follow(tail):
                looks.append(items)
                followers.ended = True
    assert looks == [[]]
    with followers.join(1):
        pass


async def test_a_follower_waits_while_the_database_is_down(acme: Org, intake: Intake) -> None:
    database = Database(intake.dsn, size=1)
    await database.open()
    tail = Tail(database, intake.clock, acme.id)
    await tail.begin(0)
    await database.close()
    async with asyncio.timeout(5):
        assert await anext(Followers().follow(tail)) == []
