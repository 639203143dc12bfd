"""Emails and webhooks are stored before they are sent, under one id, and each outcome has its effect."""

import asyncio
import email
from datetime import timedelta
from email.policy import default
from pathlib import Path
from typing import Any, get_args

import pytest

from api.channels.outcome import Reason
from api.channels.signing import Unsubscription
from api.channels.tracked_links import Link, click_url
from api.engine import deliver
from api.engine.claims import LEASE
from api.engine.record import record_delivery
from api.store import messages as store_messages
from api.store.database import DatabaseUnavailableError, Transaction
from api.store.query import COMMIT, run
from tests.channels.conftest import Endpoint, endpoint, status
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet
from workbench.language.decision import DELIVERY_ERRORS
from workbench.language.run import message_id

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
TAG = {"id": "a", "type": "add_tag", "data": {"tag": "sent"}}
EMAIL = {"id": "e", "type": "send_email", "data": {"subject": "Thanks", "body": "{{ amountUsd | default(0) }} in"}}
ANN = {"walletAddress": evm_wallet("A"), "email": "ann@example.com"}
OK, BROKEN = status(200), status(500)


def webhook_node(server: Endpoint, **data: Any) -> dict[str, Any]:
    return {"id": "h", "type": "send_webhook", "data": {"url": server.url()} | data}


async def post(bench: EngineBench, server: Endpoint) -> None:
    """Send one event and its webhook."""
    await bench.automation([TRIGGER, webhook_node(server, body="{{ amountUsd }}"), TAG], [("t", "h"), ("h", "a")])
    await bench.send("k", amountUsd=5)
    await bench.drive()


async def messages(bench: EngineBench) -> list[tuple[Any, ...]]:
    return await bench.fetch("SELECT channel, status, sent_at IS NOT NULL FROM messages ORDER BY id")


def test_every_reason_of_a_failed_delivery_has_a_text() -> None:
    assert DELIVERY_ERRORS.keys() == set(get_args(Reason)) - {"accepted"}


async def test_a_webhook_is_sent_with_its_id_and_the_entry_continues(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await post(bench, server)
    ((entry_id,),) = await bench.entries("id")
    (request,) = server.requests
    assert (request.body, request.headers["webhook-id"]) == (b"5", message_id(entry_id, "h"))
    assert request.headers["webhook-signature"].startswith("v1,")
    assert await messages(bench) == [("webhook", "sent", True)]
    assert await bench.entries() == [("completed", "completed")]
    assert await bench.steps() == ["entered", "sent", "tagged"]


async def test_an_email_leaves_and_its_address_is_stored_sealed(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, EMAIL, TAG], [("t", "e"), ("e", "a")])
    await bench.send("k", ANN, amountUsd=5)
    await bench.drive()
    assert await messages(bench) == [("email", "sent", True)]
    ((recipient, subject, body),) = await bench.fetch("SELECT recipient, subject, body FROM messages")
    assert bench.keyring.of(bench.org_id).open_email(recipient) == "ann@example.com"
    assert (subject, body) == ("Thanks", "5 in")
    assert await bench.steps() == ["entered", "sent", "tagged"]


async def test_the_links_of_an_email_are_tracked_when_it_leaves(bench: EngineBench, tmp_path: Path) -> None:
    body = '<p>Hi</p><a href="https://shop.example/sale?a=1&amp;b=2">Sale</a>'
    data = {"subject": "Thanks", "body": body, "trackClicks": True}
    await bench.automation([TRIGGER, EMAIL | {"data": data}], [("t", "e")])
    await bench.send("k", ANN)
    await bench.drive()
    ((message_id, stored),) = await bench.fetch("SELECT id::text, body FROM messages")
    (sent,) = (tmp_path / "mail" / "new").iterdir()
    message = email.message_from_bytes(sent.read_bytes(), policy=default)
    link = Link(bench.org_id, message_id, "https://shop.example/sale?a=1&b=2")
    tracked = click_url("http://localhost:8000", bench.keyring, link)
    assert stored == body
    html = message.get_body(("html",))
    assert html is not None
    assert html.get_content().strip() == f'<p>Hi</p><a href="{tracked}">Sale</a>'


