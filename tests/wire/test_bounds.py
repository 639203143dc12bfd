"""Heads and bodies are bounded: the answer names the limit, and arrives while the client is still sending."""

from collections.abc import Callable

import pytest

from api.app import BODY_LIMITS, MAX_BODY_BYTES
from api.wire.http1 import MAX_FIELDS, MAX_HEAD_BYTES
from tests.answers import Answer
from tests.wire.conftest import Process

Form = Callable[[bytes, int], list[bytes]]

HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
TOO_LARGE_HEAD = f"the head of the request is too large: at most {MAX_HEAD_BYTES} bytes are accepted"


def by_length(path: bytes, size: int) -> list[bytes]:
    return [HEAD % path + b"Content-Length: %d\r\n\r\n" % size, bytes(size)]


def by_chunks(path: bytes, size: int) -> list[bytes]:
    """Return a request with a body in chunks of 64 KB and a smaller last one."""
    sizes = [65_536] * (size // 65_536) + [size % 65_536] * bool(size % 65_536)
    return [
        HEAD % path + b"Transfer-Encoding: chunked\r\n\r\n",
        *(b"%x\r\n%b\r\n" % (n, bytes(n)) for n in sizes),
        b"0\r\n\r\n",
    ]


@pytest.mark.parametrize("form", [by_length, by_chunks])
@pytest.mark.parametrize(
    ("path", "limit"),
    [
        (b"/api/v1/events", 1_048_576),
        (b"/api/v1/events/", 1_048_576),
        (b"/api/v1/events?x=/api/v1/events/batch", 1_048_576),
        (b"/api/v1/events/batch", 8_388_608),
        (b"/v1/batch", 1_048_576),
        (b"//api/v1/events/batch", 262_144),
        (b"/api/v1/segments/whales/contacts", 8_388_608),
        (b"/api/v1/segments/whales/refresh", 262_144),
        (b"/api/v1/segments/a/b/contacts", 262_144),
        (b"/api/v1/automations", 262_144),
        (b"/api/v1/simulate", 262_144),
        (b"/api/v1/sql", 262_144),
        (b"/nothing", 262_144),
    ],
)
def test_d16_a_body_over_the_limit_of_its_address_is_refused(
    process: Process, path: bytes, limit: int, form: Form
) -> None:
    (refused,) = process.send(*form(path, limit + 1))
    assert (refused.status, refused.headers[b"connection"]) == (413, b"close")
    assert refused.error["error"] == f"the body is too large: at most {limit} bytes are accepted here"
    (accepted,) = process.send(*form(path, limit))
    assert accepted.status in (401, 404)


def test_the_limits_of_the_application() -> None:
    assert (max(BODY_LIMITS.values()), MAX_BODY_BYTES) == (8_388_608, 262_144)


def test_d16_a_large_body_is_refused_before_it_is_sent(process: Process) -> None:
    (answer,) = process.send(HEAD % b"/probe/a" + b"Expect: 100-continue\r\nContent-Length: 262145\r\n\r\n")
    assert answer.status == 413


def test_d18_a_client_that_expects_100_continue_gets_it(process: Process) -> None:
    answers = process.send(HEAD % b"/probe/a" + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", b"hello")
    assert [answer.status for answer in answers] == [100, 200]
    assert process.requests() == [{"probe": "a", "body": "hello"}]


def test_d18_another_expectation_is_refused(process: Process) -> None:
    (answer,) = process.send(HEAD % b"/probe/a" + b"Expect: 200-ok\r\nContent-Length: 5\r\n\r\n", b"hello")
    assert (answer.status, answer.error["error"]) == (417, "Expect can only be 100-continue")
    assert process.requests() == []


def test_d20_the_bytes_of_a_head_are_limited(process: Process) -> None:
    head = b"GET /probe/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: "
    (accepted,) = process.send(head + b"a" * (MAX_HEAD_BYTES - len(head)) + b"\r\n\r\n")
    assert accepted.status == 200
    for sent in (
        head + b"a" * (MAX_HEAD_BYTES - len(head) + 1) + b"\r\n\r\n",
        head + b"a" * 1_000_000,
        b"G" * 1_000_000,
        b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        head + b"\r\n".join(b"X-Header-%d: value-%d" % (n, n) for n in range(500)) + b"\r\n\r\n",
    ):
        (answer,) = process.send(sent)
        assert (answer.status, answer.error["error"]) == (431, TOO_LARGE_HEAD)


def test_d20_the_fields_of_a_head_are_limited(process: Process) -> None:
    (accepted,) = process.send(_with_fields(MAX_FIELDS))
    (refused,) = process.send(_with_fields(MAX_FIELDS + 1))
    assert (accepted.status, refused.status, refused.error["error"]) == (
        200,
        431,
        "there are more than 100 header fields",
    )


def _with_fields(count: int) -> bytes:
    return HEAD.replace(b"POST", b"GET") % b"/probe/a" + b"X:\r\n" * (count - 2) + b"\r\n"


def test_nothing_is_read_after_a_refused_request(process: Process) -> None:
    process.requests()
    answers: list[Answer] = process.send(
        *by_length(b"/probe/a", MAX_BODY_BYTES + 1), b"GET /probe/smuggled HTTP/1.1\r\nHost: x\r\n\r\n" * 9
    )
    assert [answer.status for answer in answers] == [413]
    assert process.requests() == []
