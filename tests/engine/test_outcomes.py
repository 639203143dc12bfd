"""Every outcome of a message is a row of `message_outcomes`, written with the status that it leads to."""

from datetime import timedelta
from typing import Any

from api.automations import automations
from api.automations.automations import Author
from api.clock import uuid7
from api.engine.claims import LEASE
from api.store.messages import Acknowledgement, acknowledge, count_sent, suppress
from api.store.query import run
from tests.channels.conftest import Endpoint, endpoint, status
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
INAPP = {"id": "i", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}}
TAG = {"id": "g", "type": "add_tag", "data": {"tag": "seen"}}
EMAIL = {"id": "e", "type": "send_email", "data": {"subject": "Thanks", "body": "for that"}}
NO_HTTP = b"SSH-2.0-OpenSSH_9.6\r\n\r\n"
ANN = {"walletAddress": evm_wallet("A"), "email": "ann@example.com"}


def webhook_node(server: Endpoint) -> dict[str, Any]:
    return {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}


async def send_one(bench: EngineBench, node: dict[str, Any], **settings: Any) -> None:
    """Send one event that causes one message."""
    await bench.automation([TRIGGER, node], [("t", node["id"])], **settings)
    await bench.send("k", ANN)
    await bench.drive()


async def outcomes(bench: EngineBench) -> list[tuple[Any, ...]]:
    """Return all outcomes in order, after comparing the last one with the status."""
    rows = await bench.fetch(
        "SELECT o.outcome, o.reason, o.channel = m.channel, m.status"
        " FROM message_outcomes o JOIN messages m ON m.org_id = o.org_id AND m.id = o.message_id ORDER BY o.at"
    )
    assert all(row[2] for row in rows)
    if rows:
        assert rows[-1][3] == {"retrying": "queued"}.get(rows[-1][0], rows[-1][0])
    return [row[:2] for row in rows]


async def opt_out(bench: EngineBench, channel: str) -> None:
    await bench.execute("UPDATE contacts SET opted_out = %s WHERE org_id = %s", [channel], bench.org_id)


async def test_an_in_app_message_is_sent_and_acknowledged_once(bench: EngineBench) -> None:
    await send_one(bench, INAPP)
    ((message_id,),) = await bench.fetch("SELECT id FROM messages")
    for _ in range(2):
        async with bench.database.transaction() as tx:
            acknowledgement = Acknowledgement((bench.org_id, evm_wallet("a")), message_id)
            await acknowledge(tx, [acknowledgement], bench.clock.now())
    assert await outcomes(bench) == [("sent", None), ("delivered", None)]


async def test_a_push_to_a_wallet_that_can_never_sign_in_is_undeliverable_and_not_metered(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, INAPP, TAG], [("t", "i"), ("i", "g")])
    await bench.send("k", {"walletAddress": "So11111111111111111111111111111111111111112"})
    await bench.drive()
    steps = await bench.fetch("SELECT node_id, outcome FROM entry_steps ORDER BY step")
    assert [*map(tuple, steps)] == [("t", "entered"), ("i", "undeliverable"), ("g", "tagged")]
    assert await bench.entries("state, outcome") == [("completed", "completed")]
    assert await outcomes(bench) == [("skipped", "undeliverable")]
    async with bench.database.transaction() as tx:
        now = bench.clock.now()
        assert await count_sent(tx, bench.org_id, now - timedelta(days=1), now + timedelta(days=1)) == {}


