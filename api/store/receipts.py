"""Receipts and approvals: what precedes a publication by a key that may only propose it."""

from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.query import Json, RowCount, Uuid, query
from workbench.language.responses import ApprovalState, ReceiptKind

_RETENTION = timedelta(days=7)
_APPROVAL_RETENTION = timedelta(days=90)


class ReceiptRow(msgspec.Struct, frozen=True):
    kind: ReceiptKind
    result: Json
    issued_at: datetime


@query
async def save_receipt(
    tx: Transaction,
    org_id: int,
    automation_id: Uuid,
    content_hash: bytes,
    key_id: Uuid,
    kind: ReceiptKind,
    result: Json,
    now: datetime,
) -> None: ...


@query
async def list_receipts(
    tx: Transaction, org_id: int, automation_id: Uuid, content_hash: bytes, key_id: Uuid, since: datetime
) -> list[ReceiptRow]: ...


@query
async def delete_old_receipts(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = _RETENTION
) -> RowCount: ...


@query
async def delete_old_approvals(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = _APPROVAL_RETENTION
) -> RowCount: ...


class ApprovalRow(msgspec.Struct, frozen=True):
    """The approval of a content that a key proposes to publish."""

    id: Uuid
    automation_id: Uuid
    content_hash: bytes
    requested_by: Uuid
    requested_at: datetime
    state: ApprovalState
    decided_by: Uuid | None
    decided_at: datetime | None


class ListedApproval(msgspec.Struct, frozen=True):
    """An approval with the names of the automation and of the key that asked, and why the draft needs an approval."""

    id: Uuid
    automation_id: Uuid
    automation: str
    requested_by: str
    requested_at: datetime
    state: ApprovalState
    decided_at: datetime | None
    content_hash: bytes
    key_id: Uuid
    reasons: Json


@query
async def asks_for_approvals(tx: Transaction, org_id: int) -> bool | None: ...


@query
async def set_approvals(tx: Transaction, org_id: int, approvals: bool) -> None: ...


@query
async def find_approval(
    tx: Transaction, org_id: int, automation_id: Uuid, content_hash: bytes, key_id: Uuid
) -> ApprovalRow | None: ...


@query
async def ask_for_approval(
    tx: Transaction,
    org_id: int,
    approval_id: Uuid,
    automation_id: Uuid,
    content_hash: bytes,
    key_id: Uuid,
    now: datetime,
    expired: datetime,
) -> bool:
    """Ask for an approval, again if the decision is from before `expired`; False if it was asked for already."""


@query
async def lock_approval(tx: Transaction, org_id: int, approval_id: Uuid) -> ApprovalRow | None: ...


@query
async def decide_approval(
    tx: Transaction, org_id: int, approval_id: Uuid, state: ApprovalState, key_id: Uuid, now: datetime
) -> None: ...


@query
async def list_approvals(tx: Transaction, org_id: int, limit: int) -> list[ListedApproval]: ...


@query
async def is_new_proposal(tx: Transaction, org_id: int, automation_id: Uuid, key_id: Uuid) -> bool | None:
    """Return whether this key made the automation, and nothing was published, activated or deactivated since."""


@query
async def count_planned_recipients(tx: Transaction, org_id: int, automation_id: Uuid) -> tuple[int, int]:
    """Return the number of broadcasts that are planned or running, and of the contacts that they still start."""


@query
async def list_draft_authors(tx: Transaction, org_id: int, automation_id: Uuid) -> set[Uuid]:
    """Return the keys that wrote the draft since its last publication."""
