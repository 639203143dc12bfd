"""Clients that send or read slowly. The process under test waits half a second."""

import time
from contextlib import ExitStack
from socket import socket

import pytest

from tests.wire.conftest import Process, until_closed
from tests.wire.process import LARGE

HEAD = b"POST /probe/slow HTTP/1.1\r\nHost: x\r\n"
LATE = "the request did not arrive in time"
LARGE_ANSWER = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

BEGUN = {
    "a request line": b"POST /probe/slow",
    "a head": HEAD + b"X: ",
    "a body": HEAD + b"Content-Length: 1000\r\n\r\n",
    "a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n",
    "the end of chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r",
}


@pytest.mark.parametrize("begun", BEGUN.values(), ids=BEGUN.keys())
def test_d17_a_request_that_is_never_finished_is_ended(impatient: Process, begun: bytes) -> None:
    (answer,) = impatient.say(begun)
    assert (answer.status, answer.headers[b"connection"], answer.error["error"]) == (408, b"close", LATE)
    assert impatient.seen() == []


@pytest.mark.parametrize("begun", list(BEGUN.values())[:4], ids=list(BEGUN)[:4])
def test_d17_every_byte_in_time_is_not_a_request_in_time(impatient: Process, begun: bytes) -> None:
    assert [answer.status for answer in impatient.trickle(begun + b"a" * 400)] == [408]
    assert impatient.seen() == []


def test_d17_chunks_one_by_one_are_no_request_in_time(impatient: Process) -> None:
    assert [answer.status for answer in impatient.trickle(BEGUN["a chunk"][:-5] + b"1\r\na\r\n" * 100)] == [408]


def test_d17_slow_clients_free_their_places(impatient: Process) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(impatient.connected()) for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(list(BEGUN.values())[number % len(BEGUN)])
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
            nag(client)


def nag(client: socket) -> None:
    """Send a byte now and then, read nothing."""
    for _ in range(400):
        client.send(b"G")
        time.sleep(0.05)


def test_a_client_that_reads_gets_all_of_it(process: Process) -> None:
    (answer,) = process.say(LARGE_ANSWER)
    assert len(answer.body) == LARGE


def test_d25_a_handler_that_takes_too_long_is_a_503(impatient: Process) -> None:
    (answer,) = impatient.say(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (answer.status, answer.headers[b"connection"], bool(answer.error)) == (503, b"close", True)
