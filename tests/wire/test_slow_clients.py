"""Clients that send or read slowly get a 408 or are dropped. The process under test waits half a second."""

import time
from contextlib import ExitStack
from socket import socket

import pytest

from tests.wire.conftest import Process, until_closed
from tests.wire.process import LARGE

HEAD = b"POST /probe/slow HTTP/1.1\r\nHost: x\r\n"
LATE = "the request did not arrive in time"
LARGE_ANSWER = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

UNFINISHED = {
    "a request line": b"POST /probe/slow",
    "a head": HEAD + b"X: ",
    "a body": HEAD + b"Content-Length: 1000\r\n\r\n",
    "a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n",
    "the end of chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r",
}


@pytest.mark.parametrize("unfinished", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_d17_an_unfinished_request_gets_a_408(impatient: Process, unfinished: bytes) -> None:
    (answer,) = impatient.send(unfinished)
    assert (answer.status, answer.headers[b"connection"], answer.error["error"]) == (408, b"close", LATE)
    assert impatient.requests() == []


@pytest.mark.parametrize("unfinished", list(UNFINISHED.values())[:4], ids=list(UNFINISHED)[:4])
def test_d17_a_request_that_trickles_in_gets_a_408(impatient: Process, unfinished: bytes) -> None:
    assert [answer.status for answer in impatient.trickle(unfinished + b"a" * 400)] == [408]
    assert impatient.requests() == []


def test_d17_chunks_that_trickle_in_get_a_408(impatient: Process) -> None:
    assert [answer.status for answer in impatient.trickle(UNFINISHED["a chunk"][:-5] + b"1\r\na\r\n" * 100)] == [408]


def test_d17_the_connections_of_slow_clients_are_freed(impatient: Process) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(impatient.connected()) for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(list(UNFINISHED.values())[number % len(UNFINISHED)])
        assert [answer.status for client in clients for answer in until_closed(client)] == [408] * 50
        assert impatient.connections(0) == 0


def test_a_client_that_does_not_read_its_answer_is_dropped(impatient: Process) -> None:
    with impatient.connected() as client:
        client.sendall(LARGE_ANSWER)
        assert client.recv(1) == b"H"
        assert impatient.connections(0) == 0


def test_a_client_that_sends_and_does_not_read_is_dropped(impatient: Process) -> None:
    with impatient.connected() as client:
        client.sendall(LARGE_ANSWER)
        with pytest.raises(ConnectionError):
            send_without_reading(client)


def send_without_reading(client: socket) -> None:
    """Send a byte every 50 ms without reading the answer."""
    for _ in range(400):
        client.send(b"G")
        time.sleep(0.05)


def test_a_client_that_reads_gets_all_of_it(process: Process) -> None:
    (answer,) = process.send(LARGE_ANSWER)
    assert len(answer.body) == LARGE


def test_d25_a_handler_that_takes_too_long_gives_a_503(impatient: Process) -> None:
    (answer,) = impatient.send(b"GET /slow/60 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (answer.status, answer.headers[b"connection"], bool(answer.error)) == (503, b"close", True)
