"""Heads are parsed as RFC 9112 requires, or refused; without a connection."""

import re
from typing import Any

import h11
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.http1 import MAX_FIELDS, TOO_MANY_FIELDS, Head, can_never_be_valid, read_head

PLAIN = Head("POST", "/a", "1.1", [("host", "x")], None, chunked=False, keep_alive=True, expect_continue=False)


def head(*fields: str, line: str = "POST /a HTTP/1.1", host: str = "Host: x") -> bytes:
    """Return the bytes of a head, one byte per character."""
    return "\r\n".join(part for part in (line, host, *fields) if part).encode("latin-1")


def read(*fields: str, **lines: str) -> Head:
    result = read_head(head(*fields, **lines))
    assert isinstance(result, Head), result
    return result


def expected(*fields: tuple[str, str], **changes: Any) -> Head:
    return msgspec.structs.replace(PLAIN, fields=[("host", "x"), *fields], **changes)


def test_a_usual_head_is_read_completely() -> None:
    result = read_head(
        b"POST /api/v1/events?a=%20b HTTP/1.1\r\nHost: api.example.com:8000\r\nAuthorization: Bearer sk_live_1\r\n"
        b"User-Agent:  curl/8 (x; y)\t \r\nAccept:*/*\r\nX-Empty:\r\nContent-Length: 312"
    )
    assert result == Head(
        "POST",
        "/api/v1/events?a=%20b",
        "1.1",
        [
            ("host", "api.example.com:8000"),
            ("authorization", "Bearer sk_live_1"),
            ("user-agent", "curl/8 (x; y)"),
            ("accept", "*/*"),
            ("x-empty", ""),
            ("content-length", "312"),
        ],
        312,
        chunked=False,
        keep_alive=True,
        expect_continue=False,
    )


@pytest.mark.parametrize("length", ["0", "5", "005", "9" * 18])
def test_a_length_is_a_number(length: str) -> None:
    assert read(f"Content-Length: {length} ") == expected(("content-length", length), content_length=int(length))


@pytest.mark.parametrize(
    "field",
    [
        "Transfer-Encoding: chunked",
        "transfer-encoding:\tchunked",
        "TRANSFER-ENCODING:chunked",
        "Transfer-Encoding: Chunked",
    ],
)
def test_chunked_is_the_one_coding(field: str) -> None:
    assert read(field) == expected(("transfer-encoding", field.rpartition(":")[2].strip()), chunked=True)


@pytest.mark.parametrize(
    ("version", "fields", "keep_alive"),
    [
        ("1.1", [], True),
        ("1.1", ["Connection: close"], False),
        ("1.1", ["Connection: CLOSE"], False),
        ("1.1", ["Connection: keep-alive, Upgrade"], True),
        ("1.1", ["Connection: Upgrade,close"], False),
        ("1.1", ["Connection: close", "Connection: x"], False),
        ("1.1", ["Connection: closed"], True),
        ("1.0", [], False),
        ("1.0", ["Connection: Keep-Alive"], True),
        ("1.0", ["Connection: keep-alive, close"], False),
        ("1.0", ["Connection: x"], False),
    ],
)
def test_keep_alive_follows_version_and_connection_field(version: str, fields: list[str], keep_alive: bool) -> None:
    assert read(*fields, line=f"GET / HTTP/{version}").keep_alive is keep_alive


@pytest.mark.parametrize(
    ("version", "value", "continues"),
    [
        ("1.1", "100-continue", True),
        ("1.1", "100-Continue", True),
        ("1.1", "200-ok", False),
        ("1.0", "100-continue", False),
    ],
)
def test_expect_100_continue_is_recognised(version: str, value: str, continues: bool) -> None:
    assert read(f"Expect: {value}", line=f"POST / HTTP/{version}").expect_continue is continues


def test_http_1_0_needs_no_host() -> None:
    assert read(line="GET / HTTP/1.0", host="").fields == []


@pytest.mark.parametrize("target", ["/", "/a?b=c&d=%20", "*", "http://x:80/a", "HTTPS://x", "/a//b/../c;d|e"])
def test_targets_are_kept_unchanged(target: str) -> None:
    assert read(line=f"GET {target} HTTP/1.1").target == target


def test_a_value_may_have_bytes_outside_ascii() -> None:
    assert read("X: caf\xe9 \xa0").fields[1] == ("x", "caf\xe9 \xa0")  # not whitespace in HTTP


