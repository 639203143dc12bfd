"""What is kept of one contact, page by page: the statements of `sql/queries/export.sql`."""

from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.erasure import Cursor, Subject
from api.store.statements import load

PAGE = 500

_SQL = load("export")


class EventRow(msgspec.Struct, frozen=True):
    """An event; `payload` is JSON text, `email` is sealed."""

    created_at: datetime
    id: str
    event: str
    occurred_at: datetime
    payload: bytes
    idempotency_key: str
    wallet_address: str | None
    email: str | None
    external_id: str | None


class EntryRow(msgspec.Struct, frozen=True):
    """An entry; `steps` is the JSON text of an array."""

    created_at: datetime
    id: str
    automation_id: str
    automation_version: int | None
    event_id: str
    state: str
    outcome: str | None
    node_id: str | None
    attempts: int
    last_error: str | None
    updated_at: datetime
    steps: bytes


class MessageRow(msgspec.Struct, frozen=True):
    """A message; `recipient` of an email is sealed, `extra` is JSON text."""

    created_at: datetime
    id: str
    automation_id: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    wallet_address: str | None
    recipient: str | None
    subject: str | None
    body: str | None
    extra: bytes | None
    sent_at: datetime | None
    delivered_at: datetime | None


class AbsorbedRow(msgspec.Struct, frozen=True):
    """A contact that was merged into another, as it was; `email` is sealed, `attributes` JSON text."""

    created_at: datetime
    id: str
    wallet_address: str | None
    email: str | None
    external_id: str | None
    attributes: bytes
    tags: list[str]


class LogRow(msgspec.Struct, frozen=True):
    """A log of a chain; `args` is JSON text."""

    created_at: datetime
    id: str
    chain_id: int
    contract: str
    event: str
    tx_hash: str
    log_index: int
    block_number: int
    block_time: datetime
    args: bytes
    removed: bool


async def export_absorbed(tx: Transaction, who: Subject, after: Cursor) -> list[AbsorbedRow]:
    """Return the next contacts that were merged into one."""
    return [AbsorbedRow(*row) async for row in await tx.execute(_SQL["export_absorbed"], _values(who, after))]


async def export_events(tx: Transaction, who: Subject, after: Cursor) -> list[EventRow]:
    """Return the next events of a contact."""
    return [EventRow(*row) async for row in await tx.execute(_SQL["export_events"], _values(who, after))]


async def export_entries(tx: Transaction, who: Subject, after: Cursor) -> list[EntryRow]:
    """Return the next entries of a contact."""
    return [EntryRow(*row) async for row in await tx.execute(_SQL["export_entries"], _values(who, after))]


async def export_messages(tx: Transaction, who: Subject, after: Cursor) -> list[MessageRow]:
    """Return the next messages to a contact."""
    return [MessageRow(*row) async for row in await tx.execute(_SQL["export_messages"], _values(who, after))]


async def export_logs(tx: Transaction, who: Subject, after: Cursor) -> list[LogRow]:
    """Return the next logs of chains that are about a contact."""
    return [LogRow(*row) async for row in await tx.execute(_SQL["export_logs"], _values(who, after))]


def _values(who: Subject, after: Cursor) -> dict[str, object]:
    after_at, after_id = after
    return {**msgspec.structs.asdict(who), "after_at": after_at, "after_id": after_id, "most": PAGE}
