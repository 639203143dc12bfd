"""The audit log: the changes in an organization, as far as a key may see them.

A key sees the changes of the kinds of objects that it may read; one with `keys:admin` sees all changes.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from api.store import automations as store
from api.store.automations import AuditQuery
from api.store.database import Database
from workbench.language.codec import decode

ADMIN = "keys:admin"

# By the kind of object (the first word of an action): any one of these scopes is enough to see its changes.
KIND_SCOPES: Mapping[str, tuple[str, ...]] = {
    "automation": ("automations:write", "automations:publish", "events:read"),
    "entry": ("automations:write", "automations:publish", "events:read"),
    "segment": ("contacts:read", "sql:read", "automations:write"),
    "contact": ("contacts:read",),
}
_PUBLISHING = ("automation.publish", "automation.rollback")  # each makes the next version the live one


class AuditView(msgspec.Struct, frozen=True, rename="camel"):
    """One change: when, what, and the key that made it; `key` is its prefix and its last four characters.

    `from_version`, `to_version`: the live version before and after a publication or rollback.
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


def visible_kinds(scopes: Collection[str]) -> list[str] | None:
    """Return the kinds of objects whose changes a key with these scopes may see; None means all kinds."""
    if ADMIN in scopes:
        return None
    return [kind for kind, any_of in KIND_SCOPES.items() if not set(scopes).isdisjoint(any_of)]


async def list_changes(database: Database, org_id: int, query: AuditQuery) -> list[AuditView]:
    async with database.transaction() as tx:
        rows = await store.list_audit(tx, org_id, query)
    changes = []
    for row in rows:
        detail: dict[str, Any] = decode(row.detail)
        by = row.key_name or row.key_id or ""
        key = None if row.key_prefix is None else f"{row.key_prefix}…{row.key_last4}"
        live = detail.get("version") if row.action in _PUBLISHING else None
        before = live - 1 or None if isinstance(live, int) else None  # versions are numbered without gaps
        subject = row.subject_id, row.subject
        raw_detail = msgspec.Raw(row.detail)
        changes.append(AuditView(row.id, row.at, row.action, by, row.key_id, key, *subject, before, live, raw_detail))
    return changes
