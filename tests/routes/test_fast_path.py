"""The fast path answers exactly as Sanic would, however the bytes of requests are split."""

import asyncio
import itertools
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.embedded import Server
from api.settings import Settings
from tests.answers import Answer
from tests.conftest import clone
from tests.routes.conftest import Org, serving


def event(key: str, **fields: object) -> bytes:
    return json.dumps({"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": key, **fields}).encode()


async def post(org: Org, body: bytes, *headers: str, kind: str = "live") -> bytes:
    """Return a request for the fast path, unless one of the headers prevents that."""
    key = await org.key("test" if kind == "test" else "live")
    head = ["POST /api/v1/events HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "Content-Type: application/json", *headers]).encode() + b"\r\n\r\n" + body


@pytest.fixture
async def acme(acme: Org) -> Org:
    """An organization with a recently verified key, which the fast path requires."""
    for kind in ("live", "test"):
        await acme.service.exchange(await post(acme, event(f"first {kind}"), "Accept: *", "Accept: *", kind=kind))
    return acme


def answers(received: bytes) -> list[Answer]:
    """Split the bytes of one connection into answers."""
    parsed = []
    while received:
        parsed.append(Answer(received))
        received = parsed[-1].rest
    return parsed


def lines(received: bytes) -> list[bytes]:
    return sorted(received.lower().splitlines())


async def test_both_ways_give_the_same_answer(acme: Org) -> None:
    fast = await acme.service.exchange(await post(acme, event("1"), "X-Request-Id: request.1"))
    ordinary = await acme.service.exchange(
        await post(acme, event("2"), "X-Request-Id: request.1", "Accept: */*", "Accept: */*")
    )
    assert lines(fast) == lines(
        ordinary.replace(b"alt-svc: \r\n", b"").replace(b'"2"', b'"1"')
    )  # the fast path sends no alt-svc
    assert await acme.rows("count(*)", "events", "1") == [(3,)]


async def test_both_ways_are_logged_alike(postgres: Server, template: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "workbench.requests")
    lines = []
    for fast_path in (True, False):
        with clone(postgres, template) as dsn:
            settings = Settings(ingest_rate=0, log_requests="all", fast_path=fast_path)
            async with serving(dsn, settings) as service:
                org = await service.organization()
                raw = await post(org, event("1"), "X-Request-Id: request.1")
                for _ in range(2):  # the fast path takes the second one, whose key is verified
                    await service.exchange(raw)
        logged = vars(caplog.records[-1])
        assert logged.pop("ms") >= 0
        lines.append({name: logged[name] for name in ("request_id", "method", "route", "status", "org_id")})
        assert "key_id" in logged
    assert lines[0] == lines[1]
    assert lines[0] == {
        "request_id": "request.1",
        "method": "POST",
        "route": "/api/v1/events",
        "status": 202,
        "org_id": 1,
    }


async def test_a_test_key_runs_dry(acme: Org) -> None:
    (answer,) = answers(await acme.service.exchange(await post(acme, event("1"), kind="test")))
    assert (answer.status, json.loads(answer.body)["dryRun"]) == (202, True)


@pytest.mark.parametrize(
    ("body", "field"),
    [(event("1", event=""), "event"), (event("1", payload=[]), "payload"), (b"[]", None), (b" {}", "event")],
)
async def test_a_refusal_names_its_field(acme: Org, body: bytes, field: str | None) -> None:
    (answer,) = answers(await acme.service.exchange(await post(acme, body)))
    assert (answer.status, answer.error.get("field")) == (400, field)


async def test_requests_in_one_packet_are_answered_in_their_order(acme: Org) -> None:
    catalog = f"GET /api/v1/events/catalog HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {await acme.key()}\r\n\r\n"
    packet = [
        await post(acme, event("1")),
        catalog.encode(),
        await post(acme, event("1")),
        await post(acme, event("2")),
    ]
    parsed = answers(await acme.service.exchange(b"".join(packet), answers=4))
    assert [answer.status for answer in parsed] == [202, 200, 202, 202]
    assert [json.loads(parsed[index].body)["deduplicated"] for index in (0, 2, 3)] == [False, True, False]


async def test_bytes_that_arrive_while_an_event_is_stored_wait_for_their_turn(acme: Org) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", acme.service.port)
    async with acme.service.services.system_database.transaction() as tx:
        await tx.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        writer.write(await post(acme, event("1")))
        await asyncio.sleep(0.05)
        writer.write(await post(acme, event("2", event="no name")) + (await post(acme, event("3")))[:40])
        await asyncio.sleep(0.05)
        writer.write((await post(acme, event("3")))[40:])
    received = b""
    while received.count(b"HTTP/1.1") < 3 or not received.endswith(b"}"):
        received += await asyncio.wait_for(reader.read(65_536), 5)
    writer.close()
    assert [answer.status for answer in answers(received)] == [202, 400, 202]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 1_200), max_size=6))
