"""`/api/v1/events`: ingest of single events and batches, and the feed of recent events.

Ingest: docs/contract.md 4.1 and 4.2. Each event of a batch succeeds or fails alone, so a batch is split into the JSON
texts of its events before any of them is validated.

The feed (`/events/recent`) is a page, or with `follow` a stream of Server-Sent Events. A stream ends when the server
stops, when its key ends, or after `seconds`; a client that reconnects with the last `id` misses nothing.
"""

import asyncio
import logging
from contextlib import aclosing
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta
from sanic import Blueprint, HTTPResponse, Request

from api.auth.verify import Principal
from api.catalog.tail import MAX_EVENTS, OUTCOMES, RETENTION, Cursor, Tail, TailItem, TooManyFollowersError, read_cursor
from api.clock import monotonic_ns
from api.ingest.parse import (
    Accepted,
    AcceptedEvent,
    DryRun,
    Duplicate,
    Outcome,
    RateLimited,
    Refused,
    Rejected,
    Unavailable,
)
from api.routes.request import READ_EVENTS, Access, Operation, expect_json, is_still_allowed, principal_of, services
from api.routes.responses import Code, RequestRefusedError, answer, refusal
from api.store.events import list_misspelt
from workbench.language.body import Body
from workbench.language.codec import encode, malformed_json, replace_lone_surrogates, truncate_depth
from workbench.language.event import MAX_UNKNOWN_FIELDS, UNKNOWN_FIELD, EventBody, unknown_field
from workbench.language.problem import Problem, Problems
from workbench.language.responses import BatchResponse, EventOutcome, EventResponse, MisspeltFieldView, RecentEvent

blueprint = Blueprint("events", url_prefix="/api/v1")

INGEST_PATHS = frozenset({"/api/v1/events", "/api/v1/events/batch"})
MAX_BATCH_EVENTS = 100
SPLIT_IN_THREAD_BYTES = 1_048_576  # splitting a larger body would delay other requests noticeably
RECENT_EVENTS = 50
HEARTBEAT_S = 15
MAX_STREAM_S = 86_400

_RATE_LIMITED = "rate limit exceeded, back off exponentially and retry"
_UNAVAILABLE = "ingestion temporarily unavailable, retry with the same idempotencyKey"
_EVENT_STREAM = "text/event-stream"
_UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would hold events back otherwise

_log = logging.getLogger("workbench.recent")


INGEST = Access(("live", "test"), ("ingest",))


class BatchBody(msgspec.Struct):
    """Up to 100 events."""

    events: Annotated[list[EventBody], Meta(max_length=MAX_BATCH_EVENTS)]


class RecentQuery(Body, frozen=True):
    outcome: (
        Annotated[list[EventOutcome], Meta(extra={"reason": f"must be one or more of {', '.join(OUTCOMES)}"})] | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MAX_EVENTS)] | None = None
    after: Annotated[str, Meta(description="The cursor of an earlier response, or the id of an event.")] | None = None
    follow: Annotated[bool, Meta(description="Answer with a stream of Server-Sent Events.")] = False
    seconds: Annotated[int, Meta(ge=1, le=MAX_STREAM_S)] = MAX_STREAM_S


class RecentResponse(msgspec.Struct, frozen=True):
    """Events, oldest first, and the cursor that resumes after them."""

    events: list[RecentEvent]
    cursor: str


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])  # each is read on its own: one that is not valid affects no other


@blueprint.post("/events")
@Operation(INGEST, body=EventBody, answer=EventResponse, status=202)
async def ingest_one(request: Request) -> HTTPResponse:
    """Ingest one event; the response is sent after its commit."""
    principal, body = principal_of(request), request.body
    try:
        expect_json(request)
        if body.lstrip(b" \t\r\n")[:1] != b"{":
            raise RequestRefusedError(400, "the body must be one JSON object")
    except RequestRefusedError as error:
        # Authenticated, so the organization sees it among its rejected events.
        services(request).notices.note_rejected(principal.org_id, body, error.problems)
        raise
    (outcome,) = await ingest(request, principal, [body])
    if isinstance(outcome, Refused):
        return refusal(request, *refused_answer(outcome))
    return answer(accepted_answer(outcome), 202)


