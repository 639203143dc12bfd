"""The engine claims, drives and records entries, and writes each row once."""

import asyncio
from datetime import timedelta

from api.engine.claims import LEASE
from api.store.entries import renew_leases
from api.store.locks import hold_contacts, hold_turns
from api.store.query import run
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet
from workbench.language.run import message_id

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
TAG = {"id": "tag", "type": "add_tag", "data": {"tag": "vip"}}
MESSAGE = {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "{{ amountUsd }} in"}}
EXIT = {"id": "x", "type": "exit", "data": {}}


async def test_an_entry_runs_to_its_end_and_every_step_is_logged(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG, MESSAGE, EXIT], [("t", "tag"), ("tag", "m"), ("m", "x")])
    await bench.send("k", amountUsd=5)
    assert await bench.driver.drive(bench.org_id, "ready", 10) == 1
    assert await bench.entries("state, outcome, node_id, step") == [("exited", "exit", "x", 4)]
    assert await bench.fetch("SELECT node_id, outcome FROM entry_steps ORDER BY step") == [
        ("t", "entered"),
        ("tag", "tagged"),
        ("m", "sent"),
        ("x", "exited"),
    ]
    assert await bench.fetch("SELECT from_state, to_state FROM entry_transitions ORDER BY seq") == [
        ("pending", "running"),
        ("running", "exited"),
    ]


async def test_a_message_is_stored_for_its_wallet_with_a_permanent_id(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")])
    await bench.send("k", amountUsd=12.5)
    await bench.driver.drive(bench.org_id, "ready", 10)
    ((entry_id,),) = await bench.entries("id")
    assert await bench.fetch("SELECT id, wallet_address, subject, body, status FROM messages") == [
        (message_id(entry_id, "m"), evm_wallet("a"), "Hi", "12.5 in", "sent")
    ]


async def test_tags_of_one_contact_add_up_without_repeating(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "tag")])
    await bench.automation([TRIGGER, {**TAG, "data": {"tag": "big"}}], [("t", "tag")])
    for number in range(3):
        await bench.send(f"k{number}")
    await bench.driver.drive(bench.org_id, "ready", 10)
    ((tags,),) = await bench.fetch("SELECT tags FROM contacts")
    assert sorted(tags) == ["big", "vip"]


async def test_an_engine_that_waits_for_a_contact_does_not_hold_its_turn(bench: EngineBench) -> None:
    """Another engine that has the contact may wait for the turn: after a lease was lost, both have the same entry."""
    await bench.automation([TRIGGER, TAG], [("t", "tag")])
    await bench.send("k")
    ((contact_id,),) = await bench.fetch("SELECT id FROM contacts")
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    async with bench.database.transaction() as tx:
        await run(tx, hold_contacts([contact_id]))
        driving = asyncio.create_task(bench.driver.drive(bench.org_id, "ready", 10))
        while not await tx.fetch_value(waiting):
            pass
        await run(tx, hold_turns([contact_id]))
    assert await driving == 1
    assert await bench.entries() == [("completed", "completed")]


async def test_an_unpublished_automation_sends_nothing(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")], version=None)
    await bench.send("k")
    await bench.driver.drive(bench.org_id, "ready", 10)
    assert await bench.entries() == [("completed", "no_published_version")]
    assert await bench.fetch("SELECT count(*) FROM messages") == [(0,)]


async def test_a_step_without_a_wallet_is_retried_and_then_dead(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")])
    await bench.send("k", {"email": "a@example.com"}, amountUsd=1)
    await bench.driver.drive(bench.org_id, "ready", 10)
    assert await bench.entries("state, attempts, last_error") == [
        ("retrying", 1, "no_wallet: neither the event nor the contact has a wallet")
    ]
    assert await bench.driver.drive(bench.org_id, "retrying", 10) == 0
    for _ in range(2):
        bench.clock.ahead += timedelta(seconds=13)
        assert await bench.driver.drive(bench.org_id, "retrying", 10) == 1
    assert await bench.entries("state, outcome, attempts") == [("dead", "no_wallet", 3)]


async def test_a_failing_template_fails_only_its_entry(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")])
    await bench.send("good", amountUsd=1)
    await bench.send("bad")
    await bench.driver.drive(bench.org_id, "ready", 10)
    assert sorted(await bench.entries()) == [("completed", "completed"), ("dead", "template_error")]


async def test_c18_eight_drivers_never_take_the_same_entry(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "tag")])
    for number in range(30):
        await bench.send(f"k{number}")
    await bench.ingest(
        *({"event": "deposit", "contact": {"walletAddress": evm_wallet(number)}} for number in range(970))
    )
    assert await bench.drive_together() == 1_000
    assert await bench.fetch("SELECT count(*) FROM entry_steps") == [(2_000,)]


async def test_a_worker_that_lost_its_lease_writes_nothing(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")])
    await bench.send("k", amountUsd=1)
    frozen = bench.new_driver()
    claims = await frozen._claims.take(bench.org_id, "ready", 10)
    bench.clock.ahead += 3 * LEASE
    assert await bench.driver.rescue(bench.org_id, 10) == 1
    assert await bench.driver.drive(bench.org_id, "retrying", 10) == 1
    before = await bench.fetch("SELECT state, lease_token, updated_at FROM entries")
    await frozen._process(bench.org_id, claims)
    assert await bench.fetch("SELECT state, lease_token, updated_at FROM entries") == before
    assert await bench.fetch("SELECT count(*) FROM messages") == [(1,)]


async def test_an_entry_that_kills_its_worker_every_time_ends_as_dead(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "tag")])
    await bench.send("k")
    lane = "ready"
    for _ in range(3):
        assert len(await bench.driver._claims.take(bench.org_id, lane, 10)) == 1
        bench.clock.ahead += LEASE + timedelta(seconds=1)
        await bench.driver.rescue(bench.org_id, 10)
        lane = "retrying"
    await bench.driver.drive(bench.org_id, "retrying", 10)
    assert await bench.entries() == [("dead", "attempts_exhausted")]


