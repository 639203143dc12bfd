"""Write what was read from a chain: pages of blocks, and what a reorganization removed.

A page is written in one transaction: store its logs, find contacts, match, create entries, move the cursor. The
transaction begins by checking the lease, so a follower that was suspended writes nothing. Logs are matched with the
current watches; if these include events that were not requested from the node, the page is discarded. An automation
takes the logs of blocks since it went live, once they have their confirmations. A log keeps one row per organization,
and starts an automation once, even if a reorganization drops and restores it (`api.chain.logs`).

Locks are taken in the common order (`api.store.locks`): identifiers, contacts, entries. A log that an entry may wait
for is stored under the lock of its contact, like any event; `api.engine.record` explains why no wake-up is lost.

The logs of blocks that left the chain are dropped in steps that each commit. The first step moves the cursor back and
stores the block above which logs must be dropped. No follower reads new blocks until all of these logs are dropped. A
follower may therefore be killed between any two steps, and the chain may be reorganized again in between.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import TypeAlias

import msgspec

from api.chain.logs import (
    LogKey,
    LogMatch,
    OrgLog,
    WalletKey,
    add_wallet_events,
    compare_logs,
    org_logs,
    select_wallets,
    wallet_key,
)
from api.chain.rpc import Log
from api.chain.watch import NO_WATCHES, ChainWatches, read_watches
from api.clock import Clock, from_us, to_us, us_of, uuid7
from api.crypto import INDEX, Keyring
from api.ingest.identity import (
    ContactIdentifiers,
    ContactPlan,
    contact_writes,
    find_key_owners,
    lock_identifiers,
    recognise,
    resolve_contacts,
)
from api.ingest.match import trigger_context
from api.ingest.store import entry_rows
from api.store import chain as store
from api.store import events
from api.store.chain import LEASE_DURATION, BlockRange, ChainLease, UnknownWalletOutcome, WalletOutcomeCount
from api.store.database import Database, Transaction, transaction_offset
from api.store.events import Owner, wake_engine
from api.store.query import COMMIT, ROLLBACK, Call, run
from workbench.language.codec import decode
from workbench.language.filter import matches
from workbench.language.onchain import ZERO_ADDRESS

MAX_CONTACTS_PER_HOUR = 10_000  # created for one automation
STORED_BLOCKS = 1_024  # blocks below the cursor that keep their hashes, to find where a reorganization began
LOGS_PER_STEP = 1_000  # dropped in one transaction, together with their entries

# Filters may read the id of a contact before it is created. Any id gives the same result.
_NEW_CONTACT_ID = "00000000-0000-7000-8000-000000000000"

Contacts: TypeAlias = Mapping[str, ContactIdentifiers | Owner]  # by contact id


class LostLeaseError(Exception):
    """Another follower has the lease of the chain; nothing was written."""


class WatchesChangedError(Exception):
    """More events are watched now than were requested from the node; nothing was written."""


class BlockPage(msgspec.Struct, frozen=True):
    """The blocks after `after` up to `number`, with their logs.

    `head`: the number of the chain's newest block. `blocks`: (number, hash) of the blocks to store. `dead`: logs that
    the database refuses, with the reason; they are recorded and skipped. `trial`: store these logs only, and roll back.
    """

    after: int
    number: int
    head: int
    logs: list[Log]
    blocks: Sequence[tuple[int, str]]
    dead: Mapping[LogKey, str] = {}
    trial: Set[LogKey] | None = None


class PageResult(msgspec.Struct, frozen=True):
    """Counts of logs (new or restored) and of entries, and the watches that were matched."""

    logs: int = 0
    entries: int = 0
    watches: ChainWatches = NO_WATCHES


class PageLogs(msgspec.Struct, frozen=True):
    """The logs of a page: `new` ones, `restored` ones that were dropped before, and `dead` ones that cannot be stored.

    `confirmed`: stored logs of earlier blocks that may get their last confirmation with this page.
    """

    page: BlockPage
    new: list[OrgLog]
    restored: list[OrgLog]
    confirmed: list[OrgLog]
    dead: list[OrgLog]

    @property
    def changed(self) -> list[OrgLog]:
        return [*self.new, *self.restored]

    @property
    def all(self) -> list[OrgLog]:
        return [*self.new, *self.restored, *self.confirmed]


class PageContacts(msgspec.Struct, frozen=True):
    """The writes to contacts, the contacts of logs, the due matches, and the counts of wallets without a contact."""

    plan: ContactPlan
    contacts: Contacts
    due: list[LogMatch]
    unknown: list[WalletOutcomeCount]


class PageWriter:
    """Writes the pages of all followers of one process."""

    def __init__(self, keyring: Keyring, max_contacts_per_hour: int = MAX_CONTACTS_PER_HOUR) -> None:
        """`max_contacts_per_hour`: contacts that may be created of unknown wallets for one automation."""
        self._keyring = keyring
        self._max_contacts_per_hour = max_contacts_per_hour

    async def write(
        self,
        tx: Transaction,
        lease: ChainLease,
        lease_until: datetime,
        watches: ChainWatches,
        page: BlockPage,
        at: datetime,
    ) -> PageResult:
        """Store a page, renew the lease and commit. Raises LostLeaseError or WatchesChangedError before any write.

        The node was asked for the logs of `watches`; the logs are matched with the current watches. The rows get
        the time `at`.
        """
        watches = await _current_watches(tx, lease, lease_until, watches)
        logs = await _compare_with_stored(tx, lease.chain_id, watches, page, at)
        contacts = await self._resolve_contacts(tx, lease.chain_id, logs, at)
        starts = [
            (match.event, match.event.contact_id, match.active)
            for match in contacts.due
            if match.event.contact_id and self._takes(lease.chain_id, match, contacts.contacts)
        ]
        entries = entry_rows(starts, to_us(at))
        awaited = [
            (log.org_id, log.contact_id, log.name, at)
            for log in logs.changed
            if log.contact_id is not None and (log.org_id, log.name) in watches.awaited
        ]
        numbers, hashes = zip(*page.blocks, strict=True)
        offset = await transaction_offset(tx)
        await run(
            tx,
            *contact_writes(contacts.plan, at, offset, {contact_id for _, contact_id, *_ in awaited}),
            *_log_writes(lease.chain_id, logs, at, offset),
            *([events.wake_waiting_entries(awaited, at)] if awaited else []),
            *([events.add_entries(at, *zip(*entries, strict=True))] if entries else []),
            *([store.add_unknown_wallets(contacts.unknown, store.hour_of(at))] if contacts.unknown else []),
            *([wake_engine()] if entries or logs.restored else []),
            store.add_blocks(lease.chain_id, numbers, hashes),
            store.delete_blocks(lease.chain_id, page.number, page.number - STORED_BLOCKS),
            store.advance_chain(lease, page.number, page.head, at),
            COMMIT if page.trial is None else ROLLBACK,
        )
        # After a lookback the watches of an organization are read again, so that it does not look back a second time.
        remaining = watches.without(lookback.org_id for lookback in watches.lookbacks)
        return PageResult(len(logs.changed), len(entries), remaining)

    async def _resolve_contacts(self, tx: Transaction, chain_id: int, logs: PageLogs, at: datetime) -> PageContacts:
        """Set the contacts of logs; create contacts for unknown wallets if an automation requests them."""
        add_wallet_events(logs.all, self._keyring)
        dated_events = [(event, log.seconds) for log in logs.all for event in log.wallet_events.values()]
        wallet_events = [event for event, _ in dated_events]
        org_ids = [event.org_id for event in wallet_events]
        digests = [event.keys[0][1][:INDEX] for event in wallet_events]  # lookups use the first index
        owners, erased = await run(
            tx,
            find_key_owners([(event.org_id, event.keys[0]) for event in wallet_events]),
            store.find_erased_wallets(org_ids, digests),
        )
        recognised = recognise(wallet_events, owners)
        contacts: Contacts = {owner.contact_id: owner for owner in recognised if owner is not None}
        for event, owner in zip(wallet_events, recognised, strict=True):
            event.contact_id = None if owner is None else owner.contact_id
        excluded: dict[WalletKey, UnknownWalletOutcome] = {}
        for position, (event, seconds) in enumerate(dated_events):
            # The zero address is not a wallet, whatever an event says: tokens are minted from it and burned to it.
            if event.body.identifiers.wallet == ZERO_ADDRESS:
                excluded[wallet_key(event)] = "zero_address"
                event.contact_id = None
            elif position in erased:
                excluded[wallet_key(event)] = "erased"
                # A block from before the erasure may be replayed or confirmed later. Its logs get no contact, even if a
                # newer contact has the wallet.
                if seconds <= erased[position]:
                    event.contact_id = None

        due = [match for log in logs.all for match in _due_matches(log, logs.page)]
        unknown = [match for match in due if not match.event.contact_id and self._takes(chain_id, match, contacts)]
        creating = {match.active.automation_id: match.event.org_id for match in unknown}
        created_counts: dict[str, int] = {}
        if creating:
            count_created = store.count_created([*creating.values()], [*creating], store.hour_of(at))
            (created_counts,) = await run(tx, count_created)
        selected, counts = select_wallets(unknown, excluded, created_counts, self._max_contacts_per_hour)
        created = [event for event in wallet_events if not event.contact_id and wallet_key(event) in selected]
        locked_owners = await lock_identifiers(tx, created) if created else {}
        new_ids = [uuid7(to_us(at)) for _ in created]
        plan = resolve_contacts(created, [None] * len(created), locked_owners, new_ids)
        for event, contact_id in zip(created, plan.contact_ids, strict=True):
            event.contact_id = contact_id
        for log in logs.all:  # a log of several wallets is listed with the first contact among them
            log.contact_id = next((event.contact_id for event in log.wallet_events.values() if event.contact_id), None)
        return PageContacts(plan, {**contacts, **plan.identifiers}, due, counts)

    def _takes(self, chain_id: int, match: LogMatch, contacts: Contacts) -> bool:
        """Return whether a log passes the filters of an automation's trigger."""
        event, trigger = match.event, match.active.trigger
        if not trigger.filters:
            return True
        contact_id = event.contact_id or _NEW_CONTACT_ID
        contact, payload = contacts.get(contact_id) or ContactIdentifiers(), match.payload(chain_id)
        context = trigger_context(self._keyring, event, contact_id, contact, payload, [trigger])
        return matches(trigger.filters, context, from_us(us_of(match.log.id)))  # when the log was stored


