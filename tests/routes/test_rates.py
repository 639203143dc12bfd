"""The ingest rate: docs/contract.md 8 and docs/trust.md A2-A4. Buckets refill slowly, so every count is exact."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.embedded import Server
from api.ingest.queue import TokenBuckets
from api.settings import Settings
from tests.conftest import clone
from tests.routes.conftest import Org, Service, serving

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
async def service(postgres: Server, template: str) -> AsyncIterator[Service]:
    with clone(postgres, template) as dsn:
        async with serving(dsn, Settings(ingest_rate=0.001, ingest_burst=100)) as started:
            yield started


def event(number: int, **fields: Any) -> dict[str, Any]:
    return {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": f"k{number}", **fields}


async def test_a2_after_the_burst_the_answer_is_429_without_retry_after(acme: Org, globex: Org) -> None:
    assert [(await acme.post(event(n)))[0] for n in range(100)] == [202] * 100
    response = await acme.call("POST", "/events", event(100))
    body = response.json()
    del body["requestId"]
    assert response.status_code == 429
    assert body == {
        "error": "rate limit exceeded, back off exponentially and retry",
        "code": "RATE_LIMITED",
        "doc": "/docs#events.ingest_one",
    }
    assert "retry-after" not in response.headers
    assert (await acme.traces())["events"] == 100
    assert (await globex.post(event(1)))[0] == 202  # each organization has its own bucket


async def test_a4_in_a_batch_the_surplus_is_refused_item_by_item(acme: Org) -> None:
    await acme.post_batch(*map(event, range(60)))
    results = await acme.post_batch(*map(event, range(100, 200)))
    assert [result.get("idempotencyKey") for result in results] == [f"k{n}" for n in range(100, 140)] + [None] * 60
    limited = "RATE_LIMITED: rate limit exceeded, back off exponentially and retry"
    assert results[40:] == [{"accepted": False, "deduplicated": False, "error": limited}] * 60
    assert (
        await acme.rows("count(*)", "events", "1") == await acme.rows("count(*)", "idempotency_keys", "1") == [(100,)]
    )
    assert [result["error"] for result in await acme.post_batch(event(1))] == [limited]


async def test_every_event_costs_one_token_valid_or_not(acme: Org) -> None:
    await acme.post_batch(*[event(1)] * 30, *[{"event": "?"}] * 30, *[event(2, test=True)] * 30)
    assert [(await acme.post(body))[0] for body in [{}] * 5 + [event(3)] * 5] == [400] * 5 + [202] * 5
    assert (await acme.post(event(4)))[0] == 429
    assert (await acme.post({}))[0] == 429  # refused before it is parsed


async def test_refused_requests_cost_no_tokens(acme: Org) -> None:
    for body in (b"[]", b"{", {"events": 1}, {"events": [{}] * 101}):
        await acme.call("POST", "/events/batch", body)
    await acme.call("POST", "/events", event(1), authorization="Bearer nobody")
    assert [result["accepted"] for result in await acme.post_batch(*map(event, range(100)))] == [True] * 100


def test_a1_fifty_events_per_second_for_half_an_hour_are_within_the_rate() -> None:
    buckets = TokenBuckets(50, 100)
    assert all(buckets.take(1, 1, tick * SECOND // 50) for tick in range(50 * 30 * 60))


def test_a3_a_steady_excess_gets_the_burst_and_the_rate() -> None:
    buckets = TokenBuckets(50, 100)
    granted = sum(buckets.take(1, 1, tick * SECOND // 60) for tick in range(60 * 60))
    assert granted == pytest.approx(100 + 50 * 60, rel=0.01)


def test_a2_a_token_is_back_after_twenty_milliseconds() -> None:
    buckets = TokenBuckets(50, 100)
    assert [buckets.take(1, 100, 0), buckets.take(1, 1, 19_000_000), buckets.take(1, 1, 20_000_001)] == [100, 0, 1]
    assert buckets.take(1, 1_000, 3_600 * SECOND) == 100  # never more than the burst
    assert buckets.take(2, 1_000, 0) == 100


def test_a_rate_of_zero_means_no_limit() -> None:
    buckets = TokenBuckets(0, 100)
    assert [buckets.take(1, 10_000, 0) for _ in range(3)] == [10_000] * 3
