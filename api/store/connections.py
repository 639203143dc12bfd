"""Connections: named requests that send messages through a provider. Their secrets are stored sealed."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.query import Json, RowCount, Uuid, query
from workbench.language.body import read_value
from workbench.language.codec import decode
from workbench.language.connections import ConnectionDefinition


class ConnectionRow(msgspec.Struct, frozen=True):
    """A connection: its definition as JSON, and its sealed secrets.

    With a rate, `next_at`: when the next message may leave; `queue_end`: when the last one that waits comes back.
    """

    name: str
    definition: Json
    secrets: bytes
    next_at: datetime | None
    queue_end: datetime | None
    created_at: datetime
    updated_at: datetime
    updated_by: Uuid


def read_definition(row: ConnectionRow) -> ConnectionDefinition:
    definition = read_value(ConnectionDefinition, decode(row.definition), "definition")
    assert isinstance(definition, ConnectionDefinition), "checked when it was saved"
    return definition


@query
async def list_connections(tx: Transaction, org_id: int, names: Sequence[str] | None = None) -> list[ConnectionRow]: ...


@query
async def hold_connections(tx: Transaction, org_id: int, names: Sequence[str]) -> list[ConnectionRow]:
    """Return connections, which stay as they are until the transaction ends."""


@query
async def lock_connection(tx: Transaction, org_id: int, name: str) -> ConnectionRow | None: ...


@query
async def count_connections(tx: Transaction, org_id: int) -> int: ...


@query
async def save_connection(
    tx: Transaction, org_id: int, name: str, definition: str, secrets: bytes, at: datetime, key_id: Uuid
) -> ConnectionRow: ...


@query
async def delete_connection(tx: Transaction, org_id: int, name: str) -> RowCount: ...


@query
async def set_turns(tx: Transaction, org_id: int, name: str, next_at: datetime, queue_end: datetime | None) -> None: ...