async def _current_watches(
    tx: Transaction, lease: ChainLease, lease_until: datetime, requested: ChainWatches
) -> ChainWatches:
    """Renew the lease; return the current watches, all events of which were requested from the node."""
    renewed, epoch = await run(tx, store.renew_chain(lease, lease_until), store.watch_epoch())
    if not renewed:
        raise LostLeaseError
    if epoch == requested.epoch:
        return requested
    watches = await read_watches(tx, lease.chain_id, requested)
    if not watches.requested <= requested.requested:
        raise WatchesChangedError
    return watches


async def _compare_with_stored(
    tx: Transaction, chain_id: int, watches: ChainWatches, page: BlockPage, at: datetime
) -> PageLogs:
    """Find out which logs are stored, which were dropped, and which older ones get their last confirmation."""
    page_logs = org_logs(watches, page.logs, at)
    logs = [log for log in page_logs if log.key not in page.dead and (page.trial is None or log.key in page.trial)]
    confirmed_ranges = [
        BlockRange(org_id, page.after - depth, min(page.number - confirmations, page.after))
        for org_id, confirmations, depth in watches.confirmation_depths
    ]
    known_logs, confirmed_rows = await run(
        tx, store.known_logs(chain_id, logs), store.confirmed_logs(chain_id, confirmed_ranges)
    )
    if watches.lookbacks:
        await run(tx, store.finish_lookback(watches.lookbacks))
    new, restored = compare_logs(logs, known_logs)
    confirmed = [
        OrgLog(**msgspec.structs.asdict(row), values=decode(row.args.encode()), watches=row_watches)
        for row in confirmed_rows
        if (row_watches := watches.by_signature.get((row.org_id, row.contract, row.signature)))
    ]
    return PageLogs(page, new, restored, confirmed, [log for log in page_logs if log.key in page.dead])


