"""`GET /api/v1/events/recent`: what came in lately and what became of it, as a page or, followed, as Server-Sent Events.

A stream ends when the server stops, when its key no longer may look, or after `seconds`; who reconnects with the last `id`
goes on where it ended.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sanic import Blueprint, HTTPResponse, Request

from api.clock import monotonic_ns
from api.ingest.recent import MOST_EVENTS, OUTCOMES, Cursor, Given, Tail, TooManyFollowersError, read_cursor
from api.language.codec import encode
from api.language.problem import Problem
from api.routes.answers import RefusedError, answer
from api.routes.authors import flag_argument
from api.routes.catalog import whole_number
from api.routes.entrance import parts, require
from api.routes.watched import still_allowed

blueprint = Blueprint("recent", url_prefix="/api/v1/events/recent")

SHOWN = 50
HEARTBEAT_SECONDS = 15
LONGEST = 86_400  # seconds

_STREAM = "text/event-stream"
_UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}

_log = logging.getLogger("workbench.recent")


@blueprint.get("/")
async def recent(request: Request) -> HTTPResponse | None:
    """Answer the newest events, or those after a cursor; with `follow`, those that come too."""
    principal = await require(request, "events:read")
    tail = Tail(parts(request).database, parts(request).clock, principal.org_id, _outcomes(request))
    most, cursor = whole_number(request, "limit", SHOWN, MOST_EVENTS), _cursor(request)
    if _follows(request):
        try:
            with parts(request).followers.join(principal.org_id):
                await _stream(request, tail, cursor, most if "limit" in request.args else 0)
                return None
        except TooManyFollowersError:
            raise RefusedError(429, "too many are following already", "RATE_LIMITED") from None
    if cursor is None:
        given = await tail.begin(most)
    else:
        await tail.resume(cursor)
        given = await tail.more(most)
    return answer({"events": [event for event, _ in given], "cursor": str(tail.cursor)})


def _outcomes(request: Request) -> tuple[str, ...]:
    wanted = [word for text in request.args.getlist("outcome", []) for word in text.split(",")]
    if not set(wanted) <= set(OUTCOMES):
        raise RefusedError(400, Problem("outcome", f"must be one or more of {', '.join(OUTCOMES)}"))
    return tuple(wanted) or OUTCOMES


def _cursor(request: Request) -> Cursor | None:
    text = request.headers.get("last-event-id") or request.args.get("after")
    if not text:
        return None
    cursor = read_cursor(text)
    if cursor is None:
        raise RefusedError(400, Problem("after", "must be the cursor of an earlier answer, or the id of an event"))
    return cursor


def _follows(request: Request) -> bool:
    return flag_argument(request, "follow") or request.accept.match("application/json", _STREAM).mime == _STREAM


async def _stream(request: Request, tail: Tail, cursor: Cursor | None, past: int) -> None:
    """Send up to `past` events that are there already, and what comes; once begun, a failure can only break the connection."""
    seconds = whole_number(request, "seconds", LONGEST, LONGEST)
    if cursor is None:
        given = await tail.begin(past)
    else:
        given = []
        await tail.resume(cursor)
    response = await request.respond(content_type=_STREAM, headers=_UNBUFFERED)
    try:
        await response.send(f"id: {tail.cursor}\n\n" + _written(given))
        async with aclosing(_messages(request, tail, seconds)) as messages:
            async for message in messages:
                await response.send(message)
        await response.eof()
    except Exception as error:  # noqa: BLE001 - the edge: nobody above can answer any more
        _log.warning("recent_stream_broken: %s", error, extra={"request_id": str(request.id)})
        request.transport.abort()  # type: ignore[attr-defined]


async def _messages(request: Request, tail: Tail, seconds: int) -> AsyncGenerator[str, None]:
    heard_ns = monotonic_ns()
    until_ns = heard_ns + seconds * 1_000_000_000
    async with aclosing(parts(request).followers.follow(tail)) as following:
        async for given in following:
            if not await still_allowed(request, "events:read"):
                return
            now_ns = monotonic_ns()
            if given or now_ns - heard_ns >= HEARTBEAT_SECONDS * 1_000_000_000:
                heard_ns = now_ns
                yield _written(given) or ":\n\n"
            if now_ns >= until_ns:
                return


def _written(given: list[Given]) -> str:
    return "".join(f"id: {cursor}\ndata: {encode(event).decode()}\n\n" for event, cursor in given)