@blueprint.post("/events/batch")
@Operation(INGEST, body=BatchBody, answer=BatchResponse, status=202)
async def ingest_batch(request: Request) -> BatchResponse:
    """Ingest up to 100 events; an invalid event does not affect the others."""
    principal, body = principal_of(request), request.body
    try:
        expect_json(request)
        is_small = len(body) < SPLIT_IN_THREAD_BYTES
        events, unknown = _split(body) if is_small else await asyncio.to_thread(_split, body)
        if principal.strict and unknown:
            raise RequestRefusedError(400, unknown)
    except RequestRefusedError as error:
        services(request).notices.note_rejected(principal.org_id, body, error.problems)
        raise
    results: list[EventResponse] = []
    for outcome in await ingest(request, principal, events):
        if isinstance(outcome, Refused):
            _, problems, code = refused_answer(outcome)
            reason = f"{code}: {problems[0]}" if code else str(problems[0])
            results.append(EventResponse(False, False, error=reason))
        else:
            results.append(accepted_answer(outcome))
    return BatchResponse(results, tuple(str(problem) for problem in unknown if problem.reason != UNKNOWN_FIELD))


async def ingest(request: Request, principal: Principal, events: list[bytes]) -> list[Outcome]:
    return await services(request).pipeline.ingest(
        principal.org_id,
        events,
        principal.test,
        request.ctx.since_ns,
        str(request.id),
        key_id=principal.key_id,
        strict=principal.strict,
    )


def accepted_answer(outcome: Accepted) -> EventResponse:
    """Return the body for an event that was stored, was stored before, or was evaluated as a dry run."""
    warnings = tuple(map(str, outcome.warnings))
    match outcome:
        case AcceptedEvent(idempotency_key=key):
            return EventResponse(True, False, key, warnings=warnings)
        case Duplicate(idempotency_key=key):
            return EventResponse(True, True, key, warnings=warnings)
        case DryRun(idempotency_key=key, matched=matched, deduplicated=deduplicated):
            return EventResponse(True, deduplicated, key, dry_run=True, matched_automations=matched, warnings=warnings)


def refused_answer(outcome: Refused) -> tuple[int, Problems, Code | None]:
    """Return status, problems and code for an event that was not stored."""
    match outcome:
        case Rejected(problems=problems):
            return 400, problems, None
        case RateLimited():
            return 429, (Problem("", _RATE_LIMITED),), "RATE_LIMITED"
        case Unavailable():
            return 503, (Problem("", _UNAVAILABLE),), "INGEST_UNAVAILABLE"


def _split(body: bytes) -> tuple[list[bytes], Problems]:
    """Return the JSON text of each event of a batch, and the problems of the unknown fields next to `events`.

    A lone surrogate or too much nesting makes one event invalid, not the batch.
    """
    body = replace_lone_surrogates(body)  # repaired for the decoder; the event itself is refused later
    try:
        try:
            fields = _FIELDS.decode(body)
        except RecursionError:
            fields = _FIELDS.decode(truncate_depth(body))
    except msgspec.ValidationError:
        raise RequestRefusedError(400, "the body must be one JSON object") from None
    except ValueError as error:
        raise RequestRefusedError(400, malformed_json(error)) from None
    raw = fields.pop("events", msgspec.Raw(b"null"))
    try:
        events = _EVENTS.decode(raw)
    except msgspec.ValidationError:
        reason = "is required" if bytes(raw) == b"null" else "must be an array"
        raise RequestRefusedError(400, Problem("events", reason)) from None
    if len(events) > MAX_BATCH_EVENTS:
        reason = f"has {len(events)} events, at most {MAX_BATCH_EVENTS} are allowed"
        raise RequestRefusedError(400, Problem("events", reason))
    unknown = tuple(unknown_field(name, " of each event") for name in islice(fields, MAX_UNKNOWN_FIELDS))
    return [bytes(event) for event in events], unknown