def _log_writes(chain_id: int, logs: PageLogs, at: datetime, offset: int) -> Iterator[Call[object]]:
    """Yield the statements that store logs, and resume the entries of logs that returned to the chain."""
    if logs.restored:
        yield store.restore_logs(logs.restored)
    if logs.new:
        yield store.add_logs(chain_id, logs.new, [log.args for log in logs.new], at, offset)
    for org_id in sorted({log.org_id for log in logs.restored}):
        yield store.restore_entries(org_id, [log.id for log in logs.restored if log.org_id == org_id], at)
    if with_contact := [log for log in (*logs.restored, *logs.confirmed) if log.contact_id is not None]:
        yield store.set_log_contacts(with_contact, offset)
    if logs.dead:
        yield store.add_dead_logs(chain_id, logs.dead, [logs.page.dead[log.key] for log in logs.dead], at)


def _due_matches(log: OrgLog, page: BlockPage) -> Iterator[LogMatch]:
    """Yield a log's matches that get their last confirmation with this page, for automations live at its block."""
    for watch in log.watches:
        event = None if watch.wallet_arg is None else log.wallet_events.get(watch.wallet_arg)
        if watch.active is None or event is None or log.seconds < int(watch.since.timestamp()):
            continue
        # Logs at or below the lower bound were confirmed with an earlier page.
        lower_bound = page.after - max(watch.confirmations, watch.earlier_confirmations)
        if lower_bound < log.block_number <= page.number - watch.confirmations:
            yield LogMatch(log, watch, watch.active, event)