def test_a_hundred_fields_are_enough() -> None:
    fields = [f"X-{number}: 1" for number in range(MAX_FIELDS - 1)]
    assert len(read(*fields).fields) == MAX_FIELDS
    assert read_head(head(*fields, "One: more")) is TOO_MANY_FIELDS


LINE = "the request line is not valid"
NAME = "the name of a header field is not valid"
VALUE = "the value of a header field has control characters"
LENGTH = "Content-Length is not a number"
CODING = "Transfer-Encoding can only be chunked"
BOTH = "there are both Content-Length and Transfer-Encoding"
VERSION = "only HTTP/1.0 and HTTP/1.1 are supported"
FOLDED = "a header field is folded"
HOST = "Host is not valid"

REFUSED = [
    *[
        (head(line=line), LINE)
        for line in (
            "GET  /a HTTP/1.1",
            "GET /a  HTTP/1.1",
            "GET\t/a HTTP/1.1",
            " GET /a HTTP/1.1",
            "GET /a HTTP/1.1 ",
            "GET /a",
            "GET",
            "GET /a b HTTP/1.1",
            "GET /a http/1.1",
            "GET /a HTTP/1.1\rX",
            "GET /a\n HTTP/1.1",
            "GET /\xe9 HTTP/1.1",
            "GET /a#b HTTP/1.1",
            "GET a HTTP/1.1",
            "GET x:80 HTTP/1.1",
            "GET ftp://x/ HTTP/1.1",
            "G(T /a HTTP/1.1",
            "G\x00T /a HTTP/1.1",
            "/a HTTP/1.1",
        )
    ],
    (b"", LINE),
    (b"\r\nGET /a HTTP/1.1\r\nHost: x", LINE),
    (b"PRI * HTTP/2.0", VERSION),
    *[(head(line=f"GET /a HTTP/{version}"), VERSION) for version in ("0.9", "1.2", "2", "3.0", "9.9", "1.10", "11")],
    *[
        (head(f"{name}: 5"), NAME)
        for name in (
            *("Content-Length ", "Content-Length\t", "Transfer-Encoding ", "Host "),
            *("X Y", "X\x00Y", "X\x7f", "", "\xdcber"),
            *("(x)", "x@y", '"x"', "X\rY", "X\nY", "[x]", "x/y", "x,y", "x;y", "x=y", "{x}", "x\\y", "x?y"),
        )
    ],
    (head("no colon"), NAME),
    (head("X: a", " folded: b"), FOLDED),
    (head("X: a", "\tb"), FOLDED),
    (head("Transfer-Encoding:", " chunked"), FOLDED),
    (head(" Transfer-Encoding: chunked"), FOLDED),
    *[
        (head(f"X: a{byte}b"), VALUE)
        for byte in (*map(chr, range(9)), "\n", "\x0b", "\x0c", "\r", *map(chr, range(14, 32)), "\x7f", "\n\n")
    ],
    *[(head(f"X: {value}"), VALUE) for value in ("\r", "\n", "\x00", "a\r", "a\n", "\na", "\x0bchunked")],
    (head(host=""), "the Host field is missing"),
    (head("Host: x"), "there is more than one Host"),
    (head("host: y", line="GET / HTTP/1.0"), "there is more than one Host"),
    *[
        (head(host=f"Host: {host}"), HOST)
        for host in ("", "a b", "a/b", "a@b", "a,\tb", "\xe9", "a\\b", "<x>", "a?b", "a#b")
    ],
    *[
        (head(f"Content-Length: {length}"), LENGTH)
        for length in (
            *("", "+5", "-5", "0x5", "5_0", "5, 5", "5 5", "5.0", "1e1", "five", "5;", "\xb2", "9" * 19, "9" * 5_000),
            *(digits.encode().decode("latin-1") for digits in ("\u0665", "\uff15", "\u096b")),
        )
    ],
    (head("Content-Length: 5", "Content-Length: 5"), "there is more than one Content-Length"),
    (head("Content-Length: 5", "content-length: 6"), "there is more than one Content-Length"),
    (head("Content-Length: 5", "Transfer-Encoding: chunked"), BOTH),
    (head("Transfer-Encoding: chunked", "Content-Length: 5"), BOTH),
    (head("Transfer-Encoding: x", "Content-Length: 0"), BOTH),
    *[
        (head(f"Transfer-Encoding: {coding}"), CODING)
        for coding in (
            *("", "chunked ", "chunked\t", "gzip", "identity", "gzip, chunked"),
            *("chunked, chunked", "chunked, identity", "chunked;q=1", "xchunked", "chunkedx", '"chunked"'),
            *(",chunked", "chunked,", "\xa0chunked"),
        )
    ],
    (head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), "there is more than one Transfer-Encoding"),
    (head("Transfer-Encoding: gzip", "transfer-encoding: chunked"), "there is more than one Transfer-Encoding"),
    (head("Transfer-Encoding: chunked", line="POST / HTTP/1.0"), "HTTP/1.0 does not support Transfer-Encoding"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "reason"), REFUSED)