async def test_a_message_that_lacks_something_is_skipped_and_not_metered(bench: EngineBench) -> None:
    inapp = {**INAPP, "data": {**INAPP["data"], "onMissing": "skip"}}
    email = {**EMAIL, "data": {"subject": "Thanks", "body": "{{ nope }}", "onMissing": "skip"}}
    await bench.automation([TRIGGER, inapp, email, TAG], [("t", "i"), ("i", "e"), ("e", "g")])
    await bench.send("k", {"email": "ann@example.com"})
    await bench.drive()
    steps = await bench.fetch("SELECT node_id, outcome, detail->>'cause' FROM entry_steps ORDER BY step")
    skipped = [("i", "skipped", "no_wallet"), ("e", "skipped", "missing_value")]
    assert [*map(tuple, steps)] == [("t", "entered", None), *skipped, ("g", "tagged", None)]
    assert await bench.entries("state, outcome") == [("completed", "completed")]
    assert sorted(await outcomes(bench)) == [("skipped", "missing_value"), ("skipped", "no_wallet")]
    async with bench.database.transaction() as tx:
        now = bench.clock.now()
        assert await count_sent(tx, bench.org_id, now - timedelta(days=1), now + timedelta(days=1)) == {}


async def test_each_failed_attempt_is_recorded(bench: EngineBench) -> None:
    async with endpoint(status(500), status(503), status(200)) as server:
        await send_one(bench, webhook_node(server))
        for _ in range(2):
            bench.clock.ahead += timedelta(seconds=13)
            await bench.drive()
    assert await outcomes(bench) == [("retrying", "refused"), ("retrying", "refused"), ("sent", None)]


async def test_a_message_that_fails_permanently_has_the_reason(bench: EngineBench) -> None:
    async with endpoint(status(410)) as server:
        await send_one(bench, webhook_node(server))
    assert await outcomes(bench) == [("failed", "gone")]


async def test_a_delivery_of_a_dead_worker_is_unknown_when_its_entry_ends(bench: EngineBench) -> None:
    async with endpoint(status(200)) as server:
        automation_id = await bench.automation([TRIGGER, webhook_node(server)], [("t", "h")])
        await bench.send("k", ANN)
        dying = bench.new_driver()
        dying.deliveries._record = _crash  # type: ignore[method-assign]
        await dying.drive(bench.org_id, "ready", 10)
        await dying.deliveries.stop(60)
        await bench.execute("UPDATE automations SET active = false WHERE id = %s", automation_id)
        bench.clock.ahead += LEASE + timedelta(seconds=1)
        await bench.driver.rescue(bench.org_id, 10)
        await bench.drive()
    assert await outcomes(bench) == [("unknown", "automation_inactive")]


async def _crash(*_: Any) -> None:
    return None


async def lose_response(bench: EngineBench, server: Endpoint) -> str:
    """Send a message to a receiver that answers with invalid HTTP; return the id of the automation."""
    automation_id = await bench.automation([TRIGGER, webhook_node(server)], [("t", "h")])
    await bench.send("k", ANN)
    await bench.drive()
    bench.clock.ahead += timedelta(seconds=13)
    return automation_id


async def test_v9_a_message_that_may_have_arrived_is_not_marked_failed(bench: EngineBench) -> None:
    async with endpoint(NO_HTTP, status(410)) as server:
        await lose_response(bench, server)
        await bench.drive()
    assert await outcomes(bench) == [("unknown", "no_answer"), ("unknown", "gone")]
    assert await bench.entries() == [("dead", "gone")]


async def test_v9_a_message_that_may_have_arrived_is_not_marked_skipped(bench: EngineBench) -> None:
    async with endpoint(NO_HTTP, status(500)) as server:
        automation_id = await lose_response(bench, server)
        await bench.drive()
        now = bench.clock.now_us()
        await automations.deactivate(bench.database, Author(bench.org_id, uuid7(now), now), automation_id)
    assert await outcomes(bench) == [
        ("unknown", "no_answer"),
        ("retrying", "refused"),
        ("unknown", "automation_inactive"),
    ]


async def test_an_unknown_message_becomes_sent_by_a_later_success(bench: EngineBench) -> None:
    async with endpoint(NO_HTTP, status(200)) as server:
        await lose_response(bench, server)
        await bench.drive()
    assert (await outcomes(bench))[-1] == ("sent", None)


