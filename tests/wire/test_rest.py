"""After a 503 a connection pauses, so a client that retries immediately gets only ten answers per second."""

import time

from tests.wire.conftest import Process

PAUSE_S = 0.1
REFUSED = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"  # without a database
ANSWERED = b"GET /probe/again HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_request_after_a_503_is_answered_after_a_pause(process: Process) -> None:
    with process.connected() as client:
        client.sendall(REFUSED)
        assert client.recv(65_536).startswith(b"HTTP/1.1 503")
        since = time.monotonic()
        client.sendall(ANSWERED)
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - since >= PAUSE_S
    assert [request["probe"] for request in process.requests()] == ["again"]
