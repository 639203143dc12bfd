"""The fast path for single events: parsed, authenticated and queued where their bytes arrive, without Sanic.

On the ordinary path half of an event's CPU time is Sanic's: a task, a request and a response object. The fast path
takes only the usual case: `POST /api/v1/events` with a Content-Length, JSON, a key that was verified a moment ago, a
valid event, and room in the queue. Everything else, and so every error of the client, is handed to Sanic with its
bytes untouched. `WORKBENCH_FAST_PATH=off` leaves all requests to Sanic.
"""

from asyncio import TimerHandle
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

from api.clock import monotonic_ns, uuid7
from api.ingest.parse import Outcome, Refused
from api.routes.access_log import ReceivedRequest
from api.routes.events import accepted_answer, refused_answer
from api.routes.request import Services
from api.routes.responses import HEADERS, refusal_body
from api.wire.connection import MIN_ADMITTED_BYTES, HttpConnection
from api.wire.http1 import MAX_HEAD_BYTES, Head, caller_request_id, read_head
from workbench.language.codec import encode

BODY_TIMEOUT_S = 0.5  # for a body that arrives after its head; later, Sanic waits for it
_ROUTE = "/api/v1/events"
_REQUEST_LINE = b"POST /api/v1/events HTTP/1.1\r\n"
_UNUSUAL_FIELDS = {"content-encoding", "expect", "upgrade"}


class _PartialRequest(msgspec.Struct):
    """A request with an incomplete body: the bytes received, the number to expect, and the timer that gives up."""

    raw: bytes
    size: int
    timer: TimerHandle


class FastPathConnection(HttpConnection):
    """A connection with the fast path. One request is processed at a time; bytes after it wait in Sanic's buffer."""

    __slots__ = ("_has_ended", "_is_queued", "_partial", "_request", "_services")

    def connection_made(self, transport: Any) -> None:
        self._partial: _PartialRequest | None = None
        self._is_queued = False  # an event of this connection is in the queue and not answered yet
        self._has_ended = False  # the client has ended its side while its event was in the queue
        self._request = ReceivedRequest("POST", _ROUTE, "")
        self._services: Services = self.app.ctx.services
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_queued:
            self.recv_buffer += data
            if len(self.recv_buffer) >= self.app.config.REQUEST_BUFFER_SIZE and self.transport is not None:
                self.transport.pause_reading()
        elif self._partial is not None:
            raw, partial = self._partial.raw + data, self._partial
            if len(raw) < partial.size:
                partial.raw = raw
                return
            partial.timer.cancel()
            self._partial = None
            if len(raw) > partial.size or not self._accept(raw):
                super().data_received(raw)  # type: ignore[no-untyped-call]
        elif not (data.startswith(_REQUEST_LINE) and self.is_idle and self._accept(data)):
            super().data_received(data)  # type: ignore[no-untyped-call]

    def eof_received(self) -> bool:
        if self._is_queued:
            self._has_ended = True
            return True
        if self._partial is not None:
            self._partial.timer.cancel()
            self._hand_over()
        return super().eof_received()

    def close_if_idle(self) -> bool:
        return not self._is_queued and self._partial is None and super().close_if_idle()

    def _accept(self, raw: bytes) -> bool:
        """Queue the event, or wait for the rest of its body; False if the request is one for Sanic."""
        body_start = raw.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
        head = _usual_head(raw[: body_start - 4]) if body_start > 3 else None
        if head is None or not self.app.config.KEEP_ALIVE:
            return False
        authorization, content_length, client_request_id, traceparent = head
        principal = self._services.verifier.cached_principal(authorization)
        size = body_start + content_length
        if principal is None or "ingest" not in principal.scopes or len(raw) > size:
            return False
        if len(raw) < size:
            timer = self.loop.call_later(BODY_TIMEOUT_S, self._hand_over)
            self._partial = _PartialRequest(raw, size, timer)
            return True
        if raw[body_start : body_start + 1] != b"{":
            return False
        request_id, since_ns = client_request_id or uuid7(self._services.clock.now_us()), monotonic_ns()
        self._request = ReceivedRequest("POST", _ROUTE, request_id, since_ns, principal, traceparent)
        self._is_queued = self._services.pipeline.accept(
            principal.org_id,
            raw[body_start:],
            principal.test,
            since_ns,
            self._answer,
            request_id,
            key_id=principal.key_id,
            strict=principal.strict,
        )
        self.restart_timer()
        return self._is_queued

    def _hand_over(self) -> None:
        """Give an incomplete request to Sanic, which waits longer and answers 408."""
        partial, self._partial = self._partial, None
        if partial is not None:
            super().data_received(partial.raw)  # type: ignore[no-untyped-call]

    def _answer(self, outcomes: list[Outcome]) -> None:
        self._is_queued = False
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        keep_alive = self.app.config.KEEP_ALIVE
        (outcome,) = outcomes
        if isinstance(outcome, Refused):
            status, problems, code = refused_answer(outcome)
            body = refusal_body(problems, code, self._request.request_id, "/docs#events.ingest_one")
        else:
            status, body = 202, encode(accepted_answer(outcome))
        self._services.access_log.record(self._request, status)
        fields = f"x-request-id: {self._request.request_id}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        transport.write(_response_head(status, keep_alive) + fields + body)
        self.restart_timer()
        if not keep_alive:
            self.close()
        elif self.recv_buffer:
            waiting = bytes(self.recv_buffer)
            self.recv_buffer.clear()
            transport.resume_reading()
            self.data_received(waiting)
            if self._has_ended and not self._is_queued and not self.eof_received():
                self.close()
        elif self._has_ended:
            self.close()


@lru_cache(maxsize=512)  # a client sends nearly the same head with every event
def _usual_head(raw: bytes) -> tuple[str, int, str | None, str | None] | None:
    """Return `Authorization`, Content-Length, request id and `traceparent`; None if anything in the head is unusual."""
    head = read_head(raw)
    if not isinstance(head, Head) or head.content_length is None or not 0 < head.content_length <= MIN_ADMITTED_BYTES:
        return None
    fields = dict(head.fields)
    has_duplicates = len(fields) != len(head.fields)
    if has_duplicates or not _UNUSUAL_FIELDS.isdisjoint(fields) or not head.keep_alive:
        return None
    if fields.get("content-type", "application/json") != "application/json" or "authorization" not in fields:
        return None
    return fields["authorization"], head.content_length, caller_request_id(head.fields), fields.get("traceparent")


@lru_cache  # a few statuses, with and without keep-alive
def _response_head(status: int, keep_alive: bool) -> bytes:
    fields = {
        "content-type": "application/json",
        "connection": "keep-alive" if keep_alive else "close",
        **HEADERS.get(status, {}),
    }
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()
