"""Webhooks against real endpoints, well-behaved and not (docs/trust.md J2 to J6, K5, K7, K10)."""

import asyncio
import contextlib
import gzip
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook as Receiver

from api.channels.address_guard import AddressGuard
from api.channels.outcome import Delivery, Failed, Outcome, Retry, Sent, Unknown
from api.channels.webhook import LIMITS, MAX_BODY_BYTES, WebhookSender, open_webhook_sender
from api.settings import Settings
from tests.channels.conftest import LOOPBACK, SECRET, Authority, Endpoint, endpoint, status

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def delivery_to(url: str, body: str = '{"type":"paid","name":"Zoë"}', org_id: int = 7) -> Delivery:
    return Delivery(org_id, "0193-1", NOW, url, "", body, secrets=(SECRET,))


async def test_a_delivery_is_one_signed_post(webhooks: WebhookSender) -> None:
    now = datetime.now(UTC)
    async with endpoint(status(200)) as server:
        assert await webhooks.send(delivery_to(server.url(path="/hook?a=b%20c")), now) == Sent("HTTP 200")
    (request,) = server.requests
    assert request.line == "POST /hook?a=b%20c HTTP/1.1"
    assert set(request.headers) == {
        "host",
        "user-agent",
        "content-type",
        "content-length",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert Receiver(SECRET).verify(request.body, request.raw_headers) == {"type": "paid", "name": "Zoë"}


async def test_another_attempt_has_the_same_id_and_bytes_and_a_new_timestamp(webhooks: WebhookSender) -> None:
    async with endpoint(status(500), status(204)) as server:
        assert await webhooks.send(delivery_to(server.url()), NOW) == Retry("refused", detail="HTTP 500")
        assert await webhooks.send(delivery_to(server.url()), NOW + timedelta(minutes=5)) == Sent("HTTP 204")
    first, second = server.requests
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "0193-1"
    assert int(second.headers["webhook-timestamp"]) == int(first.headers["webhook-timestamp"]) + 300


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (status(200), Sent("HTTP 200")),
        (status(204), Sent("HTTP 204")),
        (status(400), Retry("refused", detail="HTTP 400")),
        (status(404), Retry("refused", detail="HTTP 404")),
        (status(410), Failed("gone", "HTTP 410")),
        (status(429, "retry-after: 120"), Retry("refused", 120.0, "HTTP 429")),
        (status(503, "Retry-After: 99999999"), Retry("refused", 86_400.0, "HTTP 503")),
        (status(503), Retry("refused", None, "HTTP 503")),
        (status(500, "retry-after: 120"), Retry("refused", None, "HTTP 500")),
        (status(500, "x-key: sk_live_1", body=b"<script>sk_live_2</script>"), Retry("refused", detail="HTTP 500")),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", Unknown("no_answer")),
    ],
)
async def test_statuses_map_to_outcomes(webhooks: WebhookSender, reply: bytes, outcome: Outcome) -> None:
    async with endpoint(reply) as server:
        assert await webhooks.send(delivery_to(server.url()), NOW) == outcome


async def test_a_redirect_is_not_followed(webhooks: WebhookSender) -> None:
    async with endpoint(status(200)) as inside, endpoint(status(301, f"location: {inside.url()}")) as server:
        assert await webhooks.send(delivery_to(server.url()), NOW) == Retry("refused", detail="HTTP 301")
        assert inside.connections == 0


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    raise ConnectionResetError


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10737418240\r\n\r\n")
    while True:
        writer.write(bytes(65_536))
        await writer.drain()


async def byte_by_byte(writer: asyncio.StreamWriter) -> None:
    for byte in status(200, body=bytes(1_000)):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.2)


async def slow_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    await silence(writer)


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: and more\r\n" * 1_000)
        await writer.drain()


async def test_after_a_broken_connection_the_outcome_is_unknown(webhooks: WebhookSender) -> None:
    async with endpoint(reset) as server:
        assert await webhooks.send(delivery_to(server.url()), NOW) == Unknown("no_answer")


