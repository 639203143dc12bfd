"""HTTP/1 with strict parsing of requests: a request is complete, valid and in time before a handler sees it.

A request that two servers could understand differently is refused (RFC 9112): both lengths at once, a length twice,
every coding except `chunked`, whitespace before a colon, folded lines, control characters, a missing or second Host. In
a chunked body a size is one to eight hex digits and nothing else, lines end in CR LF, and there are no trailers. Every
request is parsed here: two patterns read a head, in about 4 µs for six fields.

An error in the middle of a request ends the connection, because nothing says where the next request would begin.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal

import msgspec
from sanic.compat import Header
from sanic.exceptions import SanicException
from sanic.http import Http, Stage
from sanic.request import Request

MAX_HEAD_BYTES = 8_192
MAX_FIELDS = 100
TOO_MANY_FIELDS = f"there are more than {MAX_FIELDS} header fields"
MIN_ADMITTED_BYTES = 65_536  # for a larger body, the client has to show a valid key first
REQUEST_ID_HEADER = "x-request-id"

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LINGER_S = 1.0
_PAUSE_AFTER_503_S = 0.1
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

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_CHUNK_SIZE_PREFIX = re.compile(rb"(?:[0-9A-Fa-f]{1,8}\r?)?")

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
        if coding != "chunked":
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
    """Return whether the first bytes of a head rule out that it becomes a valid one."""
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
        """Move complete chunks from the start of the buffer to the body. The bytes after the last chunk stay."""
        while (size := _CHUNK_SIZE.match(buffer)) is not None:
            start = size.end()
            end = start + int(size[1], 16)
            if len(self.body) + end - start > self._limit:
                return "too_large"
            if len(buffer) < end + 2:
                return "unfinished"
            if buffer[end : end + 2] != b"\r\n":
                return "malformed"
            self.body += buffer[start:end]
            del buffer[: end + 2]
            if start == end:
                return "whole"
        return "unfinished" if _CHUNK_SIZE_PREFIX.fullmatch(buffer) else "malformed"


class TransportError(SanicException):
    """A request refused before routing: 400, 408, 413, 417, 431 or 503. The message is for the client."""

    quiet = True


class LargeBodies:
    """Admission of large bodies: `admit` raises for a client without the right, and `room` bounds bytes in memory."""

    def __init__(self, admit: Callable[[Request], Awaitable[object]], room: int) -> None:
        self.admit = admit
        self._room = room

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve memory for a body while it is received and handled; raise TransportError if there is not enough."""
        if size > self._room:
            raise TransportError("too many large requests in progress, try again", 503)
        self._room -= size
        try:
            yield
        finally:
            self._room += size


