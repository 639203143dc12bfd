"""Chains: following them, storing their logs, taking back what a reorganization removes, and showing them to people.

A chain has one follower at a time. Each of its writes runs after `renew_chain` in the same transaction; `renew_chain`
finds no row for a follower that lost the chain to another one.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from api.store.database import Transaction, load
from api.store.query import Call, Rows, joined, nothing, plain, quoted, records, statements, uuids

_SQL = load("chain")

_CALLS = statements("chain")


# --- Following a chain

LEASE_DURATION = timedelta(seconds=5)


class FollowerLease(msgspec.Struct, frozen=True):
    chain_id: int
    token: int


class ChainLease(msgspec.Struct, frozen=True):
    """A chain that this process follows; `block_number`: the last block read, None if reading has not begun.

    `dropping_above`: logs of later blocks were still to be taken back when the last follower ended.
    """

    lease: FollowerLease
    block_number: int | None
    dropping_above: int | None = None


class ChainRow(msgspec.Struct, frozen=True, rename="camel"):
    """The progress of a chain; `trouble`: what prevents its follower from reading, or None."""

    chain_id: int
    block_number: int | None
    head: int | None
    read_at: datetime | None
    trouble: str | None


def claim_chain(chain_id: int, now: datetime, lease_until: datetime) -> Call[ChainLease | None]:
    """Claim a chain; None while another process follows it. Leases that end by `now` have expired."""
    return Call(
        _CALLS["claim_chain"],
        lambda rows: ChainLease(FollowerLease(chain_id, rows[0][0]), *rows[0][1:]) if rows else None,
        chain_id=chain_id,
        now=now,
        lease_until=lease_until,
    )


def renew_chain(lease: FollowerLease, lease_until: datetime) -> Call[bool]:
    """Extend the lease; False if another process has claimed the chain."""
    return Call(_CALLS["renew_chain"], bool, chain_id=lease.chain_id, token=lease.token, lease_until=lease_until)


def release_chain(lease: FollowerLease, now: datetime) -> Call[None]:
    return Call(_CALLS["release_chain"], nothing, chain_id=lease.chain_id, token=lease.token, now=now)


def advance_chain(lease: FollowerLease, block_number: int, head: int, at: datetime) -> Call[None]:
    """Record that all logs up to a block are stored."""
    return Call(
        _CALLS["advance_chain"],
        nothing,
        chain_id=lease.chain_id,
        token=lease.token,
        block_number=block_number,
        head=head,
        at=at,
    )


def begin_dropping(lease: FollowerLease, above: int) -> Call[None]:
    """Record that the logs of blocks above this one must be dropped before anything else is read."""
    return Call(_CALLS["begin_dropping"], nothing, chain_id=lease.chain_id, token=lease.token, above=above)


def end_dropping(lease: FollowerLease) -> Call[None]:
    """Record that all the logs of `begin_dropping` are dropped."""
    return Call(_CALLS["end_dropping"], nothing, chain_id=lease.chain_id, token=lease.token)


def last_read_block(chain_id: int) -> Call[int | None]:
    return Call(_CALLS["last_read_block"], lambda rows: rows[0][0] if rows else None, chain_id=chain_id)


def set_chain_trouble(lease: FollowerLease, trouble: str | None) -> Call[None]:
    return Call(_CALLS["set_chain_trouble"], nothing, chain_id=lease.chain_id, token=lease.token, trouble=trouble)


async def list_chains(tx: Transaction, now: datetime) -> list[ChainRow]:
    return await tx.fetch_all(ChainRow, _SQL["list_chains"], {"now": now})


def add_blocks(chain_id: int, blocks: Sequence[tuple[int, str]]) -> Call[None]:
    """Store (number, hash) pairs of blocks."""
    return Call(
        _CALLS["add_blocks"],
        nothing,
        chain_id=chain_id,
        numbers=plain(number for number, _ in blocks),
        hashes=quoted([block_hash for _, block_hash in blocks]),
    )


def delete_blocks(chain_id: int, above: int, below: int) -> Call[None]:
    """Delete blocks above one, and blocks below another except the first of the chain."""
    return Call(_CALLS["delete_blocks"], nothing, chain_id=chain_id, above=above, below=below)


def list_blocks(chain_id: int) -> Call[list[tuple[int, str]]]:
    """Read the (number, hash) pairs of stored blocks, in order."""
    return Call(_CALLS["list_blocks"], lambda rows: [(row[0], row[1]) for row in rows], chain_id=chain_id)


# --- What to look for


class OnChainAutomationRow(msgspec.Struct, frozen=True):
    """An automation that starts from logs; `trigger_spec` is JSON text.

    `published_version` None: its entries complete at once.

    `live_since`: logs of earlier blocks do not start it. `earlier_confirmations`: an earlier version required this
    many, more than the current one. `paused`: its logs are kept and start nothing.
    """

    org_id: int
    id: str
    published_version: int | None
    activation: int
    trigger_spec: bytes
    live_since: datetime
    earlier_confirmations: int | None
    paused: bool


class WatchRow(msgspec.Struct, frozen=True):
    """An event of a contract that is stored without an automation."""

    org_id: int
    contract: str
    signature: str
    wallet_arg: str | None
    created_at: datetime


class ContractEventKey(msgspec.Struct, frozen=True):
    """An event of a contract; `wallet_arg`: the parameter with the wallet of the contact."""

    chain_id: int
    contract: str
    signature: str
    wallet_arg: str | None = None


def watch_epoch() -> Call[int]:
    """Read a number that grows with every change of automations and watches."""
    return Call(_CALLS["watch_epoch"], _number)


def watch_epochs() -> Call[dict[int, int]]:
    return Call(_CALLS["watch_epochs"], lambda rows: {row[0]: row[1] for row in rows})


def chain_automations(chain_id: int, org_ids: Sequence[int]) -> Call[list[OnChainAutomationRow]]:
    return Call(
        _CALLS["chain_automations"],
        lambda rows: [OnChainAutomationRow(*row) for row in rows],
        chain_id=str(chain_id),  # compared with the JSON of the trigger
        org_ids=plain(org_ids),
    )


def chain_watches(chain_id: int, org_ids: Sequence[int]) -> Call[list[WatchRow]]:
    return Call(
        _CALLS["chain_watches"],
        lambda rows: [WatchRow(*row) for row in rows],
        chain_id=chain_id,
        org_ids=plain(org_ids),
    )


def awaited_logs(org_ids: Sequence[int]) -> Call[dict[int, frozenset[str]]]:
    """Read the names (`LOG_NAME`) of logs that entries can wait for, by organization."""
    return Call(
        _CALLS["awaited_logs"],
        lambda rows: {row[0]: frozenset(row[1].split(",")) for row in rows},
        org_ids=plain(org_ids),
    )


def finish_lookback(settled: Sequence[tuple[int, str, int]]) -> Call[None]:
    """Record that (organization, automation, version)s have looked back, unless another version was published since."""
    return Call(
        _CALLS["finish_lookback"],
        nothing,
        org_ids=plain(org_id for org_id, _, _ in settled),
        ids=joined([automation_id for _, automation_id, _ in settled]),
        versions=plain(version for _, _, version in settled),
    )


async def add_watch(tx: Transaction, org_id: int, watch: ContractEventKey, at: datetime) -> None:
    """Store the logs of an event from now on."""
    await tx.execute(_SQL["add_watch"], {**msgspec.structs.asdict(watch), "org_id": org_id, "created_at": at})


async def remove_watch(tx: Transaction, org_id: int, watch: ContractEventKey) -> bool:
    """Stop storing them; return whether the event was watched."""
    values = {"org_id": org_id, "chain_id": watch.chain_id, "contract": watch.contract, "signature": watch.signature}
    return await (await tx.execute(_SQL["remove_watch"], values)).fetchone() is not None


async def list_watches(tx: Transaction, org_id: int) -> list[ContractEventKey]:
    return await tx.fetch_all(ContractEventKey, _SQL["list_watches"], {"org_id": org_id})


# --- Storing logs


class DroppedLog(msgspec.Struct, frozen=True):
    """A log of a block that left the chain: its last position, and its digest (in hex) within its transaction."""

    org_id: int
    tx_hash: str
    log_index: int
    id: str
    digest: str


class StoredLog(msgspec.Struct, frozen=True):
    """A log as stored; `args` is JSON text, `seconds` the time of its block (since the epoch)."""

    org_id: int
    id: str
    contract: str
    event: str
    signature: str
    tx_hash: str
    log_index: int
    block_number: int
    args: bytes
    seconds: int


class LogRows(msgspec.Struct):
    """Columns of logs to store."""

    org_ids: list[int] = []
    ids: list[str] = []
    contact_ids: list[str | None] = []
    contracts: list[str] = []
    events: list[str] = []
    signatures: list[str] = []
    tx_hashes: list[str] = []
    log_indexes: list[int] = []
    digests: list[str] = []
    block_numbers: list[int] = []
    block_hashes: list[str] = []
    block_seconds: list[int] = []
    args: list[str] = []


class DeadLog(msgspec.Struct, frozen=True):
    """A log that cannot be stored; `reason`: the rule it breaks, without its values."""

    org_id: int
    tx_hash: str
    log_index: int
    contract: str
    signature: str
    block_number: int
    reason: str


def find_logs(chain_id: int, logs: Sequence[tuple[int, str, int]]) -> Call[frozenset[int]]:
    """Find which (organization, transaction, index) triples are stored and in the chain; returns their positions."""
    return Call(
        _CALLS["find_logs"],
        lambda rows: frozenset(row[0] for row in rows),
        chain_id=chain_id,
        org_ids=plain(org_id for org_id, _, _ in logs),
        tx_hashes=quoted([tx_hash for _, tx_hash, _ in logs]),
        log_indexes=plain(index for _, _, index in logs),
    )


def dropped_logs(chain_id: int, transactions: Sequence[tuple[int, str]]) -> Call[list[DroppedLog]]:
    """Find the dropped logs of these (organization, transaction) pairs."""
    return Call(
        _CALLS["dropped_logs"],
        lambda rows: [DroppedLog(*row) for row in rows],
        chain_id=chain_id,
        org_ids=plain(org_id for org_id, _ in transactions),
        tx_hashes=quoted([tx_hash for _, tx_hash in transactions]),
    )


def confirmed_logs(chain_id: int, ranges: Sequence[tuple[int, int, int]]) -> Call[list[StoredLog]]:
    """Read the logs in ranges: (organization, above this block, up to that block)."""
    return Call(
        _CALLS["confirmed_logs"],
        lambda rows: [StoredLog(*row) for row in rows],
        chain_id=chain_id,
        org_ids=plain(org_id for org_id, _, _ in ranges),
        afters=plain(after for _, after, _ in ranges),
        untils=plain(until for _, _, until in ranges),
    )


def add_logs(chain_id: int, rows: LogRows, at: datetime) -> Call[None]:
    return Call(
        _CALLS["add_logs"],
        nothing,
        chain_id=chain_id,
        at=at,
        org_ids=plain(rows.org_ids),
        ids=uuids(rows.ids),
        contact_ids=plain(rows.contact_ids),
        contracts=quoted(rows.contracts),
        events=quoted(rows.events),
        signatures=quoted(rows.signatures),
        tx_hashes=quoted(rows.tx_hashes),
        log_indexes=plain(rows.log_indexes),
        digests=uuids(rows.digests),  # 16 bytes, the size of a uuid
        block_numbers=plain(rows.block_numbers),
        block_hashes=quoted(rows.block_hashes),
        block_seconds=plain(rows.block_seconds),
        args=records(rows.args),
    )


def add_dead_logs(chain_id: int, dead: Sequence[DeadLog], at: datetime) -> Call[None]:
    return Call(
        _CALLS["add_dead_logs"],
        nothing,
        chain_id=chain_id,
        at=at,
        org_ids=plain(log.org_id for log in dead),
        tx_hashes=quoted([log.tx_hash for log in dead]),
        log_indexes=plain(log.log_index for log in dead),
        contracts=quoted([log.contract for log in dead]),
        signatures=quoted([log.signature for log in dead]),
        block_numbers=plain(log.block_number for log in dead),
        reasons=quoted([log.reason for log in dead]),
    )


def set_log_contacts(rows: Sequence[tuple[int, str, str]]) -> Call[None]:
    """Set the contacts of logs that have none: (organization, log, contact) triples."""
    return Call(
        _CALLS["set_log_contacts"],
        nothing,
        org_ids=plain(org_id for org_id, _, _ in rows),
        ids=joined([log_id for _, log_id, _ in rows]),
        contact_ids=joined([contact_id for _, _, contact_id in rows]),
    )


# --- Reorganizations


class DroppedLogs(msgspec.Struct, frozen=True):
    """The result of one step.

    The numbers of logs and of cancelled entries, and the last block (None: no logs were left).
    """

    logs: int
    entries: int
    block_number: int | None


def find_organizations_above(chain_id: int, above: int) -> Call[list[int]]:
    """Find the organizations with logs above a block."""
    return Call(
        _CALLS["find_organizations_above"], lambda rows: [row[0] for row in rows], chain_id=chain_id, above=above
    )


def drop_logs(org_id: int, chain_id: int, above: int, limit: int, at: datetime) -> Call[DroppedLogs]:
    """Mark the next `limit` logs above a block as removed, and cancel the entries that they started."""
    return Call(
        _CALLS["drop_logs"],
        lambda rows: DroppedLogs(*rows[0]),
        org_id=org_id,
        chain_id=chain_id,
        above=above,
        limit=limit,
        at=at,
    )


def restore_logs(rows: LogRows) -> Call[None]:
    """Restore dropped logs that returned to the chain, with their new positions."""
    return Call(
        _CALLS["restore_logs"],
        nothing,
        org_ids=plain(rows.org_ids),
        ids=uuids(rows.ids),
        log_indexes=plain(rows.log_indexes),
        block_numbers=plain(rows.block_numbers),
        block_hashes=quoted(rows.block_hashes),
        block_seconds=plain(rows.block_seconds),
    )


def restore_entries(org_id: int, event_ids: Sequence[str], at: datetime) -> Call[int]:
    """Resume the entries that ended when these logs were dropped; returns how many."""
    return Call(_CALLS["restore_entries"], _number, org_id=org_id, event_ids=joined(event_ids), at=at)


def _number(rows: Rows) -> int:
    return int(rows[0][0])


# --- Wallets without a contact

RETENTION = timedelta(days=7)
UnknownWalletOutcome: TypeAlias = Literal["created", "unknown", "limit", "zero_address", "erased"]
"""The outcome for a wallet without a contact.