async def test_an_endpoint_has_until_the_deadline() -> None:
    transport = WebhookSender(AddressGuard(LOOPBACK), deadline_s=2)
    async with endpoint(silence, byte_by_byte) as server:
        answers = await asyncio.gather(*(transport.send(delivery_to(server.url()), NOW) for _ in range(2)))
        assert answers == [Unknown("no_answer")] * 2
    await transport.close()


@pytest.mark.parametrize("reply", [endless_body, slow_body])
async def test_a_status_counts_whatever_the_response_body(webhooks: WebhookSender, reply: object) -> None:
    async with endpoint(reply) as server:  # type: ignore[arg-type]
        assert await webhooks.send(delivery_to(server.url()), NOW) == Sent("HTTP 200")


async def test_a_status_counts_even_if_its_body_exceeds_the_deadline() -> None:
    transport = WebhookSender(AddressGuard(LOOPBACK), deadline_s=2)

    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.5)
        await slow_body(writer)

    async with endpoint(late) as server:
        assert await transport.send(delivery_to(server.url()), NOW) == Sent("HTTP 200")
    await transport.close()


async def test_endless_headers_are_not_a_response(webhooks: WebhookSender) -> None:
    async with endpoint(endless_headers) as server:
        assert await webhooks.send(delivery_to(server.url()), NOW) == Unknown("no_answer")


async def test_a_gzip_bomb_is_not_decompressed(webhooks: WebhookSender) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < MAX_BODY_BYTES
    async with endpoint(status(200, "content-encoding: gzip", body=bomb)) as server:
        assert await webhooks.send(delivery_to(server.url()), NOW) == Sent("HTTP 200")
        assert await webhooks.send(delivery_to(server.url()), NOW) == Sent("HTTP 200")
        assert server.connections == 1  # read to its end, and used again


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://127.0.0.1/x",
        "ftp://127.0.0.1/x",
        "unix:/var/run/docker.sock",
        "data:text/plain,x",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/x",
        "http://user:password@127.0.0.1/",
        "http://127.0.0.1/\r\nx: y",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        "http:///x",
        "//127.0.0.1/",
        "",
    ],
)
async def test_an_invalid_webhook_url_is_not_tried(webhooks: WebhookSender, url: str) -> None:
    assert await webhooks.send(delivery_to(url), NOW) == Failed("invalid_address")


async def test_closed_unknown_and_forbidden_addresses_have_one_outcome(caplog: pytest.LogCaptureFixture) -> None:
    closed, forbidden = WebhookSender(AddressGuard(LOOPBACK)), WebhookSender(AddressGuard())
    async with endpoint(status(200)) as server:
        url = server.url()
        with caplog.at_level(logging.INFO, "workbench.delivery"):
            answers = [
                await forbidden.send(delivery_to(url), NOW),
                await forbidden.send(delivery_to("http://127.0.0.1:1/"), NOW),
                await closed.send(delivery_to("http://127.0.0.1:1/"), NOW),
                await closed.send(delivery_to("http://nowhere.invalid/"), NOW),
            ]
    assert answers == [Retry("unreachable")] * 4
    assert server.connections == 0
    words = [record.getMessage() for record in caplog.records]
    assert (
        words == ["webhook_address_forbidden"] * 2 + ["webhook_connection_failed"] * 2
    )  # operators can tell them apart
    await closed.close()
    await forbidden.close()


async def test_a_delivery_to_our_own_address_is_not_sent() -> None:
    async with endpoint(status(200)) as ours:
        transport = open_webhook_sender(Settings(public_url=ours.url("localhost")))
        assert await transport.send(delivery_to(ours.url("localhost")), NOW) == Retry("unreachable")
        await transport.close()
        developing = open_webhook_sender(Settings(public_url=ours.url("localhost"), webhook_allow=LOOPBACK))
        assert await developing.send(delivery_to(ours.url("localhost")), NOW) == Sent("HTTP 200")
        await developing.close()


