"""Answers and logs contain nothing from a request (docs/trust.md D21, O1, O2, O5)."""

import json

from tests.wire.conftest import Process

CANARY = b"canary-5c1e"
ESCAPE = b"\x1b[31m"
BODY = b'{"contact": {"email": "' + CANARY + b'@example.com"}}'
KEY = b"Authorization: Bearer sk_live_" + CANARY
LENGTH = b"Content-Length: %d" % len(BODY)


def request(*fields: bytes, line: bytes = b"POST /api/v1/events HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: x", b"Connection: close", *fields)) + b"\r\n\r\n" + BODY


REQUESTS = {
    request(KEY, LENGTH): 401,
    request(KEY, LENGTH, line=b"POST /api/v1/events?key=" + CANARY + b" HTTP/1.1"): 401,
    request(KEY, LENGTH, line=b"POST /" + CANARY + b" HTTP/1.1"): 404,
    request(KEY, LENGTH, line=b"PUT /api/v1/events?" + CANARY + b" HTTP/1.1"): 405,
    request(KEY, LENGTH, line=b"POST http://?" + CANARY + b" HTTP/1.1"): 400,
    request(KEY, LENGTH, b"X-Request-ID: " + ESCAPE + CANARY): 400,
    request(KEY, LENGTH, b"User-Agent: " + CANARY + b"\n{}"): 400,
    request(KEY, LENGTH, b"X-Request-ID: sk_live_" + CANARY, b"Expect: " + CANARY): 417,
    request(KEY, b"Content-Length: " + CANARY): 400,
    request(KEY, b"Transfer-Encoding: chunked"): 400,
    request(KEY, b"Content-Length: 9999999"): 413,
    request(KEY, b"Content-Length: 999"): 408,
    request(KEY, LENGTH, b"X: " + CANARY * 1_000): 431,
    request(KEY, LENGTH, line=CANARY + ESCAPE): 400,
    request(KEY, LENGTH, line=b"GET /slow/60?" + CANARY + b" HTTP/1.1"): 503,
}


def test_o1_answers_and_logs_repeat_nothing_of_a_request(impatient: Process) -> None:
    for sent, status in REQUESTS.items():
        (answer,) = impatient.send(sent)
        assert answer.status == status, sent
        assert len(answer.error["requestId"]) == 36
        assert CANARY not in answer.body + b"".join(answer.headers.values())
        with impatient.connected() as client:
            client.sendall(sent)  # close immediately
    log = impatient.log()
    assert b"request_failed" in log
    assert CANARY not in log
    assert not set(log) & (set(range(32)) - {10})
    assert all(isinstance(json.loads(line), dict) for line in log.splitlines())
