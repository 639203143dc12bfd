"""`/api/v1/segments`: named groups of contacts, defined by a query or by a list of contacts.

Requires a workbench key. Reading needs one of the scopes contacts:read, sql:read and automations:write. Previewing a
query needs sql:read. A change needs automations:write, and sql:read as well if it contains a query, because the size of
a segment reveals something about the data.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.automations.automations import Refusal, unknown
from api.routes.request import (
    WRITE,
    Access,
    Operation,
    author_of,
    cancel_when_key_ends,
    email_display,
    principal_of,
    require_scope,
    services,
    unwrap,
)
from api.routes.responses import RequestRefusedError, answer
from api.routes.sql import SQL
from api.segments import segments
from api.segments.definition import AudiencePart, SegmentBody, SegmentEdit, SegmentPreviewBody, is_name
from api.segments.reach import ReachBody, read_reach
from api.segments.segments import SegmentResult, segment_view
from api.store import segments as store
from workbench.language.check import Need
from workbench.language.responses import ReachView, SegmentPreview, SegmentView

blueprint = Blueprint("segments", url_prefix="/api/v1/segments")

_READ = Access(("workbench",), ("contacts:read", "sql:read", "automations:write"))
_READ_CONTACTS = Access(("workbench",), ("contacts:read", "sql:read"))
_LISTED_DAYS = 30
_MAX_SIZES = 1_000


@blueprint.post("")
@Operation(WRITE, answer=SegmentView, status=201, other_answers={200: SegmentView})
async def create(request: Request, body: SegmentBody) -> HTTPResponse:
    """Create a segment from its `sql` or `contactIds`: 201. With `revision`, replace an audience's contacts: 200."""
    segment_services, author, status = services(request).segments, author_of(request), 201
    if body.contact_ids is not None:
        result, status = await segments.save_audience(segment_services, author, body), 200 if body.revision else 201
    else:
        require_scope(request, "sql:read")
        result = await segments.create(segment_services, author, body)
    return answer(_view(request, result), status)


@blueprint.get("")
@Operation(_READ, field="segments")
async def list_all(request: Request) -> list[SegmentView]:
    """List all segments by name, with their sizes over the last 30 days."""
    org_id, show = principal_of(request).org_id, email_display(request)
    async with services(request).database.transaction() as tx:
        rows = await store.list_segments(tx, org_id)
        sizes = await store.list_daily_sizes(tx, org_id, services(request).clock.now(), _LISTED_DAYS)
    return [segment_view(row, show, daily=sizes.get(row.id, [])) for row in rows]


@blueprint.post("/preview")
@Operation(SQL)
async def preview(request: Request, body: SegmentPreviewBody) -> SegmentPreview:
    """Preview a query: the number of its contacts, some of them, and the difference from the segment `name`."""
    async with cancel_when_key_ends(request, SQL):
        return await segments.preview(services(request).segments, principal_of(request).org_id, body)


@blueprint.post("/reach")
@Operation(_READ_CONTACTS)
async def reach(request: Request, body: ReachBody) -> ReachView:
    """Count the contacts of a segment that lack values that messages need, by their locale.

    Of a large segment the newest contacts are looked at.
    """
    needs = [Need("", need.path, need.segments) for need in body.needs]
    org_id = principal_of(request).org_id
    return await read_reach(services(request).database, org_id, body.segment, body.locale_attribute, needs)


@blueprint.get("/<name:str>")
@Operation(_READ)
async def read(request: Request, name: str) -> SegmentView:
    """Return one segment with its newest 1,000 sizes."""
    async with services(request).database.transaction() as tx:
        row = await store.find_segment(tx, principal_of(request).org_id, _segment_name(name))
        history = [] if row is None else await store.list_sizes(tx, row, _MAX_SIZES)
    return segment_view(unwrap(row or unknown("segment")), email_display(request), history=history)


@blueprint.put("/<name:str>")
@Operation(WRITE)
async def update(request: Request, name: str, body: SegmentEdit) -> SegmentView:
    """Change the definition of a segment; 409 unless `revision` is the current one."""
    segment_name = _segment_name(name)
    if body.query is not None:
        require_scope(request, "sql:read")
    return _view(request, await segments.update(services(request).segments, author_of(request), segment_name, body))


@blueprint.delete("/<name:str>")
@Operation(WRITE)
async def delete(request: Request, name: str) -> SegmentView:
    """Archive a segment; 409 names the automations and segments that use it."""
    row = await segments.archive(services(request).segments, author_of(request), _segment_name(name))
    return segment_view(unwrap(row), email_display(request))


@blueprint.post("/<name:str>/refresh")
@Operation(WRITE)
async def refresh(request: Request, name: str) -> SegmentView:
    """Refresh a segment now."""
    work = segments.refresh_by_name(services(request).segments, author_of(request), _segment_name(name))
    result = unwrap(await work)
    extra = {"counts": result.counts, "change": result.change, "refresh": result.scope}
    return segment_view(result.row, email_display(request), **extra)


@blueprint.post("/<name:str>/contacts")
@Operation(WRITE)
async def extend(request: Request, name: str, body: AudiencePart) -> SegmentView:
    """Add the next `contactIds` to an audience that was created with `more`."""
    work = segments.add_part(services(request).segments, author_of(request), _segment_name(name), body)
    return _view(request, await work)


def _segment_name(name: str) -> str:
    if not is_name(name):
        raise RequestRefusedError(404, "segment not found")
    return name


def _view(request: Request, result: SegmentResult | Refusal) -> SegmentView:
    result = unwrap(result)
    return segment_view(result.row, email_display(request), counts=result.counts, change=result.change)