async def test_a_retry_sends_the_stored_text_again(bench: EngineBench) -> None:
    async with endpoint(BROKEN, OK) as server:
        await bench.automation(
            [TRIGGER, webhook_node(server, body="{{ contact.plan }}"), TAG], [("t", "h"), ("h", "a")]
        )
        await bench.ingest({"event": "deposit", "attributes": {"plan": "free"}})
        await bench.drive()
        assert await messages(bench) == [("webhook", "queued", False)]
        assert await bench.entries("state, node_id, attempts, last_error") == [
            ("retrying", "h", 1, "refused: rejected by the receiver (HTTP 500)")
        ]
        await bench.ingest({"event": "visit", "attributes": {"plan": "pro"}})
        bench.clock.ahead += timedelta(seconds=13)
        await bench.drive()
    assert [request.body for request in server.requests] == [b"free", b"free"]
    assert len({request.headers["webhook-id"] for request in server.requests}) == 1
    assert await bench.steps() == ["entered", "failed", "sent", "tagged"]
    assert await bench.entries() == [("completed", "completed")]


async def test_a_webhook_that_is_always_refused_is_dead(bench: EngineBench) -> None:
    async with endpoint(BROKEN) as server:
        await post(bench, server)
        for _ in range(2):
            bench.clock.ahead += timedelta(seconds=13)
            await bench.drive()
    assert len(server.requests) == 3
    assert await bench.entries("state, outcome, node_id") == [("dead", "refused", "h")]
    assert await messages(bench) == [("webhook", "failed", False)]


async def test_an_endpoint_that_is_gone_is_closed_permanently(bench: EngineBench) -> None:
    async with endpoint(status(410)) as server:
        await post(bench, server)
        await bench.send("k2", amountUsd=6)
        await bench.drive()
    assert len(server.requests) == 1
    assert await bench.entries() == [("dead", "gone"), ("dead", "gone")]
    assert await bench.fetch("SELECT host FROM closed_endpoints") == [("127.0.0.1",)]


async def test_an_unsubscribed_contact_gets_no_email_and_the_run_continues(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, EMAIL, TAG], [("t", "e"), ("e", "a")])
    unsubscription = Unsubscription(bench.org_id, bench.keyring.of(bench.org_id).digest("email", "ann@example.com"))
    async with bench.database.transaction() as tx:
        await run(tx, store_messages.suppress(bench.org_id, "email", unsubscription.address_digest, bench.clock.now()))
    await bench.send("k", ANN)
    await bench.drive()
    assert await messages(bench) == [("email", "skipped", False)]
    assert await bench.steps() == ["entered", "skipped", "tagged"]


