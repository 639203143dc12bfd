"""A chunked body is assembled or refused, independent of the pieces in which it arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.http1 import MAX_CHUNK_LINE_BYTES, MAX_HEAD_BYTES, ChunkedBody, ChunkProgress

HELLO = b"%b\r\nhello\r\n0\r\n\r\n"


def read_chunks(sent: bytes, limit: int = 100) -> tuple[ChunkProgress, bytes, bytes]:
    """Return the progress, the body, and the rest of the buffer."""
    chunks, buffer = ChunkedBody(limit), bytearray(sent)
    progress = chunks.take(buffer)
    return progress, bytes(chunks.body), bytes(buffer)


def test_chunks_become_a_body_and_the_bytes_after_it_stay() -> None:
    assert read_chunks(b"5\r\nhello\r\n1\r\n \r\n00000005\r\nworld\r\n0\r\n\r\nGET /") == (
        "whole",
        b"hello world",
        b"GET /",
    )
    assert read_chunks(b"A\r\n0123456789\r\n0a\r\n0123456789\r\n000\r\n\r\n") == ("whole", b"0123456789" * 2, b"")
    assert read_chunks(b"0\r\n\r\n") == ("whole", b"", b"")


@pytest.mark.parametrize("extension", [b";x", b";x=1", b' ; x\t=\t"a \\" b;"', b";a=1;b", b";a=" + b"1" * 1_000])
def test_extensions_of_chunks_are_ignored(extension: bytes) -> None:
    assert read_chunks(HELLO % (b"5" + extension)) == ("whole", b"hello", b"")
    assert read_chunks(b"5\r\nhello\r\n0" + extension + b"\r\n\r\nGET /") == ("whole", b"hello", b"GET /")


@pytest.mark.parametrize("trailer", [b"X: y\r\n", b"x-checksum:\r\nDate: today \r\n", b"X: caf\xe9\t\r\n"])
def test_trailers_are_dropped(trailer: bytes) -> None:
    assert read_chunks(b"5\r\nhello\r\n0\r\n" + trailer + b"\r\nGET /") == ("whole", b"hello", b"GET /")
    assert read_chunks(b"5\r\nhello\r\n0\r\n" + trailer)[0] == "unfinished"


def test_the_sizes_of_extensions_and_trailers_are_bounded() -> None:
    assert read_chunks(b"5;" + b"x" * MAX_CHUNK_LINE_BYTES)[0] == "malformed"
    assert read_chunks(HELLO % (b"5;" + b"x" * MAX_CHUNK_LINE_BYTES))[0] == "malformed"
    assert read_chunks(b"0\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES)[0] == "malformed"
    assert read_chunks(b"0\r\nX: " + b"y" * MAX_HEAD_BYTES)[0] == "malformed"


def test_a_body_over_the_limit_is_too_large_before_it_has_arrived() -> None:
    assert read_chunks(b"5\r\nhello\r\n0\r\n\r\n", limit=5)[0] == "whole"
    assert read_chunks(b"5\r\nhello\r\n1\r\n", limit=5)[0] == "too_large"
    assert read_chunks(b"ffffffff\r\n", limit=5)[0] == "too_large"


@pytest.mark.parametrize(
    "sent",
    [
        *(HELLO % size for size in (b"0x5", b" 5", b"5 ", b"+5", b"-5", b"5_", b"x", b"", b"000000005")),
        *(HELLO % size for size in (b"5;", b"5;;x", b"5;=1", b"5;x=", b"5;x y", b"5;x\x00", b"5;x\n", b'5;x="\r\n"')),
        *(HELLO % size for size in (b'5;x="y', b"5;x=y=z", b"5 x", b";x", b"5\t", b"\x005", "\u0665".encode())),
        *(b"5%bhello\r\n0\r\n\r\n" % end for end in (b"\n", b"\r", b"\r\r\n", b"\n\r", b"")),
        *(b"5\r\nhello%b0\r\n\r\n" % end for end in (b"\n", b"\r", b"", b"XX", b"\n\n", b" \r\n", b"\r\n\r\n")),
        *(b"5\r\nhello\r\n0\r\n%b" % trailer for trailer in (b"GET / HTTP/1.1\r\n\r\n", b" \r\n", b"X : y\r\n")),
        *(b"5\r\nhello\r\n0\r\n%b\r\n\r\n" % trailer for trailer in (b"X: y\n", b"X: y\r\n z", b"X: \x00", b": y")),
        *(b"5\r\nhello\r\n0\r\n%b: 5\r\n\r\n" % name for name in (b"Content-Length", b"transfer-encoding", b"HOST")),
        b"0\n\n",
        b"0\r\n\n\r\n",
        b"0;\r\n\r\n",
        b"5\r\nhello\r\n0\r\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\n\n",
    ],
)  # fmt: skip
def test_d19_chunks_of_any_other_form_are_malformed(sent: bytes) -> None:
    assert read_chunks(sent)[0] == "malformed"


@pytest.mark.parametrize(
    "sent", [b"", b"5", b"5\r", b"5\r\n", b"5\r\nhell", b"5\r\nhello\r", b"0\r\n", b"0\r\n\r", b"12345678\r"]
)
def test_a_prefix_of_valid_chunks_is_unfinished(sent: bytes) -> None:
    assert read_chunks(sent, limit=1 << 32) == ("unfinished", b"", sent)


@given(
    st.lists(st.binary(min_size=1, max_size=20), max_size=5),
    st.lists(st.integers(0, 200), max_size=10),
    st.binary(max_size=9),
)
def test_the_body_does_not_depend_on_how_it_is_cut(parts: list[bytes], cuts: list[int], rest: bytes) -> None:
    sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n" + rest
    assert by_pieces(sent, cuts) == ("whole", b"".join(parts), rest)


pieces = st.sampled_from(
    [b"0", b"1", b"5", b"\r\n", b"\r", b"\n", b"a", b"hello", b";", b" ", b"\x00", b"ff", b":", b"=", b'"']
)


@given(st.lists(pieces, max_size=20).map(b"".join))
def test_any_bytes_give_the_same_result_byte_by_byte(sent: bytes) -> None:
    assert by_pieces(sent, list(range(len(sent))))[:2] == read_chunks(sent)[:2]


def by_pieces(sent: bytes, cuts: list[int]) -> tuple[ChunkProgress, bytes, bytes]:
    """Take the bytes in pieces; return the progress, the body, and the rest of the buffer."""
    chunks, buffer = ChunkedBody(100), bytearray()
    progress: ChunkProgress = "unfinished"
    for begin, end in pairwise(sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})):
        buffer += sent[begin:end]
        if progress == "unfinished":
            progress = chunks.take(buffer)
    return progress, bytes(chunks.body), bytes(buffer)