@blueprint.get("/events/recent")
@Operation(READ_EVENTS, media="text/event-stream")
async def recent(request: Request, query: RecentQuery) -> RecentResponse | None:
    """List the newest events, or those after a cursor; with `follow`, stream new events as they arrive."""
    principal = principal_of(request)
    tail = Tail(services(request).database, services(request).clock, principal.org_id, query.outcome or OUTCOMES)
    # `Last-Event-ID` is sent by an EventSource that reconnects; it is newer than the URL's `after`.
    after = request.headers.get("last-event-id") or query.after
    cursor, limit = read_cursor(after) if after else None, query.limit or RECENT_EVENTS
    if after and cursor is None:
        reason = "must be the cursor of an earlier response, or the id of an event"
        raise RequestRefusedError(400, Problem("after", reason))
    wants_stream = request.accept.match("application/json", _EVENT_STREAM).mime == _EVENT_STREAM
    if query.follow or wants_stream:
        try:
            with services(request).followers.join(principal.org_id):
                await _stream(request, tail, cursor, query)
                return None
        except TooManyFollowersError:
            raise RequestRefusedError(429, "too many open streams; close one and retry", "RATE_LIMITED") from None
    if cursor is None:
        events = await tail.begin(limit)
    else:
        await tail.resume(cursor)
        events = await tail.more(limit)
    return RecentResponse([event for event, _ in events], str(tail.cursor))


@blueprint.get("/events/misspelt")
@Operation(READ_EVENTS, field="fields")
async def misspelt(request: Request) -> list[MisspeltFieldView]:
    """List the fields of accepted events of the last seven days that look misspelt, by key, the most frequent first."""
    context = services(request)
    async with context.database.transaction() as tx:
        since = context.clock.now() - RETENTION
        rows = await list_misspelt(tx, principal_of(request).org_id, since, MAX_EVENTS)
    return [
        MisspeltFieldView(
            field=row.field,
            warning=str(unknown_field(row.field)),
            count=row.count,
            last_at=row.last_at,
            key=row.key,
            key_name=row.key_name,
            key_id=row.key_id,
        )
        for row in rows
    ]


async def _stream(request: Request, tail: Tail, cursor: Cursor | None, query: RecentQuery) -> None:
    events: list[TailItem] = []
    if cursor is None:
        events = await tail.begin(query.limit or 0)
    else:
        await tail.resume(cursor)
    response = await request.respond(content_type=_EVENT_STREAM, headers=_UNBUFFERED)
    try:
        await response.send(f"id: {tail.cursor}\n\n" + _sse(events))
        last_sent_ns = monotonic_ns()
        until_ns = last_sent_ns + query.seconds * 1_000_000_000
        async with aclosing(services(request).followers.follow(tail)) as polls:
            async for events in polls:
                if not await is_still_allowed(request, READ_EVENTS):
                    break
                now_ns = monotonic_ns()
                if events or now_ns - last_sent_ns >= HEARTBEAT_S * 1_000_000_000:
                    last_sent_ns = now_ns
                    # A comment keeps proxies from closing an idle connection.
                    await response.send(_sse(events) or ":\n\n")
                if now_ns >= until_ns or request.protocol.input_ended:  # type: ignore[attr-defined]
                    break
        await response.eof()
    except Exception as error:  # noqa: BLE001 - the response has begun: only closing the connection can show the failure
        _log.warning("recent_stream_broken", extra={"request_id": str(request.id), "reason": str(error)})
        request.transport.abort()  # type: ignore[attr-defined]


def _sse(events: list[TailItem]) -> str:
    return "".join(f"id: {cursor}\ndata: {encode(event).decode()}\n\n" for event, cursor in events)
