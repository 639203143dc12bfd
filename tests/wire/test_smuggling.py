"""A doubtful request gets a 400 and ends the connection; nothing after it is handled (docs/trust.md D19).

After each request follows a second one, which a server that reads the first differently would answer.
"""

import pytest

from tests.wire.conftest import Process

SMUGGLED = b"GET /probe/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: 5"


def request(
    *fields: bytes, body: bytes = b"", line: bytes = b"POST /probe/first HTTP/1.1", host: bytes = b"Host: x"
) -> bytes:
    """Return a request, and the one to be smuggled behind it."""
    return b"\r\n".join(part for part in (line, host, *fields) if part) + b"\r\n\r\n" + body + SMUGGLED


LENGTHS = {
    "a length and a coding": request(LENGTH, CHUNKED, body=HELLO),
    "a coding and a length": request(CHUNKED, LENGTH, body=HELLO),
    "no length and a coding": request(b"Content-Length: 0", CHUNKED, body=HELLO),
    "a length twice": request(LENGTH, LENGTH, body=b"hello"),
    "two lengths": request(LENGTH, b"Content-Length: 0", body=b"hello"),
    "a space before the colon": request(b"Content-Length : 5", body=b"hello"),
    "a tab before the colon": request(b"Content-Length\t: 5", body=b"hello"),
    "a folded length": request(b"Content-Length:\r\n 5", body=b"hello"),
    "a folded line": request(b"X: a\r\n Content-Length: 5", body=b"hello"),
} | {
    f"the length {value!r}": request(b"Content-Length: " + value, body=b"hello")
    for value in (
        *(b"+5", b"-5", b"0x5", b"5, 5", b"5 5", b"5_0", b"", b"5.0", b"9" * 30),
        *(digit.encode() for digit in ("\u00b2", "\u0665", "\uff15")),
    )
}  # fmt: skip

CODINGS = {
    f"the coding {value!r}": request(b"Transfer-Encoding: " + value, body=HELLO)
    for value in (
        *(b"chunked ", b"gzip, chunked", b"chunked, chunked", b"chunked, gzip"),
        *(b"identity", b""),
        *(b"xchunked", b"\x0bchunked", b"chunked;q=1", b'"chunked"', b"chunked\x00"),
    )
} | {
    "a coding twice": request(CHUNKED, CHUNKED, body=HELLO),
    "two codings": request(b"Transfer-Encoding: identity", CHUNKED, body=HELLO),
    "a space before the coding's colon": request(b"Transfer-Encoding : chunked", body=HELLO),
    "a folded coding": request(b"Transfer-Encoding:\r\n chunked", body=HELLO),
    "a coding in HTTP/1.0": request(CHUNKED, body=HELLO, line=b"POST /probe/first HTTP/1.0"),
}  # fmt: skip

CHUNKS = {
    f"the chunks {body!r}": request(CHUNKED, body=body)
    for body in (
        *(b"%b\r\nhello\r\n0\r\n\r\n" % size for size in (b"0x5", b" 5", b"5 ", b"+5", b"-5", b"5_", b"g", b"")),
        *(b"%b\r\nhello\r\n0\r\n\r\n" % size for size in (b"000000005", b"5;", b"5;x\n", b"5\t", "\u0665".encode())),
        *(b"5%bhello\r\n0\r\n\r\n" % end for end in (b"\n", b"\r", b"\r\r\n")),
        *(b"5\r\nhello%b0\r\n\r\n" % end for end in (b"\n", b"", b"XX", b"\r\n\r\n")),
        b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
        b"5\r\nhello\r\n0\r\nX: y\n\r\n",
        b"5\r\nhello\r\n0\r\nX: y\r\n",  # then the smuggled request is the next trailer
        b"5\r\nhello\r\n0\r\n",  # then the smuggled request is a trailer
        b"5\r\nhello\r\n0\n\n",
        b"0;\r\n\r\n",
    )
}  # fmt: skip

