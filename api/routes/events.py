"""`/api/v1/events`: ingest of single events and batches, and the feed of recent events.

Ingest: docs/contract.md 4.1 and 4.2. Each event of a batch succeeds or fails alone, so a batch is split into the JSON
texts of its events before any of them is validated.

The feed (`/events/recent`) is a page, or with `follow` a stream of Server-Sent Events. A stream ends when the server
stops, when its key ends, or after `seconds`; a client that reconnects with the last `id` misses nothing.
"""

import asyncio
import logging
from contextlib import aclosing

import msgspec
from sanic import Blueprint, HTTPResponse, Request

from api.catalog.tail import MAX_EVENTS, OUTCOMES, Cursor, Tail, TailItem, TooManyFollowersError, read_cursor
from api.clock import monotonic_ns
from api.ingest.parse import (
    Accepted,
    AcceptedEvent,
    DryRun,
    Duplicate,
    RateLimited,
    Refused,
    Rejected,
    Unavailable,
)
from api.routes.parameters import query_flag, query_number
from api.routes.request import expect_json, is_still_allowed, require, services
from api.routes.responses import RequestRefusedError, answer, refusal
from workbench.language.codec import encode, replace_lone_surrogates, truncate_depth
from workbench.language.problem import Problem, Problems

blueprint = Blueprint("events", url_prefix="/api/v1")

INGEST_PATHS = frozenset({"/api/v1/events", "/api/v1/events/batch"})
MAX_BATCH_EVENTS = 100
SPLIT_IN_THREAD_BYTES = 1_048_576  # splitting a larger body would delay other requests noticeably
RECENT_EVENTS = 50
HEARTBEAT_SECONDS = 15
MAX_STREAM_SECONDS = 86_400

_RATE_LIMITED = "rate limit exceeded, back off exponentially and retry"
_UNAVAILABLE = "ingestion temporarily unavailable, retry with the same idempotencyKey"
_EVENT_STREAM = "text/event-stream"
_UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would hold events back otherwise

_log = logging.getLogger("workbench.recent")


class _Batch(msgspec.Struct):
    events: list[msgspec.Raw]


_BATCH = msgspec.json.Decoder(_Batch)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@blueprint.post("/events")
async def ingest_one(request: Request) -> HTTPResponse:
    """Ingest one event."""
    since_ns = monotonic_ns()
    principal = await require(request, "ingest")
    body = request.body
    try:
        expect_json(request)
        if body.lstrip(b" \t\r\n")[:1] != b"{":
            raise RequestRefusedError(400, "the body must be one JSON object")
    except RequestRefusedError as error:
        # Authenticated, so the organization sees it among its rejected events.
        services(request).notices.note_rejected(principal.org_id, body, error.problems)
        raise
    pipeline = services(request).pipeline
    (outcome,) = await pipeline.ingest(principal.org_id, [body], principal.test, since_ns, str(request.id))
    if isinstance(outcome, Refused):
        return refusal(request, *refused_answer(outcome))
    return answer(accepted_answer(outcome), 202)


@blueprint.post("/events/batch")
async def ingest_batch(request: Request) -> HTTPResponse:
    """Ingest up to 100 events; an invalid event does not affect the others."""
    since_ns = monotonic_ns()
    principal = await require(request, "ingest")
    body = request.body
    try:
        expect_json(request)
        events = _split(body) if len(body) < SPLIT_IN_THREAD_BYTES else await asyncio.to_thread(_split, body)
    except RequestRefusedError as error:
        services(request).notices.note_rejected(principal.org_id, body, error.problems)
        raise
    pipeline = services(request).pipeline
    outcomes = await pipeline.ingest(principal.org_id, events, principal.test, since_ns, str(request.id))
    # A status for the whole batch tells clients that do not read the results to send it again.
    if outcomes and all(isinstance(outcome, Unavailable) for outcome in outcomes):
        return refusal(request, 503, (Problem("", _UNAVAILABLE),), "INGEST_UNAVAILABLE")
    results: list[dict[str, object]] = []
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            _, problems, code = refused_answer(outcome)
            reason = f"{code}: {problems[0]}" if code else str(problems[0])
            results.append({"accepted": False, "deduplicated": False, "error": reason})
        else:
            results.append(accepted_answer(outcome))
    return answer({"results": results}, 202)


def accepted_answer(outcome: Accepted) -> dict[str, object]:
    """Return the body for an event that was stored, was stored before, or was evaluated as a dry run."""
    match outcome:
        case AcceptedEvent(idempotency_key=key):
            return {"accepted": True, "deduplicated": False, "idempotencyKey": key}
        case Duplicate(idempotency_key=key):
            return {"accepted": True, "deduplicated": True, "idempotencyKey": key}
        case DryRun(idempotency_key=key, matched=matched, deduplicated=deduplicated):
            return {
                "accepted": True,
                "deduplicated": deduplicated,
                "idempotencyKey": key,
                "dryRun": True,
                "matchedAutomations": matched,
            }