async def test_a_message_whose_worker_died_after_sending_is_sent_again_with_the_same_id(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await bench.automation([TRIGGER, webhook_node(server)], [("t", "h")])
        await bench.send("k")
        dying = bench.new_driver()
        dying.deliveries._record = _crash  # type: ignore[method-assign]
        await dying.drive(bench.org_id, "ready", 10)
        await dying.deliveries.stop(60)
        assert await messages(bench) == [("webhook", "sending", False)]
        bench.clock.ahead += LEASE + timedelta(seconds=1)
        await bench.driver.rescue(bench.org_id, 10)
        await bench.drive()
    first, second = server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert await messages(bench) == [("webhook", "sent", True)]


async def _crash(*_: Any) -> None:
    return None


async def test_an_outcome_with_an_unacknowledged_commit_is_written_once(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with endpoint(OK) as server:
        await bench.automation([TRIGGER, webhook_node(server), TAG], [("t", "h"), ("h", "a")])
        await bench.send("k")
        failures = [DatabaseUnavailableError("the connection broke")]

        async def broken_after_commit(tx: Transaction, *args: Any) -> Any:
            written = await record_delivery(tx, *args)
            if failures:
                await run(tx, COMMIT)
                raise failures.pop()
            return written

        monkeypatch.setattr(deliver, "record_delivery", broken_after_commit)
        await bench.drive()
    assert len(server.requests) == 1
    assert await bench.steps() == ["entered", "sent", "tagged"]
    assert await bench.entries() == [("completed", "completed")]


async def test_nothing_is_sent_once_the_lease_has_expired(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await bench.automation([TRIGGER, webhook_node(server)], [("t", "h")])
        await bench.send("k")
        frozen = bench.new_driver()
        claims = await frozen._claims.take(bench.org_id, "ready", 10)
        bench.clock.ahead += LEASE + timedelta(seconds=1)
        await frozen._process(bench.org_id, claims)
        await frozen.deliveries.stop(60)
    assert server.requests == []


async def test_an_older_claim_of_the_same_process_cannot_send(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "a")])
    await bench.send("k")
    driver = bench.new_driver()
    before = await driver._claims.take(bench.org_id, "ready", 10)
    holder = driver._claims
    holder.hold(bench.org_id, before)
    assert holder.is_valid(bench.org_id, before[0])
    bench.clock.ahead += LEASE + timedelta(seconds=1)
    assert await driver.rescue(bench.org_id, 10) == 1
    after = await driver._claims.take(bench.org_id, "retrying", 10)
    holder.hold(bench.org_id, after)
    assert [holder.is_valid(bench.org_id, claim) for claim in (*before, *after)] == [False, True]
    await holder._renew(bench.org_id, before)
    holder.release(bench.org_id, before)
    assert holder.is_valid(bench.org_id, after[0])
    holder.release(bench.org_id, after)
    assert not holder.is_valid(bench.org_id, after[0])


async def test_a_replay_does_not_send_a_sent_message_again(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await post(bench, server)
        await bench.execute(
            "UPDATE entries SET state = 'pending', outcome = NULL, node_id = 'h', step = 1, attempts = 0"
            " WHERE org_id = %s",
            bench.org_id,
        )
        await bench.drive()
    assert len(server.requests) == 1
    assert await bench.steps() == ["entered", "sent", "tagged", "already_sent", "tagged"]


async def test_a_hanging_endpoint_delays_no_other_contact(bench: EngineBench) -> None:
    requested, answer = asyncio.Event(), asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        requested.set()
        await answer.wait()
        writer.write(OK)

    async with endpoint(hang) as server:
        await bench.automation([TRIGGER, webhook_node(server)], [("t", "h")])
        await bench.automation([TRIGGER, TAG], [("t", "a")], trigger={"type": "app_event", "event": "visit"})
        await bench.send("k")
        await bench.ingest({"event": "visit", "contact": {"walletAddress": evm_wallet("B")}})
        await bench.driver.drive(bench.org_id, "ready", 10)
        await requested.wait()
        assert sorted(await bench.entries("state")) == [("completed",), ("running",)]
        answer.set()
        await bench.driver.deliveries.stop(60)
    assert await bench.entries("state") == [("completed",), ("completed",)]


async def test_two_messages_of_one_entry_leave_in_their_order(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        second = webhook_node(server, body="second") | {"id": "i"}
        await bench.automation(
            [TRIGGER, webhook_node(server, body="first"), EMAIL, second], [("t", "h"), ("h", "e"), ("e", "i")]
        )
        await bench.send("k", ANN)
        await bench.drive()
    assert [request.body for request in server.requests] == [b"first", b"second"]
    assert await bench.steps() == ["entered", "sent", "sent", "sent"]


async def test_the_message_cap_includes_emails(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, EMAIL], [("t", "e")], frequencyCap={"messages": 2, "seconds": 3_600})
    for number in range(5):
        await bench.send(f"k{number}", ANN)
    await bench.drive()
    assert sorted(await messages(bench)) == [("email", "sent", True)] * 2 + [("email", "skipped", False)] * 3
    assert (await bench.steps()).count("skipped") == 3