CONTROLS = {"line feed": b"\n", "NUL": b"\x00", "carriage return": b"\r", "escape": b"\x1b", "delete": b"\x7f"}
HEADS = {
    f"{name} in a {where}": text
    for name, byte in CONTROLS.items()
    for where, text in {
        "value": request(b"X: a" + byte + b"b"),
        "name": request(b"X" + byte + b"Y: a"),
        "request line": request(line=b"GET /probe/first" + byte + b" HTTP/1.1"),
    }.items()
} | {
    "lines that end in line feeds": request(LENGTH, body=b"hello").replace(b"\r\n", b"\n"),
    "a line feed before": b"\n" + request(),
    "a carriage return before": b"\r" + request(),
    "no Host": request(host=b""),
    "two Hosts": request(b"Host: y"),
    "two equal Hosts": request(b"host: x"),
    "an empty Host": request(host=b"Host:"),
    "a Host that is two": request(host=b"Host: x, y"),
    "a line without a colon": request(b"Content-Length 5"),
    "a field without a name": request(b": 5"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
    "HTTP/0.9": b"GET /probe/first\r\n\r\n" + SMUGGLED,
    "two spaces": request(line=b"GET  /probe/first HTTP/1.1"),
    "a space behind": request(line=b"GET /probe/first HTTP/1.1 "),
    "a space in the address": request(line=b"GET /probe/first HTTP/1.1 HTTP/1.1"),
    "an address outside ASCII": request(line=b"GET /probe/first\xff HTTP/1.1"),
    "an invalid URL": request(line=b"GET http://? HTTP/1.1"),
    "a tunnel": request(line=b"CONNECT x:80 HTTP/1.1"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n" + SMUGGLED,
}  # fmt: skip

DOUBTFUL = LENGTHS | CODINGS | CHUNKS | HEADS


@pytest.mark.parametrize("sent", DOUBTFUL.values(), ids=DOUBTFUL.keys())
@pytest.mark.parametrize("piece", [65_536, 1], ids=["at once", "byte by byte"])
def test_d19_an_ambiguous_request_ends_the_connection_and_is_not_handled(
    process: Process, sent: bytes, piece: int
) -> None:
    (answer,) = process.send(*[sent[at : at + piece] for at in range(0, len(sent), piece)])
    assert (answer.status, answer.headers[b"connection"]) == (400, b"close")
    assert answer.error["error"].startswith("the request is not valid HTTP")
    assert process.requests() == []


LAST = b"GET /probe/last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

CLEAR = {
    "a length": (request(LENGTH, body=b"hello"), "hello"),
    "a length with space around": (request(b"Content-Length:  005\t", body=b"hello"), "hello"),
    "chunks": (request(CHUNKED, body=b"2\r\nhe\r\n03\r\nllo\r\n00\r\n\r\n"), "hello"),
    "Chunked": (request(b"Transfer-Encoding: Chunked", body=HELLO), "hello"),
    "CHUNKED": (request(b"TRANSFER-ENCODING: CHUNKED", body=HELLO), "hello"),
    "chunks with extensions": (request(CHUNKED, body=b'5;a=1 ; b="c d"\r\nhello\r\n0;x\r\n\r\n'), "hello"),
    "trailers": (request(CHUNKED, body=b"5\r\nhello\r\n0\r\nX-Checksum: 1\r\nY:\r\n\r\n"), "hello"),
    "an empty line before": (b"\r\n" + request(LENGTH, body=b"hello"), "hello"),
    "empty lines before": (b"\r\n\r\n\r\n" + request(LENGTH, body=b"hello"), "hello"),
    "an empty line after the body": (request(LENGTH, body=b"hello\r\n"), "hello"),
    "no chunks": (request(CHUNKED, body=b"0\r\n\r\n"), ""),
    "no body": (request(), ""),
    "a body that looks like a request": (
        request(b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED), SMUGGLED.decode()
    ),
    "an address with a host": (request(LENGTH, body=b"hello", line=b"POST http://x/probe/first HTTP/1.1"), "hello"),
    "HTTP/1.0 with keep-alive": (request(b"Connection: keep-alive", line=b"GET /probe/first HTTP/1.0", host=b""), ""),
    "bytes outside ASCII": (request("X: é".encode()), ""),
    "an invalid trace": (request(b"traceparent: " + b"z" * 4_000, b"tracestate: ,,="), ""),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "body"), CLEAR.values(), ids=CLEAR.keys())
@pytest.mark.parametrize("piece", [65_536, 1], ids=["at once", "byte by byte"])
def test_an_unambiguous_request_is_handled_and_so_is_the_next_one(
    process: Process, sent: bytes, body: str, piece: int
) -> None:
    answers = process.send(*[(sent + LAST)[at : at + piece] for at in range(0, len(sent + LAST), piece)])
    assert [answer.status for answer in answers] == [200, 200, 200]
    expected = [{"probe": "first", "body": body}, {"probe": "smuggled", "body": ""}, {"probe": "last", "body": ""}]
    assert process.requests() == expected
