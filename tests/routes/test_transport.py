"""HTTP as no client library would send it: trust.md D1-D6, D9-D15, D18, D21-D24. (`tests/wire` has what never gets to
a route.)

Every answer has the common shape, none is a 5xx, and the server continues to serve.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.answers import Answer
from tests.routes.conftest import Org

EVENT = b'{"event": "deposit", "contact": {"externalId": "u1"}}'
MEGABYTE = 1_048_576


@pytest.fixture
async def acme(acme: Org) -> AsyncIterator[Org]:
    """An organization; its server must still work after the test."""
    yield acme
    assert (await acme.post(EVENT))[0] == 202


async def request(
    org: Org, body: bytes = EVENT, *headers: str, line: str = "POST /api/v1/events", **changes: str
) -> bytes:
    """Return a request as bytes; `changes` replace headers, and an empty text removes one."""
    sent = {
        "Host": "x",
        "Authorization": f"Bearer {await org.key()}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    } | {name.replace("_", "-").title(): value for name, value in changes.items()}
    lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items() if value), *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def send_request(org: Org, *args: Any, **changes: str) -> Answer:
    return Answer(await org.service.exchange(await request(org, *args, **changes)))


NOT_JSON: dict[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "array": b"[]",
    "string": b'"x"',
    "number": b"1",
    "trailing data": EVENT + b" x",
    "two bodies": EVENT + EVENT,
    "trailing comma": EVENT[:-1] + b",}",
    "comment": b"/* x */" + EVENT,
    "single quotes": EVENT.replace(b'"', b"'"),
    "bom": b"\xef\xbb\xbf" + EVENT,
    "utf-16": EVENT.decode().encode("utf-16"),
    "utf-16 without bom": EVENT.decode().encode("utf-16-le"),
    "utf-32": EVENT.decode().encode("utf-32"),
    "cut off": EVENT[:-1],
    "gzip as it is": gzip.compress(EVENT),
    "zip as it is": b"PK\x03\x04" + bytes(100),
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
} | {
    f"{name} in a {where}": EVENT[:-1] + text + b"}"
    for name, bad in {
        "byte ff": b"\xff",
        "overlong": b"\xc0\xaf",
        "cesu": b"\xed\xa0\x80",
        "control": b"\x01",
        "newline": b"\n",
        "half an escape": b"\\u12",
    }.items()
    for where, text in {
        "value": b', "payload": {"k": "' + bad + b'"}',
        "key": b', "payload": {"' + bad + b'": 1}',
    }.items()
} | {
    f"the number {number}": EVENT[:-1] + b', "payload": {"n": ' + number.encode() + b"}}"
    for number in ("NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "0x1", "1_000", "--1", "1e")
}  # fmt: skip


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_d1_to_d12_a_body_that_is_not_one_json_object_is_refused(acme: Org, body: bytes) -> None:
    answer = await send_request(acme, body)
    assert (answer.status, answer.headers[b"content-type"]) == (400, b"application/json")
    assert answer.error["error"].startswith(
        ("malformed JSON: ", "the body must be one JSON object", "is nested too deeply")
    )
    assert await acme.traces() == {}


@pytest.mark.parametrize("number", ["1e400", "1e130000", "-1e400", "1e99999999999999999999"])
async def test_d6_d9_a_number_out_of_range_is_refused_by_its_field(acme: Org, number: str) -> None:
    answer = await send_request(acme, EVENT[:-1] + b', "payload": {"n": ' + number.encode() + b"}}")
    assert (answer.status, answer.error["field"]) == (400, "payload")


async def test_d11_of_equal_keys_the_last_one_counts_everywhere(acme: Org) -> None:
    contact, payload = b'{"externalId": "u1", "externalId": "u2"}', b'{"n": 1, "n": 2}'
    twice = b'{"event": "a", "event": "b", "contact": ' + contact + b', "payload": ' + payload + b"}"
    assert (await send_request(acme, twice)).status == 202
    assert await acme.rows("event, external_id, payload", "events") == [("b", "u2", {"n": 2})]


@pytest.mark.parametrize(
    ("media", "status"),
    [
        ("", 202),
        ("application/json", 202),
        ("APPLICATION/JSON", 202),
        ("application/json; charset=utf-8", 202),
        ('application/json;charset="UTF-8"', 202),
        ("text/plain", 415),
        ("application/jsonx", 415),
        ("application/json; charset=latin1", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
async def test_d13_the_declared_media_type_must_be_json(acme: Org, media: str, status: int) -> None:
    answer = await send_request(acme, content_type=media)
    assert (answer.status, status == 202 or answer.error["error"]) == (
        status,
        status == 202 or "Content-Type must be application/json",
    )


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, identity"])
async def test_d14_a_compressed_body_is_not_inflated(acme: Org, coding: str) -> None:
    bomb = gzip.compress(bytes(10 * MEGABYTE))
    assert (await send_request(acme, bomb, f"Content-Encoding: {coding}")).status == 415
    for identity in ("identity", "Identity", ""):
        assert (await send_request(acme, EVENT, f"Content-Encoding: {identity}")).status == 202


async def test_a_chunked_body_is_accepted(acme: Org) -> None:
    chunked = b"5\r\n" + EVENT[:5] + b"\r\n%x\r\n" % len(EVENT[5:]) + EVENT[5:] + b"\r\n0\r\n\r\n"
    head = await request(acme, b"", "Transfer-Encoding: chunked", content_length="")
    assert Answer(await acme.service.exchange(head, chunked)).status == 202


async def test_d18_expect_100_continue_works(acme: Org) -> None:
    received = await acme.service.exchange(
        await request(acme, EVENT, "Expect: 100-continue", "Connection: close"), answers=2
    )
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert Answer(received.partition(b"\r\n\r\n")[2]).status == 202


@pytest.mark.parametrize(
    "sent", ["a" * 4_000, "short", "one two three", "sk_live_abcdefgh", "\xe9" * 8, "a@b.example", "-" * 8]
)
@pytest.mark.parametrize("key", ["Bearer nobody", None])
async def test_d21_an_id_that_is_unsafe_in_logs_is_replaced(acme: Org, sent: str, key: str | None) -> None:
    changes = {} if key is None else {"authorization": key}
    answer = await send_request(acme, EVENT, f"X-Request-ID: {sent}", **changes)
    assert len(answer.headers[b"x-request-id"]) == 36
    assert sent.encode() not in answer.body + b"".join(answer.headers.values())


@pytest.mark.parametrize("body", [EVENT, b"{"])
@pytest.mark.parametrize("key", ["Bearer nobody", None])
async def test_a_valid_request_id_is_kept_on_every_path(acme: Org, body: bytes, key: str | None) -> None:
    changes = {} if key is None else {"authorization": key}
    answer = await send_request(acme, body, "X-Request-ID: Checkout.7f3a-1", **changes)
    assert answer.headers[b"x-request-id"] == b"checkout.7f3a-1"  # `Answer` lowers the case of values
    assert answer.status == 202 or answer.error["requestId"] == "Checkout.7f3a-1"


async def test_two_request_ids_are_replaced_by_a_new_one(acme: Org) -> None:
    answer = await send_request(acme, EVENT, "X-Request-ID: request-1", "X-Request-ID: request-2")
    assert (answer.status, len(answer.headers[b"x-request-id"])) == (202, 36)


async def test_answers_without_a_route_have_a_request_id(acme: Org) -> None:
    for answer in (
        await send_request(acme, line="POST /nothing"),
        Answer(await acme.service.exchange(b"NO HTTP\r\n\r\n")),
    ):
        assert answer.headers[b"x-request-id"].decode() == answer.error["requestId"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO"])
async def test_d22_other_methods_are_not_allowed(acme: Org, method: str) -> None:
    answer = await send_request(acme, line=f"{method} /api/v1/events")
    assert (answer.status, answer.headers[b"allow"]) == (405, b"post")
    assert answer.error["error"] == "Method not allowed: use POST"


async def test_d22_head_is_answered_without_a_body_and_the_connection_stays_open(acme: Org) -> None:
    for path in ("/api/v1/events", "/api/v1/events/catalog", "/nothing"):
        received = await acme.service.exchange(
            await request(acme, b"", line=f"HEAD {path}") + await request(acme, EVENT, "Connection: close"), answers=3
        )
        first, _, rest = received.partition(b"\r\n\r\n")
        assert first.split()[1] in (b"404", b"405")
        assert Answer(rest).status == 202


@pytest.mark.parametrize(
    "path",
    [
        "//api//v1//events",
        "/api/v1/%2e%2e/v1/events",
        "/api/v1/../v1/events",
        "/api/v1/events%2fbatch",
        "/api/v1/events\\batch",
        "/api/v1/events;x",
        "/api/v1/events/batch/x",
        "/api/v1/event",
        "/api/v2/events",
        "/API/V1/EVENTS",
    ],
)
async def test_d22_other_paths_are_not_found(acme: Org, path: str) -> None:
    answer = await send_request(acme, line=f"POST {path}")
    assert answer.status in (400, 404)
    assert await acme.traces() == {}


async def test_a_path_without_a_route_gets_a_suggestion_that_repeats_nothing(acme: Org) -> None:
    answer = await send_request(acme, line="POST /api/v1/event")
    assert answer.error["error"] == (
        "No route has this path. Did you mean /api/v1/events? All routes are listed at /docs"
    )
    assert (await send_request(acme, line="POST /api/v1/nothing-like-it")).error["error"] == (
        "No route has this path. All routes are listed at /docs"
    )


async def test_a_path_without_a_route_has_no_methods_of_another_path(acme: Org) -> None:
    assert (await send_request(acme, line="DELETE /api/v1/automations/1")).headers[b"allow"] == b"get, put"
    answer = await send_request(acme, line="GET /nothing")
    assert (answer.status, answer.headers.get(b"allow")) == (404, None)


async def test_the_root_leads_to_the_description_of_the_api(acme: Org) -> None:
    answer = await send_request(acme, line="GET /")
    assert (answer.status, answer.headers[b"location"]) == (302, b"/docs")
    assert [(await send_request(acme, line=f"POST {path}")).status for path in "/*"] == [405, 405]


async def test_a_connection_stays_open_after_refusals(acme: Org) -> None:
    refused = [
        await request(acme, b"{"),
        await request(acme, content_type="text/plain"),
        await request(acme, authorization="Bearer nobody"),
        await request(acme, authorization="Bearer"),
        await request(acme, line="POST /nothing"),
    ]
    received = await acme.service.exchange(b"".join(refused) + await request(acme), answers=6)
    statuses = []
    while received:
        answer = Answer(received)
        statuses.append(answer.status)
        received = answer.rest
    assert statuses == [400, 415, 401, 401, 404, 202]


async def test_d24_a_client_that_disconnects_affects_no_other(acme: Org) -> None:
    whole = await request(acme, EVENT[:-1] + b', "idempotencyKey": "left"}')
    for _ in range(20):
        await acme.service.send_and_disconnect(whole)
        await acme.service.send_and_disconnect(whole[:-10])
    keys = [f"k{n}" for n in range(20)]
    results = await acme.post_batch(*[{**json.loads(EVENT), "idempotencyKey": key} for key in keys])
    assert [result["idempotencyKey"] for result in results] == keys
    stored = [key for (key,) in await acme.rows("idempotency_key", "events")]
    assert stored.count("left") <= 1
    assert acme.service.app.ctx.services.pipeline.alive


async def test_a_large_body_is_read_only_for_a_valid_key(acme: Org) -> None:
    body = EVENT[:-1] + b" " * 100_000 + b"}"
    response = await acme.service.exchange((await request(acme, body, authorization="Bearer nobody"))[:-100_000])
    assert Answer(response).status == 401  # answered before the body has arrived
    assert (await send_request(acme, body)).status == 202
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    coding = {"content_length": "", "transfer_encoding": "chunked"}
    assert Answer(await acme.service.exchange(await request(acme, chunks, **coding))).status == 202
    unknown = await request(acme, chunks, authorization="Bearer nobody", **coding)
    assert Answer(await acme.service.exchange(unknown[:-30_000])).status == 401


async def test_the_total_size_of_bodies_being_received_is_limited(acme: Org) -> None:
    body = b'{"events": [%s]}' % (b" " * 8_000_000 + EVENT)
    raw = await request(acme, body, line="POST /api/v1/events/batch")
    writers = [(await asyncio.open_connection("127.0.0.1", acme.service.port))[1] for _ in range(8)]
    for writer in writers:
        writer.write(raw[:100_000])
    await asyncio.sleep(0.3)
    assert Answer(await acme.service.exchange(raw[:100_000])).status == 503
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    status = 503
    async with asyncio.timeout(5):
        while status == 503:  # until the server notices that the other clients disconnected
            await asyncio.sleep(0.1)
            status = Answer(await acme.service.exchange(raw)).status
    assert status == 202