async def test_entries_of_a_switched_off_automation_are_cancelled(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "tag")])
    await bench.send("k")
    await bench.execute("UPDATE automations SET active = false WHERE org_id = %s", bench.org_id)
    await bench.driver.drive(bench.org_id, "ready", 10)
    assert await bench.entries() == [("cancelled", "automation_inactive")]
    assert await bench.fetch("SELECT tags FROM contacts") == [([],)]


async def test_an_entry_runs_the_version_that_it_started_with(bench: EngineBench) -> None:
    automation_id = await bench.automation([TRIGGER, TAG], [("t", "tag")])
    await bench.send("k")
    await bench.execute(
        "INSERT INTO automation_versions"
        """ SELECT org_id, automation_id, 2, trigger_spec, '{"nodes": [], "edges": []}', now(), NULL"""
        " FROM automation_versions WHERE org_id = %s AND automation_id = %s",
        bench.org_id,
        automation_id,
    )
    await bench.execute("UPDATE automations SET published_version = 2 WHERE org_id = %s", bench.org_id)
    await bench.driver.drive(bench.org_id, "ready", 10)
    assert await bench.entries("state, automation_version") == [("completed", 1)]


async def test_an_entry_that_the_database_refuses_dies_without_the_others(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")])
    await bench.execute("ALTER TABLE messages ADD CONSTRAINT poison CHECK (body <> '13 in')")
    for number in (12, 13, 14):
        await bench.send(f"k{number}", amountUsd=number)
    await bench.driver.drive(bench.org_id, "ready", 10)
    assert sorted(await bench.entries()) == [("completed", "completed")] * 2 + [("dead", "internal_error")]
    assert await bench.fetch("SELECT body FROM messages ORDER BY body") == [("12 in",), ("14 in",)]


async def test_leases_are_kept_while_entries_wait_for_slow_ones(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "tag")])
    await bench.send("k")
    claims = await bench.driver._claims.take(bench.org_id, "ready", 10)
    async with bench.database.transaction() as tx:
        (renewed_ids,) = await run(tx, renew_leases(bench.org_id, claims, bench.clock.now() + 3 * LEASE))
    bench.clock.ahead += 2 * LEASE
    assert renewed_ids == {claims[0].entry_id}
    assert await bench.driver.rescue(bench.org_id, 10) == 0


async def test_a_replay_records_messages_that_were_sent_before(bench: EngineBench) -> None:
    await bench.automation(
        [TRIGGER, MESSAGE, {**MESSAGE, "id": "n", "data": {"title": "x", "body": "{{ nothing }}"}}],
        [("t", "m"), ("m", "n")],
    )
    await bench.send("k", amountUsd=1)
    await bench.driver.drive(bench.org_id, "ready", 10)
    await bench.execute(
        "UPDATE entries SET state = 'pending', outcome = NULL, node_id = 'm', attempts = 0 WHERE org_id = %s",
        bench.org_id,
    )
    await bench.driver.drive(bench.org_id, "ready", 10)
    assert await bench.fetch("SELECT node_id, outcome FROM entry_steps ORDER BY claim, step") == [
        ("t", "entered"),
        ("m", "sent"),
        ("n", "failed"),
        ("m", "already_sent"),
        ("n", "failed"),
    ]
    assert await bench.fetch("SELECT count(*) FROM messages") == [(1,)]
