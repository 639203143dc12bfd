"""`/api/v1/events/catalog`: the event names of an organization, and the structure of one event's payloads.

Contract: docs/contract.md 4.3. Types are evidence from stored payloads, never a schema that events have to follow.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

from sanic import Blueprint, HTTPResponse, Request

from api.routes.parameters import query_flag, query_number, query_text
from api.routes.request import require, services
from api.routes.responses import RequestRefusedError, answer
from api.store import events as store
from api.store.events import StoredEvent
from workbench.language import payload_schema
from workbench.language.codec import decode
from workbench.language.event import EVENT_NAME
from workbench.language.payload_schema import summarise_paths

blueprint = Blueprint("catalog", url_prefix="/api/v1/events/catalog")

MAX_WINDOW_DAYS = 30
MAX_NAMES = 200
SAMPLED_EVENTS = 1_000
SAMPLED_BYTES = 2_000_000  # decoding and typing this many bytes takes about a second
SHOWN_SAMPLES = 5
RECENT_FRACTION = 10  # drift compares the last tenth of the window with the rest
_EARLIER_PARTS, _PAYLOADS_PER_PART = 25, 20  # the rest is sampled evenly: 20 payloads from each of 25 parts


@blueprint.get("")
async def list_events(request: Request) -> HTTPResponse:
    """List event names with their counts over the last days, most frequent first.

    With `detail=true` also the first and last occurrence and the counts per day.
    """
    principal = await require(request, "events:read")
    days = query_number(request, "days", MAX_WINDOW_DAYS, MAX_WINDOW_DAYS)
    limit = query_number(request, "limit", MAX_NAMES, MAX_NAMES)
    prefix = (query_text(request, "prefix") or "").lower()
    detail = query_flag(request, "detail")
    now = services(request).clock.now()
    since = now - timedelta(days=days)
    async with services(request).database.transaction() as tx:
        counts = await store.count_events(tx, principal.org_id, since, prefix, limit)
        names = [count.event for count in counts]
        spans = await store.find_first_and_last(tx, principal.org_id, names, since) if detail else []
    events: list[dict[str, Any]] = [{"event": count.event, "count": count.count} for count in counts]
    if not detail:
        return answer({"events": events, "windowDays": days})
    window = _window(since, now)
    for event, count, (first, last) in zip(events, counts, spans, strict=True):
        event |= {"firstSeen": first, "lastSeen": last, "perDay": _per_day(window, count.days)}
    return answer({"events": events, "days": _dates(window), "windowDays": days})


@blueprint.get("/<event:str>")
async def describe(request: Request, event: str) -> HTTPResponse:
    """Describe one event: property paths of its newest 1,000 payloads, counts per day, samples and drift."""
    principal = await require(request, "events:read")
    days = query_number(request, "days", MAX_WINDOW_DAYS, MAX_WINDOW_DAYS)
    name = unquote(event).lower()
    if not EVENT_NAME.fullmatch(name):
        raise RequestRefusedError(404, f"{name!r} is not a valid event name")
    now = services(request).clock.now()
    since, recent_since = now - timedelta(days=days), now - timedelta(days=days) / RECENT_FRACTION
    async with services(request).database.transaction() as tx:
        counts = await store.count_event(tx, principal.org_id, name, since)
        if not counts.count:
            raise RequestRefusedError(404, f"no event {name!r} was received in the last {days} days")
        ((first, last),) = await store.find_first_and_last(tx, principal.org_id, [name], since)
        newest = await store.list_newest_events(tx, principal.org_id, name, since, SAMPLED_EVENTS)
        span = since, recent_since
        earlier = await store.sample_payloads(tx, principal.org_id, name, span, _EARLIER_PARTS, _PAYLOADS_PER_PART)
    window = _window(since, now)
    # Runs in a thread, because decoding and typing the samples may take a second.
    structure = await asyncio.to_thread(_describe_payloads, newest, earlier, recent_since)
    return answer(
        {
            "event": name,
            "count": counts.count,
            "firstSeen": first,
            "lastSeen": last,
            "windowDays": days,
            "days": _dates(window),
            "perDay": _per_day(window, counts.days),
            **structure,
        }
    )


def _describe_payloads(
    newest: Sequence[StoredEvent], earlier: Sequence[bytes], recent_since: datetime
) -> dict[str, Any]:
    sampled = [(event, decode(event.payload)) for event in newest[: _sample_size([event.payload for event in newest])]]
    recent_payloads = [payload for event, payload in sampled if event.created_at >= recent_since]
    earlier_payloads = [decode(payload) for payload in earlier[: _sample_size(earlier)]]
    return {
        "sampled": len(sampled),
        "paths": summarise_paths([payload for _, payload in sampled]),
        "samples": [
            {"id": event.id, "createdAt": event.created_at, "occurredAt": event.occurred_at, "payload": payload}
            for event, payload in sampled[:SHOWN_SAMPLES]
        ],
        "drift": {
            "since": recent_since,
            "before": len(earlier_payloads),
            "recent": len(recent_payloads),
            "changes": payload_schema.schema_changes(earlier_payloads, recent_payloads),
        },
    }


def _sample_size(payloads: Sequence[bytes]) -> int:
    """Return how many payloads fit into SAMPLED_BYTES, but at least the ones that are shown."""
    sizes = accumulate(len(payload) for payload in payloads)
    return max(sum(size <= SAMPLED_BYTES for size in sizes), min(len(payloads), SHOWN_SAMPLES))


def _window(since: datetime, now: datetime) -> list[datetime]:
    first = since.replace(hour=0, minute=0, second=0, microsecond=0)
    return [first + timedelta(days=number) for number in range((now - first).days + 1)]


def _per_day(window: Sequence[datetime], counts: Mapping[datetime, int]) -> list[int]:
    return [counts.get(day, 0) for day in window]


def _dates(window: Sequence[datetime]) -> list[str]:
    return [day.date().isoformat() for day in window]
