"""Chains: following them, storing their logs, dropping those that a reorganization removes, and showing them to users.

A chain has one follower at a time. Each of its writes runs after `renew_chain` in the same transaction; `renew_chain`
finds no row for a follower that lost the chain to another one.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.events import ActiveAutomation
from api.store.query import JsonTexts, RowCount, Uuid, call, query
from workbench.language.onchain import ONCHAIN_EVENT
from workbench.language.responses import ChainView, LogCountView, UnknownWalletView
from workbench.language.responses import UnknownWalletOutcome as UnknownWalletOutcome

# --- Following a chain

LEASE_DURATION = timedelta(seconds=5)


class ChainLease(msgspec.Struct, frozen=True):
    """A chain that this process follows.

    `block_number`: the last block read when the lease began, None if reading has not begun.
    `dropping_above`: the block above which logs still have to be dropped, None if no drop was interrupted.
    """

    chain_id: int
    token: int
    block_number: int | None
    dropping_above: int | None


@call
def claim_chain(chain_id: int, now: datetime, lease_until: datetime) -> ChainLease | None:
    """Claim a chain; None while another process follows it. Leases that end by `now` have expired."""


@call
def renew_chain(lease: ChainLease, lease_until: datetime) -> bool:
    """Extend the lease; return False if another process has claimed the chain."""


@call
def release_chain(lease: ChainLease, now: datetime) -> None: ...


@call
def advance_chain(lease: ChainLease, block_number: int, head: int, at: datetime) -> None:
    """Record that all logs up to a block are stored."""


@call
def begin_dropping(lease: ChainLease, above: int) -> None:
    """Record that the logs of blocks above this one must be dropped before anything else is read."""


@call
def end_dropping(lease: ChainLease) -> None:
    """Record that all the logs of `begin_dropping` are dropped."""


@call
def last_read_block(chain_id: int) -> int | None: ...


@call
def set_chain_problem(lease: ChainLease, problem: str | None) -> None: ...


@query
async def list_chains(tx: Transaction, now: datetime) -> list[ChainView]: ...


@call
def add_blocks(chain_id: int, numbers: Sequence[int], hashes: Sequence[str]) -> None: ...


@call
def delete_blocks(chain_id: int, above: int, below: int) -> None:
    """Delete blocks above one, and blocks below another except the first of the chain."""


@call
def list_blocks(chain_id: int) -> list[tuple[int, str]]:
    """Read the (number, hash) pairs of stored blocks, in order."""


# --- What to look for


class Watch(msgspec.Struct, frozen=True):
    """An event of a contract that is stored without an automation; `wallet_arg`: the parameter with the wallet."""

    org_id: int
    chain_id: int
    contract: str
    signature: str
    wallet_arg: str | None
    created_at: datetime


class Lookback(msgspec.Struct, frozen=True):
    """A version of an automation that looks back once, to logs that waited for more confirmations."""

    org_id: int
    automation_id: Uuid
    version: int


@call
def watch_epoch() -> int:
    """Read a number that grows with every change of automations and watches."""


@call
def watch_epochs() -> dict[int, int]: ...


@call
def chain_automations(chain_id: int, org_ids: Sequence[int]) -> list[ActiveAutomation]: ...


@call
def chain_watches(chain_id: int, org_ids: Sequence[int]) -> list[Watch]: ...


@call
def awaited_logs(org_ids: Sequence[int]) -> dict[int, list[str]]:
    """Read the names (`LOG_NAME`) of logs that entries can wait for, by organization."""


@call
def finish_lookback(lookbacks: Sequence[Lookback]) -> None:
    """Record that the lookbacks are done, except for automations that have published another version since."""


@query
async def add_watch(tx: Transaction, watch: Watch) -> None:
    """Store the logs of an event from now on."""


@query
async def remove_watch(tx: Transaction, watch: Watch) -> bool:
    """Stop storing the logs of an event; return whether it was watched."""


@query
async def list_watches(tx: Transaction, org_id: int) -> list[Watch]: ...


# --- Storing logs


class StoredLog(msgspec.Struct, gc=False):
    """A log as one organization stores it; `args`: its decoded parameters by name, as JSON text.

    `id`: of its row, and of the event of the entries that it starts. `seconds`: the timestamp of its block, since the
    epoch. `digest`: of its content. `contact_id`: set before the log is written, and None when it is read.
    """

    org_id: int
    id: Uuid
    contract: str
    event: str
    signature: str
    tx_hash: str
    log_index: int
    block_number: int
    seconds: int
    args: str
    digest: Uuid
    block_hash: str
    contact_id: Uuid | None = None


class KnownLog(msgspec.Struct, frozen=True):
    """The last position of a stored log; `removed`: its block left the chain."""

    org_id: int
    tx_hash: str
    log_index: int
    id: Uuid
    digest: str
    removed: bool


class BlockRange(msgspec.Struct, frozen=True):
    """The blocks above the block `above`, up to `until`, and the logs of one organization in them."""

    org_id: int
    above: int
    until: int


@call
def known_logs(chain_id: int, logs: Sequence[StoredLog]) -> list[KnownLog]:
    """Find the stored logs of the transactions of `logs`."""


@call
def confirmed_logs(chain_id: int, ranges: Sequence[BlockRange]) -> list[StoredLog]: ...


@call
def add_logs(chain_id: int, logs: Sequence[StoredLog], args: JsonTexts, at: datetime, added: int) -> None:
    """Insert logs. `added`: `database.transaction_offset`, as for `set_log_contacts`."""


@call
def add_dead_logs(chain_id: int, dead: Sequence[StoredLog], reasons: Sequence[str], at: datetime) -> None:
    """Record logs that cannot be stored, each with the rule that it breaks, without its values."""


@call
def set_log_contacts(logs: Sequence[StoredLog], added: int) -> None:
    """Set the contacts of logs that have none."""


# --- Reorganizations


class DroppedLogs(msgspec.Struct, frozen=True):
    """The result of one step.

    The numbers of logs and of cancelled entries, and the last block (None: no logs were left).
    """

    logs: int
    entries: int
    block_number: int | None


@call
def find_organizations_above(chain_id: int, above: int) -> list[int]:
    """Find the organizations with logs above a block."""


@call
def drop_logs(org_id: int, chain_id: int, above: int, limit: int, at: datetime) -> DroppedLogs:
    """Mark the next `limit` logs above a block as removed, and cancel the entries that they started."""


@call
def restore_logs(logs: Sequence[StoredLog]) -> None:
    """Restore dropped logs that returned to the chain, with their new positions."""


@call
def restore_entries(org_id: int, event_ids: Sequence[Uuid], at: datetime) -> int:
    """Resume the entries that ended when these logs were dropped; return their number."""


# --- Wallets without a contact

RETENTION = timedelta(days=7)


class WalletOutcomeCount(msgspec.Struct, frozen=True):
    org_id: int
    automation_id: Uuid
    what: UnknownWalletOutcome
    count: int


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


@call
def find_erased_wallets(org_ids: Sequence[int], digests: Sequence[Uuid]) -> dict[int, float]:
    """Return when the contacts of erased wallets were erased, in seconds since the epoch.

    The keys are positions (from 0) in the arguments; other wallets are left out.
    """


@call
def count_created(org_ids: Sequence[int], automation_ids: Sequence[Uuid], hour: datetime) -> dict[str, int]:
    """Return how many contacts each of these automations has created in an hour."""


@call
def add_unknown_wallets(counts: Sequence[WalletOutcomeCount], hour: datetime) -> None:
    """Add to the hourly counts of logs about unknown wallets."""


@query
async def list_unknown_wallets(tx: Transaction, org_id: int, since: datetime) -> list[UnknownWalletView]:
    """Return the counts of an organization since a time, highest first."""


@query
async def delete_old_unknown_wallets(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = RETENTION
) -> RowCount: ...


# --- Logs for users


class LogRow(msgspec.Struct, frozen=True, rename="camel"):
    """A log, in the form that a simulation takes as its event. `created_at`: when it was first seen."""

    created_at: datetime
    id: Uuid
    chain_id: int
    contract: str
    event: str
    signature: str
    tx_hash: str
    log_index: int
    block_number: int
    block_time: datetime
    removed: bool
    contact_id: Uuid | None
    args: msgspec.Raw
    type: str = ONCHAIN_EVENT


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


@query
async def recent_logs(tx: Transaction, org_id: int, event: str | None, before: Uuid | None, limit: int) -> list[LogRow]:
    """Return the newest logs, newest first, optionally of one event, and before the log with id `before`."""


@query
async def recent_logs_of_contract(
    tx: Transaction, org_id: int, contract: str, event: str | None, before: Uuid | None, limit: int
) -> list[LogRow]: ...


@query
async def count_logs(tx: Transaction, org_id: int, limit: int) -> list[LogCountView]:
    """Count the logs of each event among the newest `limit`."""


@query
async def count_dead_logs(tx: Transaction) -> dict[int, int]:
    """Return how many logs of each chain could not be stored."""


@query
async def list_dead_logs(tx: Transaction, limit: int) -> list[DeadLogRow]:
    """Return the newest logs that could not be stored, of all organizations."""
