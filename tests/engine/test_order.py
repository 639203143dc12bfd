"""Entries of one contact are decided one at a time, in the order of the timeline, also by two engines."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.channels.conftest import endpoint, status
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
GUARD = {
    "id": "c",
    "type": "condition",
    "data": {"filters": [{"path": "contact.tags", "operator": "contains", "value": "done"}]},
}
MESSAGE = {"id": "m", "type": "send_inapp", "data": {"title": "Once", "body": "there"}}
DONE = {"id": "d", "type": "add_tag", "data": {"tag": "done"}}
COUNT = {"id": "u", "type": "update_contact", "data": {"attributes": {"count": "{{ contact.count | default(0) + 1 }}"}}}
CONTACTS, EVENTS = 20, 3


class HangingReceiver:
    """A receiver that answers its request once `answer` is set."""

    def __init__(self) -> None:
        self.requested, self.answer = asyncio.Event(), asyncio.Event()

    async def respond(self, writer: asyncio.StreamWriter) -> None:
        self.requested.set()
        await self.answer.wait()
        writer.write(status(200))


async def play(bench: EngineBench, gap_s: float, message: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Send three events of each contact while two engines run; return the tags and the count of each contact."""
    guarded = [TRIGGER, GUARD, message, DONE]
    await bench.automation(guarded, [("t", "c"), ("c", message["id"], "false"), (message["id"], "d")])
    await bench.automation([TRIGGER, COUNT], [("t", "u")])
    stopping = asyncio.Event()

    async def run_engine() -> None:
        driver, claimed = bench.new_driver(), 0
        while claimed or not stopping.is_set() or await bench.fetch("SELECT FROM entries WHERE state <> 'completed'"):
            claimed = await driver.drive(bench.org_id, "ready", 50)
            await asyncio.sleep(0.001)

    engines = [asyncio.create_task(run_engine()) for _ in range(2)]
    for _ in range(EVENTS):
        await bench.ingest(
            *({"event": "deposit", "contact": {"walletAddress": evm_wallet(n)}} for n in range(CONTACTS))
        )
        await asyncio.sleep(gap_s)
    stopping.set()
    await asyncio.gather(*engines)
    return await bench.fetch("SELECT tags, attributes ->> 'count' FROM contacts")


@pytest.mark.parametrize("gap_ms", [0, 5, 22, 57])
async def test_a_tag_guards_a_message_and_a_counter_counts(bench: EngineBench, gap_ms: int) -> None:
    assert await play(bench, gap_ms / 1_000, MESSAGE) == [(["done"], "3")] * CONTACTS
    assert await bench.fetch("SELECT count(*), count(DISTINCT contact_id) FROM messages") == [(CONTACTS, CONTACTS)]


async def test_a_tag_guards_a_webhook_that_is_under_way(bench: EngineBench) -> None:
    async with endpoint(status(200)) as server:
        hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
        assert await play(bench, 0, hook) == [(["done"], "3")] * CONTACTS
    assert len(server.requests) == CONTACTS


async def test_events_of_one_batch_are_decided_in_their_order(bench: EngineBench) -> None:
    note = {"id": "u", "type": "update_contact", "data": {"attributes": {"last": "{{ amountUsd }}"}}}
    await bench.automation([TRIGGER, note], [("t", "u")])
    await bench.ingest(*({"event": "deposit", "payload": {"amountUsd": amount}} for amount in range(20)))
    await bench.drive_together()
    ((last,),) = await bench.fetch(
        "SELECT payload ->> 'amountUsd' FROM events ORDER BY created_at DESC, id DESC LIMIT 1"
    )
    assert await bench.fetch("SELECT attributes ->> 'last' FROM contacts") == [(last,)]


async def test_an_entry_that_waits_for_its_retry_delays_no_other(bench: EngineBench) -> None:
    async with endpoint(status(500)) as server:
        hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
        await bench.automation([TRIGGER, hook], [("t", "h")])
        await bench.send("k1")
        await bench.send("k2")
        await bench.drive()
    assert await bench.entries("state") == [("retrying",), ("retrying",)]
    assert len(server.requests) == 2


async def test_an_entry_behind_another_waits_until_that_ends_and_keeps_its_moment(bench: EngineBench) -> None:
    hanging = HangingReceiver()
    async with endpoint(hanging.respond) as server:
        hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
        await bench.automation([TRIGGER, hook], [("t", "h")])
        await bench.send("k1")
        await bench.driver.drive(bench.org_id, "ready", 10)
        await hanging.requested.wait()
        await bench.send("k2")
        assert await bench.new_driver().drive(bench.org_id, "ready", 10) == 0
        assert await bench.entries("state, turn_at = created_at") == [("running", None), ("pending", True)]
        hanging.answer.set()
        await bench.driver.deliveries.stop(60)
        assert await bench.entries("state, due_at = created_at, turn_at") == [
            ("completed", True, None),
            ("pending", True, None),
        ]
        await bench.drive()
    assert await bench.entries("state") == [("completed",), ("completed",)]


async def test_entries_behind_a_locked_one_are_due_again_soon_and_delay_no_other_contact(bench: EngineBench) -> None:
    async with endpoint(status(500), *[status(200)] * 3) as server:
        hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
        await bench.automation([TRIGGER, hook], [("t", "h")])
        await bench.send("k1")
        await bench.drive()
        bench.clock.ahead += timedelta(minutes=1)
        await bench.send("k2")
        await bench.send("k3", contact={"externalId": "other"})
        async with bench.database.transaction() as tx:
            await tx.execute("SELECT FROM entries WHERE state = 'retrying' FOR UPDATE")
            assert await bench.driver.drive(bench.org_id, "ready", 1) == 0
            behind = "state = 'pending' AND turn_at = created_at AND due_at < created_at + interval '1 s'"
            assert await bench.entries(behind) == [(False,), (True,), (None,)]
            assert await bench.driver.drive(bench.org_id, "ready", 1) == 1
            await bench.driver.deliveries.stop(60)
        assert await bench.entries("state") == [("retrying",), ("pending",), ("completed",)]
        await bench.drive()
    assert await bench.entries("state") == [("completed",)] * 3


async def test_an_entry_that_is_being_cancelled_does_not_keep_those_behind_it_waiting(bench: EngineBench) -> None:
    hanging = HangingReceiver()
    async with endpoint(hanging.respond, *[status(200)] * 2) as server:
        hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
        await bench.automation([TRIGGER, hook], [("t", "h")])
        await bench.send("k1")
        await bench.driver.drive(bench.org_id, "ready", 10)
        await hanging.requested.wait()
        await bench.send("k2")
        await bench.send("k3")
        assert await bench.new_driver().drive(bench.org_id, "ready", 10) == 0
        assert await bench.entries("turn_at IS NULL") == [(True,), (False,), (False,)]
        async with bench.database.transaction() as tx:
            await tx.execute(
                "UPDATE entries SET state = 'cancelled', outcome = 'automation_inactive' WHERE id IN "
                "(SELECT id FROM entries WHERE turn_at IS NOT NULL ORDER BY event_id LIMIT 1)"
            )
            hanging.answer.set()
            await bench.driver.deliveries.stop(60)
            assert await bench.entries("state, turn_at IS NULL") == [
                ("completed", True),
                ("pending", False),
                ("pending", True),
            ]
        await bench.drive()
    assert await bench.entries("state") == [("completed",), ("cancelled",), ("completed",)]
