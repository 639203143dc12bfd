"""Strict parsing of HTTP/1 requests: heads and chunked bodies.

A request that two servers could understand differently is refused (RFC 9112): both lengths at once, a length twice,
every coding except `chunked`, whitespace before a colon, folded lines, control characters, bare line feeds, a missing
or second Host. What proxies send is accepted: `chunked` in any case, chunk extensions, and trailers, which are
dropped. Two patterns read a head, in about 4 µs for six fields.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

MAX_HEAD_BYTES = 8_192
MAX_FIELDS = 100
TOO_MANY_FIELDS = f"there are more than {MAX_FIELDS} header fields"
MAX_CHUNK_LINE_BYTES = 1_024  # the size of a chunk and its extensions
REQUEST_ID_HEADER = "x-request-id"

_MAX_LENGTH_DIGITS = 18

_TCHARS = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_TARGET = r'(?:/[!"$-~]*+|\*|[Hh][Tt][Tt][Pp][Ss]?://[!"$-~]++)'  # visible ASCII except #, which begins a fragment
_END = r"(?=\r\n|\Z)"
_REQUEST_LINE = re.compile(rf"({_TCHARS}) ({_TARGET}) HTTP/(1\.[01]){_END}")
_FIELD = re.compile(rf"\r\n({_TCHARS}):[ \t]*+([\t -~\x80-\xff]*+){_END}")
_FIELD_NAME = re.compile(rf"{_TCHARS}:")
_OTHER_VERSION = re.compile(r".* HTTP/(?!1\.[01]\Z)[0-9.]+")
_HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]+")
_NEVER_VALID = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)")
_UNIQUE_FIELDS = ("content-length", "host", "transfer-encoding")

# Groups are not repeated possessively: Python before 3.11.5 then matches what the pattern excludes (gh-106052).
_EXTENSION = (
    rf'[ \t]*+;[ \t]*+{_TCHARS}(?:[ \t]*+=[ \t]*+(?:{_TCHARS}|"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"))?'
)
_CHUNK_SIZE = re.compile(rf"([0-9A-Fa-f]{{1,8}})(?:{_EXTENSION})*\r\n".encode("latin-1"))
_CHUNK_SIZE_PREFIX = re.compile(rb"(?:[0-9A-Fa-f]{1,8}[ \t]*+(?:;[\t -~\x80-\xff]*+)?\r?)?")
_TRAILER = re.compile(rf"({_TCHARS}):[\t -~\x80-\xff]*+".encode("latin-1"))

# 8 to 64 letters, digits, dots and hyphens. No underscore: an API key sent here by mistake must not get into logs.
_REQUEST_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{7,63}", re.ASCII)


class Head(msgspec.Struct, frozen=True, gc=False):
    """A request line and its fields. Names are in lower case, values are stripped. `version` is 1.0 or 1.1."""

    method: str
    target: str
    version: str
    fields: list[tuple[str, str]]
    content_length: int | None
    chunked: bool
    keep_alive: bool
    expect_continue: bool


def read_head(head: bytes) -> Head | str:
    """Return the head in the bytes before the empty line, or the reason why it is not valid."""
    text = head.decode("latin-1")
    line, raw_fields = _REQUEST_LINE.match(text), _FIELD.findall(text)
    if line is None or len(raw_fields) != text.count("\r"):  # every CR begins a field
        return _syntax_error(text)
    if len(raw_fields) > MAX_FIELDS:
        return TOO_MANY_FIELDS
    fields = [(name.lower(), value.rstrip(" \t")) for name, value in raw_fields]
    by_name = dict(fields)
    method, target, version = line.groups()

    if len(by_name) != len(fields):
        names = [name for name, _ in fields]
        for name in _UNIQUE_FIELDS:
            if names.count(name) > 1:
                return f"there is more than one {name.title()}"
    host, length, connection = by_name.get("host"), by_name.get("content-length"), by_name.get("connection")
    if host is None:
        if version == "1.1":
            return "the Host field is missing"
    elif _HOST.fullmatch(host) is None:
        return "Host is not valid"
    if length is not None and not (length.isascii() and length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS):
        return "Content-Length is not a number"
    if "transfer-encoding" in by_name:
        if length is not None:
            return "there are both Content-Length and Transfer-Encoding"
        if version == "1.0":
            return "HTTP/1.0 does not support Transfer-Encoding"
        # Compared before whitespace is stripped: another server may not strip it.
        (coding,) = (value for name, value in raw_fields if name.lower() == "transfer-encoding")
        if coding.lower() != "chunked":
            return "Transfer-Encoding can only be chunked"

    keep_alive = version == "1.1"
    if connection is not None:
        values = ",".join(value.lower() for name, value in fields if name == "connection")
        options = {option.strip(" \t") for option in values.split(",")}
        keep_alive = "close" not in options and (version == "1.1" or "keep-alive" in options)
    expected = by_name.get("expect")
    return Head(
        method,
        target,
        version,
        fields,
        None if length is None else int(length),
        "transfer-encoding" in by_name,
        keep_alive,
        expected is not None and version == "1.1" and expected.lower() == "100-continue",
    )


def can_never_be_valid(prefix: bytes | bytearray) -> bool:
    """Return whether a head that begins with these bytes can no longer become valid."""
    return _NEVER_VALID.search(prefix) is not None


def caller_request_id(fields: Iterable[tuple[str, str]]) -> str | None:
    """Return the id in `X-Request-Id`, or None if the field is missing, repeated, or not acceptable in logs."""
    ids = [value for name, value in fields if name == REQUEST_ID_HEADER]
    return ids[0] if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else None


def _syntax_error(text: str) -> str:
    first, *others = text.split("\r\n")
    if _REQUEST_LINE.fullmatch(first) is None:
        if _OTHER_VERSION.fullmatch(first):
            return "only HTTP/1.0 and HTTP/1.1 are supported"
        return "the request line is not valid"
    for line in others:
        if line[:1] in (" ", "\t"):
            return "a header field is folded"
        if _FIELD_NAME.match(line) is None:
            return "the name of a header field is not valid"
    return "the value of a header field has control characters"


ChunkProgress = Literal["unfinished", "whole", "malformed", "too_large"]


class ChunkedBody:
    """A chunked body of at most `limit` bytes, taken out of a buffer as it arrives."""

    def __init__(self, limit: int) -> None:
        self.body = bytearray()
        self._limit = limit

    def take(self, buffer: bytearray) -> ChunkProgress:
        """Move complete chunks from the start of the buffer to the body. Later bytes stay in the buffer."""
        while (size := _CHUNK_SIZE.match(buffer, 0, MAX_CHUNK_LINE_BYTES)) is not None:
            start = size.end()
            end = start + int(size[1], 16)
            if start == end:
                return _drop_trailers(buffer, start)
            if len(self.body) + end - start > self._limit:
                return "too_large"
            if len(buffer) < end + 2:
                return "unfinished"
            if buffer[end : end + 2] != b"\r\n":
                return "malformed"
            self.body += buffer[start:end]
            del buffer[: end + 2]
        is_prefix = len(buffer) < MAX_CHUNK_LINE_BYTES and _CHUNK_SIZE_PREFIX.fullmatch(buffer)
        return "unfinished" if is_prefix else "malformed"


def _drop_trailers(buffer: bytearray, start: int) -> ChunkProgress:
    """Drop the last chunk of a body, which ends at `start`, and the trailers after it, when they are complete."""
    line = start
    while (end := buffer.find(b"\r\n", line, start + MAX_HEAD_BYTES)) >= 0:
        if end == line:
            del buffer[: end + 2]
            return "whole"
        trailer = _TRAILER.fullmatch(buffer, line, end)
        if trailer is None or trailer[1].decode().lower() in _UNIQUE_FIELDS:
            return "malformed"
        line = end + 2
    is_hopeless = len(buffer) >= start + MAX_HEAD_BYTES or can_never_be_valid(buffer[line:])
    return "malformed" if is_hopeless else "unfinished"
