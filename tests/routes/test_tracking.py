"""Segment's tracking API stores the messages of its client libraries as events, each once."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from segment.analytics.client import Client as SegmentClient

from api.ingest import pipeline
from api.routes import tracking
from api.settings import Settings
from tests.routes.conftest import Org, Service, serving

TRACK = {"type": "track", "userId": "u1", "event": "Order Completed", "properties": {"total": 9.5}, "messageId": "m1"}


async def send(org: Org, path: str, body: Any, name: str | None = None, password: str = "") -> httpx.Response:
    """Post to the tracking API with a key as the name of the user, as Segment's libraries do."""
    url = f"http://127.0.0.1:{org.service.port}/v1/{path}"
    return await org.service.client.post(url, json=body, auth=(await org.key() if name is None else name, password))


def counted(service: Service) -> dict[str, float]:
    return {outcome: number for (outcome,), number in service.services.pipeline.meters.events}


async def events(org: Org) -> list[tuple[Any, ...]]:
    return await org.rows("event, payload", "events", "created_at, id")


async def test_messages_become_events_of_their_contacts(acme: Org) -> None:
    traits = {"email": "ada@example.com", "plan": "pro", "address": {"city": "Bern"}}
    messages = [{"type": "identify", "userId": "u1", "traits": traits, "messageId": "m0"}, TRACK]
    answer = await send(acme, "batch", {"batch": messages, "sentAt": "2026-11-27T08:00:00Z"})
    assert (answer.status_code, answer.json()) == (200, {"success": True, "errors": []})
    assert await events(acme) == [
        ("identify", {"traits": {"address": {"city": "Bern"}}}),
        ("order_completed", {"total": 9.5}),
    ]
    assert await acme.rows("external_id, attributes", "contacts") == [("u1", {"plan": "pro"})]


async def test_a_repeated_message_is_stored_once(acme: Org) -> None:
    for _ in range(3):
        assert (await send(acme, "batch", {"batch": [TRACK, TRACK]})).status_code == 200
    assert len(await events(acme)) == 1


@pytest.mark.parametrize("error", [timedelta(hours=1), timedelta(days=-60), timedelta(seconds=30)])
async def test_a_wrong_clock_of_the_client_is_corrected(acme: Org, error: timedelta) -> None:
    now = datetime.now(UTC)
    happened, sent = now - timedelta(minutes=10), now + error
    message = TRACK | {"timestamp": (happened + error).isoformat()}
    answer = await send(acme, "batch", {"batch": [message], "sentAt": sent.isoformat()})
    assert answer.json() == {"success": True, "errors": []}
    single = message | {"messageId": "m2", "sentAt": sent.isoformat()}
    assert (await send(acme, "track", single)).status_code == 200
    expected = happened if abs(error) > timedelta(minutes=1) else happened + error
    for (occurred_at,) in await acme.rows("occurred_at", "events"):
        assert abs(occurred_at - expected) < timedelta(seconds=20)
    assert len(await events(acme)) == 2


async def test_times_that_cannot_be_corrected_are_read_as_they_are(acme: Org) -> None:
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for number, sent in enumerate(("yesterday", 7, None)):
        message = TRACK | {"messageId": f"m{number}", "timestamp": past, "sentAt": sent}
        assert (await send(acme, "track", message)).status_code == 200
    assert await acme.rows("DISTINCT occurred_at", "events", "1") == [(datetime.fromisoformat(past),)]
    far = TRACK | {"messageId": "far", "timestamp": "9999-12-31T23:59:59Z", "sentAt": "1970-01-01T00:00:00Z"}
    assert (await send(acme, "track", far)).status_code == 400


@pytest.mark.parametrize("kind", ["track", "identify", "page", "screen", "group", "alias"])
async def test_each_kind_has_a_route(acme: Org, kind: str) -> None:
    answer = await send(acme, kind, {"userId": 7, "event": "Signed Up", "previousId": "a1", "messageId": "m1"})
    assert answer.status_code == 200, answer.text
    assert [name for name, _ in await events(acme)] == ["signed_up" if kind == "track" else kind]


