"""`GET /api/v1/events/catalog`: contract §4.3, and what is inside one event."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

from sanic import Blueprint, HTTPResponse, Request

from api.language import drift
from api.language.codec import decode
from api.language.event import EVENT_NAME
from api.language.problem import Problem
from api.language.shape import paths_of
from api.routes.answers import RefusedError, answer
from api.routes.entrance import parts, require
from api.store import catalog
from api.store.catalog import Counted, StoredEvent

blueprint = Blueprint("catalog", url_prefix="/api/v1/events/catalog")

WINDOW_DAYS = 30
MOST_NAMES = 200
SAMPLED = 1_000
SAMPLED_BYTES = 2_000_000
SHOWN = 5
RECENT_PART = 10  # a tenth of the window is compared with the rest of it
_EARLIER_PARTS, _OF_EACH = 25, 20


@blueprint.get("/")
async def list_events(request: Request) -> HTTPResponse:
    """Answer the names of events received in the last days, most frequent first; with `detail`, also when and how many a day."""
    principal = await require(request, "events:read")
    days = whole_number(request, "days", WINDOW_DAYS, WINDOW_DAYS)
    most = whole_number(request, "limit", MOST_NAMES, MOST_NAMES)
    prefix = (request.args.get("prefix") or "").lower()
    if "\0" in prefix:
        raise RefusedError(400, Problem("prefix", "contains U+0000"))
    detail = request.args.get("detail", "false")
    if detail not in ("true", "false"):
        raise RefusedError(400, Problem("detail", "must be true or false"))
    now = parts(request).clock.now()
    since = now - timedelta(days=days)
    async with parts(request).database.transaction() as tx:
        counted = await catalog.count_events(tx, principal.org_id, since, prefix, most)
        names = [each.event for each in counted]
        seen = await catalog.seen(tx, principal.org_id, names, since) if detail == "true" else []
    events: list[dict[str, Any]] = [{"event": each.event, "count": each.count} for each in counted]
    if detail == "false":
        return answer({"events": events, "windowDays": days})
    window = _days(since, now)
    for event, each, (first, last) in zip(events, counted, seen, strict=True):
        event |= {"firstSeen": first, "lastSeen": last, "perDay": _per_day(window, each.days)}
    return answer({"events": events, "days": _written(window), "windowDays": days})


@blueprint.get("/<event:str>")
async def describe(request: Request, event: str) -> HTTPResponse:
    """Answer what is inside one event: property paths of its newest 1,000 payloads, counts by day, newest events, drift."""
    principal = await require(request, "events:read")
    days = whole_number(request, "days", WINDOW_DAYS, WINDOW_DAYS)
    name = unquote(event).lower()
    if not EVENT_NAME.fullmatch(name):
        raise RefusedError(404, "that is not the name of an event")
    now = parts(request).clock.now()
    since, recent_since = now - timedelta(days=days), now - timedelta(days=days) / RECENT_PART
    async with parts(request).database.transaction() as tx:
        counted = await catalog.count_event(tx, principal.org_id, name, since)
        if not counted.count:
            raise RefusedError(404, f"no event {name!r} was received in the last {days} days")
        ((first, last),) = await catalog.seen(tx, principal.org_id, [name], since)
        newest = await catalog.newest_events(tx, principal.org_id, name, since, SAMPLED)
        span = since, recent_since
        before = await catalog.earlier_payloads(tx, principal.org_id, name, span, _EARLIER_PARTS, _OF_EACH)
    return answer(
        {
            "event": name,
            "count": counted.count,
            "firstSeen": first,
            "lastSeen": last,
            "windowDays": days,
            **_by_day(counted, since, now),
            **await asyncio.to_thread(_inside, newest, before, recent_since),
        }
    )


def _inside(newest: Sequence[StoredEvent], before: Sequence[bytes], recent_since: datetime) -> dict[str, Any]:
    """Return what is in payloads, and what changed since a moment. Of large payloads fewer are looked into."""
    sampled = [(each, decode(each.payload)) for each in newest[: _fitting([each.payload for each in newest])]]
    recent = [payload for each, payload in sampled if each.created_at >= recent_since]
    earlier = [decode(payload) for payload in before[: _fitting(before)]]
    return {
        "sampled": len(sampled),
        "paths": paths_of([payload for _, payload in sampled]),
        "samples": [_sample(each, payload) for each, payload in sampled[:SHOWN]],
        "drift": {
            "since": recent_since,
            "before": len(earlier),
            "recent": len(recent),
            "changes": drift.changes(earlier, recent),
        },
    }


def _fitting(payloads: Sequence[bytes]) -> int:
    """Return how many of the first payloads to look into: a second's work at most."""
    sizes = accumulate(len(payload) for payload in payloads)
    return max(sum(size <= SAMPLED_BYTES for size in sizes), min(len(payloads), SHOWN))


def _sample(event: StoredEvent, payload: dict[str, Any]) -> dict[str, Any]:
    return {"id": event.id, "createdAt": event.created_at, "occurredAt": event.occurred_at, "payload": payload}


def _by_day(counted: Counted, since: datetime, now: datetime) -> dict[str, list[Any]]:
    window = _days(since, now)
    return {"days": _written(window), "perDay": _per_day(window, counted.days)}


def _days(since: datetime, now: datetime) -> list[datetime]:
    """Return the days of UTC that a window touches."""
    first = since.replace(hour=0, minute=0, second=0, microsecond=0)
    return [first + timedelta(days=number) for number in range((now - first).days + 1)]


def _per_day(window: Sequence[datetime], counts: Mapping[datetime, int]) -> list[int]:
    return [counts.get(day, 0) for day in window]


def _written(window: Sequence[datetime]) -> list[str]:
    return [day.date().isoformat() for day in window]


def whole_number(request: Request, name: str, default: int, most: int) -> int:
    """Return a query parameter between 1 and `most`; refuse with 400 naming it."""
    text = request.args.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise RefusedError(400, Problem(name, f"must be a whole number from 1 to {most}"))
    return int(text)
