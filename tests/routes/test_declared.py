"""The `Content-Type` of a body: declared once, as JSON."""

import pytest

from tests.routes.conftest import Org

EVENT = b'{"event": "deposit", "contact": {"externalId": "u1"}}'


@pytest.mark.parametrize("second", ["application/json", "text/plain"])
async def test_two_content_types_are_a_415(acme: Org, second: str) -> None:
    head = (
        "POST /api/v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Authorization: Bearer {await acme.key()}\r\nContent-Length: {len(EVENT)}\r\n"
        f"Content-Type: application/json\r\nContent-Type: {second}\r\n\r\n"
    )
    answer = await acme.service.exchange(head.encode() + EVENT)
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert b"Content-Type must be sent once" in answer
    assert await acme.traces() == {}
