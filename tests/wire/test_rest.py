"""After a 503 a connection rests: a client that comes back at once is answered, but not as often as it likes."""

import time

from tests.wire.conftest import Process

REST = 0.1  # seconds; that it is more proves nothing, that it is less would
REFUSED = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"  # without a database
ANSWERED = b"GET /probe/again HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_request_after_a_503_is_answered_after_a_rest(process: Process) -> None:
    with process.connected() as client:
        client.sendall(REFUSED)
        assert client.recv(65_536).startswith(b"HTTP/1.1 503")
        since = time.monotonic()
        client.sendall(ANSWERED)
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - since >= REST
    assert [each["what"] for each in process.seen()] == ["again"]