async def test_a_capped_message_is_skipped_without_a_text(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, EMAIL], [("t", "e")], frequencyCap={"messages": 1, "seconds": 3_600})
    for number in range(2):
        await bench.send(f"k{number}", ANN)
        await bench.drive()
    assert await outcomes(bench) == [("sent", None), ("skipped", "frequency_cap")]
    assert await bench.fetch("SELECT body FROM messages ORDER BY created_at") == [("for that",), (None,)]


async def test_j12_a_contact_that_opted_out_is_skipped(bench: EngineBench) -> None:
    await bench.send("before", ANN)
    await opt_out(bench, "inapp")
    await send_one(bench, INAPP)
    assert await outcomes(bench) == [("skipped", "opted_out")]
    assert await bench.fetch("SELECT wallet_address, body, sent_at FROM messages") == [(None, None, None)]
    assert await bench.steps() == ["entered", "skipped"]


async def test_j12_an_address_that_unsubscribed_before_it_had_a_contact(bench: EngineBench) -> None:
    digest = bench.keyring.of(bench.org_id).digest("email", "ann@example.com")
    async with bench.database.transaction() as tx:
        await run(tx, suppress(bench.org_id, "email", digest, bench.clock.now()))
    await send_one(bench, EMAIL, quietHours={"from": "00:00", "to": "23:59"})
    assert await bench.steps() == ["entered", "skipped"]  # without waiting for the end of the quiet hours
    assert await outcomes(bench) == [("skipped", "opted_out")]


async def test_j12_an_address_unsubscribed_earlier_is_skipped(bench: EngineBench) -> None:
    digest = bench.keyring.of(bench.org_id).digest("email", "old@example.com")
    async with bench.database.transaction() as tx:
        await run(tx, suppress(bench.org_id, "email", digest, bench.clock.now()))
    for address in ("old@example.com", "ann@example.com"):
        await bench.ingest({"event": "login", "contact": {"walletAddress": evm_wallet("A"), "email": address}})
    await send_one(bench, EMAIL)
    assert await outcomes(bench) == [("skipped", "opted_out")]


async def test_an_opt_out_between_attempts_prevents_the_next_attempt(bench: EngineBench) -> None:
    async with endpoint(status(500)) as server:
        await send_one(bench, webhook_node(server))
        await opt_out(bench, "webhook")
        bench.clock.ahead += timedelta(seconds=13)
        await bench.drive()
    assert len(server.requests) == 1
    assert await outcomes(bench) == [("retrying", "refused"), ("skipped", "opted_out")]
    assert await bench.entries() == [("completed", "completed")]


async def test_an_opt_out_after_the_decision_prevents_the_message(bench: EngineBench) -> None:
    async with endpoint(status(200)) as server:
        await bench.automation([TRIGGER, webhook_node(server)], [("t", "h")])
        await bench.send("k", ANN)
        look = bench.driver._read_facts

        async def read_then_opt_out(*args: Any) -> Any:
            facts = await look(*args)
            await opt_out(bench, "webhook")
            return facts

        bench.driver._read_facts = read_then_opt_out  # type: ignore[method-assign]
        await bench.drive()
    assert server.requests == []
    assert await outcomes(bench) == [("skipped", "opted_out")]
    assert await bench.steps() == ["entered", "skipped"]


async def test_a_message_is_metered_once_however_often_it_was_tried(bench: EngineBench) -> None:
    async with endpoint(status(500), status(200)) as server:
        await bench.automation([TRIGGER, webhook_node(server), INAPP, EMAIL], [("t", "h"), ("h", "i"), ("i", "e")])
        await bench.send("k", ANN)
        await bench.drive()
        bench.clock.ahead += timedelta(seconds=13)
        await bench.drive()
    now = bench.clock.now()
    async with bench.database.transaction() as tx:
        sent = await count_sent(tx, bench.org_id, now - timedelta(hours=1), now + timedelta(hours=1))
    assert sent == {"inapp": 1, "email": 1, "webhook": 1}