async def test_an_invalid_message_is_named_and_stops_no_other(acme: Org) -> None:
    nobody = {"type": "track", "event": "Lost", "messageId": "m2"}
    answer = await send(acme, "batch", {"batch": [nobody, TRACK]})
    assert answer.status_code == 200
    (error,) = answer.json()["errors"]
    assert error.startswith("batch[0]: contact")
    assert len(await events(acme)) == 1
    single = await send(acme, "track", nobody)
    assert (single.status_code, single.json()["field"]) == (400, "contact")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("batch", {}, 400, "batch: must be an array"),
        ("batch", {"batch": [1]}, 400, "batch[0]: must be an object"),
        ("batch", {"batch": [{}] * 2_501}, 400, "batch: has 2501 messages, at most 2500 are allowed"),
        ("batch", [], 400, "the body must be one JSON object"),
        ("import", {"userId": "u1"}, 404, "message type not found: import"),
    ],
)
async def test_invalid_requests_are_refused(acme: Org, path: str, body: Any, status: int, words: str) -> None:
    answer = await send(acme, path, body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize(("name", "password"), [("", ""), ("sk_live_x", ""), (None, "secret")])
async def test_only_a_key_without_a_password_is_accepted(acme: Org, name: str | None, password: str) -> None:
    assert (await send(acme, "batch", {"batch": [TRACK]}, name, password)).status_code == 401
    assert await acme.traces() == {}


async def test_other_routes_take_no_basic_authentication(acme: Org) -> None:
    url = f"http://127.0.0.1:{acme.service.port}/api/v1/events/catalog"
    assert (await acme.service.client.get(url, auth=(await acme.key(), ""))).status_code == 401


async def test_events_over_the_rate_wait_and_are_then_answered_with_429(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(service.dsn, Settings(ingest_rate=50, ingest_burst=20)) as limited:
        org = await limited.organization()
        messages = [TRACK | {"messageId": f"m{number}"} for number in range(60)]
        assert (await send(org, "batch", {"batch": messages})).status_code == 200
        assert [name for name, _ in await events(org)] == ["order_completed"] * 60
        assert counted(limited) == {"stored": 60}
        monkeypatch.setattr(tracking, "RATE_WAIT_S", 0.0)
        answer = await send(org, "batch", {"batch": [TRACK | {"messageId": f"n{number}"} for number in range(60)]})
        assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
        by_outcome = counted(limited)
        assert by_outcome["stored"] + by_outcome["rate_limited"] == 120


async def test_a_repeated_batch_over_the_rate_gets_further_each_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several workers, whose batches have more messages than the rate lets through while a request waits."""
    monkeypatch.setattr(tracking, "RATE_WAIT_S", 0.3)
    async with serving(service.dsn, Settings(ingest_rate=150, ingest_burst=20)) as limited:
        org = await limited.organization()

        async def send_until_stored(worker: str) -> int:
            messages = [TRACK | {"messageId": f"{worker}{number}"} for number in range(150)]
            for attempt in range(1, 100):
                if (await send(org, "batch", {"batch": messages})).status_code == 200:
                    return attempt
            pytest.fail("the batch is never stored as a whole")

        async with asyncio.timeout(60):
            assert max(await asyncio.gather(*map(send_until_stored, "abc"))) > 1
        assert len(await events(org)) == 450


async def test_an_event_that_waited_for_the_rate_has_the_whole_time_to_be_stored(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(pipeline, "SWEEP_INTERVAL_S", 0.001)
    async with serving(service.dsn, Settings(ingest_rate=20, ingest_burst=10)) as limited:
        org = await limited.organization()
        messages = [TRACK | {"messageId": f"m{number}"} for number in range(60)]
        assert (await send(org, "batch", {"batch": messages})).status_code == 200


async def test_the_library_of_segment_for_python_works_unmodified(acme: Org) -> None:
    failures: list[object] = []
    client = SegmentClient(
        await acme.key(),
        host=f"http://127.0.0.1:{acme.service.port}",
        on_error=lambda error, _: failures.append(error),
        gzip=False,
    )
    client.identify("u1", {"plan": "pro"})
    for number in range(150):
        client.track("u1", "Order Completed", {"number": number}, timestamp=datetime.now(UTC) - timedelta(hours=1))
    client.page("u1", "Docs", "Pricing")
    client.screen("u1", "App", "Home")
    client.group("u1", "g1", {"size": 3})
    client.alias("a1", "u1")
    await asyncio.to_thread(client.shutdown)
    assert failures == []
    names = [name for name, _ in await events(acme)]
    assert len(names) == 155
    assert set(names) == {"identify", "order_completed", "page", "screen", "group", "alias"}
    assert await acme.rows("external_id, attributes", "contacts") == [("u1", {"plan": "pro"})]
