"""Following chains: the statements of `sql/queries/chain.sql`, as calls.

A chain has one follower at a time. Whatever it writes stands behind `keep_chain` in the same transaction, which finds no row for one that
another has taken the chain from.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from api.store.arrays import joined, plain, quoted, records, uuids
from api.store.calls import Call, Rows, nothing, statements

LEASE = timedelta(seconds=5)

_SQL = statements("chain")


class Lease(msgspec.Struct, frozen=True):
    """The right to follow a chain."""

    chain_id: int
    token: int


class Taken(msgspec.Struct, frozen=True):
    """A chain that is ours to follow; `block_number`: up to where it was read, None when nobody has begun.

    `dropping_above`: logs of blocks above this one were to be taken back when the last follower ended.
    """

    lease: Lease
    block_number: int | None
    dropping_above: int | None = None


class AutomationRow(msgspec.Struct, frozen=True):
    """An automation that starts from logs; `trigger_spec` is JSON text. No published version: its entries end at once.

    `live_since`: logs of blocks before do not start it. `earlier_confirmations`: more than it wants now, which a version before wanted.
    `paused`: its logs are kept, and start nothing.
    """

    org_id: int
    id: str
    published_version: int | None
    stint: int
    trigger_spec: bytes
    live_since: datetime
    earlier_confirmations: int | None
    paused: bool


class WatchRow(msgspec.Struct, frozen=True):
    """A contract's event that is kept without an automation."""

    org_id: int
    contract: str
    signature: str
    wallet_arg: str | None
    created_at: datetime


class DroppedLog(msgspec.Struct, frozen=True):
    """A log that is not in the chain any more: where it was, and what makes it this log (`digest`, in hex)."""

    org_id: int
    tx_hash: str
    log_index: int
    id: str
    digest: str


class StoredLog(msgspec.Struct, frozen=True):
    """A log as stored; `args` is JSON text, `seconds` when its block was made (since the epoch)."""

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
    """Columns of logs to keep."""

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
    """A log that cannot be stored; `reason`: what it breaks, without its values."""

    org_id: int
    tx_hash: str
    log_index: int
    contract: str
    signature: str
    block_number: int
    reason: str


def take_chain(chain_id: int, now: datetime, lease_until: datetime) -> Call[Taken | None]:
    """Ask to follow a chain; None while somebody else does. Leases that end by `now` do not count."""
    return Call(
        _SQL["take_chain"],
        lambda rows: Taken(Lease(chain_id, rows[0][0]), *rows[0][1:]) if rows else None,
        chain_id=chain_id,
        now=now,
        lease_until=lease_until,
    )


def keep_chain(lease: Lease, lease_until: datetime) -> Call[bool]:
    """Keep following; whether the chain is still ours."""
    return Call(_SQL["keep_chain"], bool, chain_id=lease.chain_id, token=lease.token, lease_until=lease_until)


def leave_chain(lease: Lease, now: datetime) -> Call[None]:
    """Follow no longer."""
    return Call(_SQL["leave_chain"], nothing, chain_id=lease.chain_id, token=lease.token, now=now)


def advance_chain(lease: Lease, block_number: int, head: int, at: datetime) -> Call[None]:
    """Note that everything up to a block is stored."""
    return Call(
        _SQL["advance_chain"],
        nothing,
        chain_id=lease.chain_id,
        token=lease.token,
        block_number=block_number,
        head=head,
        at=at,
    )


def begin_dropping(lease: Lease, above: int) -> Call[None]:
    """Note that logs of blocks above one are to be taken back before anything else."""
    return Call(_SQL["begin_dropping"], nothing, chain_id=lease.chain_id, token=lease.token, above=above)


def end_dropping(lease: Lease) -> Call[None]:
    """Note that they are."""
    return Call(_SQL["end_dropping"], nothing, chain_id=lease.chain_id, token=lease.token)


