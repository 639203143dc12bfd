"""`/api/v1/events/catalog`: the event names of an organization, and the structure of one event's payloads.

Contract: docs/contract.md 4.3. Types are evidence from stored payloads, never a schema that events have to follow.
"""

import asyncio
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Annotated, Any
from urllib.parse import unquote

from msgspec import Meta
from sanic import Blueprint, Request

from api.routes.request import READ_EVENTS, Operation, principal_of, services
from api.routes.responses import RequestRefusedError
from api.store import events as store
from api.store.events import EventRow, EventSpan
from workbench.language.body import Body
from workbench.language.channel import is_evm_wallet
from workbench.language.codec import decode
from workbench.language.event import EVENT_NAME
from workbench.language.payload_schema import schema_changes, summarise_paths
from workbench.language.responses import CatalogResponse, EventCountView, EventDescription, SchemaDrift, StoredPayload

blueprint = Blueprint("catalog", url_prefix="/api/v1/events/catalog")

MAX_WINDOW_DAYS = 30
MAX_NAMES = 200
SAMPLED_EVENTS = 1_000
SAMPLED_BYTES = 2_000_000  # decoding and typing this many bytes takes about a second
SHOWN_SAMPLES = 5
RECENT_FRACTION = 10  # drift compares the last tenth of the window with the rest
_EARLIER_PARTS, _PAYLOADS_PER_PART = 25, 20  # the rest is sampled evenly: 20 payloads from each of 25 parts


class DaysQuery(Body, frozen=True):
    days: Annotated[int, Meta(ge=1, le=MAX_WINDOW_DAYS)] = MAX_WINDOW_DAYS


class CatalogQuery(DaysQuery, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_NAMES)] = MAX_NAMES
    prefix: str = ""
    detail: bool = False


@blueprint.get("")
@Operation(READ_EVENTS)
async def list_events(request: Request, query: CatalogQuery) -> CatalogResponse:
    """List event names with their counts over the last days, most frequent first.

    With `detail=true` also the first occurrence ever, the last one, and the counts per day.
    """
    org_id, now = principal_of(request).org_id, services(request).clock.now()
    since = now - timedelta(days=query.days)
    async with services(request).database.transaction() as tx:
        counts = await store.count_events(tx, org_id, since, query.prefix.lower(), query.limit)
        names = [count.event for count in counts]
        spans = await store.find_first_and_last(tx, org_id, names, since) if query.detail else []
    if not query.detail:
        return CatalogResponse([EventCountView(count.event, count.count) for count in counts], query.days)
    window = _window(since, now)
    events = [
        EventCountView(count.event, count.count, first, last, _per_day(window, count.days))
        for count, (first, last) in zip(counts, spans, strict=True)
    ]
    return CatalogResponse(events, query.days, _dates(window))


@blueprint.get("/<event:str>")
@Operation(READ_EVENTS)
async def describe(request: Request, event: str, query: DaysQuery) -> EventDescription:
    """Describe one event: property paths of its newest 1,000 payloads, counts per day, samples and drift."""
    org_id, days = principal_of(request).org_id, query.days
    name = unquote(event).lower()
    if not EVENT_NAME.fullmatch(name):
        raise RequestRefusedError(404, f"{name!r} is not a valid event name")
    now = services(request).clock.now()
    since, recent_since = now - timedelta(days=days), now - timedelta(days=days) / RECENT_FRACTION
    async with services(request).database.transaction() as tx:
        counts = await store.count_event(tx, org_id, name, since)
        if not counts.count:
            raise RequestRefusedError(404, f"no event {name!r} was received in the last {days} days")
        ((first, last),) = await store.find_first_and_last(tx, org_id, [name], since)
        newest = await store.list_newest_events(tx, org_id, name, since, SAMPLED_EVENTS)
        span = EventSpan(since, recent_since)
        earlier = await store.sample_payloads(tx, org_id, name, span, _EARLIER_PARTS, _PAYLOADS_PER_PART)
    window = _window(since, now)
    # Runs in a thread, because decoding and typing the samples may take a second.
    structure = await asyncio.to_thread(_describe_payloads, newest, earlier, recent_since)
    per_day = _per_day(window, counts.days)
    return EventDescription(name, counts.count, first, last, days, _dates(window), per_day, **structure)


def _describe_payloads(newest: Sequence[EventRow], earlier: Sequence[bytes], recent_since: datetime) -> dict[str, Any]:
    sampled = [(event, decode(event.payload)) for event in newest[: _sample_size([event.payload for event in newest])]]
    recent_payloads = [payload for event, payload in sampled if event.created_at >= recent_since]
    earlier_payloads = [decode(payload) for payload in earlier[: _sample_size(earlier)]]
    return {
        "sampled": len(sampled),
        "paths": summarise_paths([payload for _, payload in sampled]),
        "samples": tuple(
            StoredPayload(event.id, event.created_at, event.occurred_at, payload)
            for event, payload in sampled[:SHOWN_SAMPLES]
        ),
        "drift": SchemaDrift(
            recent_since, len(earlier_payloads), len(recent_payloads), schema_changes(earlier_payloads, recent_payloads)
        ),
        "undeliverable": sum(
            event.wallet_address is not None and not is_evm_wallet(event.wallet_address) for event, _ in sampled
        ),
        "sampled_since": sampled[-1][0].created_at if sampled else None,
    }


def _sample_size(payloads: Sequence[Sized]) -> int:
    """Return how many payloads fit into SAMPLED_BYTES, but at least the ones that are shown."""
    sizes = accumulate(len(payload) for payload in payloads)
    return max(sum(size <= SAMPLED_BYTES for size in sizes), min(len(payloads), SHOWN_SAMPLES))


def _window(since: datetime, now: datetime) -> list[datetime]:
    first = since.replace(hour=0, minute=0, second=0, microsecond=0)
    return [first + timedelta(days=number) for number in range((now - first).days + 1)]


def _per_day(window: Sequence[datetime], counts: Mapping[datetime, int]) -> tuple[int, ...]:
    return tuple(counts.get(day, 0) for day in window)


def _dates(window: Sequence[datetime]) -> tuple[str, ...]:
    return tuple(day.date().isoformat() for day in window)