async def test_https_verifies_the_name_of_the_checked_address(webhooks: WebhookSender, authority: Authority) -> None:
    names: list[str] = []
    context = authority.server("localhost")
    context.sni_callback = lambda _, name, __: names.append(name)
    async with endpoint(status(200), tls=context) as server:
        assert await webhooks.send(delivery_to(server.url("localhost", scheme="https")), NOW) == Sent("HTTP 200")
    assert names == ["localhost"]
    assert server.requests[0].headers["host"] == f"localhost:{server.port}"


async def test_a_certificate_of_another_name_or_authority_is_not_trusted(
    webhooks: WebhookSender, authority: Authority
) -> None:
    for tls in (authority.server("another.example"), Authority().server("localhost")):
        async with endpoint(status(200), tls=tls) as server:
            assert await webhooks.send(delivery_to(server.url("localhost", scheme="https")), NOW) == Retry("tls_failed")
            assert server.requests == []


@pytest.mark.parametrize("greeting", [b"", b"220 mail.example ESMTP\r\n"])
async def test_nothing_is_sent_in_clear_to_a_server_without_tls(authority: Authority, greeting: bytes) -> None:
    names: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        while piece := await reader.read(1_000):
            names.append(piece)
        writer.close()

    transport = WebhookSender(AddressGuard(LOOPBACK), authority.believer, deadline_s=2)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await transport.send(delivery_to(f"https://localhost:{port}/"), NOW) == Retry("tls_failed")
    assert b"POST" not in b"".join(names)
    await transport.close()


class HangingEndpoint:
    """Accepts requests and never answers."""

    def __init__(self) -> None:
        self.arrived = asyncio.Semaphore(0)

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        self.arrived.release()
        await silence(writer)


async def test_a_delivery_that_may_no_longer_leave_is_not_sent(webhooks: WebhookSender) -> None:
    async with endpoint(status(200)) as server:
        assert await webhooks.send(delivery_to(server.url()), NOW, lambda: False) == Retry("busy")
        assert server.requests == []
        assert await webhooks.send(delivery_to(server.url()), NOW) == Sent("HTTP 200")


async def test_a_hanging_endpoint_delays_no_other(authority: Authority) -> None:
    transport, hang = WebhookSender(AddressGuard(LOOPBACK), authority.believer, stall_timeout_s=0.2), HangingEndpoint()
    async with endpoint(hang) as stuck, endpoint(status(200)) as other, lanes_full(transport, hang, stuck):
        assert await transport.send(delivery_to(stuck.url()), NOW) == Retry("busy")
        assert await transport.send(delivery_to(other.url()), NOW) == Sent("HTTP 200")
        assert len(stuck.requests) == LIMITS.per_endpoint
    await transport.close()


async def test_hanging_endpoints_of_one_organization_delay_no_other(authority: Authority) -> None:
    transport, hang = WebhookSender(AddressGuard(LOOPBACK), authority.believer, stall_timeout_s=0.2), HangingEndpoint()
    async with contextlib.AsyncExitStack() as opened:
        stuck = [
            await opened.enter_async_context(endpoint(hang))
            for _ in range(LIMITS.per_organization // LIMITS.per_endpoint)
        ]
        other = await opened.enter_async_context(endpoint(status(200)))
        await opened.enter_async_context(lanes_full(transport, hang, *stuck))
        assert await transport.send(delivery_to(other.url()), NOW) == Retry("busy")
        assert await transport.send(delivery_to(other.url(), org_id=8), NOW) == Sent("HTTP 200")
    await transport.close()


@contextlib.asynccontextmanager
async def lanes_full(transport: WebhookSender, hang: HangingEndpoint, *stuck: Endpoint) -> AsyncIterator[None]:
    """Fill all slots with deliveries to endpoints that never answer."""
    tasks = [
        asyncio.create_task(transport.send(delivery_to(stuck_server.url()), NOW))
        for stuck_server in stuck
        for _ in range(LIMITS.per_endpoint)
    ]
    for _ in tasks:
        await hang.arrived.acquire()
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
