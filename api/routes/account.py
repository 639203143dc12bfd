"""`/api/v1/me`, `/organization`, `/audit`, `/usage`, `/retries`: the key of the request, the time zone, changes, sent
messages, the delays of retries.

A workbench key sees the changes of objects that it may read, or all changes with keys:admin. Usage counts sent
messages per month and channel; incoming events are never metered.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sanic import Blueprint, Request

from api.automations.automations import record
from api.query.limits import ConcurrencyLimits
from api.routes.events import MAX_BATCH_EVENTS
from api.routes.request import PUBLISH, READ, READ_EVENTS, Access, Operation, author_of, principal_of, services
from api.store.access import find_timezone, set_timezone
from api.store.automations import ChangesQuery, list_audit
from api.store.messages import count_sent
from api.store.receipts import asks_for_approvals, set_approvals
from workbench.language.body import Body
from workbench.language.channel import CHANNELS
from workbench.language.local_time import NOT_A_ZONE, find_zone
from workbench.language.problem import Problem
from workbench.language.responses import AuditView, CallerView, CurrentKeyView, KeyLimits
from workbench.language.version import VERSION

blueprint = Blueprint("account", url_prefix="/api/v1")

_SEES_ALL = "keys:admin"
_OF_AUTOMATIONS = ("automations:write", "automations:publish", "events:read")
# By the kind of object (the first word of an action): any one of these scopes is enough to see its changes.
_KIND_SCOPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("automation", "entry", "snippet", "connection", "topic", "organization"), _OF_AUTOMATIONS),
    "segment": ("contacts:read", "sql:read", "automations:write"),
    "contact": ("contacts:read",),
    "page_schedule": ("sql:read",),
}
_ANY_SECRET_KEY = Access(("live", "test", "workbench"))
_RETRIES = Access(("workbench",), (*READ.scopes, "sql:read"))
_AUDIT = Access(("workbench",), tuple(dict.fromkeys([_SEES_ALL, *chain.from_iterable(_KIND_SCOPES.values())])))


class UsageQuery(Body, frozen=True):
    month: (
        Annotated[
            str,
            Meta(
                max_length=7, pattern="^2[0-9]{3}-(0[1-9]|1[0-2])$", extra={"reason": "must be a month, like 2026-11"}
            ),
        ]
        | None
    ) = None


class UsageResponse(msgspec.Struct, frozen=True):
    """Messages sent in a month, by channel."""

    month: str
    messages: dict[str, int]
    total: int


def _read_timezone(value: Any, path: str) -> Any:
    return value if find_zone(value) is not None else (Problem(path, NOT_A_ZONE),)


class OrganizationBody(Body, frozen=True):
    """`timezone`: an IANA name, such as Europe/Zurich; null or left out: UTC.

    `approvals`: whether another person has to approve what a key with automations:propose publishes; left out: as now.
    """

    timezone: Annotated[str, Meta(extra={"read": _read_timezone})] | None = None
    approvals: bool | None = None


class OrganizationView(msgspec.Struct, frozen=True):
    """`timezone`: that of contacts and automations without one; null: UTC. `approvals`: as in a request."""

    timezone: str | None
    approvals: bool


class RetriesResponse(msgspec.Struct, frozen=True):
    """The seconds between attempts of every channel (`WORKBENCH_RETRY_DELAYS`), or null: those of each channel."""

    delays: tuple[float, ...] | None


@blueprint.get("/me")
@Operation(_ANY_SECRET_KEY)
async def read_me(request: Request) -> CallerView:
    """Return the organization, the key and the limits of this request, and the version of the server."""
    principal, settings = principal_of(request), services(request).settings
    limits = KeyLimits(
        settings.ingest_rate, settings.ingest_burst, MAX_BATCH_EVENTS, ConcurrencyLimits().per_organization
    )
    key = CurrentKeyView(
        principal.key_id,
        principal.kind,
        principal.key_name,
        tuple(sorted(principal.scopes)),
        principal.test,
        principal.strict,
    )
    return CallerView(principal.org_name, key, limits, VERSION)


@blueprint.get("/audit")
@Operation(_AUDIT, field="changes")
async def list_changes(request: Request, query: ChangesQuery) -> list[AuditView]:
    """List changes, newest first, optionally of a `subjectId` or `action`."""
    principal = principal_of(request)
    async with services(request).database.transaction() as tx:
        return await list_audit(tx, principal.org_id, visible_kinds(principal.scopes), query)


def visible_kinds(scopes: Collection[str]) -> list[str] | None:
    """Return the kinds of objects whose changes a key with these scopes may see; None means all kinds."""
    if _SEES_ALL in scopes:
        return None
    return [kind for kind, any_of in _KIND_SCOPES.items() if not set(scopes).isdisjoint(any_of)]


@blueprint.get("/organization")
@Operation(READ)
async def read_organization(request: Request) -> OrganizationView:
    """Return the settings of the organization."""
    async with services(request).database.transaction() as tx:
        org_id = principal_of(request).org_id
        return OrganizationView(await find_timezone(tx, org_id), bool(await asks_for_approvals(tx, org_id)))


@blueprint.put("/organization")
@Operation(PUBLISH)
async def change_organization(request: Request, body: OrganizationBody) -> OrganizationView:
    """Set the time zone and whether agents need approvals. Automations keep a zone until their next publication."""
    author = author_of(request)
    async with services(request).database.transaction() as tx:
        before = await find_timezone(tx, author.org_id)
        if before != body.timezone:
            await set_timezone(tx, author.org_id, body.timezone)
            await record(tx, author, "organization.timezone", None, {"from": before, "to": body.timezone})
        approvals = bool(await asks_for_approvals(tx, author.org_id))
        if body.approvals is not None and body.approvals != approvals:
            approvals = body.approvals
            await set_approvals(tx, author.org_id, approvals)
            await record(tx, author, "organization.approvals", None, {"to": approvals})
    return OrganizationView(body.timezone, approvals)


@blueprint.get("/usage")
@Operation(READ_EVENTS)
async def usage(request: Request, query: UsageQuery) -> UsageResponse:
    """Count the messages sent in a UTC `month` like 2026-11, by default the current one."""
    month_text = query.month or f"{services(request).clock.now():%Y-%m}"
    year, month = map(int, month_text.split("-"))
    since = datetime(year, month, 1, tzinfo=UTC)
    until = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    async with services(request).database.transaction() as tx:
        sent = await count_sent(tx, principal_of(request).org_id, since, until)
    channels = {channel: sent.get(channel, 0) for channel in CHANNELS}
    return UsageResponse(month_text, channels, sum(channels.values()))


@blueprint.get("/retries")
@Operation(_RETRIES)
async def retries(request: Request) -> RetriesResponse:
    """Return the schedule of retries of this installation, for backtests."""
    return RetriesResponse(services(request).settings.retry_delays)
