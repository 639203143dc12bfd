"""Unsent messages are cancelled when their automation is deactivated, by the API or by the engine."""

from datetime import timedelta
from typing import Any

import pytest

from api.automations import automations, entries
from api.automations.automations import Author
from api.clock import uuid7
from api.engine.claims import LEASE
from tests.channels.conftest import Endpoint, endpoint, status
from tests.engine.conftest import EngineBench

OK, BROKEN = status(200), status(500)
STOPS = [(automations.deactivate, "automation_inactive"), (automations.archive, "automation_archived")]


async def post(bench: EngineBench, server: Endpoint) -> str:
    """Send one event and its webhook; return the id of the automation."""
    hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
    automation_id = await bench.automation([{"id": "t", "type": "app_event", "data": {}}, hook], [("t", "h")])
    await bench.send("k")
    await bench.drive()
    return automation_id


async def later(bench: EngineBench) -> int:
    """Run the engine a minute later; return the number of claimed entries."""
    bench.clock.ahead += timedelta(minutes=1)
    return await bench.drive()


def author(bench: EngineBench) -> Author:
    now = bench.clock.now_us()
    return Author(bench.org_id, uuid7(now), now)


@pytest.mark.parametrize(("stop", "outcome"), STOPS)
async def test_a_message_of_a_cancelled_entry_is_skipped_and_never_sent(
    bench: EngineBench, stop: Any, outcome: str
) -> None:
    async with endpoint(BROKEN, OK) as server:
        automation_id = await post(bench, server)
        assert await bench.fetch("SELECT status FROM messages") == [("queued",)]
        await stop(bench.database, author(bench), automation_id)
        assert await bench.fetch("SELECT status, sent_at FROM messages") == [("skipped", None)]
        assert await bench.entries() == [("cancelled", outcome)]
        if stop is automations.deactivate:
            await automations.activate(bench.database, author(bench), automation_id)
        assert await later(bench) == 0
    assert len(server.requests) == 1
    newest = "SELECT outcome, channel, reason FROM message_outcomes ORDER BY at DESC LIMIT 1"
    assert await bench.fetch(newest) == [("skipped", "webhook", outcome)]


async def test_a_message_that_was_being_sent_when_its_worker_stopped_is_unknown(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        automation_id = await post(bench, server)
        await bench.execute("UPDATE entries SET state = 'running', lease_until = %s", bench.clock.now())
        await bench.execute("UPDATE messages SET status = 'sending', sent_at = NULL")
        bench.clock.ahead += LEASE
        assert await bench.driver.rescue(bench.org_id, 10) == 1
        await automations.deactivate(bench.database, author(bench), automation_id)
        assert await bench.fetch("SELECT status FROM messages") == [("unknown",)]
        assert await later(bench) == 0
    assert len(server.requests) == 1


async def test_the_engine_skips_a_message_if_it_claims_the_entry_first(bench: EngineBench) -> None:
    async with endpoint(BROKEN, OK) as server:
        await post(bench, server)
        await bench.execute("UPDATE automations SET active = false")
        assert await later(bench) == 1
    assert len(server.requests) == 1
    assert await bench.entries() == [("cancelled", "automation_inactive")]
    assert await bench.fetch("SELECT status FROM messages") == [("skipped",)]


async def test_sent_and_failed_messages_keep_their_status(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        automation_id = await post(bench, server)
        for state in ("sent", "failed", "unknown", "delivered"):
            await bench.execute("UPDATE entries SET state = 'retrying'")
            await bench.execute("UPDATE messages SET status = %s", state)
            await automations.deactivate(bench.database, author(bench), automation_id)
            assert await bench.fetch("SELECT status FROM messages") == [(state,)]


async def test_v15_an_entry_of_an_earlier_activation_takes_no_step(bench: EngineBench) -> None:
    async with endpoint(BROKEN, OK) as server:
        automation_id = await post(bench, server)
        await automations.deactivate(bench.database, author(bench), automation_id)
        await automations.activate(bench.database, author(bench), automation_id)
        # A batch that read the triggers before the deactivation and commits after it leaves such an entry.
        await bench.execute("UPDATE entries SET state = 'pending', outcome = NULL, due_at = %s", bench.clock.now())
        assert await later(bench) == 1
        assert await bench.entries() == [("cancelled", "automation_inactive")]
        assert len(server.requests) == 1


async def test_an_entry_replayed_after_reactivation_runs(bench: EngineBench) -> None:
    async with endpoint(BROKEN, OK) as server:
        automation_id = await post(bench, server)
        await bench.execute("UPDATE entries SET state = 'dead', outcome = 'refused'")
        await automations.deactivate(bench.database, author(bench), automation_id)
        await automations.activate(bench.database, author(bench), automation_id)
        assert await entries.replay_all(bench.database, author(bench), automation_id, None) == 1
        assert await later(bench) == 1
    assert await bench.entries() == [("completed", "completed")]


async def test_an_event_after_reactivation_runs(bench: EngineBench) -> None:
    async with endpoint(OK, OK) as server:
        automation_id = await post(bench, server)
        await automations.deactivate(bench.database, author(bench), automation_id)
        await automations.activate(bench.database, author(bench), automation_id)
        await bench.send("again")
        assert await bench.drive() == 1
    assert len(server.requests) == 2
