"""The express lane: single events are answered where their bytes arrive, without a task, a request or a response object.

It takes the usual request only: `POST /api/v1/events` with a length, JSON, a key that was verified just now, a valid event,
room in the queue. Everything else, and so every refusal of the caller's, goes the ordinary way through Sanic, untouched.
On the ordinary way half of an event's CPU time is Sanic's.
"""

from asyncio import TimerHandle
from functools import lru_cache
from http import HTTPStatus
from time import monotonic
from typing import Any

import msgspec
from sanic.http import Stage

from api import tracing
from api.clock import monotonic_ns, uuid7
from api.ingest.outcome import Outcome, Refused
from api.language.codec import encode
from api.routes.answers import HEADERS, refusal_body
from api.routes.edge import traced
from api.routes.entrance import Parts
from api.routes.events import accepted, refused
from api.wire.connection import Connection
from api.wire.head import MAX_HEAD, Head, read_head
from api.wire.request_id import given_id

LONGEST = 65_536  # bytes of a body worth waiting for here
PATIENCE = 0.5  # seconds for a body that arrives after its head
_ROUTE = "/api/v1/events"
_REQUEST_LINE = b"POST /api/v1/events HTTP/1.1\r\n"
_UNUSUAL = {"content-encoding", "expect", "upgrade"}


class _Begun(msgspec.Struct):
    """A request whose body has not come whole: its bytes so far, and how many there will be."""

    raw: bytes
    size: int
    timer: TimerHandle


class ExpressConnection(Connection):
    """A connection with an express lane. One request is under way at a time: what comes meanwhile waits in Sanic's buffer."""

    __slots__ = ("_begun", "_parts", "_request_id", "_since_ns", "_storing")

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._begun: _Begun | None = None
        self._storing = False
        self._request_id = ""
        self._since_ns = 0
        self._parts: Parts = self.app.ctx.parts
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take an event, or hand the bytes to Sanic."""
        if self._storing:
            self._hold(data)
        elif self._begun is not None:
            self._go_on(self._begun.raw + data, self._begun)
        elif not (data.startswith(_REQUEST_LINE) and self._idle and self._take(data)):
            super().data_received(data)  # type: ignore[no-untyped-call]

    def close_if_idle(self) -> bool:
        """Close the connection unless a request is under way; return whether it was closed."""
        if self._storing or self._begun is not None:
            return False
        return bool(super().close_if_idle())  # type: ignore[no-untyped-call]

    @property
    def _idle(self) -> bool:
        http = self.http
        return http is not None and http.stage is Stage.IDLE and not self.recv_buffer and self._can_write.is_set()

    def _take(self, raw: bytes) -> bool:
        end = raw.find(b"\r\n\r\n", 0, MAX_HEAD) + 4
        ticket = _ticket(raw[: end - 4]) if end > 3 else None
        if ticket is None or not self.app.config.KEEP_ALIVE:
            return False
        authorization, length, given = ticket
        principal = self._parts.verifier.believed(authorization)
        if principal is None or "ingest" not in principal.scopes or len(raw) > end + length:
            return False
        if len(raw) < end + length:
            timer = self.loop.call_later(PATIENCE, self._give_back)
            self._begun = _Begun(raw, end + length, timer)
            return True
        if raw[end : end + 1] != b"{":
            return False
        request_id = self._request_id = given or uuid7(self._parts.clock.now_us())
        since_ns = self._since_ns = monotonic_ns()
        self._storing = self._parts.pipeline.accept(
            principal.org_id, raw[end:], principal.test, since_ns, self._answer, request_id
        )
        self._time = monotonic()
        return self._storing

    def _go_on(self, raw: bytes, begun: _Begun) -> None:
        if len(raw) < begun.size:
            begun.raw = raw
            return
        begun.timer.cancel()
        self._begun = None
        if len(raw) > begun.size or not self._take(raw):
            super().data_received(raw)  # type: ignore[no-untyped-call]

    def _give_back(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            super().data_received(begun.raw)  # type: ignore[no-untyped-call]

    def _hold(self, data: bytes) -> None:
        self.recv_buffer += data
        if len(self.recv_buffer) >= self.app.config.REQUEST_BUFFER_SIZE and self.transport is not None:
            self.transport.pause_reading()

    def _answer(self, outcomes: list[Outcome]) -> None:
        self._storing = False
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        keep_alive = self.app.config.KEEP_ALIVE
        transport.write(self._response(outcomes[0], keep_alive))
        self._time = monotonic()
        if not keep_alive:
            self.close()
        elif self.recv_buffer:
            held = bytes(self.recv_buffer)
            self.recv_buffer.clear()
            transport.resume_reading()
            self.data_received(held)

    def _response(self, outcome: Outcome, keep_alive: bool) -> bytes:
        if isinstance(outcome, Refused):
            status, problems, code = refused(outcome)
            body = refusal_body(problems, code, self._request_id)
        else:
            status, body = 202, encode(accepted(outcome))
        self._parts.edge.note("POST", _ROUTE, status, self._request_id)
        tracing.record("request", self._since_ns, traced(_ROUTE, status, self._request_id))
        rest = f"x-request-id: {self._request_id}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        return _head(status, keep_alive) + rest + body


@lru_cache(maxsize=512)  # one client sends nearly the same head every time
def _ticket(raw: bytes) -> tuple[str, int, str | None] | None:
    """Return `Authorization`, the length of the body and the caller's id; None when anything in the head is unusual."""
    head = read_head(raw)
    if not isinstance(head, Head) or head.content_length is None or not 0 < head.content_length <= LONGEST:
        return None
    fields = dict(head.fields)
    usual = len(fields) == len(head.fields) and _UNUSUAL.isdisjoint(fields) and head.keep_alive
    if not usual or fields.get("content-type", "application/json") != "application/json":
        return None
    authorization = fields.get("authorization")
    return None if authorization is None else (authorization, head.content_length, given_id(head.fields))


@lru_cache
def _head(status: int, keep_alive: bool) -> bytes:
    fields = {
        "content-type": "application/json",
        "connection": "keep-alive" if keep_alive else "close",
        **HEADERS.get(status, {}),
    }
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()
