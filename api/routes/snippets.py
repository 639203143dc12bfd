"""`/api/v1/snippets`: texts that messages include, in versions.

Requires a workbench key. Reading needs one of the scopes that read automations; a change needs automations:write.
"""

from typing import Annotated

import msgspec
from msgspec import Meta
from sanic import Blueprint, Request

from api.automations import snippets
from api.automations.automations import Refusal, unknown
from api.automations.pins import find_included
from api.automations.snippets import SnippetBody
from api.routes.request import READ, WRITE, Operation, author_of, principal_of, services
from api.routes.responses import RequestRefusedError
from api.store import snippets as store
from workbench.language.body import SLUG, SLUG_CHARACTERS, Body
from workbench.language.responses import SnippetSummary, SnippetVersionView, SnippetView

blueprint = Blueprint("snippets", url_prefix="/api/v1/snippets")


class SnippetsQuery(Body, frozen=True):
    """`names`: only these, and the snippets that they include."""

    names: list[str] | None = None


class VersionsQuery(Body, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


@blueprint.get("")
@Operation(READ, field="snippets")
async def list_all(request: Request, query: SnippetsQuery) -> list[SnippetSummary]:
    """List the newest version of each snippet by name; with its text for `names` and what they include."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        if query.names is None:
            return await store.summarize_snippets(tx, org_id)
        names = sorted(await find_included(tx, org_id, set(query.names)))
        rows = await store.list_snippets(tx, org_id, names)
    return [SnippetSummary(**msgspec.structs.asdict(row)) for row in rows]


@blueprint.get("/<name:str>")
@Operation(READ)
async def read(request: Request, name: str) -> SnippetView | Refusal:
    """Return the newest version of a snippet, and the automations that include it."""
    org_id, database = principal_of(request).org_id, services(request).database
    async with database.transaction() as tx:
        newest = next(iter(await store.list_snippets(tx, org_id, [name])), None)
    if newest is None:
        return unknown("snippet")
    used_by = await snippets.find_uses(database, org_id, name)
    return SnippetView(**msgspec.structs.asdict(newest), used_by=tuple(used_by))


@blueprint.get("/<name:str>/versions")
@Operation(READ, field="versions")
async def list_versions(request: Request, name: str, query: VersionsQuery) -> list[SnippetVersionView] | Refusal:
    """List the newest versions of a snippet."""
    async with services(request).database.transaction() as tx:
        versions = await store.list_snippet_versions(tx, principal_of(request).org_id, name, query.limit)
    return versions or unknown("snippet")


@blueprint.put("/<name:str>")
@Operation(WRITE)
async def save(request: Request, name: str, body: SnippetBody) -> SnippetVersionView | Refusal:
    """Save a snippet as a new version. Published automations keep the version that they were published with.

    409 unless `version`, if given, is the newest.
    """
    if not SLUG.fullmatch(name):
        raise RequestRefusedError(400, f"a snippet's name has {SLUG_CHARACTERS}")
    return await snippets.save(services(request).database, author_of(request), name, body)