class StrictHttp(Http):
    """The requests of one connection, one after the other.

    `REQUEST_TIMEOUT` bounds the time from the first to the last byte of a request. A body has at most
    `BODY_LIMITS[path]` bytes, where `*` stands for one segment of the path, and otherwise `REQUEST_MAX_SIZE`. Large
    bodies need admission by `ctx.large_bodies`.
    """

    __slots__ = ("_due", "_lingers", "_pauses")

    async def http1(self) -> None:
        """Answer requests until the connection ends."""
        self._lingers = False
        await super().http1()  # type: ignore[no-untyped-call]
        if self._lingers:
            await self._linger()

    async def http1_request_header(self) -> None:
        """Receive one request, head and body, into `self.request`."""
        if self._pauses:
            await asyncio.sleep(_PAUSE_AFTER_503_S)
        self._due = self.protocol.loop.time() + self.protocol.request_timeout
        head = await self._receive_head()
        self._create_request(head)
        if head.version == "1.1" and not head.expect_continue and "expect" in self.request.headers:
            raise TransportError("Expect can only be 100-continue", 417)
        if head.chunked or head.content_length:
            self.request.body = await self._receive_body(head)

    def init_for_request(self) -> None:
        """Reset the state between requests."""
        # After a 503 the connection pauses, so a client that retries at once costs little.
        last = getattr(self, "response", None)  # unset before the first request
        self._pauses = last is not None and last.status == 503
        super().init_for_request()  # type: ignore[no-untyped-call]

    async def error_response(self, exception: Exception) -> None:
        """Answer an error. If the request is incomplete, the client is still sending the rest of it."""
        self._lingers = self.stage is Stage.REQUEST
        await super().error_response(exception)

    async def _receive_head(self) -> Head:
        buffer = self.recv_buffer
        while (end := buffer.find(b"\r\n\r\n")) < 0 and len(buffer) <= MAX_HEAD_BYTES:
            if can_never_be_valid(buffer):
                raise _malformed("the head has control characters or bare line ends")
            await self._receive_in_time()
        if not 0 <= end <= MAX_HEAD_BYTES:
            raise TransportError(
                f"the head of the request is too large: at most {MAX_HEAD_BYTES} bytes are accepted", 431
            )
        head = read_head(bytes(buffer[:end]))
        if head is TOO_MANY_FIELDS:
            raise TransportError(head, 431)
        if isinstance(head, str):
            raise _malformed(head)
        del buffer[: end + 4]
        return head

    def _create_request(self, head: Head) -> None:
        protocol = self.protocol
        request = protocol.request_class(
            url_bytes=head.target.encode("ascii"),
            headers=Header(head.fields),
            version=head.version,
            method=head.method,
            transport=protocol.transport,  # type: ignore[arg-type]
            app=protocol.app,
        )
        request._id = caller_request_id(head.fields)  # with None, Sanic creates one on demand
        protocol.request_class._current.set(request)
        protocol.state["requests_count"] += 1
        request.stream = self
        self.request = request
        self.keep_alive = head.keep_alive and protocol.app.config.KEEP_ALIVE
        self.head_only = head.method == "HEAD"
        self.upgrade_websocket = request.headers.get("upgrade", "").lower() == "websocket"

    async def _receive_body(self, head: Head) -> bytes:
        limit = _body_limit(self.protocol.app.config.BODY_LIMITS, head.target) or self.protocol.request_max_size
        length = head.content_length or 0
        if length > limit:
            raise _too_large(limit)
        with ExitStack() as reserved:
            if length > MIN_ADMITTED_BYTES:
                await self._admit(reserved, length)
            if head.expect_continue:
                await self._send(_CONTINUE)
            if head.content_length is None:
                return await self._receive_chunks(limit, reserved)
            buffer = self.recv_buffer
            while len(buffer) < length:
                await self._receive_in_time()
            body = bytes(buffer[:length])
            del buffer[:length]
            return body

    async def _receive_chunks(self, limit: int, reserved: ExitStack) -> bytes:
        chunks, admitted = ChunkedBody(limit), False
        while (progress := chunks.take(self.recv_buffer)) == "unfinished":
            if not admitted and len(chunks.body) + len(self.recv_buffer) > MIN_ADMITTED_BYTES:
                await self._admit(reserved, limit)  # the length is not known, so the limit is reserved
                admitted = True
            await self._receive_in_time()
        match progress:
            case "malformed":
                raise _malformed("a chunk of the body is not valid")
            case "too_large":
                raise _too_large(limit)
            case "whole":
                return bytes(chunks.body)

    async def _admit(self, reserved: ExitStack, size: int) -> None:
        large_bodies: LargeBodies = self.protocol.app.ctx.large_bodies
        await large_bodies.admit(self.request)
        reserved.enter_context(large_bodies.reserve(size))

    async def _receive_in_time(self) -> None:
        try:
            async with asyncio.timeout_at(self._due):
                await self._receive_more()
        except TimeoutError:
            raise TransportError("the request did not arrive in time", 408) from None

    async def _linger(self) -> None:
        # Closing with unread bytes resets the connection, and the client could lose the answer.
        transport = self.protocol.transport
        if transport is None or transport.is_closing():
            return
        self.stage = Stage.FAILED
        transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while True:
                    self.recv_buffer.clear()
                    await self._receive_more()


def _body_limit(limits: Mapping[str, int], target: str) -> int | None:
    path = target.partition("?")[0].rstrip("/")
    if path in limits:
        return limits[path]
    segments = path.split("/")
    for pattern, limit in limits.items():
        expected = pattern.split("/")
        if len(expected) == len(segments) and all(map(lambda part, own: part in ("*", own), expected, segments)):
            return limit
    return None


def _malformed(reason: str) -> TransportError:
    return TransportError(f"the request is not valid HTTP: {reason}", 400)


def _too_large(limit: int) -> TransportError:
    return TransportError(f"the body is too large: at most {limit} bytes are accepted here", 413)