def chain_read(chain_id: int) -> Call[int | None]:
    """Ask up to which block a chain was read."""
    return Call(_SQL["chain_read"], lambda rows: rows[0][0] if rows else None, chain_id=chain_id)


def note_chain(lease: Lease, trouble: str | None) -> Call[None]:
    """Note what hinders us."""
    return Call(_SQL["note_chain"], nothing, chain_id=lease.chain_id, token=lease.token, trouble=trouble)


def add_blocks(chain_id: int, blocks: Sequence[tuple[int, str]]) -> Call[None]:
    """Remember (number, hash) of blocks."""
    return Call(
        _SQL["add_blocks"],
        nothing,
        chain_id=chain_id,
        numbers=plain(number for number, _ in blocks),
        hashes=quoted([hash_ for _, hash_ in blocks]),
    )


def forget_blocks(chain_id: int, above: int, below: int) -> Call[None]:
    """Forget blocks above one, and those below another but the first."""
    return Call(_SQL["forget_blocks"], nothing, chain_id=chain_id, above=above, below=below)


def list_blocks(chain_id: int) -> Call[list[tuple[int, str]]]:
    """Ask for the (number, hash) of remembered blocks, in order."""
    return Call(_SQL["list_blocks"], lambda rows: [(row[0], row[1]) for row in rows], chain_id=chain_id)


def watch_epoch() -> Call[int]:
    """Ask for the number that every change of automations and watches raises."""
    return Call(_SQL["watch_epoch"], _number)


def watch_epochs() -> Call[dict[int, int]]:
    """Ask for that number by organization."""
    return Call(_SQL["watch_epochs"], lambda rows: {row[0]: row[1] for row in rows})


def chain_automations(chain_id: int, org_ids: Sequence[int]) -> Call[list[AutomationRow]]:
    """Ask for the automations of organizations that start from logs of a chain."""
    return Call(
        _SQL["chain_automations"],
        lambda rows: [AutomationRow(*row) for row in rows],
        chain_id=str(chain_id),
        org_ids=plain(org_ids),
    )


def chain_watches(chain_id: int, org_ids: Sequence[int]) -> Call[list[WatchRow]]:
    """Ask for what organizations keep of a chain besides."""
    return Call(
        _SQL["chain_watches"], lambda rows: [WatchRow(*row) for row in rows], chain_id=chain_id, org_ids=plain(org_ids)
    )


def awaited_logs(org_ids: Sequence[int]) -> Call[dict[int, frozenset[str]]]:
    """Ask for which logs entries can wait: names (`LOG_NAME`) by organization."""
    return Call(
        _SQL["awaited_logs"],
        lambda rows: {row[0]: frozenset(row[1].split(",")) for row in rows},
        org_ids=plain(org_ids),
    )


def settle_automations(settled: Sequence[tuple[int, str, int]]) -> Call[None]:
    """Note of (organization, automation, version)s that they looked back, unless another version was published meanwhile."""
    return Call(
        _SQL["settle_automations"],
        nothing,
        org_ids=plain(org_id for org_id, _, _ in settled),
        ids=joined([automation_id for _, automation_id, _ in settled]),
        versions=plain(version for _, _, version in settled),
    )


def find_logs(chain_id: int, logs: Sequence[tuple[int, str, int]]) -> Call[frozenset[int]]:
    """Ask which of these (organization, transaction, index) are stored and in the chain: their positions."""
    return Call(
        _SQL["find_logs"],
        lambda rows: frozenset(row[0] for row in rows),
        chain_id=chain_id,
        org_ids=plain(org_id for org_id, _, _ in logs),
        tx_hashes=quoted([tx_hash for _, tx_hash, _ in logs]),
        log_indexes=plain(index for _, _, index in logs),
    )


def dropped_logs(chain_id: int, transactions: Sequence[tuple[int, str]]) -> Call[list[DroppedLog]]:
    """Ask for the logs of these (organization, transaction) that are not in the chain any more."""
    return Call(
        _SQL["dropped_logs"],
        lambda rows: [DroppedLog(*row) for row in rows],
        chain_id=chain_id,
        org_ids=plain(org_id for org_id, _ in transactions),
        tx_hashes=quoted([tx_hash for _, tx_hash in transactions]),
    )


