"""`/api/v1/segments`: named groups of contacts, defined by a query or by a list of contacts.

Workbench keys. Reading needs one of contacts:read, sql:read, automations:write; previewing a query sql:read; changes
automations:write, and also sql:read where they bring a query, since its size tells something about the data.
"""

import asyncio
from collections.abc import Awaitable

from sanic import Blueprint, HTTPResponse, Request

from api.auth.verify import Principal
from api.automations.automations import Author, Refusal, unknown
from api.routes.parameters import unwrap, valid
from api.routes.request import (
    author_of,
    cancel_when_key_ends,
    email_display,
    expect_json,
    require_workbench_key,
    services,
)
from api.routes.responses import RequestRefusedError, answer
from api.routes.sql import refuse_sql_errors
from api.segments import definition, segments
from api.segments.definition import AudienceDraft
from api.segments.segments import SegmentResult
from api.segments.views import (
    segment_detail_view,
    segment_list_item,
    segment_preview_view,
    segment_result_view,
    segment_view,
)
from api.store import segments as store

blueprint = Blueprint("segments", url_prefix="/api/v1/segments")

_READ = ("contacts:read", "sql:read", "automations:write")
_PREVIEW, _WRITE = ("sql:read",), ("automations:write",)
_LISTED_DAYS = 30
_MAX_SIZES = 1_000


@blueprint.post("")
async def create(request: Request) -> HTTPResponse | None:
    """Create a segment from its `sql` or `contactIds`: 201. With `revision`, replace an audience's contacts: 200."""
    principal, author = await _require_author(request)
    expect_json(request)
    new = await asyncio.to_thread(definition.read_new, request.body)
    if isinstance(new, tuple):
        raise RequestRefusedError(400, new)
    segment_services = services(request).segments
    if isinstance(new, AudienceDraft):
        status = 200 if new.revision else 201
        return await _answer_result(request, principal, segments.save_audience(segment_services, author, new), status)
    _require_sql(principal)
    return await _answer_result(request, principal, segments.create(segment_services, author, new), 201)


@blueprint.get("")
async def list_all(request: Request) -> HTTPResponse:
    """List all segments by name, with their sizes over the last 30 days."""
    principal = await require_workbench_key(request, _READ, "segments")
    async with services(request).database.transaction() as tx:
        rows = await store.list_segments(tx, principal.org_id)
        sizes = await store.list_daily_sizes(tx, principal.org_id, services(request).clock.now(), _LISTED_DAYS)
    shown = email_display(request, principal)
    return answer({"segments": [segment_list_item(row, sizes.get(row.id, []), shown) for row in rows]})


@blueprint.post("/preview")
async def preview(request: Request) -> HTTPResponse | None:
    """Preview a query: the number of its contacts, some of them, and the difference from the segment `name`."""
    principal = await require_workbench_key(request, _PREVIEW, "segments")
    expect_json(request)
    preview_request = valid(definition.read_preview(request.body))

    async def run() -> HTTPResponse:
        return answer(
            segment_preview_view(await segments.preview(services(request).segments, principal.org_id, preview_request))
        )

    async with cancel_when_key_ends(request, *_PREVIEW):
        return await refuse_sql_errors(request, run())


@blueprint.get("/<name:str>")
async def read(request: Request, name: str) -> HTTPResponse:
    """Return one segment with its newest 1,000 sizes."""
    principal = await require_workbench_key(request, _READ, "segments")
    async with services(request).database.transaction() as tx:
        row = await store.find_segment(tx, principal.org_id, _segment_name(name))
        history = [] if row is None else await store.list_sizes(tx, row, _MAX_SIZES)
    return answer(segment_detail_view(unwrap(row or unknown("segment")), history, email_display(request, principal)))


@blueprint.put("/<name:str>")
async def update(request: Request, name: str) -> HTTPResponse | None:
    """Change the definition of a segment; 409 unless `revision` is the current one."""
    principal, author = await _require_author(request)
    segment_name = _segment_name(name)
    expect_json(request)
    edit = valid(definition.read_edit(request.body))
    if edit.query is not None:
        _require_sql(principal)
    return await _answer_result(
        request, principal, segments.update(services(request).segments, author, segment_name, edit)
    )


@blueprint.delete("/<name:str>")
async def delete(request: Request, name: str) -> HTTPResponse | None:
    """Archive a segment; 409 names the automations and segments that use it."""
    principal, author = await _require_author(request)
    segment_name = _segment_name(name)

    async def archive() -> HTTPResponse:
        row = unwrap(await segments.archive(services(request).segments, author, segment_name))
        return answer(segment_view(row, email_display(request, principal)))

    return await refuse_sql_errors(request, archive())


@blueprint.post("/<name:str>/refresh")
async def refresh(request: Request, name: str) -> HTTPResponse | None:
    """Refresh a segment now."""
    principal, author = await _require_author(request)
    work = segments.refresh_by_name(services(request).segments, author, _segment_name(name))
    return await _answer_result(request, principal, work)


@blueprint.post("/<name:str>/contacts")
async def extend(request: Request, name: str) -> HTTPResponse | None:
    """Add the next `contactIds` to an audience that was created with `more`."""
    principal, author = await _require_author(request)
    segment_name = _segment_name(name)
    expect_json(request)
    part = valid(await asyncio.to_thread(definition.read_part, request.body))
    return await _answer_result(
        request, principal, segments.add_part(services(request).segments, author, segment_name, part)
    )


async def _require_author(request: Request) -> tuple[Principal, Author]:
    principal = await require_workbench_key(request, _WRITE, "segments")
    return principal, author_of(request, principal)


def _require_sql(principal: Principal) -> None:
    if "sql:read" not in principal.scopes:
        raise RequestRefusedError(403, "this key lacks the scope sql:read")


def _segment_name(name: str) -> str:
    if not definition.is_name(name):
        raise RequestRefusedError(404, "segment not found")
    return name


async def _answer_result(
    request: Request, principal: Principal, work: Awaitable[SegmentResult | Refusal], status: int = 200
) -> HTTPResponse | None:
    async def run() -> HTTPResponse:
        return answer(segment_result_view(unwrap(await work), email_display(request, principal)), status)

    return await refuse_sql_errors(request, run())