It became a contact (`created`), or the automation takes only existing contacts (`unknown`), it reached its limit of new
contacts for this hour (`limit`), the wallet is the zero address, or its contact was erased.
"""

# Counts by organization, automation and outcome.
UnknownWalletCounts: TypeAlias = Mapping[tuple[int, str, UnknownWalletOutcome], int]


class UnknownWalletRow(msgspec.Struct, frozen=True, rename="camel"):
    """The number of such wallets for an automation."""

    automation_id: str
    automation: str
    what: UnknownWalletOutcome
    count: int


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def find_erased_wallets(wallets: Sequence[tuple[int, str]]) -> Call[dict[int, float]]:
    """Find the (organization, digest) pairs that are wallets of erased contacts.

    Returns the time of the erasure, in seconds since the epoch, by position (from 0).
    """
    return Call(
        _CALLS["find_erased_wallets"],
        lambda rows: {row[0]: row[1] for row in rows},
        org_ids=plain(org_id for org_id, _ in wallets),
        digests=uuids([digest for _, digest in wallets]),
    )


def count_created(automations: Sequence[tuple[int, str]], at: datetime) -> Call[dict[str, int]]:
    """Read how many contacts automations have created in this hour: by automation."""
    return Call(
        _CALLS["count_created"],
        lambda rows: {row[0]: row[1] for row in rows},
        org_ids=plain(org_id for org_id, _ in automations),
        automation_ids=joined([automation_id for _, automation_id in automations]),
        hour=hour_of(at),
    )


def add_unknown_wallets(counts: UnknownWalletCounts, at: datetime) -> Call[None]:
    """Add to the counts of this hour."""
    return Call(
        _CALLS["add_unknown_wallets"],
        nothing,
        hour=hour_of(at),
        org_ids=plain(org_id for org_id, _, _ in counts),
        automation_ids=joined([automation_id for _, automation_id, _ in counts]),
        whats=joined([what for _, _, what in counts]),
        counts=plain(counts.values()),
    )


async def list_unknown_wallets(tx: Transaction, org_id: int, since: datetime) -> list[UnknownWalletRow]:
    """Return the counts of an organization since a time, highest first."""
    return await tx.fetch_all(UnknownWalletRow, _SQL["list_unknown_wallets"], {"org_id": org_id, "since": since})


async def delete_old_unknown_wallets(tx: Transaction, org_id: int, now: datetime, limit: int) -> int:
    values = {"org_id": org_id, "before": now - RETENTION, "limit": limit}
    return (await tx.execute(_SQL["delete_old_unknown_wallets"], values)).rowcount


# --- Logs for users


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


class LogCountRow(msgspec.Struct, frozen=True, rename="camel"):
    chain_id: int
    contract: str
    event: str
    signature: str
    count: int


class DeadLogRow(msgspec.Struct, frozen=True):
    """A log that could not be stored; `reason`: the rule it breaks."""

    organization: str
    chain_id: int
    tx_hash: str
    log_index: int
    contract: str
    signature: str
    block_number: int
    reason: str
    died_at: datetime


class LogSelection(msgspec.Struct, frozen=True):
    """Logs of an organization: of a contract, of an event, or before the one with id `before`; None: all."""

    contract: str | None = None
    event: str | None = None
    before: str | None = None


async def recent_logs(tx: Transaction, org_id: int, selection: LogSelection, limit: int) -> list[LogRow]:
    """Return the newest selected logs, newest first."""
    values = {"org_id": org_id, **msgspec.structs.asdict(selection), "limit": limit}
    name = "recent_logs" if selection.contract is None else "recent_logs_of_contract"
    return await tx.fetch_all(LogRow, _SQL[name], values)


async def count_logs(tx: Transaction, org_id: int, limit: int) -> list[LogCountRow]:
    """Count the logs of each event among the newest `limit`."""
    return await tx.fetch_all(LogCountRow, _SQL["count_logs"], {"org_id": org_id, "limit": limit})


async def count_dead_logs(tx: Transaction) -> dict[int, int]:
    """Return how many logs of each chain could not be stored."""
    return {row[0]: row[1] async for row in await tx.execute(_SQL["count_dead_logs"])}


async def list_dead_logs(tx: Transaction, limit: int) -> list[DeadLogRow]:
    """Return the newest logs that could not be stored, of all organizations."""
    return await tx.fetch_all(DeadLogRow, _SQL["list_dead_logs"], {"limit": limit})