def test_d19_an_ambiguous_head_is_refused(sent: bytes, reason: str) -> None:
    assert read_head(sent) == reason


@pytest.mark.parametrize(
    "prefix", [b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nHost: x\n\n", b"\x16\x03\x01\x00", b"GET /\x00", b"G\rE"]
)
def test_an_invalid_head_is_detected_before_its_end(prefix: bytes) -> None:
    assert can_never_be_valid(prefix)


# Heads of a malicious client: valid and ambiguous lines, with bytes inserted at any position.
words = st.sampled_from(
    ["Host", "Content-Length", "Transfer-Encoding", "Connection", "X", "x y", "Content-Length ", ""]
)
texts = st.sampled_from(
    ["x", "5", "+5", "5, 5", "chunked", "Chunked", "gzip, chunked", "close", "100-continue", "", "\xe9"]
)
spaces = st.sampled_from(["", " ", "\t", "\r\n ", "\x0b", "\xa0", "\r", "\n"])
doubtful = st.builds("{}:{}{}{}".format, words, spaces, texts, spaces)
clear = st.sampled_from(
    [
        *(
            "Content-Length: 5",
            "content-length:005 ",
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "Expect: 100-Continue",
        ),
        *(
            "Connection: close",
            "Connection: a, Keep-Alive",
            "X:",
            "X: \xe9\t\xa0 ",
            "!#$%&'*+-.^_`|~: \"(),/:;<=>?@[\\]{}",
        ),
    ]
)
lines = st.sampled_from(["GET / HTTP/1.1", "POST http://x?a=%20 HTTP/1.1", "POST /a HTTP/1.0", "m * HTTP/1.1"])
heads = st.builds(lambda line, rest: head(*rest, line=line), lines, st.lists(clear, max_size=4))
mixed = st.builds(lambda line, rest: head(*rest, line=line), lines, st.lists(clear | doubtful, max_size=4))
slipped = st.builds(
    lambda sent, at, byte: sent[: at % len(sent)] + byte + sent[at % len(sent) :],
    heads,
    st.integers(0, 99),
    st.binary(max_size=2),
)
anything = st.binary(max_size=300) | heads | mixed | slipped


def written(head: Head) -> bytes:
    lines = [f"{head.method} {head.target} HTTP/{head.version}", *(f"{name}: {value}" for name, value in head.fields)]
    return "\r\n".join(lines).encode("latin-1")


@given(anything)
def test_any_bytes_are_a_head_or_a_reason(sent: bytes) -> None:
    result = read_head(sent)
    if isinstance(result, str):
        assert re.fullmatch(r"[ -~]{10,80}", result)
    else:
        assert not can_never_be_valid(sent)
        assert read_head(written(result)) == result


@given(anything)
def test_h11_reads_an_accepted_head_in_the_same_way(sent: bytes) -> None:
    result = read_head(sent)
    if isinstance(result, str):
        return
    other = h11.Connection(h11.SERVER)
    other.receive_data(sent + b"\r\n\r\n")
    request = other.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target, request.http_version) == (
        result.method.encode(),
        result.target.encode(),
        result.version.encode(),
    )
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
    assert fields == [  # h11 writes the coding in lower case
        (name, value.lower() if name == "transfer-encoding" else value) for name, value in result.fields
    ]
    if [name for name, _ in result.fields].count("expect") < 2:  # two are answered with 417, h11 joins them
        assert other.they_are_waiting_for_100_continue is result.expect_continue
    body = other.next_event()
    if result.chunked or result.content_length:
        assert body is h11.NEED_DATA or body is h11.PAUSED
    else:
        assert isinstance(body, h11.EndOfMessage)


@given(anything, st.integers(0, 300))
def test_no_prefix_of_an_accepted_head_is_ruled_out(sent: bytes, length: int) -> None:
    if isinstance(read_head(sent), Head):
        assert not can_never_be_valid(sent[:length])
