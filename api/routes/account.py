"""`/api/v1/audit` and `/api/v1/usage`: the changes in the organization, and the number of messages it sent.

A workbench key sees the changes of objects that it may read, or all changes with keys:admin. Usage counts sent
messages per month and channel; incoming events are never metered.
"""

import re
from datetime import UTC, datetime

from sanic import Blueprint, HTTPResponse, Request

from api.automations import audit
from api.routes.parameters import query_id, query_number, query_text
from api.routes.request import require, require_workbench_key, services
from api.routes.responses import RequestRefusedError, answer
from api.store.automations import AuditQuery
from api.store.messages import count_sent
from workbench.language.problem import Problem
from workbench.language.run import CHANNELS

blueprint = Blueprint("account", url_prefix="/api/v1")

_MAX_CHANGES = 500
_AUDIT_SCOPES = tuple(
    dict.fromkeys([audit.ADMIN, *(scope for scopes in audit.KIND_SCOPES.values() for scope in scopes)])
)
_MONTH = re.compile(r"2[0-9]{3}-(0[1-9]|1[0-2])", re.ASCII)


@blueprint.get("/audit")
async def list_changes(request: Request) -> HTTPResponse:
    """List changes, newest first, optionally of a `subjectId` or `action`; `before` is the previous page's last id."""
    principal = await require_workbench_key(request, _AUDIT_SCOPES, "changes")
    query = AuditQuery(
        query_number(request, "limit", 50, _MAX_CHANGES),
        audit.visible_kinds(principal.scopes),
        query_id(request, "subjectId"),
        query_text(request, "action"),
        query_id(request, "before"),
    )
    return answer({"changes": await audit.list_changes(services(request).database, principal.org_id, query)})


@blueprint.get("/usage")
async def usage(request: Request) -> HTTPResponse:
    """Count the messages sent in a UTC `month` like 2026-11, by default the current one."""
    principal = await require(request, "events:read")
    text = query_text(request, "month") or f"{services(request).clock.now():%Y-%m}"
    if not _MONTH.fullmatch(text):
        raise RequestRefusedError(400, Problem("month", "must be a month, like 2026-11"))
    year, month = map(int, text.split("-"))
    since = datetime(year, month, 1, tzinfo=UTC)
    until = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    async with services(request).database.transaction() as tx:
        sent = await count_sent(tx, principal.org_id, since, until)
    channels = {channel: sent.get(channel, 0) for channel in CHANNELS}
    return answer({"month": text, "messages": channels, "total": sum(channels.values())})
