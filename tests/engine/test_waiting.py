"""Entries wait for a time, an event or the end of quiet hours, and some events end a wait early."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.ingest.parse import EventReader
from api.ingest.store import prepare, store_history
from api.store.query import COMMIT, run
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet
from workbench.language.codec import encode

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
TAG = {"id": "a", "type": "add_tag", "data": {"tag": "came"}}
LATE = {"id": "b", "type": "add_tag", "data": {"tag": "late"}}
MESSAGE = {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}}
DELAY = {"id": "d", "type": "delay", "data": {"seconds": 3_600}}
PRO = {"path": "plan", "operator": "eq", "value": "pro"}
HOUR = timedelta(hours=1)


def wait(**data: Any) -> dict[str, Any]:
    return {"id": "w", "type": "wait_for_event", "data": {"event": "purchase", "timeoutSeconds": 3_600} | data}


BOTH = [("t", "w"), ("w", "a", "matched"), ("w", "b", "timeout")]


async def tags(bench: EngineBench) -> list[str]:
    ((contact_tags,),) = await bench.fetch("SELECT tags FROM contacts")
    return list(contact_tags)


async def test_a_delay_waits_until_its_moment_and_uses_up_no_attempt(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, DELAY, TAG], [("t", "d"), ("d", "a")])
    await bench.send("k")
    await bench.drive()
    assert await bench.entries("state, node_id, attempts, due_at = since + interval '1 hour', awaits") == [
        ("waiting", "d", 0, True, None)
    ]
    bench.clock.ahead += HOUR - timedelta(minutes=1)
    assert await bench.drive() == 0
    bench.clock.ahead += timedelta(minutes=1)
    assert await bench.drive() == 1
    assert await bench.entries("state, outcome, since") == [("completed", "completed", None)]
    assert await bench.steps() == ["entered", "waiting", "waited", "tagged"]


async def test_an_awaited_event_wakes_the_entry_at_once(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, wait(), TAG, LATE], BOTH)
    await bench.send("k")
    await bench.drive()
    assert await bench.entries("state, awaits") == [("waiting", ["purchase"])]
    await bench.ingest({"event": "purchase"})
    assert await bench.drive() == 1
    assert (await tags(bench), await bench.entries()) == (["came"], [("completed", "completed")])


async def test_other_events_and_events_of_other_contacts_wake_no_entry(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, wait(), TAG, LATE], BOTH)
    await bench.send("k")
    await bench.drive()
    await bench.ingest({"event": "purchase", "contact": {"walletAddress": evm_wallet("B")}})
    await bench.ingest({"event": "visit"})
    assert await bench.drive() == 0


async def test_a_wait_continues_after_an_event_that_does_not_match_its_filters(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, wait(filters=[PRO]), TAG, LATE], BOTH)
    await bench.send("k")
    await bench.drive()
    await bench.ingest({"event": "purchase", "payload": {"plan": "free"}})
    assert await bench.drive() == 1
    assert await bench.entries("state, due_at = since + interval '1 hour'") == [("waiting", True)]
    bench.clock.ahead += HOUR
    await bench.drive()
    assert await tags(bench) == ["late"]
    assert await bench.steps() == ["entered", "waiting", "timed_out", "tagged"]


async def test_an_event_before_the_timeout_counts_even_if_processed_after_it(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, wait(), TAG, LATE], BOTH)
    await bench.send("k")
    await bench.drive()
    await bench.ingest({"event": "purchase"})
    bench.clock.ahead += 2 * HOUR
    await bench.drive()
    assert await tags(bench) == ["came"]


async def test_an_event_before_the_wait_does_not_count(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, DELAY, wait(), TAG, LATE], [("t", "d"), ("d", "w"), *BOTH[1:]])
    await bench.send("k")
    await bench.drive()
    await bench.ingest({"event": "purchase"})
    bench.clock.ahead += HOUR
    await bench.drive()
    assert await bench.entries("state, node_id") == [("waiting", "w")]


STEPS = "LOCK TABLE workbench.entry_steps IN ACCESS EXCLUSIVE MODE"
HOLD_UP = """
    CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"""
HELD_UP = "CREATE TRIGGER held_up AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION hold_up()"
# While this lock is held, a transaction that stores an event waits, with its contact locked and the event uncommitted.
EVENTS = "SELECT pg_advisory_xact_lock(1)"


async def _hold_up_events(bench: EngineBench) -> None:
    await bench.execute(HOLD_UP)
    await bench.execute(HELD_UP)


async def test_an_event_during_the_recording_of_a_wait_wakes_it(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, wait(), TAG, LATE], BOTH)
    await bench.send("k")
    async with bench.database.transaction() as blocker:
        await blocker.execute(STEPS)  # the wait is decided, and its contact locked
        driving = asyncio.create_task(bench.drive())
        await _until_a_transaction_waits(bench)
        taking_in = asyncio.create_task(bench.ingest({"event": "purchase"}))
        await _until_a_transaction_waits(bench, 2)
    await asyncio.gather(driving, taking_in)
    await bench.drive()
    assert await tags(bench) == ["came"]


@pytest.mark.plain
async def test_an_event_stored_during_a_decision_is_noticed_when_it_is_recorded(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, DELAY], [("t", "d")], goal={"event": "purchase"})
    await bench.send("k")
    await _hold_up_events(bench)
    async with bench.database.transaction() as blocker:
        await blocker.execute(EVENTS)
        taking_in = asyncio.create_task(bench.ingest({"event": "purchase"}))
        await _until_a_transaction_waits(bench)
        driving = asyncio.create_task(bench.drive())
        await _until_a_transaction_waits(bench, 2)
    await asyncio.gather(driving, taking_in)
    assert await bench.entries() == [("exited", "goal")]


@pytest.mark.plain
async def test_an_event_stored_while_a_wait_begins_wakes_it_at_once(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, wait(), TAG, LATE], BOTH)
    await bench.send("k")
    await _hold_up_events(bench)
    bench.clock.ahead += HOUR / 60
    async with bench.database.transaction() as blocker:
        await blocker.execute(EVENTS)
        taking_in = asyncio.create_task(bench.ingest({"event": "purchase"}))
        await _until_a_transaction_waits(bench)
        bench.clock.ahead -= HOUR / 60  # the engine decided before the event was received, and records after it
        driving = asyncio.create_task(bench.drive())
        await _until_a_transaction_waits(bench, 2)
    await asyncio.gather(driving, taking_in)
    bench.clock.ahead += HOUR / 60
    await bench.drive()
    assert await tags(bench) == ["came"]


@pytest.mark.plain
async def test_an_event_stored_during_the_timeout_counts(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, wait(), TAG, LATE], BOTH)
    await bench.send("k")
    await bench.drive()
    await _hold_up_events(bench)
    async with bench.database.transaction() as blocker:
        await blocker.execute(EVENTS)
        taking_in = asyncio.create_task(bench.ingest({"event": "purchase"}))
        await _until_a_transaction_waits(bench)
        bench.clock.ahead += 2 * HOUR
        driving = asyncio.create_task(bench.drive())
        await _until_a_transaction_waits(bench, 2)
    await asyncio.gather(driving, taking_in)
    assert await tags(bench) == ["came"]


async def _until_a_transaction_waits(bench: EngineBench, how_many: int = 1) -> None:
    async with asyncio.timeout(10):
        while True:
            ((waiting,),) = await bench.fetch(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                " AND backend_type = 'client backend'"  # autovacuum waits for locked tables, too
            )
            if waiting >= how_many:
                return
            await asyncio.sleep(0.01)


async def test_a_goal_ends_an_entry_wherever_it_is(bench: EngineBench) -> None:
    goal = {"event": "purchase", "filters": [PRO]}
    await bench.automation([TRIGGER, DELAY, TAG], [("t", "d"), ("d", "a")], goal=goal)
    await bench.send("k")
    await bench.drive()
    await bench.ingest({"event": "purchase", "payload": {"plan": "free"}})
    await bench.drive()
    assert await bench.entries("state, awaits") == [("waiting", ["purchase"])]
    await bench.ingest({"event": "purchase", "payload": {"plan": "pro"}})
    await bench.drive()
    assert await bench.entries() == [("exited", "goal")]
    assert await bench.steps() == ["entered", "waiting", "goal"]


async def test_an_entry_of_an_old_version_is_woken_by_the_events_of_that_version(bench: EngineBench) -> None:
    automation_id = await bench.automation([TRIGGER, wait(), TAG, LATE], BOTH)
    await bench.send("k")
    await bench.drive()
    await bench.execute(
        "INSERT INTO automation_versions SELECT org_id, automation_id, 2, trigger_spec, '{}', now(), NULL"
        " FROM automation_versions WHERE org_id = %s AND automation_id = %s",
        bench.org_id,
        automation_id,
    )
    await bench.execute("UPDATE automations SET published_version = 2 WHERE org_id = %s", bench.org_id)
    await bench.execute("UPDATE automation_epochs SET epoch = epoch + 1 WHERE org_id = %s", bench.org_id)
    await bench.ingest({"event": "purchase"})
    await bench.drive()
    assert await tags(bench) == ["came"]


def by_date(days: int, bench: EngineBench) -> str:
    return (bench.clock.now() + timedelta(days=days)).isoformat()


UNTIL = {"id": "w", "type": "wait_until", "data": {"attribute": "contact.ends"}}
BY_DATE = [("t", "w"), ("w", "a", "reached"), ("w", "b", "missed")]
AHEAD = "state, due_at - now() > interval '4 days', awaits"


async def test_an_event_that_moves_a_date_moves_the_wait(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, UNTIL, TAG, LATE], BY_DATE)
    await bench.ingest({"event": "deposit", "attributes": {"ends": by_date(5, bench)}})
    await bench.drive()
    assert await bench.entries(AHEAD) == [("waiting", True, ["@ends", "@timezone"])]
    await bench.ingest({"event": "visit", "attributes": {"ends": by_date(5, bench), "other": 1}})
    await bench.ingest({"event": "visit", "attributes": {"ends": by_date(1, bench)}})
    assert await bench.drive() == 1
    assert await bench.entries(AHEAD) == [("waiting", False, ["@ends", "@timezone"])]
    bench.clock.ahead += 24 * HOUR
    await bench.drive()
    assert await bench.steps() == ["entered", "waiting", "waited", "tagged"]
    assert await tags(bench) == ["came"]


async def test_an_import_that_moves_a_date_moves_the_wait(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, UNTIL, TAG, LATE], BY_DATE)
    await bench.ingest({"event": "deposit", "attributes": {"ends": by_date(5, bench)}})
    await bench.drive()
    past = {"event": "visit", "contact": {"walletAddress": evm_wallet("A")}, "attributes": {"ends": by_date(1, bench)}}
    event = EventReader(bench.clock, "n").read(bench.org_id, bench.keyring.of(bench.org_id), encode(past), False)
    assert not isinstance(event, tuple), event
    async with bench.database.transaction() as tx:
        at = bench.clock.now()
        history = await store_history(tx, bench.org_id, prepare([event], at), at)
        await run(tx, *history.writes, COMMIT)
    assert await bench.drive() == 1
    assert await bench.entries(AHEAD) == [("waiting", False, ["@ends", "@timezone"])]


async def test_another_automation_that_moves_a_date_moves_the_wait(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, UNTIL, TAG, LATE], BY_DATE)
    written = {"attributes": {"ends": "{{ ends }}"}}
    update = {"id": "u", "type": "update_contact", "data": written}
    await bench.automation([TRIGGER, update], [("t", "u")], trigger={"type": "app_event", "event": "moved"})
    await bench.ingest({"event": "deposit", "attributes": {"ends": by_date(5, bench)}})
    await bench.drive()
    await bench.ingest({"event": "moved", "payload": {"ends": by_date(-1, bench)}})
    await bench.drive()
    assert await tags(bench) == ["late"]
    assert await bench.steps() == ["entered", "waiting", "missed", "tagged", "entered", "updated"]


async def test_a_date_that_moves_during_the_recording_of_a_wait_is_followed(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, UNTIL, TAG, LATE], BY_DATE)
    await bench.ingest({"event": "deposit", "attributes": {"ends": by_date(5, bench)}})
    async with bench.database.transaction() as blocker:
        await blocker.execute(STEPS)  # the wait is decided, and its contact locked
        driving = asyncio.create_task(bench.drive())
        await _until_a_transaction_waits(bench)
        taking_in = asyncio.create_task(bench.ingest({"event": "visit", "attributes": {"ends": by_date(1, bench)}}))
        await _until_a_transaction_waits(bench, 2)
    await asyncio.gather(driving, taking_in)
    await bench.drive()
    assert await bench.entries(AHEAD) == [("waiting", False, ["@ends", "@timezone"])]


@pytest.mark.plain
async def test_a_date_that_moves_during_a_decision_is_noticed_when_it_is_recorded(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, UNTIL, TAG, LATE], BY_DATE)
    await bench.ingest({"event": "deposit", "attributes": {"ends": by_date(5, bench)}})
    await _hold_up_events(bench)
    async with bench.database.transaction() as blocker:
        await blocker.execute(EVENTS)
        taking_in = asyncio.create_task(bench.ingest({"event": "visit", "attributes": {"ends": by_date(1, bench)}}))
        await _until_a_transaction_waits(bench)
        driving = asyncio.create_task(bench.drive())
        await _until_a_transaction_waits(bench, 2)
    await asyncio.gather(driving, taking_in)
    assert await bench.entries(AHEAD) == [("waiting", False, ["@ends", "@timezone"])]


async def test_quiet_hours_hold_a_message_until_they_end(bench: EngineBench) -> None:
    now = bench.clock.now()
    quiet = {"from": f"{now - HOUR:%H:%M}", "to": f"{now + HOUR:%H:%M}"}
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")], quietHours=quiet)
    await bench.send("k")
    await bench.drive()
    assert await bench.entries("state, node_id") == [("waiting", "m")]
    bench.clock.ahead += HOUR
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")]
    assert await bench.steps() == ["entered", "waiting", "sent"]
