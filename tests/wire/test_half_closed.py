"""A client that ends its side of the connection gets its answer; one that has left has its request cancelled."""

import http.client
import socket

import pytest

from tests.answers import Answer
from tests.wire.conftest import TIMEOUT_S, Process, until_closed

SLOW = b"GET /slow/2 HTTP/1.%b\r\nHost: x\r\n\r\n"
ENDLESS = b"GET /slow/90 HTTP/1.1\r\nHost: x\r\n\r\n"
HANDSHAKE = (
    b"GET /api/v1/inapp/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def half_closed(process: Process, sent: bytes) -> list[Answer]:
    with process.connected() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return until_closed(client)


@pytest.mark.parametrize(
    ("sent", "answers", "has_interim"),
    [
        (SLOW % b"1", [200], True),
        (SLOW % b"0", [200], False),  # HTTP/1.0 has no interim responses
        (SLOW % b"1" * 2, [200, 200], True),
        (SLOW % b"1" + HANDSHAKE, [200, 400], True),  # nothing could be received on the socket
    ],
    ids=["HTTP/1.1", "HTTP/1.0", "two requests", "a WebSocket"],
)
def test_a_half_closed_client_gets_a_slow_answer(
    process: Process, sent: bytes, answers: list[int], has_interim: bool
) -> None:
    received = [answer.status for answer in half_closed(process, sent)]
    assert [status for status in received if status != 100] == answers
    assert (100 in received) == has_interim


def test_a_half_closed_handshake_is_refused_with_its_reason(process: Process) -> None:
    refused = half_closed(process, SLOW % b"1" + HANDSHAKE)[-1]
    assert refused.error["error"] == ("the client ended its side of the connection, so a WebSocket cannot be opened")


def test_a_client_library_skips_the_interim_responses(process: Process) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", process.port, TIMEOUT_S)
    connection.request("GET", "/slow/2")
    connection.sock.shutdown(socket.SHUT_WR)
    assert connection.getresponse().status == 200
    connection.close()


def test_the_request_of_a_client_that_left_is_cancelled(process: Process) -> None:
    with process.connected() as client:
        client.sendall(ENDLESS)
        assert process.connections(1) == 1
    assert process.connections(0) == 0
    assert process.cancelled().count(90) == 1
