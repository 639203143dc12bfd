"""The record of changes: the statement of `sql/queries/audit.sql`."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("audit")


class Wanted(msgspec.Struct, frozen=True):
    """Which changes: of kinds of things (the first word of the action; None: all), of one thing, of one action, before one (its id)."""

    most: int
    kinds: Sequence[str] | None = None
    subject_id: str | None = None
    action: str | None = None
    before: str | None = None


class AuditedRow(msgspec.Struct, frozen=True):
    """One change; `subject`: the name of what it is about, where it has one; `detail` is JSON text."""

    id: str
    at: datetime
    action: str
    key_id: str | None
    key_name: str | None
    key_prefix: str | None
    key_last4: str | None
    subject_id: str | None
    subject: str | None
    detail: bytes


async def list_audit(tx: Transaction, org_id: int, wanted: Wanted) -> list[AuditedRow]:
    """Return the wanted changes, newest first."""
    values = {"org_id": org_id} | msgspec.structs.asdict(wanted)
    return [AuditedRow(*row) async for row in await tx.execute(_SQL["list_audit"], values)]
