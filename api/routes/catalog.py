"""`GET /api/v1/events/catalog`: contract §4.3, and what is inside one event."""

from datetime import timedelta
from urllib.parse import unquote

from sanic import Blueprint, HTTPResponse, Request

from api.language.codec import decode
from api.language.event import EVENT_NAME
from api.language.problem import Problem
from api.language.shape import paths_of
from api.routes.answers import RefusedError, answer
from api.routes.entrance import parts, require
from api.store import catalog

blueprint = Blueprint("catalog", url_prefix="/api/v1/events/catalog")

WINDOW_DAYS = 30
MOST_NAMES = 200
SAMPLED = 1_000


@blueprint.get("/")
async def list_events(request: Request) -> HTTPResponse:
    """Answer the names of events received in the last days, most frequent first."""
    principal = await require(request, "events:read")
    days = whole_number(request, "days", WINDOW_DAYS, WINDOW_DAYS)
    most = whole_number(request, "limit", MOST_NAMES, MOST_NAMES)
    prefix = (request.args.get("prefix") or "").lower()
    if "\0" in prefix:
        raise RefusedError(400, Problem("prefix", "contains U+0000"))
    since = parts(request).clock.now() - timedelta(days=days)
    async with parts(request).database.transaction() as tx:
        counts = await catalog.count_events(tx, principal.org_id, since, prefix, most)
    return answer({"events": [{"event": event, "count": count} for event, count in counts], "windowDays": days})


@blueprint.get("/<event:str>")
async def describe(request: Request, event: str) -> HTTPResponse:
    """Answer what is inside one event: property paths, types, nulls, samples of its newest 1,000 payloads."""
    principal = await require(request, "events:read")
    days = whole_number(request, "days", WINDOW_DAYS, WINDOW_DAYS)
    name = unquote(event).lower()
    if not EVENT_NAME.fullmatch(name):
        raise RefusedError(404, "that is not the name of an event")
    since = parts(request).clock.now() - timedelta(days=days)
    async with parts(request).database.transaction() as tx:
        count, first, last = await catalog.describe_event(tx, principal.org_id, name, since)
        payloads = await catalog.sample_payloads(tx, principal.org_id, name, since, SAMPLED)
    if not count:
        raise RefusedError(404, f"no event {name!r} was received in the last {days} days")
    return answer(
        {
            "event": name,
            "count": count,
            "firstSeen": first,
            "lastSeen": last,
            "sampled": len(payloads),
            "paths": paths_of(decode(payload) for payload in payloads),
            "windowDays": days,
        }
    )


def whole_number(request: Request, name: str, default: int, most: int) -> int:
    """Return a query parameter between 1 and `most`; refuse with 400 naming it."""
    text = request.args.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise RefusedError(400, Problem(name, f"must be a whole number from 1 to {most}"))
    return int(text)