async def test_requests_may_be_split_anywhere(acme: Org, cuts: list[int]) -> None:
    bodies = [event("cut 1"), event("cut 2", event="no name"), event("cut 3", payload={"a": 1.5})]
    raw = b"".join([await post(acme, body) for body in bodies])
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    reader, writer = await asyncio.open_connection("127.0.0.1", acme.service.port)
    for start, end in itertools.pairwise(edges):
        writer.write(raw[start:end])
        await asyncio.sleep(0.001)
    received = b""
    while received.count(b"HTTP/1.1") < 3 or not received.endswith(b"}"):
        received += await asyncio.wait_for(reader.read(65_536), 5)
    writer.close()
    assert [answer.status for answer in answers(received)] == [202, 400, 202]


async def test_a_request_with_a_late_body_is_left_to_sanic(acme: Org) -> None:
    raw = await post(acme, event("slow"))
    reader, writer = await asyncio.open_connection("127.0.0.1", acme.service.port)
    writer.write(raw[:-10])
    await asyncio.sleep(0.7)  # longer than the fast path waits
    writer.write(raw[-10:])
    received = await asyncio.wait_for(reader.read(65_536), 5)
    writer.close()
    assert [answer.status for answer in answers(received)] == [202]


async def test_an_empty_line_after_every_body_is_skipped(acme: Org) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", acme.service.port)
    received = b""
    for number in range(4):
        # Each piece is sent alone: the fast path takes the event, and the ordinary path gets the empty line.
        for piece in (await post(acme, event(f"line {number}")), b"\r", b"\n"):
            writer.write(piece)
            await asyncio.sleep(0.05)
        received += await asyncio.wait_for(reader.read(65_536), 5)
    writer.close()
    assert [answer.status for answer in answers(received)] == [202] * 4


async def test_a_client_that_disconnects_meanwhile_affects_no_other(acme: Org) -> None:
    await acme.service.send_and_disconnect(await post(acme, event("left")))
    assert answers(await acme.service.exchange(await post(acme, event("after"))))[0].status == 202


async def test_a_client_that_ends_its_side_gets_its_answers(acme: Org) -> None:
    ordinary = await post(acme, event("ordinary"), "Accept: */*", "Accept: */*")
    head, body = b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", b"Authorization: Bearer %s\r\n" % (await acme.key()).encode()
    reads = [head % (path, body) for path in (b"/healthz", b"/readyz", b"/api/v1/automations", b"/missing")]
    fast = [await post(acme, event(f"fast {number}")) for number in range(5)]
    sent = [*reads, ordinary, *fast, b"".join([*fast[:2], ordinary, *fast[2:]]), b"", b"\r\n", fast[0][:-1]]
    received = [[answer.status for answer in answers(await acme.service.half_closed(piece))] for piece in sent]
    assert received == [[200], [200], [403], [404], [202], *[[202]] * 5, [202] * 6, [], [], [400]]


async def test_a_revoked_key_is_refused_within_five_seconds(acme: Org) -> None:
    await acme.service.rows("UPDATE api_keys SET revoked_at = now() WHERE org_id = %s RETURNING id", acme.id)
    raw, status = await post(acme, event("again")), 202
    async with asyncio.timeout(5):
        while status == 202:
            await asyncio.sleep(0.1)
            (answer,) = answers(await acme.service.exchange(raw))
            status = answer.status
    assert status == 401
