"""Segment's tracking API: `/v1/batch`, and `/v1/track`, `identify`, `page`, `screen`, `group` and `alias`.

Its client libraries send events here unmodified, with a live key as their write key. Messages become events by the
table of the importer (`api.imports.vendors`). The `messageId` is the idempotency key, so a repeated message is stored
once.

The libraries repeat a request after 429 and 5xx only, and as a whole. So events over the rate wait here for some
seconds, and duplicates give their tokens back: each repetition of a batch gets further than the one before. A batch is
answered with 429 or 503 if that is the outcome of one of its events, and otherwise with 200, also if some are not
valid; `errors` and the list of rejected events name these.
"""

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sanic import Blueprint, Request

from api.clock import from_us, monotonic_ns
from api.imports.row import EventNames, contract_time
from api.imports.vendors import from_segment
from api.ingest.parse import DryRun, Duplicate, RateLimited, Rejected, Unavailable
from api.routes.events import INGEST, MAX_BATCH_EVENTS, refused_answer
from api.routes.request import Operation, expect_json, principal_of, services
from api.routes.responses import RequestRefusedError
from workbench.language.codec import MalformedJsonError, decode, encode, malformed_json, replace_lone_surrogates
from workbench.language.event import parse_timestamp
from workbench.language.problem import Problem, Problems

MAX_MESSAGES = 2_500  # Segment's own limit
RATE_WAIT_S = 8.0  # the libraries give up after 15 s
RATE_PAUSE_S = 0.25
MAX_CLOCK_ERROR_US = 60_000_000  # of a sender; networks and queues delay requests, too
KINDS = ("track", "identify", "page", "screen", "group", "alias")

blueprint = Blueprint("tracking", url_prefix="/v1")


class TrackingMessage(msgspec.Struct, rename="camel", omit_defaults=True):
    """A message of Segment's specification. `type`: only in a batch. Fields that are not listed here are ignored.

    A `sentAt` that is not a time is ignored, too.
    """

    type: str | None = None
    user_id: str | int | None = None
    anonymous_id: str | int | None = None
    event: str | None = None
    properties: dict[str, Any] | None = None
    traits: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    timestamp: str | None = None
    sent_at: str | None = None
    message_id: str | None = None


class TrackingBatch(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Up to 2,500 messages, each with its `type`. `sentAt`: of those that have none."""

    sent_at: str | None = None
    batch: Annotated[list[TrackingMessage], Meta(max_length=MAX_MESSAGES)]


class TrackingResponse(msgspec.Struct, frozen=True):
    """`errors`: why single messages of a batch were not stored, such as `batch[3]: event: is required`."""

    success: bool
    errors: tuple[str, ...] = ()


@blueprint.post("/batch")
@Operation(INGEST, body=TrackingBatch, answer=TrackingResponse)
async def track_batch(request: Request) -> TrackingResponse:
    """Ingest messages of Segment's client libraries; a message that is not valid does not affect the others."""
    fields = _object_of(request)
    batch = fields.get("batch")
    if not isinstance(batch, list):
        raise RequestRefusedError(400, Problem("batch", "must be an array"))
    if len(batch) > MAX_MESSAGES:
        reason = f"has {len(batch)} messages, at most {MAX_MESSAGES} are allowed"
        raise RequestRefusedError(400, Problem("batch", reason))
    for index, message in enumerate(batch):
        if not isinstance(message, dict):
            raise RequestRefusedError(400, Problem(f"batch[{index}]", "must be an object"))
    problems = await _ingest(request, [{"sentAt": fields.get("sentAt")} | message for message in batch])
    return TrackingResponse(True, tuple(f"batch[{index}]: {reasons[0]}" for index, reasons in problems.items()))


@blueprint.post("/<kind:str>")
@Operation(INGEST, body=TrackingMessage, answer=TrackingResponse)
async def track(request: Request, kind: str) -> TrackingResponse:
    """Ingest one message of Segment's client libraries: `track`, `identify`, `page`, `screen`, `group` or `alias`."""
    message = _object_of(request)
    if kind not in KINDS:
        raise RequestRefusedError(404, f"message type not found: {kind}; the types are {', '.join(KINDS)}")
    if problems := await _ingest(request, [message | {"type": kind}]):
        raise RequestRefusedError(400, problems[0])
    return TrackingResponse(True)


def _object_of(request: Request) -> dict[str, Any]:
    expect_json(request)
    try:
        fields = decode(replace_lone_surrogates(request.body))
    except MalformedJsonError as error:
        raise RequestRefusedError(400, malformed_json(error)) from None
    if not isinstance(fields, dict):
        raise RequestRefusedError(400, "the body must be one JSON object")
    return fields


def _by_our_clock(message: dict[str, Any], received_us: int) -> dict[str, Any]:
    """Return a message with its `timestamp` by the server's clock, if `sentAt` shows that the sender's clock is wrong.

    Not without a `messageId`: the idempotency key then contains the time, which has to stay the same when the message
    is sent again with another `sentAt`.
    """
    sent_us, stamped_us = (_microseconds(message.get(name)) for name in ("sentAt", "timestamp"))
    if sent_us is None or stamped_us is None or not message.get("messageId"):
        return message
    error_us = sent_us - received_us
    if abs(error_us) <= MAX_CLOCK_ERROR_US:
        return message
    try:
        return message | {"timestamp": from_us(stamped_us - error_us).isoformat()}
    except OverflowError:  # in the year 10000
        return message


def _microseconds(value: object) -> int | None:
    text = contract_time(value)
    return parse_timestamp(text) if isinstance(text, str) else None


async def _ingest(request: Request, messages: list[dict[str, Any]]) -> dict[int, Problems]:
    """Store the messages in their order; return the problems of those that are not valid, by index.

    Raises 429 or 503 if that is the outcome of a message.
    """
    principal, names, pipeline = principal_of(request), EventNames(), services(request).pipeline
    received_us = services(request).clock.now_us()
    problems: dict[int, Problems] = {}
    until_ns, done = monotonic_ns() + int(RATE_WAIT_S * 1e9), 0
    while done < len(messages):
        wanted = min(len(messages) - done, MAX_BATCH_EVENTS)
        granted = pipeline.buckets.take(principal.org_id, wanted, monotonic_ns())
        outcomes = await pipeline.ingest(
            principal.org_id,
            [
                encode(from_segment(_by_our_clock(message, received_us), names))
                for message in messages[done : done + granted]
            ],
            principal.test,
            request_id=str(request.id),
            key_id=principal.key_id,
            strict=principal.strict,
            limited=False,
        )
        repeated = 0
        for index, outcome in enumerate(outcomes, done):
            if isinstance(outcome, Rejected):
                problems[index] = outcome.problems
            elif isinstance(outcome, Unavailable):
                raise RequestRefusedError(*refused_answer(outcome))
            elif isinstance(outcome, Duplicate) or (isinstance(outcome, DryRun) and outcome.deduplicated):
                repeated += 1
        pipeline.buckets.give_back(principal.org_id, repeated, monotonic_ns())
        done += granted
        if granted < wanted and (granted == 0 or repeated < granted):  # duplicates have left tokens for more
            if monotonic_ns() >= until_ns:
                over_rate = RateLimited()
                pipeline.meters.count([over_rate] * (len(messages) - done))
                raise RequestRefusedError(*refused_answer(over_rate))
            await asyncio.sleep(RATE_PAUSE_S)
    return problems
