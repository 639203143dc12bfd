"""A replay of a dead entry retries the failed step, and an effect keeps its id."""

from datetime import timedelta

from api.automations import entries
from api.automations.automations import Author
from api.clock import uuid7
from tests.channels.conftest import Endpoint, endpoint, status
from tests.engine.conftest import EngineBench
from workbench.language.run import message_id

OK, BROKEN = status(200), status(500)
TRIES = 3


async def publish_and_fail(bench: EngineBench, server: Endpoint) -> tuple[str, str]:
    """Send one event to a webhook that always fails; return the ids of automation and entry."""
    nodes = [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "h", "type": "send_webhook", "data": {"url": server.url()}},
        {"id": "a", "type": "add_tag", "data": {"tag": "sent"}},
    ]
    automation_id = await bench.automation(nodes, [("t", "h"), ("h", "a")])
    await bench.send("k")
    for _ in range(TRIES):
        await bench.drive()
        bench.clock.ahead += timedelta(seconds=13)
    ((entry_id, *end),) = await bench.entries("id, state, outcome, attempts")
    assert end == ["dead", "refused", TRIES]
    return automation_id, entry_id


async def replay_all(bench: EngineBench, automation_id: str, cause: str | None = None) -> object:
    now = bench.clock.now_us()
    return await entries.replay_all(bench.database, Author(bench.org_id, uuid7(now), now), automation_id, cause)


async def test_a_replay_sends_with_the_id_of_the_earlier_attempts(bench: EngineBench) -> None:
    async with endpoint(*[BROKEN] * TRIES, OK) as server:
        automation_id, entry_id = await publish_and_fail(bench, server)
        assert await replay_all(bench, automation_id, "unreachable") == 0
        assert await replay_all(bench, automation_id, "refused") == 1
        await bench.drive()
    ids = [request.headers["webhook-id"] for request in server.requests]
    assert ids == [message_id(entry_id, "h")] * (TRIES + 1)
    assert await bench.entries() == [("completed", "completed")]
    assert await bench.fetch("SELECT id, status FROM messages") == [(message_id(entry_id, "h"), "sent")]


async def test_replaying_twice_sends_once(bench: EngineBench) -> None:
    async with endpoint(*[BROKEN] * TRIES, OK) as server:
        automation_id, _ = await publish_and_fail(bench, server)
        assert await replay_all(bench, automation_id) == 1
        assert await replay_all(bench, automation_id) == 0
        await bench.drive()
        assert await replay_all(bench, automation_id) == 0
        await bench.drive()
    assert len(server.requests) == TRIES + 1


async def test_a_replay_repeats_no_sent_message(bench: EngineBench) -> None:
    async with endpoint(*[BROKEN] * TRIES, OK) as server:
        automation_id, _ = await publish_and_fail(bench, server)
        await bench.execute("UPDATE messages SET status = 'sent'")
        assert await replay_all(bench, automation_id) == 1
        await bench.drive()
    assert len(server.requests) == TRIES
    assert await bench.steps() == ["entered", *["failed"] * TRIES, "already_sent", "tagged"]


async def test_a_replay_that_fails_again_is_a_dead_letter_again(bench: EngineBench) -> None:
    async with endpoint(BROKEN) as server:
        automation_id, _ = await publish_and_fail(bench, server)
        assert await replay_all(bench, automation_id) == 1
        for _ in range(TRIES):
            await bench.drive()
            bench.clock.ahead += timedelta(seconds=13)
    assert len(server.requests) == 2 * TRIES
    assert len({request.headers["webhook-id"] for request in server.requests}) == 1
    assert await bench.entries("state, outcome, attempts") == [("dead", "refused", TRIES)]
