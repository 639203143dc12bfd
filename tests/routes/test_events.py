"""`POST /api/v1/events`: the answers of docs/contract.md 4.1 and §7, and the rows that are stored."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from api.auth import keys
from api.embedded import Server
from api.settings import Settings
from tests.conftest import clone
from tests.routes.conftest import Org, Service, serving
from workbench.language.codec import decode, encode


@pytest.fixture(scope="module", params=[True, False], ids=["fast path", "Sanic alone"])
async def service(request: pytest.FixtureRequest, postgres: Server, template: str) -> AsyncIterator[Service]:
    with clone(postgres, template) as dsn:
        async with serving(dsn, Settings(ingest_rate=0, fast_path=request.param)) as started:
            yield started


EVENT: dict[str, Any] = {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": "k1"}
ONE = {"events": 1, "idempotency_keys": 1, "contacts": 1, "identities": 1}


async def test_a_new_event_is_accepted(acme: Org) -> None:
    response = await acme.call("POST", "/events", EVENT)
    assert (response.status_code, response.json()) == (
        202,
        {"accepted": True, "deduplicated": False, "idempotencyKey": "k1"},
    )
    assert response.headers["content-type"] == "application/json"
    assert await acme.traces() == ONE


async def test_the_same_key_again_is_a_duplicate(acme: Org) -> None:
    await acme.post(EVENT)
    assert await acme.post(EVENT) == (202, {"accepted": True, "deduplicated": True, "idempotencyKey": "k1"})
    assert await acme.traces() == ONE


async def test_every_field_of_an_event_is_stored(acme: Org) -> None:
    contact = {"email": "Ann@Example.com", "walletAddress": "0xAbC", "externalId": "U1"}
    body = {**EVENT, "event": "First_Deposit", "contact": contact, "payload": {"a": {"b": [1, None]}}}
    body["attributes"] = {"plan": "pro", "age": 41, "vip": True}
    assert (await acme.post(body))[0] == 202
    columns = "event, payload, idempotency_key, wallet_address, external_id, occurred_at = created_at"
    ((*event, at_once),) = await acme.rows(columns, "events")
    assert event == ["first_deposit", {"a": {"b": [1, None]}}, "k1", "0xabc", "U1"]
    assert not at_once  # one is the time of reading, the other the time of storing
    ((*kept, email),) = await acme.rows(
        "wallet_address, wallet_raw, external_id, attributes, email_domain, email", "contacts"
    )
    assert kept == ["0xabc", "0xAbC", "U1", {"plan": "pro", "age": 41, "vip": True}, "example.com"]
    assert acme.service.keyring.of(acme.id).open_email(email) == "ann@example.com"


async def test_a_derived_key_is_the_same_for_the_same_moment_only(acme: Org) -> None:
    bare = {"event": "deposit", "contact": {"externalId": "u1"}}
    dated = bare | {"occurredAt": (await now(acme)).isoformat()}
    keys = [(await acme.post(event))[1]["idempotencyKey"] for event in (bare, bare, dated, dated)]
    assert (len(set(keys)), keys[2]) == (3, keys[3])
    assert all(key.startswith("d1_") for key in keys)
    assert (await acme.traces())["events"] == 3


@pytest.mark.parametrize(("kind", "test"), [("live", True), ("test", None), ("test", False)])
async def test_a_dry_run_returns_the_matches_and_leaves_no_trace(acme: Org, kind: str, test: bool | None) -> None:
    answer = {"accepted": True, "deduplicated": False, "idempotencyKey": "k1", "dryRun": True, "matchedAutomations": 0}
    assert await acme.post(EVENT | {"test": test}, kind) == (202, answer)
    assert await acme.post(EVENT | {"test": test}, kind) == (202, answer | {"deduplicated": True})
    assert await acme.traces() == {"dry_runs": 1}
    assert (await acme.get("/events/catalog"))[1]["events"] == []


async def test_a_single_problem_names_its_field(acme: Org) -> None:
    status, body = await acme.post(EVENT | {"contact": {"email": "nobody"}})
    request_id = body.pop("requestId")
    expected = {
        "error": "contact.email: not a valid email address",
        "field": "contact.email",
        "doc": "/docs#events.ingest_one",
    }
    assert (status, body, len(request_id)) == (400, expected, 36)


async def test_several_problems_are_listed(acme: Org) -> None:
    status, body = await acme.post({"event": "", "contact": {}, "test": 1})
    assert (status, body["error"], body["field"]) == (400, body["errors"][0]["error"], "test")
    assert [problem["field"] for problem in body["errors"]] == ["test", "event", "contact"]
    assert all(problem["error"].startswith(problem["field"]) for problem in body["errors"])


NUL, LONE = b"\\u0000", b"\\ud800"
DEEP = b"[" * 5_000 + b"]" * 5_000


def event(**fields: bytes) -> bytes:
    """Return the text of an event, its fields as they are."""
    sent = {"event": b'"deposit"', "contact": b'{"externalId": "u1"}'} | fields
    return b"{" + b", ".join(b'"%b": %b' % (name.encode(), text) for name, text in sent.items()) + b"}"


REFUSED: list[tuple[bytes, str]] = [
    (event(event=b'""'), "event"),
    (event(event=b'"' + b"x" * 65 + b'"'), "event"),
    (event(event=b'"a b"'), "event"),
    (event(event=b"7"), "event"),
    (event(event=b'"a%b"' % NUL), "event"),
    (b'{"contact": {"externalId": "u1"}}', "event"),
    (b'{"event": "deposit"}', "contact"),
    (event(contact=b"{}"), "contact"),
    (event(contact=b"[]"), "contact"),
    (event(contact=b'{"email": null, "walletAddress": null}'), "contact"),
    (event(contact=b'{"email": "a@b"}'), "contact.email"),
    (event(contact=b'{"email": "a@b.c\\r\\nBcc: d@e.f"}'), "contact.email"),
    (event(contact=b'{"email": "' + b"x" * 315 + b'@ab.cd"}'), "contact.email"),
    (event(contact=b'{"walletAddress": ""}'), "contact.walletAddress"),
    (event(contact=b'{"walletAddress": "' + b"x" * 129 + b'"}'), "contact.walletAddress"),
    (event(contact=b'{"externalId": "' + b"x" * 129 + b'"}'), "contact.externalId"),
    (event(contact=b'{"externalId": "a%b"}' % LONE), "contact.externalId"),
    (event(contact=b'{"externalId": 7}'), "contact.externalId"),
    (event(attributes=encode({f"k{n}": n for n in range(51)})), "attributes"),
    (event(attributes=b'{"a": null}'), "attributes.a"),
    (event(attributes=b'{"a": {}}'), "attributes.a"),
    (event(attributes=b'{"a": "' + "é".encode() * 513 + b'"}'), "attributes.a"),
    (event(attributes=b'{"": 1}'), "attributes"),
    (event(attributes=b'{"a": ' + DEEP + b"}"), "attributes.a"),
    (event(payload=b"[]"), "payload"),
    (event(payload=b'{"a": "' + b"x" * 16_377 + b'"}'), "payload"),
    (event(payload=b'{"a": "%b"}' % NUL), "payload"),
    (event(payload=b'{"%b": 1}' % LONE), "payload"),
    (event(payload=b'{"a": 1e130000}'), "payload"),
    (event(payload=b'{"a": ' + DEEP + b"}"), "payload"),
    (event(idempotencyKey=b'""'), "idempotencyKey"),
    (event(idempotencyKey=b'"' + b"x" * 257 + b'"'), "idempotencyKey"),
    (event(idempotencyKey=b"7"), "idempotencyKey"),
    (event(occurredAt=b'"yesterday"'), "occurredAt"),
    (event(occurredAt=b'"2026-11-20"'), "occurredAt"),
    (event(occurredAt=b'"2001-01-01T00:00:00Z"'), "occurredAt"),
    (event(occurredAt=b'"9999-12-31T23:59:59Z"'), "occurredAt"),
    (event(occurredAt=b"1700000000"), "occurredAt"),
    (event(test=b'"true"'), "test"),
    (event(test=b"1"), "test"),
]


async def test_every_refusal_names_its_field_and_leaves_no_trace(acme: Org) -> None:
    answers = [await acme.post(body) for body, _ in REFUSED]
    assert [(status, body["field"]) for status, body in answers] == [(400, field) for _, field in REFUSED]
    assert all(set(body) <= {"error", "field", "errors", "requestId", "doc"} for _, body in answers)
    assert await acme.traces() == {}


async def test_in_a_batch_a_refusal_does_not_affect_the_other_events(acme: Org) -> None:
    good = [event(idempotencyKey=b'"g%d"' % n) for n in range(len(REFUSED) + 1)]
    mixed = [text for pair in zip(good, [body for body, _ in REFUSED], strict=False) for text in pair] + good[-1:]
    response = await acme.call("POST", "/events/batch", b'{"events": [' + b", ".join(mixed) + b"]}")
    results = decode(response.content)["results"]
    assert [result["idempotencyKey"] for result in results[::2]] == [f"g{n}" for n in range(len(good))]
    for (body, field), item in zip(REFUSED, results[1::2], strict=True):
        _, alone = await acme.post(body)
        assert item == {"accepted": False, "deduplicated": False, "error": alone["error"]}
        assert item["error"].startswith(f"{field}: ")
    assert await acme.traces() == {**ONE, "events": len(good), "idempotency_keys": len(good)}


async def test_e20_unknown_fields_of_any_name_are_dropped(acme: Org) -> None:
    body = {
        **EVENT,
        "org_id": 1,
        "id": "x",
        "created_at": "2001-01-01T00:00:00Z",
        "contact_id": "y",
        "deep": decode(DEEP[4_900:5_100]),
    }
    body["contact"] = {"externalId": "u1", "tags": ["admin"], "id": "z", "attributes": {"admin": True}}
    assert (await acme.post(body))[0] == 202
    assert await acme.rows("event, payload, created_at > '2020-01-01'", "events") == [("deposit", {}, True)]
    assert await acme.rows("external_id, attributes, tags", "contacts") == [("u1", {}, [])]


@pytest.mark.parametrize("name", ["null", "NULL", "x", "X" * 64, "a.b:c-d_e", "..", "%s".replace("%", "-")])
async def test_e1_no_name_is_reserved(acme: Org, name: str) -> None:
    assert (await acme.post(EVENT | {"event": name}))[0] == 202
    assert (await acme.post(EVENT | {"event": name, "test": True}))[0] == 202
    assert await acme.rows("event", "events") == await acme.rows("event", "dry_runs") == [(name.lower(),)]


NUMBERS = (
    "1e308",
    "-0",
    "18446744073709551616",
    "9" * 100,
    "0.1000000000000000055511151231257827",
    "1.50",
    "1E-300",
    "-1e-7",
)


@pytest.mark.parametrize("number", NUMBERS)
async def test_d7_numbers_are_read_back_exactly(acme: Org, number: str) -> None:
    assert (await acme.post(event(payload=b'{"n": %b}' % number.encode(), attributes=b'{"n": %b}' % number.encode())))[
        0
    ] == 202
    ((payload,),) = await acme.rows("payload ->> 'n'", "events")
    ((attribute,),) = await acme.rows("attributes ->> 'n'", "contacts")
    assert Decimal(payload) == Decimal(attribute) == Decimal(number)


@pytest.mark.parametrize(
    "text", ["é" * 8_188, "\\" * 8_188, '"' * 8_188, "\t\n\r" * 2_729, "{}" * 8_188, "€🎉" * 2_339, "NULL"]
)
async def test_e14_a_full_payload_is_read_back(acme: Org, text: str) -> None:
    assert (await acme.post(EVENT | {"payload": {"k": text}}))[0] == 202
    assert await acme.rows("payload", "events") == [({"k": text},)]


KEYS = ("x" * 256, "é" * 256, " k ", "K1", "k1", "NULL", "null", "{}", '"', "\\", ",", "\t", "🎉", "é", "e\u0301")


async def test_e16_keys_are_compared_byte_by_byte_and_stored_as_sent(acme: Org) -> None:
    answers = [await acme.post(EVENT | {"idempotencyKey": key}) for key in KEYS]
    assert [(status, body["idempotencyKey"], body["deduplicated"]) for status, body in answers] == [
        (202, key, False) for key in KEYS
    ]
    assert {key for (key,) in await acme.rows("idempotency_key", "events")} == set(KEYS)
    again = [await acme.post(EVENT | {"idempotencyKey": key}) for key in KEYS]
    assert {body["deduplicated"] for _, body in again} == {True}


IDS = ("NULL", "null", '"', "\\", "{a,b}", " padded ", "Abc", "abc", "🎉" * 128, "it's", "\t")


async def test_e10_external_ids_are_stored_unchanged_and_distinct(acme: Org) -> None:
    for number, external_id in enumerate(IDS):
        assert (await acme.post(EVENT | {"contact": {"externalId": external_id}, "idempotencyKey": str(number)}))[
            0
        ] == 202
    assert {external_id for (external_id,) in await acme.rows("external_id", "contacts")} == set(IDS)
    assert {external_id for (external_id,) in await acme.rows("external_id", "events")} == set(IDS)


async def test_e17_times_are_checked_by_the_databases_clock_and_stored_to_the_microsecond(acme: Org) -> None:
    at = await now(acme)
    spans = {
        "old": timedelta(days=-7, seconds=-1),
        "oldest": timedelta(days=-7, seconds=30),
        "newest": timedelta(minutes=5),
    }
    spans["new"] = timedelta(minutes=5, seconds=30)
    answers = {
        name: await acme.post(EVENT | {"idempotencyKey": name, "occurredAt": (at + span).isoformat()})
        for name, span in spans.items()
    }
    assert {name: (status, body.get("field")) for name, (status, body) in answers.items()} == {
        **dict.fromkeys(("old", "new"), (400, "occurredAt")),
        **dict.fromkeys(("oldest", "newest"), (202, None)),
    }
    assert await acme.rows("occurred_at", "events", "occurred_at") == [(at + spans["oldest"],), (at + spans["newest"],)]


async def now(org: Org) -> Any:
    ((moment,),) = await org.service.rows("SELECT clock_timestamp()")
    return moment


async def test_e20_a_misspelt_field_is_dropped_with_a_warning(acme: Org) -> None:
    misspelt = {**EVENT, "properties": {"a": 1}, "source": "x", "contact": {"externalId": "u1", "user_id": "u2"}}
    warnings = [
        "properties: unknown field, did you mean payload?",
        "contact.user_id: unknown field, did you mean contact.externalId?",
    ]
    body = {"accepted": True, "deduplicated": False, "idempotencyKey": "k1", "warnings": warnings}
    assert await acme.post(misspelt) == (202, body)
    assert await acme.post(misspelt) == (202, body | {"deduplicated": True})
    assert await acme.post_batch(EVENT, misspelt) == [
        {"accepted": True, "deduplicated": True, "idempotencyKey": "k1"},
        body | {"deduplicated": True},
    ]
    dry_run = body | {"dryRun": True, "matchedAutomations": 0}
    assert await acme.post(misspelt, kind="test") == (202, dry_run)
    assert await acme.rows("payload", "events") == [({},)]


async def test_e20_a_strict_key_refuses_unknown_fields(acme: Org) -> None:
    secret = await keys.create(acme.service.dsn, acme.service.keyring, acme.name, "live", strict=True)
    strict = {"authorization": f"Bearer {secret}"}
    assert (await acme.call("POST", "/events", EVENT, **strict)).status_code == 202
    for field, error in (
        ("properties", "properties: unknown field, did you mean payload?"),
        ("source", "source: unknown field"),
    ):
        refused = await acme.call("POST", "/events", {**EVENT, "idempotencyKey": field, field: {}}, **strict)
        assert (refused.status_code, refused.json()["field"], refused.json()["error"]) == (400, field, error)
    batch = {"events": [EVENT, EVENT | {"source": "x"}]}
    results = (await acme.call("POST", "/events/batch", batch, **strict)).json()["results"]
    assert [result.get("error") for result in results] == [None, "source: unknown field"]
    assert await acme.traces() == ONE


async def test_misspelt_fields_are_counted_by_key(acme: Org) -> None:
    for number in range(3):
        await acme.post(EVENT | {"idempotencyKey": f"{number}", "traits": {}})
    await acme.post(EVENT | {"contact": {"externalId": "u1", "e-mail\0": "x"}}, kind="test")
    fields: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while sum(field["count"] for field in fields) < 4:  # they are written twice a second
            await asyncio.sleep(0.05)
            fields = (await acme.get("/events/misspelt"))[1]["fields"]
    ids = dict(await acme.rows("kind, id::text", "api_keys"))
    assert [(field["field"], field["count"], field["keyId"], field["warning"]) for field in fields] == [
        ("traits", 3, ids["live"], "traits: unknown field, did you mean attributes?"),
        ("contact.e-mail\ufffd", 1, ids["test"], "contact.e-mail\ufffd: unknown field, did you mean contact.email?"),
    ]
