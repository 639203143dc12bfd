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


class Which(msgspec.Struct, frozen=True):
    """Which logs of an organization: of a contract and an event, when they are named, and seen before one, when its id is."""

    contract: str | None = None
    event: str | None = None
    before: str | None = None


async def recent_logs(tx: Transaction, org_id: int, which: Which, most: int) -> list[LogRow]:
    """Return the logs that were seen last, the newest first."""
    values = {"org_id": org_id, **msgspec.structs.asdict(which), "most": most}
    name = "recent_logs" if which.contract is None else "recent_logs_of_contract"
    return [LogRow(*row) async for row in await tx.execute(_SQL[name], values)]


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
