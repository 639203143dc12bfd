"""Who changed what: the record of changes as a key may see it.

A key sees the changes of what it may look at; one with `keys:admin` sees all of them.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from api.language.codec import decode
from api.store import audit as store
from api.store.audit import AuditedRow, Wanted
from api.store.database import Database

ADMIN = "keys:admin"
SEES: Mapping[str, tuple[str, ...]] = {
    "automation": ("automations:write", "automations:publish", "events:read"),
    "entry": ("automations:write", "automations:publish", "events:read"),
    "segment": ("contacts:read", "sql:read", "automations:write"),
    "contact": ("contacts:read",),
}
"""Kinds of things (the first word of an action), and the scopes of which one lets a key see their changes."""


class AuditView(msgspec.Struct, frozen=True, rename="camel"):
    """One change: when, what, and by which key; `key` shows the ends of it, as far as a key is ever shown again.

    `from_version`, `to_version`: of a publication or rollback, the live version before and after.
    """

    id: str
    at: datetime
    action: str
    by: str
    key_id: str | None
    key: str | None
    subject_id: str | None
    subject: str | None
    from_version: int | None
    to_version: int | None
    detail: msgspec.Raw


def kinds_for(scopes: Collection[str]) -> list[str] | None:
    """Return the kinds of things whose changes a key with these scopes sees; None: all."""
    if ADMIN in scopes:
        return None
    return [kind for kind, any_of in SEES.items() if not set(scopes).isdisjoint(any_of)]


async def changes(database: Database, org_id: int, wanted: Wanted) -> list[AuditView]:
    """Return the wanted changes, newest first."""
    async with database.transaction() as tx:
        rows = await store.list_audit(tx, org_id, wanted)
    return [_view(row) for row in rows]


def _view(row: AuditedRow) -> AuditView:
    detail: dict[str, Any] = decode(row.detail)
    live = detail.get("version") if row.action in _PUBLISHING else None
    return AuditView(
        row.id,
        row.at,
        row.action,
        row.key_name or row.key_id or "",
        row.key_id,
        None if row.key_prefix is None else f"{row.key_prefix}…{row.key_last4}",
        row.subject_id,
        row.subject,
        live - 1 or None if isinstance(live, int) else None,
        live,
        msgspec.Raw(row.detail),
    )


_PUBLISHING = ("automation.publish", "automation.rollback")  # each makes the version after the live one live
