"""`GET /api/v1/events/recent`: pages, and the live tail as Server-Sent Events."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.routes import events
from tests.installation import Installation
from tests.promises.conftest import query
from tests.routes.conftest import Org
from workbench.language.codec import decode


def event(key: str, **fields: Any) -> dict[str, Any]:
    return {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": key, **fields}


class Stream:
    """The client of a stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.last_id = ""
        self.lines = response.aiter_lines()

    async def opened(self) -> None:
        """Wait for the first cursor."""
        self.last_id = (await anext(self.lines)).removeprefix("id: ")

    async def message(self) -> Any:
        """Return the data of the next message with data, or None at the end."""
        async with asyncio.timeout(10):
            async for line in self.lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    self.last_id = value
                elif name == "data":
                    return decode(value.encode())
        return None

    async def keys(self, count: int) -> list[str]:
        return [(await self.message())["idempotencyKey"] for _ in range(count)]


@asynccontextmanager
async def following(client: httpx.AsyncClient, key: str, **params: str) -> AsyncIterator[Stream]:
    """Follow the stream with these query parameters; `last_event_id` is sent as a header."""
    headers = {"authorization": f"Bearer {key}", "accept": "text/event-stream"}
    if last := params.pop("last_event_id", None):
        headers["last-event-id"] = last
    async with client.stream("GET", "/events/recent", params=params, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        stream = Stream(response)
        await stream.opened()
        yield stream


@pytest.fixture
def installation(database_url: str, tmp_path: Path) -> Iterator[Installation]:
    """An installation; the processes that the test starts are stopped at its end."""
    built = Installation(database_url, tmp_path)
    yield built
    built.stop()


async def outcomes(org: Org, query: str) -> list[tuple[str, str]]:
    _, page = await org.get(f"/events/recent?{query}")
    return [(item["outcome"], item["idempotencyKey"]) for item in page["events"]]


async def test_a_page_continues_where_the_previous_one_ended(acme: Org) -> None:
    _, empty = await acme.get("/events/recent")
    await acme.post_batch(event("1"), event("2"), event("3"))
    _, first = await acme.get(f"/events/recent?limit=2&after={empty['cursor']}")
    _, second = await acme.get(f"/events/recent?limit=2&after={first['cursor']}")
    _, third = await acme.get(f"/events/recent?limit=2&after={second['cursor']}")
    pages = [[item["idempotencyKey"] for item in page["events"]] for page in (empty, first, second, third)]
    assert pages == [[], ["1", "2"], ["3"], []]


async def test_outcomes_may_be_repeated_or_listed(acme: Org) -> None:
    await acme.post_batch(event("live"), event("dry", test=True))
    assert await outcomes(acme, "outcome=accepted") == [("accepted", "live")]
    assert await outcomes(acme, "outcome=rejected&outcome=dry_run") == [("dry_run", "dry")]
    assert await outcomes(acme, "outcome=accepted,dry_run") == [("accepted", "live"), ("dry_run", "dry")]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("outcome=lost", "outcome"),
        ("outcome=accepted,", "outcome"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("after=yesterday", "after"),
        ("follow=maybe", "follow"),
        ("follow=true&seconds=0", "seconds"),
    ],
)
async def test_an_invalid_parameter_is_refused_with_its_name(acme: Org, query: str, field: str) -> None:
    status, body = await acme.get(f"/events/recent?{query}")
    assert (status, body["field"]) == (400, field)


async def test_only_keys_with_events_read_see_recent_events(acme: Org) -> None:
    key = await acme.key("workbench", "sql:read")
    refused = await acme.call("GET", "/events/recent", authorization=f"Bearer {key}")
    assert refused.status_code == 403
    assert [(await acme.get("/events/recent", kind))[0] for kind in ("live", "test", "workbench")] == [200] * 3


async def test_a_stream_shows_every_outcome_of_one_organization(acme: Org, globex: Org) -> None:
    async with following(acme.service.client, await acme.key("workbench")) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        await globex.post(event("theirs"))
        await acme.post_batch(event("a", payload={"usd": 1.50}), event("a"), event("b", test=True), {"event": "c"})
        messages = {message["outcome"]: message for message in [await stream.message() for _ in range(4)]}
    assert {outcome: message["event"] for outcome, message in messages.items()} == {
        "accepted": "deposit",
        "deduplicated": "deposit",
        "dry_run": "deposit",
        "rejected": "c",
    }
    assert messages["accepted"]["payload"] == {"usd": 1.5}
    assert messages["deduplicated"]["idempotencyKey"] == "a"
    assert (messages["rejected"]["field"], messages["rejected"]["error"]) == ("contact", "contact: is required")