# --- Reorganizations


async def move_cursor_back(database: Database, clock: Clock, lease: ChainLease, block: tuple[int, str]) -> None:
    """Move the cursor back to a block (number, hash), the last one in common with the chain; raise LostLeaseError."""
    number = block[0]
    async with database.transaction() as tx:
        await _renew(tx, clock, lease)
        await run(
            tx,
            store.begin_dropping(lease, number),
            *([store.add_blocks(lease.chain_id, [number], [block[1]])] if number >= 0 else []),
            store.delete_blocks(lease.chain_id, number, 0),
            store.advance_chain(lease, number, number, clock.now()),
            COMMIT,
        )


async def drop_above(database: Database, clock: Clock, lease: ChainLease, block_number: int) -> PageResult:
    """Drop all logs above a block, LOGS_PER_STEP of an organization at a time; raise LostLeaseError."""
    logs, entries = 0, 0
    async with database.transaction() as tx:
        org_ids, _ = await run(tx, store.find_organizations_above(lease.chain_id, block_number), COMMIT)
    for org_id in org_ids:
        above: int | None = block_number
        while above is not None:
            async with database.transaction() as tx:
                await _renew(tx, clock, lease)
                drop = store.drop_logs(org_id, lease.chain_id, above, LOGS_PER_STEP, clock.now())
                step, _ = await run(tx, drop, COMMIT)
            logs, entries = logs + step.logs, entries + step.entries
            above = None if step.block_number is None else step.block_number - 1
    async with database.transaction() as tx:
        await _renew(tx, clock, lease)
        await run(tx, store.end_dropping(lease), COMMIT)
    return PageResult(logs, entries)


async def _renew(tx: Transaction, clock: Clock, lease: ChainLease) -> None:
    (renewed,) = await run(tx, store.renew_chain(lease, clock.now() + LEASE_DURATION))
    if not renewed:
        raise LostLeaseError