def refused_answer(outcome: Refused) -> tuple[int, Problems, str | None]:
    """Return status, problems and code for an event that was not stored."""
    match outcome:
        case Rejected(problems=problems):
            return 400, problems, None
        case RateLimited():
            return 429, (Problem("", _RATE_LIMITED),), "RATE_LIMITED"
        case Unavailable():
            return 503, (Problem("", _UNAVAILABLE),), "INGEST_UNAVAILABLE"


def _split(body: bytes) -> list[bytes]:
    """Return the JSON text of each event of a batch.

    A lone surrogate or too much nesting makes one event invalid, not the batch.
    """
    body = replace_lone_surrogates(body)  # repaired for the decoder; the event itself is refused later
    try:
        try:
            events = _BATCH.decode(body).events
        except RecursionError:
            events = _BATCH.decode(truncate_depth(body)).events
    except msgspec.ValidationError:
        try:
            fields = _FIELDS.decode(truncate_depth(body))
        except ValueError:
            raise RequestRefusedError(400, "the body must be one JSON object") from None
        is_missing = "events" not in fields or bytes(fields["events"]) == b"null"
        raise RequestRefusedError(400, Problem("events", "is required" if is_missing else "must be an array")) from None
    except ValueError as error:
        raise RequestRefusedError(400, f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    if len(events) > MAX_BATCH_EVENTS:
        reason = f"has {len(events)} events, at most {MAX_BATCH_EVENTS} are allowed"
        raise RequestRefusedError(400, Problem("events", reason))
    return [bytes(event) for event in events]


@blueprint.get("/events/recent")
async def recent(request: Request) -> HTTPResponse | None:
    """List the newest events, or those after a cursor; with `follow`, stream new events as they arrive."""
    principal = await require(request, "events:read")
    outcomes = tuple(name for text in request.args.getlist("outcome", []) for name in text.split(","))
    if not set(outcomes) <= set(OUTCOMES):
        raise RequestRefusedError(400, Problem("outcome", f"must be one or more of {', '.join(OUTCOMES)}"))
    tail = Tail(services(request).database, services(request).clock, principal.org_id, outcomes or OUTCOMES)
    limit, cursor = query_number(request, "limit", RECENT_EVENTS, MAX_EVENTS), _read_cursor(request)
    wants_stream = request.accept.match("application/json", _EVENT_STREAM).mime == _EVENT_STREAM
    if query_flag(request, "follow") or wants_stream:
        try:
            with services(request).followers.join(principal.org_id):
                await _stream(request, tail, cursor, limit if "limit" in request.args else 0)
                return None
        except TooManyFollowersError:
            raise RequestRefusedError(429, "too many open streams; close one and retry", "RATE_LIMITED") from None
    if cursor is None:
        events = await tail.begin(limit)
    else:
        await tail.resume(cursor)
        events = await tail.more(limit)
    return answer({"events": [event for event, _ in events], "cursor": str(tail.cursor)})


def _read_cursor(request: Request) -> Cursor | None:
    # `Last-Event-ID` is sent by an EventSource that reconnects; it is newer than the URL's `after`.
    text = request.headers.get("last-event-id") or request.args.get("after")
    if not text:
        return None
    cursor = read_cursor(text)
    if cursor is None:
        reason = "must be the cursor of an earlier answer, or the id of an event"
        raise RequestRefusedError(400, Problem("after", reason))
    return cursor


async def _stream(request: Request, tail: Tail, cursor: Cursor | None, past_events: int) -> None:
    seconds = query_number(request, "seconds", MAX_STREAM_SECONDS, MAX_STREAM_SECONDS)
    events: list[TailItem] = []
    if cursor is None:
        events = await tail.begin(past_events)
    else:
        await tail.resume(cursor)
    response = await request.respond(content_type=_EVENT_STREAM, headers=_UNBUFFERED)
    try:
        await response.send(f"id: {tail.cursor}\n\n" + _sse(events))
        last_sent_ns = monotonic_ns()
        until_ns = last_sent_ns + seconds * 1_000_000_000
        async with aclosing(services(request).followers.follow(tail)) as polls:
            async for events in polls:
                if not await is_still_allowed(request, "events:read"):
                    break
                now_ns = monotonic_ns()
                if events or now_ns - last_sent_ns >= HEARTBEAT_SECONDS * 1_000_000_000:
                    last_sent_ns = now_ns
                    # A comment keeps proxies from closing an idle connection.
                    await response.send(_sse(events) or ":\n\n")
                if now_ns >= until_ns:
                    break
        await response.eof()
    except Exception as error:  # noqa: BLE001 - the answer has begun: only closing the connection can show the failure
        _log.warning("recent_stream_broken: %s", error, extra={"request_id": str(request.id)})
        request.transport.abort()  # type: ignore[attr-defined]


def _sse(events: list[TailItem]) -> str:
    return "".join(f"id: {cursor}\ndata: {encode(event).decode()}\n\n" for event, cursor in events)