@pytest.mark.parametrize(
    ("path", "body", "declared", "reason"),
    [
        ("/events", b"[]", "application/json", "the body must be one JSON object"),
        ("/events", b"event=deposit", "text/plain", "Content-Type must be application/json"),
        ("/events", b'{"event": ', "application/json", "malformed JSON: Input data was truncated"),
        ("/events/batch", b'{"events": [', "application/json", "malformed JSON: Input data was truncated"),
        ("/events/batch", b'{"events": {"email": "ann@example.com"}}', "application/json", "events: must be an array"),
    ],
)
async def test_a_body_that_is_refused_as_a_whole_is_listed_too(
    acme: Org, path: str, body: bytes, declared: str, reason: str
) -> None:
    async with following(acme.service.client, await acme.key(), outcome="rejected") as stream:
        refused = await acme.call("POST", path, body, **{"content-type": declared})
        assert refused.status_code in (400, 415)
        assert (await stream.message())["error"] == reason
    assert "ann@" not in repr(await acme.rows("n::text", "event_notices n"))


async def test_a_stream_resumes_after_the_last_event_its_client_saw(acme: Org) -> None:
    key = await acme.key()
    async with following(acme.service.client, key) as stream:
        await acme.post_batch(event("1"), event("2"))
        assert await stream.keys(1) == ["1"]
    await acme.post(event("3"))
    async with following(acme.service.client, key, last_event_id=stream.last_id) as stream:
        await acme.post(event("4"))
        assert await stream.keys(3) == ["2", "3", "4"]


async def test_a_stream_may_begin_with_past_events(acme: Org) -> None:
    await acme.post_batch(event("1"), event("2"), event("3"))
    headers = {"authorization": f"Bearer {await acme.key()}"}
    async with acme.service.client.stream(
        "GET", "/events/recent", params={"follow": "true", "limit": "2"}, headers=headers
    ) as response:
        assert await Stream(response).keys(2) == ["2", "3"]


async def test_an_idle_stream_sends_heartbeats(acme: Org, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0)
    async with following(acme.service.client, await acme.key()) as stream, asyncio.timeout(10):
        async for line in stream.lines:
            if line == ":":
                break


async def test_a_stream_ends_after_the_requested_seconds(acme: Org) -> None:
    async with following(acme.service.client, await acme.key(), seconds="1") as stream:
        assert await stream.message() is None


async def test_a_stream_ends_when_its_key_is_revoked(acme: Org) -> None:
    async with following(acme.service.client, await acme.key()) as stream:
        await acme.service.rows("UPDATE api_keys SET revoked_at = now() WHERE org_id = %s", acme.id)
        assert await stream.message() is None


async def status_of_following(org: Org) -> int:
    headers = {"authorization": f"Bearer {await org.key()}"}
    async with org.service.client.stream("GET", "/events/recent?follow=true", headers=headers) as response:
        return response.status_code


async def test_an_organization_has_ten_followers_and_a_disconnect_frees_a_slot(acme: Org, globex: Org) -> None:
    async with AsyncExitStack() as nine:
        for _ in range(9):
            await nine.enter_async_context(following(acme.service.client, await acme.key()))
        async with following(acme.service.client, await acme.key()):
            crowded = await acme.call("GET", "/events/recent?follow=true")
            assert (crowded.status_code, crowded.json()["code"]) == (429, "RATE_LIMITED")
            assert await status_of_following(globex) == 200
        async with asyncio.timeout(5):
            while await status_of_following(acme) == 429:
                pass


async def test_a_tail_shows_events_of_every_process_and_ends_with_its_own(installation: Installation) -> None:
    here, other_api = installation.start_api(), installation.start_api()
    keys = await installation.organization()
    headers = {"authorization": f"Bearer {keys['live']}"}
    async with (
        httpx.AsyncClient(base_url=f"{here.url}/api/v1", timeout=20) as client,
        following(client, keys["workbench"]) as stream,
    ):
        for api in (here, other_api):
            await client.post(f"{api.url}/api/v1/events", json=event(api.url), headers=headers)
            await client.post(f"{api.url}/api/v1/events", json={"event": api.url}, headers=headers)
        messages = [await stream.message() for _ in range(4)]
        here.process.terminate()
        assert await stream.message() is None
    accepted = {message["idempotencyKey"] for message in messages if message["outcome"] == "accepted"}
    refused = {message["event"] for message in messages if message["outcome"] == "rejected"}
    assert accepted == refused == {here.url, other_api.url}


async def test_the_last_notes_of_a_process_are_kept_when_it_stops(installation: Installation) -> None:
    api, keys = installation.start_api(), await installation.organization()
    headers = {"authorization": f"Bearer {keys['live']}"}
    async with httpx.AsyncClient(base_url=f"{api.url}/api/v1", headers=headers) as client:
        assert (await client.post("/events", json={"event": "last_words"})).status_code == 400
    api.process.terminate()
    assert await asyncio.to_thread(api.process.wait, 20) == 0
    assert await query(installation.dsn, "SELECT event FROM event_notices") == [("last_words",)]
