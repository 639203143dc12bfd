"""`POST /api/v1/events/batch`: docs/contract.md 4.2."""

import json
from typing import Any

import pytest

from api.auth import keys
from tests.routes.conftest import Org


def event(key: str, **fields: Any) -> dict[str, Any]:
    return {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": key, **fields}


def accepted(key: str, again: bool = False) -> dict[str, Any]:
    return {"accepted": True, "deduplicated": again, "idempotencyKey": key}


@pytest.mark.parametrize("size", [0, 1, 100])
async def test_a7_a_batch_has_one_result_per_event_in_order(acme: Org, size: int) -> None:
    keys = [f"k{(n * 37) % 101}" for n in range(size)]
    assert await acme.post_batch(*map(event, keys)) == [accepted(key) for key in keys]
    assert (await acme.traces()).get("events", 0) == size


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        ({"events": [event(str(n)) for n in range(101)]}, "events", "has 101 events, at most 100 are allowed"),
        ({}, "events", "is required"),
        ({"events": None}, "events", "is required"),
        ({"events": {}}, "events", "must be an array"),
        ({"events": "[]"}, "events", "must be an array"),
        ({"event": "deposit", "contact": {"externalId": "u1"}}, "events", "is required"),
        (b'{"events": 1, "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "events", "must be an array"),
        (b"[]", None, "the body must be one JSON object"),
        (b"null", None, "the body must be one JSON object"),
        (b"", None, "malformed JSON: Input data was truncated"),
        (b'{"events": [', None, "malformed JSON: Input data was truncated"),
        (b'{"events": [' + b"[" * 100_000, None, "malformed JSON: Input data was truncated"),
        (b'{"x": 1, "events": [', None, "malformed JSON: Input data was truncated"),
        (b'{"events": []} {}', None, "malformed JSON: trailing characters (byte 16)"),
    ],
)
async def test_a7_an_invalid_batch_is_refused_as_a_whole(acme: Org, body: Any, field: str | None, reason: str) -> None:
    response = await acme.call("POST", "/events/batch", body)
    answer = response.json()
    assert (response.status_code, answer.get("field"), answer["error"].removeprefix(f"{field}: ")) == (
        400,
        field,
        reason,
    )
    assert await acme.traces() == {}


async def test_c4_a_key_counts_once_within_a_batch_and_the_first_wins(acme: Org) -> None:
    results = await acme.post_batch(event("a", payload={"n": 1}), event("b"), event("a", payload={"n": 2}), event("a"))
    assert results == [accepted("a"), accepted("b"), accepted("a", again=True), accepted("a", again=True)]
    assert await acme.rows("idempotency_key, payload", "events", "idempotency_key") == [("a", {"n": 1}), ("b", {})]


async def test_items_that_are_no_objects_are_refused_without_the_others(acme: Org) -> None:
    results = await acme.post_batch(None, [], "x", 7, event("a"), {})
    assert [result.get("error", "") for result in results] == [*["must be a JSON object"] * 4, "", "event: is required"]


async def test_fields_of_an_event_next_to_the_events_are_named(acme: Org) -> None:
    deep = event("deep", payload={"x": 0})
    body = {"idempotencyKey": "k", "sent_at": 1, "source": "x", "events": [event("a"), deep], "test": True}
    raw = json.dumps(body).encode().replace(b'{"x": 0}', b'{"x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}")
    response = (await acme.call("POST", "/events/batch", raw)).json()
    assert [result["accepted"] for result in response["results"]] == [True, False]
    assert response["warnings"] == [
        "idempotencyKey: unknown field, did you mean idempotencyKey of each event?",
        "sent_at: unknown field, did you mean occurredAt of each event?",
        "test: unknown field, did you mean test of each event?",
    ]
    assert (await acme.call("POST", "/events/batch", {"events": [], "source": "x"})).json() == {"results": []}


async def test_a_strict_key_refuses_a_batch_with_an_unknown_field(acme: Org) -> None:
    secret = await keys.create(acme.service.dsn, acme.service.keyring, acme.name, "live", strict=True)
    body, strict = {"events": [event("a")], "source": "x"}, {"authorization": f"Bearer {secret}"}
    response = await acme.call("POST", "/events/batch", body, **strict)
    assert (response.status_code, response.json()["error"]) == (400, "source: unknown field")
    assert await acme.traces() == {}


async def test_one_unreadable_event_does_not_make_the_others_unreadable(acme: Org) -> None:
    bad = [b'{"event": "\xff"}', b'{"event": "\\ud800"}', b'{"x": ' + b'{"a":' * 3_000 + b"1" + b"}" * 3_000 + b"}"]
    good = [b'{"event": "a", "contact": {"externalId": "\\ud83d\\ude00 %d"}}' % n for n in range(3)]
    body = b'{"events": [' + b", ".join(text for pair in zip(bad, good, strict=True) for text in pair) + b"]}"
    results = (await acme.call("POST", "/events/batch", body)).json()["results"]
    assert [result["accepted"] for result in results] == [False, True] * 3
    assert {external_id for (external_id,) in await acme.rows("external_id", "contacts")} == {"😀 0", "😀 1", "😀 2"}


async def test_dry_runs_and_live_events_share_a_batch(acme: Org) -> None:
    dry = {"dryRun": True, "matchedAutomations": 0}
    results = await acme.post_batch(event("a", test=True), event("a"), event("a", test=True))
    assert results == [accepted("a") | dry, accepted("a"), accepted("a", again=True) | dry]
    assert await acme.traces() == {
        **dict.fromkeys(("events", "idempotency_keys", "contacts", "identities"), 1),
        "dry_runs": 1,
    }
    assert all(result["dryRun"] for result in await acme.post_batch(event("a"), event("b", test=False), kind="test"))


async def test_events_of_one_batch_see_each_others_contacts(acme: Org) -> None:
    await acme.post_batch(
        event("1", contact={"walletAddress": "0xA"}),
        event("2", contact={"walletAddress": "0xa", "email": "a@example.com"}),
        event("3", contact={"email": "A@example.com", "externalId": "u1"}),
        event("4", contact={"externalId": "u1"}, attributes={"n": 4}),
    )
    assert await acme.rows("wallet_address, external_id, attributes", "contacts") == [("0xa", "u1", {"n": 4})]
    assert len({contact for (contact,) in await acme.rows("contact_id", "events")}) == 1


async def test_a_body_of_many_megabytes_is_accepted(acme: Org) -> None:
    """100 events with a payload of 16 KB and 50 attributes of 1 KB: the largest valid batch, 6.7 MB."""
    attributes = {f"a{n}": "x" * 1_024 for n in range(50)}
    full = [event(str(n), payload={"k": "y" * 16_376}, attributes=attributes) for n in range(100)]
    results = await acme.post_batch(*full)
    assert results == [accepted(str(n)) for n in range(100)]
    assert (await acme.rows("sum(length(payload ->> 'k'))", "events", "1"))[0][0] == 1_637_600
