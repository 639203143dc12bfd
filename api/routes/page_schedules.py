"""`/api/v1/page-schedules`: pages that are made on a schedule and mailed.

Requires a workbench key: with `pages:send` and `sql:read` for a change, with either to read.
"""

from typing import Annotated

import msgspec
from msgspec import Meta
from sanic import Blueprint, Request

from api.automations.automations import Refusal, unknown
from api.page_schedules import schedules
from api.page_schedules.schedules import PageScheduleBody, schedule_view
from api.routes.request import (
    Access,
    Operation,
    author_of,
    email_display,
    principal_of,
    require_scope,
    services,
    unwrap,
)
from api.store import page_schedules as store
from workbench.language.body import Body
from workbench.language.responses import KeptPageView, PageRunView, PageScheduleView

blueprint = Blueprint("page_schedules", url_prefix="/api/v1/page-schedules")

SEND = Access(("workbench",), ("pages:send",))
READ_PAGES = Access(("workbench",), ("sql:read",))


class RunsQuery(Body, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class DeletedSchedule(msgspec.Struct, frozen=True):
    """A schedule that was deleted."""

    id: str


@blueprint.post("")
@Operation(SEND, status=201, private=True)
async def create(request: Request, body: PageScheduleBody) -> PageScheduleView:
    """Make a page at the times of a schedule, and mail it."""
    require_scope(request, "sql:read")
    context, keys = services(request), services(request).keyring.of(principal_of(request).org_id)
    row = unwrap(await schedules.create(context.database, keys, author_of(request), body))
    return schedule_view(row, None, email_display(request))


@blueprint.get("")
@Operation(READ_PAGES, field="schedules", private=True)
async def list_all(request: Request) -> list[PageScheduleView]:
    """List the scheduled pages, newest first, each with its last run."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        rows = await store.list_page_schedules(tx, org_id)
        last_runs = [next(iter(await store.list_page_runs(tx, org_id, row.id, 1)), None) for row in rows]
    show = email_display(request)
    return [schedule_view(row, last_run, show) for row, last_run in zip(rows, last_runs, strict=True)]


@blueprint.delete("/<schedule_id:str>")
@Operation(SEND)
async def delete(request: Request, schedule_id: str) -> DeletedSchedule:
    """Delete a scheduled page with what it has sent."""
    return DeletedSchedule(unwrap(await schedules.delete(services(request).database, author_of(request), schedule_id)))


@blueprint.get("/<schedule_id:str>/runs")
@Operation(READ_PAGES, field="runs")
async def list_runs(request: Request, schedule_id: str, query: RunsQuery) -> list[PageRunView] | Refusal:
    """List the runs of a scheduled page, newest first."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        if await store.find_page_schedule(tx, org_id, schedule_id) is None:
            return unknown("page schedule")
        return await store.list_page_runs(tx, org_id, schedule_id, query.limit)


@blueprint.get("/<schedule_id:str>/runs/<run_id:str>")
@Operation(READ_PAGES, private=True)
async def read_page(request: Request, schedule_id: str, run_id: str) -> KeptPageView | Refusal:
    """Return the page of a run as it was mailed; 404 before it is made, and once a contact has been erased since."""
    async with services(request).database.transaction() as tx:
        html = await store.find_page(tx, principal_of(request).org_id, schedule_id, run_id)
    return unknown("page") if html is None else KeptPageView(html)
