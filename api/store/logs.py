"""Logs of chains as people see them: statements of `sql/queries/chain.sql`."""

from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("chain")


class LogRow(msgspec.Struct, frozen=True):
    """A log; `args` is JSON text."""

    id: str
    chain_id: int
    contract: str
    event: str
    signature: str
    args: bytes
    tx_hash: str
    log_index: int
    block_number: int
    block_time: datetime
    removed: bool
    contact_id: str | None


class CountRow(msgspec.Struct, frozen=True, rename="camel"):
    """How many logs there are of an event."""

    chain_id: int
    contract: str
    event: str
    signature: str
    count: int


class ChainRow(msgspec.Struct, frozen=True, rename="camel"):
    """How far a chain was read; `trouble`: what hinders its follower."""

    chain_id: int
    block_number: int | None
    head: int | None
    read_at: datetime | None
    trouble: str | None


class DeadLogRow(msgspec.Struct, frozen=True):
    """A log that could not be stored; `reason`: what it breaks."""

    organization: str
    chain_id: int
    tx_hash: str
    log_index: int
    contract: str
    signature: str
    block_number: int
    reason: str
    died_at: datetime


async def recent_logs(tx: Transaction, org_id: int, contract: str | None, event: str | None, most: int) -> list[LogRow]:
    """Return the newest logs, of a contract and an event when they are named."""
    values = {"org_id": org_id, "contract": contract, "event": event, "most": most}
    return [LogRow(*row) async for row in await tx.execute(_SQL["recent_logs"], values)]


async def count_logs(tx: Transaction, org_id: int, most: int) -> list[CountRow]:
    """Return how many logs there are of each event, among the newest."""
    return [CountRow(*row) async for row in await tx.execute(_SQL["count_logs"], {"org_id": org_id, "most": most})]


async def list_chains(tx: Transaction, now: datetime) -> list[ChainRow]:
    """Return how far every chain was read, and what hinders that now."""
    return [ChainRow(*row) async for row in await tx.execute(_SQL["list_chains"], {"now": now})]


async def count_dead_logs(tx: Transaction) -> dict[int, int]:
    """Return how many logs of each chain could not be stored."""
    return {row[0]: row[1] async for row in await tx.execute(_SQL["count_dead_logs"])}


async def list_dead_logs(tx: Transaction, most: int) -> list[DeadLogRow]:
    """Return the newest logs that could not be stored, whosever they are."""
    return [DeadLogRow(*row) async for row in await tx.execute(_SQL["list_dead_logs"], {"most": most})]
