"""Messages by connections: retries, secrets that are replaced, a rate over several engines, and what stays secret."""

import asyncio
from datetime import timedelta
from typing import Any

from api.channels.connection import MAX_TURN_WAIT, prepare
from api.channels.outcome import Delivery, Retry
from tests.channels.conftest import Endpoint, endpoint, status
from tests.engine.conftest import EngineBench
from workbench.language.codec import decode

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
SEND = {"id": "s", "type": "send_via", "data": {"connection": "chat", "fields": {"text": "{{ amountUsd }}"}}}
TAG = {"id": "a", "type": "add_tag", "data": {"tag": "sent"}}
EDGES = [("t", "s"), ("s", "a")]
OK = status(200, body=b'{"ok": true}')
BUSY = status(200, body=b'{"ok": false, "error": "internal"}')
GONE = status(200, body=b'{"ok": false, "error": "no_channel"}')


async def save(bench: EngineBench, server: Endpoint, key: str = "k1", **more: Any) -> None:
    await bench.connection("chat", key, server.url(path="/send"), **more)


async def test_a_refused_message_is_sent_again_with_its_values_and_the_new_secret(bench: EngineBench) -> None:
    async with endpoint(BUSY, OK) as server:
        await save(bench, server)
        await bench.automation([TRIGGER, SEND, TAG], EDGES)
        await bench.send("k", amountUsd=5)
        await bench.drive()
        assert await bench.entries("state, last_error") == [
            ("retrying", "refused: rejected by the receiver (HTTP 200)")
        ]
        await save(bench, server, "k2")
        bench.clock.ahead += timedelta(seconds=13)
        await bench.drive()
    assert [request.headers["authorization"] for request in server.requests] == ["bearer k1", "bearer k2"]
    ((message_id, *message),) = await bench.fetch("SELECT id::text, channel, status, recipient, body FROM messages")
    assert message == ["connection", "sent", "chat", '{"text":5}']
    assert [decode(request.body) for request in server.requests] == [{"text": 5, "id": message_id}] * 2
    assert await bench.steps() == ["entered", "failed", "sent", "tagged"]


async def test_a_permanent_answer_and_a_deleted_connection_end_the_entry(bench: EngineBench) -> None:
    async with endpoint(GONE) as server:
        await save(bench, server)
        await bench.automation([TRIGGER, SEND, TAG], EDGES)
        await bench.send("k", amountUsd=5)
        await bench.drive()
        await bench.execute("DELETE FROM connections WHERE org_id = %s", bench.org_id)
        await bench.send("l", amountUsd=5)
        await bench.drive()
    assert await bench.entries() == [("dead", "refused"), ("dead", "no_connection")]
    assert len(server.requests) == 1


async def test_a_contact_that_opted_out_gets_nothing_by_connections(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await save(bench, server)
        await bench.automation([TRIGGER, SEND, TAG], EDGES)
        await bench.send("k")
        await bench.execute("UPDATE contacts SET opted_out = '{connection}' WHERE org_id = %s", bench.org_id)
        await bench.drive()
    assert server.requests == []
    assert await bench.fetch("SELECT channel, status FROM messages") == [("connection", "skipped")]


async def test_no_row_and_no_error_has_the_secret(bench: EngineBench) -> None:
    async with endpoint(status(500, body=b"canary-91")) as server:
        await save(bench, server, "canary-91")
        await bench.automation([TRIGGER, SEND, TAG], EDGES)
        await bench.send("k", amountUsd=5)
        await bench.drive()
    for table in ("messages", "message_outcomes", "entries", "entry_steps", "connections", "audit_log"):
        rows = await bench.fetch(f"SELECT t::text FROM {table} t")
        assert "canary-91" not in str(rows)


async def turn(bench: EngineBench) -> float | None:
    """Take a turn; return the seconds after which the message comes back, or None if it is sent."""
    delivery = Delivery(bench.org_id, "m", bench.clock.now(), "chat", "", "{}")
    outcome = await prepare(bench.database, bench.keyring, delivery, bench.clock)
    return outcome.after_seconds if isinstance(outcome, Retry) else None


async def test_turns_are_a_gap_apart_whichever_engine_takes_them(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await save(bench, server, rate=0.5)
        turns = await asyncio.gather(*(turn(bench) for _ in range(5)))
    # Two gaps of two seconds fit into the wait; those after them come back one gap apart.
    assert sorted(turns, key=lambda seconds: seconds or 0)[:2] == [None, None]
    later = sorted(seconds for seconds in turns if seconds is not None)
    assert [round(seconds) for seconds in later] == [6, 8, 10]
    assert all(seconds > MAX_TURN_WAIT.total_seconds() for seconds in later)


async def test_a_new_rate_starts_the_turns_again(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await save(bench, server, rate=0.001)
        assert await turn(bench) is None
        await save(bench, server, "k2", rate=0.001)
        assert (await turn(bench) or 0) > 1_000
        await save(bench, server, rate=10)
        assert [await turn(bench), await turn(bench)] == [None, None]


async def test_a_message_that_waits_for_its_turn_uses_no_attempt(bench: EngineBench) -> None:
    async with endpoint(OK) as server:
        await save(bench, server, rate=0.1)
        await bench.automation([TRIGGER, SEND, TAG], EDGES)
        await bench.send("k", amountUsd=1)
        await bench.drive()
        await bench.send("l", amountUsd=2)
        await bench.drive()
        assert await bench.entries("state, attempts") == [("completed", 1), ("retrying", 0)]
        bench.clock.ahead += timedelta(seconds=25)
        await bench.drive()
    assert [decode(request.body)["text"] for request in server.requests] == [1, 2]
    assert [state for state, _ in await bench.entries()] == ["completed", "completed"]
