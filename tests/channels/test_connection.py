"""Connections against local servers that answer as the providers document, and the requests of their templates."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import pytest

from api.channels.address_guard import AddressGuard
from api.channels.connection import ConnectionSender
from api.channels.outcome import Delivery, Failed, Outcome, PreparedRequest, Retry, Sent, Unknown
from api.channels.webhook import BODY_TIMEOUT_S
from tests.channels.conftest import LOOPBACK, Endpoint, endpoint, status
from workbench.connections import TEMPLATES
from workbench.language.body import read_value
from workbench.language.codec import decode, encode
from workbench.language.connections import ConnectionDefinition

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
KEYS = {
    "webhook_url": "https://hooks.slack.com/services/T00/B00/XXX",
    "token": "123:abc",
    "account_sid": "AC1",
    "auth_token": "s3",
    "sender": "+15550006666",
}
FIELDS = {"text": 'Zoë "Z" <!channel> & co', "channel": "C1", "chat": "-42", "to": "+41790000000"}


@pytest.fixture
async def sender() -> AsyncIterator[ConnectionSender]:
    opened = ConnectionSender(AddressGuard(LOOPBACK))
    yield opened
    await opened.close()


def delivery(server: Endpoint, written: dict[str, Any], secrets: dict[str, str], **fields: Any) -> Delivery:
    definition = read_value(ConnectionDefinition, written | {"url": server.url(path="") + written["url"]}, "")
    assert isinstance(definition, ConnectionDefinition), definition
    prepared = PreparedRequest(definition, secrets)
    return Delivery(7, "0193-1", NOW, "chat", "", encode(fields).decode(), request=prepared)


def json(code: int, body: Any, *headers: str) -> bytes:
    return status(code, "content-type: application/json", *headers, body=encode(body))


async def send_from(sender: ConnectionSender, template: str, reply: bytes) -> tuple[Outcome, Endpoint]:
    provider = TEMPLATES[template]
    keys = KEYS | ({"webhook_url": "https://discord.com/api/webhooks/1/tok-en"} if template == "discord" else {})
    secrets = provider.secrets({name: keys[name] for name in provider.parameters})
    async with endpoint(reply) as server:
        return await sender.send(delivery(server, provider.definition, secrets, **FIELDS), NOW), server


REFUSED = "refused"


@pytest.mark.parametrize(
    ("template", "reply", "outcome"),
    [
        ("slack", status(200, body=b"ok"), Sent("HTTP 200")),
        ("slack", status(400, body=b"invalid_payload"), Failed(REFUSED, "HTTP 400")),
        ("slack", status(403, body=b"action_prohibited"), Failed(REFUSED, "HTTP 403")),
        ("slack", status(404, body=b"channel_not_found"), Failed(REFUSED, "HTTP 404")),
        ("slack", status(410, body=b"channel_is_archived"), Failed(REFUSED, "HTTP 410")),
        ("slack", status(500, body=b"rollup_error"), Retry(REFUSED, None, "HTTP 500")),
        ("slack", status(429, "retry-after: 30"), Retry(REFUSED, 30.0, "HTTP 429")),
        ("slack_bot", json(200, {"ok": True, "channel": "C1", "ts": "1.0"}), Sent("HTTP 200")),
        ("slack_bot", json(200, {"ok": False, "error": "not_in_channel"}), Failed(REFUSED, "HTTP 200")),
        ("slack_bot", json(200, {"ok": False, "error": "invalid_auth"}), Failed(REFUSED, "HTTP 200")),
        ("slack_bot", json(200, {"ok": False, "error": "internal_error"}), Retry(REFUSED, None, "HTTP 200")),
        (
            "slack_bot",
            json(429, {"ok": False, "error": "ratelimited"}, "Retry-After: 7"),
            Retry(REFUSED, 7.0, "HTTP 429"),
        ),
        ("discord", status(204), Sent("HTTP 204")),
        ("discord", json(404, {"message": "Unknown Webhook", "code": 10015}), Failed(REFUSED, "HTTP 404")),
        (
            "discord",
            json(429, {"message": "You are being rate limited.", "retry_after": 0.75, "global": False}),
            Retry(REFUSED, 0.75, "HTTP 429"),
        ),
        ("discord", status(429, body=b'{"retry_after": 1e300}'), Retry(REFUSED, 86_400.0, "HTTP 429")),
        ("telegram", json(200, {"ok": True, "result": {"message_id": 5}}), Sent("HTTP 200")),
        (
            "telegram",
            json(403, {"ok": False, "error_code": 403, "description": "Forbidden: bot was blocked by the user"}),
            Failed(REFUSED, "HTTP 403"),
        ),
        (
            "telegram",
            json(429, {"ok": False, "error_code": 429, "parameters": {"retry_after": 34}}),
            Retry(REFUSED, 34.0, "HTTP 429"),
        ),
        ("twilio", json(201, {"sid": "SM1", "status": "queued"}), Sent("HTTP 201")),
        ("twilio", json(400, {"code": 21211, "message": "Invalid 'To'", "status": 400}), Failed(REFUSED, "HTTP 400")),
        ("twilio", json(429, {"code": 20429, "status": 429}, "Retry-After: 2"), Retry(REFUSED, 2.0, "HTTP 429")),
        ("twilio", status(503), Retry(REFUSED, None, "HTTP 503")),
    ],
)
async def test_each_answer_of_a_provider_has_its_outcome(
    sender: ConnectionSender, template: str, reply: bytes, outcome: Outcome
) -> None:
    assert (await send_from(sender, template, reply))[0] == outcome


async def test_without_an_answer_the_outcome_is_unknown() -> None:
    sender = ConnectionSender(AddressGuard(LOOPBACK), deadline_s=1)
    assert (await send_from(sender, "twilio", b""))[0] == Unknown("no_answer")
    await sender.close()


async def test_each_template_sends_the_request_of_its_provider(sender: ConnectionSender) -> None:
    requests = {}
    for template in TEMPLATES:
        _, server = await send_from(sender, template, status(500))
        requests[template] = server.requests[0]
    escaped = 'Zoë "Z" &lt;!channel&gt; &amp; co'
    assert {name: request.line for name, request in requests.items()} == {
        "slack": "POST /services/T00/B00/XXX HTTP/1.1",
        "slack_bot": "POST /api/chat.postMessage HTTP/1.1",
        "discord": "POST /api/webhooks/1/tok-en HTTP/1.1",
        "telegram": "POST /bot123:abc/sendMessage HTTP/1.1",
        "twilio": "POST /2010-04-01/Accounts/AC1/Messages.json HTTP/1.1",
    }
    assert decode(requests["slack"].body) == {"text": escaped}
    assert decode(requests["slack_bot"].body) == {"channel": "C1", "text": escaped}
    assert requests["slack_bot"].raw_headers["authorization"] == "Bearer 123:abc"
    assert decode(requests["discord"].body) == {"content": FIELDS["text"], "allowed_mentions": {"parse": []}}
    assert decode(requests["telegram"].body) == {"chat_id": "-42", "text": FIELDS["text"]}
    sms = requests["twilio"]
    assert parse_qs(sms.body.decode()) == {"To": [FIELDS["to"]], "From": ["+15550006666"], "Body": [FIELDS["text"]]}
    assert sms.headers["content-type"] == "application/x-www-form-urlencoded"
    assert base64.b64decode(sms.raw_headers["authorization"].removeprefix("Basic ")) == b"AC1:s3"


ECHO = {"url": "/{{ fields.id }}", "body": {"text": "{{ fields.text }}"}, "success": {"status": ["2xx"]}}


async def test_values_change_neither_the_path_nor_the_body(sender: ConnectionSender) -> None:
    async with endpoint(status(200)) as server:
        fields = {"id": "../a?b=c#d é", "text": '", "admin": true, "x": "{{ secrets.key }}'}
        assert await sender.send(delivery(server, ECHO, {"key": "k3y"}, **fields), NOW) == Sent("HTTP 200")
    (request,) = server.requests
    assert request.line == "POST /..%2Fa%3Fb%3Dc%23d%20%C3%A9 HTTP/1.1"
    assert decode(request.body) == {"text": fields["text"]}


async def test_a_request_that_cannot_be_made_fails_without_quoting_its_values(sender: ConnectionSender) -> None:
    async with endpoint(status(200)) as server:
        lacking = delivery(server, ECHO, {}, id="1")
        assert await sender.send(lacking, NOW) == Failed("invalid_request")
        header = ECHO | {"headers": {"x-name": "{{ fields.text }}"}}
        assert await sender.send(delivery(server, header, {}, id="1", text="a\r\nx: y"), NOW) == Failed(
            "invalid_request"
        )
        long = delivery(server, ECHO, {}, id="x" * 3_000, text="a")
        assert await sender.send(long, NOW) == Failed("invalid_request")
    assert server.connections == 0


async def test_internal_addresses_are_not_reached() -> None:
    guarded = ConnectionSender(AddressGuard())
    async with endpoint(status(200)) as server:
        assert await guarded.send(delivery(server, ECHO, {}, id="1", text="a"), NOW) == Retry("unreachable")
    await guarded.close()
    assert server.connections == 0


async def test_an_answer_that_breaks_off_is_unknown_if_the_rules_need_it(sender: ConnectionSender) -> None:
    broken = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"

    async def reply(writer: Any) -> None:
        writer.write(broken)
        writer.close()

    async with endpoint(reply) as server:
        where = ECHO | {"success": {"where": "answer.ok"}}
        assert await sender.send(delivery(server, where, {}, id="1", text="a"), NOW) == Unknown("no_answer")
        assert await sender.send(delivery(server, ECHO, {}, id="1", text="a"), NOW) == Sent("HTTP 200")


async def test_an_answer_that_the_rules_need_may_be_slow(sender: ConnectionSender) -> None:
    async def slow(writer: Any) -> None:
        head, _, body = status(200, body=b'{"ok": true}').partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(BODY_TIMEOUT_S + 0.5)
        writer.write(body)

    async with endpoint(slow) as server:
        where = ECHO | {"success": {"where": "answer.ok"}}
        assert await sender.send(delivery(server, where, {}, id="1", text="a"), NOW) == Sent("HTTP 200")


async def test_a_test_is_marked_and_the_request_hides_its_secrets(sender: ConnectionSender) -> None:
    async with endpoint(status(200)) as server:
        marked = delivery(server, ECHO, {"key": "k3y"}, id="1", text="a")
        assert "k3y" not in repr(marked)
        marked = Delivery(7, "test_1", NOW, "chat", "", marked.body, test=True, request=marked.request)
        await sender.send(marked, NOW)
    assert server.requests[0].headers["x-event-workbench-test"] == "true"
