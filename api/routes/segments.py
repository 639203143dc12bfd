"""`/api/v1/segments`: names for contacts, defined by a query or by a frame's contacts.

Workbench keys. Reading needs one of contacts:read, sql:read, automations:write; trying a query sql:read; changes automations:write, and
also sql:read where they bring a query, since its answer's size tells about the data. Addresses are masked without pii:read.
"""

import asyncio
from collections.abc import Awaitable

from sanic import Blueprint, HTTPResponse, Request

from api.access.verify import Principal
from api.authoring.automations import Author
from api.authoring.refusal import Refusal, unknown
from api.routes.answers import RefusedError, answer
from api.routes.authors import accepted, require_notebook, settled
from api.routes.entrance import expect_json, parts
from api.routes.people import author_of, shown_to
from api.routes.questions import answered
from api.routes.watched import while_allowed
from api.segments import audiences, definition, segments
from api.segments.definition import Frame, Trial
from api.segments.segments import Filled
from api.segments.views import filled_view, listed_view, preview_view, segment_view, shown_view
from api.store import segments as store

blueprint = Blueprint("segments", url_prefix="/api/v1/segments")

_READ = ("contacts:read", "sql:read", "automations:write")
_ASK, _WRITE = ("sql:read",), ("automations:write",)
_DAYS = 30
_MOST_SIZES = 1_000


@blueprint.post("")
async def create(request: Request) -> HTTPResponse | None:
    """Store a new segment by its `sql` or its `contactIds`: 201. Contacts replace those of the audience at `revision`: 200."""
    who, author = await _author(request)
    expect_json(request)
    new = await asyncio.to_thread(definition.read_new, request.body)
    if isinstance(new, tuple):
        raise RefusedError(400, new)
    desk = parts(request).segments
    if isinstance(new, Frame):
        return await _with_members(request, who, audiences.freeze(desk, author, new), 200 if new.revision else 201)
    _demand_sql(who)
    return await _with_members(request, who, segments.create(desk, author, new), 201)


@blueprint.get("")
async def list_all(request: Request) -> HTTPResponse:
    """Answer all segments by name, with their sizes of the last 30 days."""
    who = await require_notebook(request, _READ, "segments")
    async with parts(request).database.transaction() as tx:
        rows = await store.list_segments(tx, who.org_id)
        daily = await store.list_daily_sizes(tx, who.org_id, parts(request).clock.now(), _DAYS)
    shown = shown_to(request, who)
    return answer({"segments": [listed_view(row, daily.get(row.id, []), shown) for row in rows]})


@blueprint.post("/preview")
async def preview(request: Request) -> HTTPResponse | None:
    """Answer how many contacts a query finds, some of them, and what that changes in the segment `name`, if there is one."""
    who = await require_notebook(request, _ASK, "segments")
    expect_json(request)
    trial = accepted(definition.read_trial(request.body))
    async with while_allowed(request, *_ASK):
        return await answered(request, _tried(request, who, trial))


@blueprint.get("/<name:str>")
async def read(request: Request, name: str) -> HTTPResponse:
    """Answer one segment with its newest 1,000 sizes."""
    who = await require_notebook(request, _READ, "segments")
    async with parts(request).database.transaction() as tx:
        row = await store.find_segment(tx, who.org_id, _known_form(name))
        history = [] if row is None else await store.list_sizes(tx, row, _MOST_SIZES)
    return answer(shown_view(settled(row or unknown("segment")), history, shown_to(request, who)))


@blueprint.put("/<name:str>")
async def update(request: Request, name: str) -> HTTPResponse | None:
    """Change what defines a segment; 409 unless `revision` is the current one."""
    who, author = await _author(request)
    known = _known_form(name)
    expect_json(request)
    edit = accepted(definition.read_edit(request.body))
    if edit.asked is not None:
        _demand_sql(who)
    return await _with_members(request, who, segments.update(parts(request).segments, author, known, edit))


@blueprint.delete("/<name:str>")
async def delete(request: Request, name: str) -> HTTPResponse | None:
    """Put a segment away; 409 names the automations and segments that ask for it."""
    who, author = await _author(request)
    return await answered(request, _deleted(request, who, author, _known_form(name)))


@blueprint.post("/<name:str>/refresh")
async def refresh(request: Request, name: str) -> HTTPResponse | None:
    """Refresh a segment at once."""
    who, author = await _author(request)
    work = segments.refresh_named(parts(request).segments, author, _known_form(name))
    return await _with_members(request, who, work)


@blueprint.post("/<name:str>/contacts")
async def extend(request: Request, name: str) -> HTTPResponse | None:
    """Add the next `contactIds` to an audience of which `more` was to come."""
    who, author = await _author(request)
    known = _known_form(name)
    expect_json(request)
    part = accepted(await asyncio.to_thread(definition.read_part, request.body))
    return await _with_members(request, who, audiences.extend(parts(request).segments, author, known, part))


async def _author(request: Request) -> tuple[Principal, Author]:
    who = await require_notebook(request, _WRITE, "segments")
    return who, author_of(request, who)


async def _with_members(
    request: Request, who: Principal, work: Awaitable[Filled | Refusal], status: int = 200
) -> HTTPResponse | None:
    async def filled() -> HTTPResponse:
        return _filled(request, who, await work, status)

    return await answered(request, filled())


async def _tried(request: Request, who: Principal, trial: Trial) -> HTTPResponse:
    return answer(preview_view(await segments.preview(parts(request).segments, who.org_id, trial)))


async def _deleted(request: Request, who: Principal, author: Author, name: str) -> HTTPResponse:
    row = settled(await segments.archive(parts(request).segments, author, name))
    return answer(segment_view(row, shown_to(request, who)))


def _demand_sql(who: Principal) -> None:
    if "sql:read" not in who.scopes:
        raise RefusedError(403, "this key lacks the scope sql:read")


def _known_form(name: str) -> str:
    if not definition.is_name(name):
        raise RefusedError(404, "there is no such segment")
    return name


def _filled(request: Request, who: Principal, filled: Filled | Refusal, status: int = 200) -> HTTPResponse:
    return answer(filled_view(settled(filled), shown_to(request, who)), status)
