"""`POST /api/v1/events` and `/events/batch`: contract §4.1 and §4.2."""

import asyncio

import msgspec
from sanic import Blueprint, HTTPResponse, Request

from api.clock import monotonic_ns
from api.ingest.outcome import Accepted, DryRun, Duplicate, Outcome, RateLimited, Refused, Rejected, Stored, Unavailable
from api.language.codec import cut_depth, mend_surrogates
from api.language.problem import Problem, Problems
from api.routes.answers import RefusedError, answer, refusal
from api.routes.entrance import expect_json, parts, require

blueprint = Blueprint("events", url_prefix="/api/v1")

PATHS = frozenset({"/api/v1/events", "/api/v1/events/batch"})
MOST_IN_BATCH = 100
LARGE = 1_048_576  # bytes; splitting so much may take longer than others should wait
_RATE_LIMITED = "rate limit exceeded, back off exponentially and retry"
_UNAVAILABLE = "ingestion temporarily unavailable, retry with the same idempotencyKey"


class _Batch(msgspec.Struct):
    events: list[msgspec.Raw]


_BATCH = msgspec.json.Decoder(_Batch)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@blueprint.post("/events")
async def ingest_one(request: Request) -> HTTPResponse:
    """Ingest one event."""
    since_ns = monotonic_ns()
    principal = await require(request, "ingest")
    try:
        expect_json(request)
        if not _is_object(request.body):
            raise RefusedError(400, "the body must be one JSON object")
    except RefusedError as error:
        parts(request).notices.note_rejected(principal.org_id, request.body, error.problems)
        raise
    (outcome,) = await parts(request).pipeline.ingest(
        principal.org_id, [request.body], principal.test, since_ns, str(request.id)
    )
    if isinstance(outcome, Refused):
        return refusal(request, *refused(outcome))
    return answer(accepted(outcome), 202)


@blueprint.post("/events/batch")
async def ingest_batch(request: Request) -> HTTPResponse:
    """Ingest up to 100 events; one bad event never rejects the others."""
    since_ns = monotonic_ns()
    principal = await require(request, "ingest")
    body = request.body
    try:
        expect_json(request)
        raws = _events(body) if len(body) < LARGE else await asyncio.to_thread(_events, body)
    except RefusedError as error:
        parts(request).notices.note_rejected(principal.org_id, body, error.problems)
        raise
    outcomes = await parts(request).pipeline.ingest(principal.org_id, raws, principal.test, since_ns, str(request.id))
    if outcomes and all(isinstance(outcome, Unavailable) for outcome in outcomes):
        return refusal(request, 503, (Problem("", _UNAVAILABLE),), "INGEST_UNAVAILABLE")
    return answer({"results": [_item(outcome) for outcome in outcomes]}, 202)


def _item(outcome: Outcome) -> dict[str, object]:
    match outcome:
        case Rejected(problems=problems):
            return {"accepted": False, "deduplicated": False, "error": str(problems[0])}
        case RateLimited():
            return {"accepted": False, "deduplicated": False, "error": f"RATE_LIMITED: {_RATE_LIMITED}"}
        case Unavailable():
            return {"accepted": False, "deduplicated": False, "error": f"INGEST_UNAVAILABLE: {_UNAVAILABLE}"}
        case _:
            return accepted(outcome)


def refused(outcome: Refused) -> tuple[int, Problems, str | None]:
    """Return status, problems and code of the answer to an event that is not stored."""
    match outcome:
        case Rejected(problems=problems):
            return 400, problems, None
        case RateLimited():
            return 429, (Problem("", _RATE_LIMITED),), "RATE_LIMITED"
        case Unavailable():
            return 503, (Problem("", _UNAVAILABLE),), "INGEST_UNAVAILABLE"


def accepted(outcome: Accepted) -> dict[str, object]:
    """Return the answer to an event that is stored, or judged."""
    match outcome:
        case Stored(idempotency_key=key):
            return {"accepted": True, "deduplicated": False, "idempotencyKey": key}
        case Duplicate(idempotency_key=key):
            return {"accepted": True, "deduplicated": True, "idempotencyKey": key}
        case DryRun(idempotency_key=key, matched=matched, deduplicated=again):
            return {
                "accepted": True,
                "deduplicated": again,
                "idempotencyKey": key,
                "dryRun": True,
                "matchedAutomations": matched,
            }


def _is_object(raw: bytes) -> bool:
    return raw.lstrip(b" \t\r\n")[:1] == b"{"


def _events(body: bytes) -> list[bytes]:
    """Return the JSON text of each event of a batch; refuse with 400 naming `events`.

    What makes one event unreadable (a lone surrogate, endless nesting) is left for that event to be refused.
    """
    try:
        events = _split(mend_surrogates(body))
    except msgspec.ValidationError:
        raise _not_a_batch(body) from None
    except ValueError as error:
        raise RefusedError(400, f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    if len(events) > MOST_IN_BATCH:
        raise RefusedError(400, Problem("events", f"has {len(events)} events, at most {MOST_IN_BATCH} are allowed"))
    return [bytes(event) for event in events]


def _split(raw: bytes) -> list[msgspec.Raw]:
    try:
        return _BATCH.decode(raw).events
    except RecursionError:
        return _BATCH.decode(cut_depth(raw)).events


def _not_a_batch(body: bytes) -> RefusedError:
    try:
        fields = _FIELDS.decode(cut_depth(mend_surrogates(body)))
    except ValueError:
        return RefusedError(400, "the body must be one JSON object")
    missing = "events" not in fields or bytes(fields["events"]) == b"null"
    return RefusedError(400, Problem("events", "is required" if missing else "must be an array"))