def confirmed_logs(chain_id: int, ranges: Sequence[tuple[int, int, int]]) -> Call[list[StoredLog]]:
    """Ask for the logs in ranges: (organization, above this block, up to that one)."""
    return Call(
        _SQL["confirmed_logs"],
        lambda rows: [StoredLog(*row) for row in rows],
        chain_id=chain_id,
        org_ids=plain(org_id for org_id, _, _ in ranges),
        afters=plain(after for _, after, _ in ranges),
        untils=plain(until for _, _, until in ranges),
    )


def add_logs(chain_id: int, rows: LogRows, at: datetime) -> Call[None]:
    """Keep logs."""
    return Call(
        _SQL["add_logs"],
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
        digests=uuids(rows.digests),
        block_numbers=plain(rows.block_numbers),
        block_hashes=quoted(rows.block_hashes),
        block_seconds=plain(rows.block_seconds),
        args=records(rows.args),
    )


def add_dead_logs(chain_id: int, dead: Sequence[DeadLog], at: datetime) -> Call[None]:
    """Note logs that cannot be stored."""
    return Call(
        _SQL["add_dead_logs"],
        nothing,
        chain_id=chain_id,
        at=at,
        org_ids=plain(each.org_id for each in dead),
        tx_hashes=quoted([each.tx_hash for each in dead]),
        log_indexes=plain(each.log_index for each in dead),
        contracts=quoted([each.contract for each in dead]),
        signatures=quoted([each.signature for each in dead]),
        block_numbers=plain(each.block_number for each in dead),
        reasons=quoted([each.reason for each in dead]),
    )


def restore_logs(rows: LogRows) -> Call[None]:
    """Put logs that were dropped where they are now."""
    return Call(
        _SQL["restore_logs"],
        nothing,
        org_ids=plain(rows.org_ids),
        ids=uuids(rows.ids),
        log_indexes=plain(rows.log_indexes),
        block_numbers=plain(rows.block_numbers),
        block_hashes=quoted(rows.block_hashes),
        block_seconds=plain(rows.block_seconds),
    )


def revive_entries(org_id: int, event_ids: Sequence[str], at: datetime) -> Call[int]:
    """Let entries go on that ended when these logs were dropped; read how many."""
    return Call(_SQL["revive_entries"], _number, org_id=org_id, event_ids=joined(event_ids), at=at)


def give_contacts(rows: Sequence[tuple[int, str, str]]) -> Call[None]:
    """Name the contacts of logs that have none: (organization, log, contact)."""
    return Call(
        _SQL["give_contacts"],
        nothing,
        org_ids=plain(org_id for org_id, _, _ in rows),
        ids=joined([log_id for _, log_id, _ in rows]),
        contact_ids=joined([contact_id for _, _, contact_id in rows]),
    )


def dropped_organizations(chain_id: int, above: int) -> Call[list[int]]:
    """Ask whose logs are above a block."""
    return Call(_SQL["dropped_organizations"], lambda rows: [row[0] for row in rows], chain_id=chain_id, above=above)


class Dropped(msgspec.Struct, frozen=True):
    """What was taken back at once: how many logs, how many entries that ended with them, and up to which block (None: nothing was left)."""

    logs: int
    entries: int
    block_number: int | None


def drop_logs(org_id: int, chain_id: int, above: int, most: int, at: datetime) -> Call[Dropped]:
    """Take back what the next logs above a block started, `most` of them."""
    return Call(
        _SQL["drop_logs"],
        lambda rows: Dropped(*rows[0]),
        org_id=org_id,
        chain_id=chain_id,
        above=above,
        most=most,
        at=at,
    )


def _number(rows: Rows) -> int:
    return int(rows[0][0])
