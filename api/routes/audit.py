"""`GET /api/v1/audit`: who changed what, newest first.

A notebook key sees the changes of what it may look at; with `keys:admin` all of them.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.authoring import audit
from api.routes.answers import answer
from api.routes.authors import id_argument, require_notebook, text_argument
from api.routes.catalog import whole_number
from api.routes.entrance import parts
from api.store.audit import Wanted

blueprint = Blueprint("audit", url_prefix="/api/v1")

_MOST = 500
_SCOPES = tuple(dict.fromkeys([audit.ADMIN, *(scope for any_of in audit.SEES.values() for scope in any_of)]))


@blueprint.get("/audit")
async def changes(request: Request) -> HTTPResponse:
    """Answer changes: all, or those of one thing (`subjectId`) or `action`, or after a page (`before`, its last id)."""
    who = await require_notebook(request, _SCOPES, "changes")
    wanted = Wanted(
        whole_number(request, "limit", 50, _MOST),
        audit.kinds_for(who.scopes),
        id_argument(request, "subjectId"),
        text_argument(request, "action"),
        id_argument(request, "before"),
    )
    return answer({"changes": await audit.changes(parts(request).database, who.org_id, wanted)})
