"""Write a page of blocks in one transaction: store logs, find contacts, match, create entries, move the cursor.

The transaction begins by checking the lease, so a follower that was suspended writes nothing. Logs are matched with the
current watches; if these include events that were not requested from the node, the page is discarded. An automation
takes the logs of blocks since it went live, once they have their confirmations. A log keeps one row per organization,
and an automation enters it once, even if a reorganization drops and restores it (`api.chain.logs`).

Locks are taken in the common order (`api.store.locks`): identifiers, contacts, entries. A log that an entry may wait
for is stored under the lock of its contact, like any event; `api.engine.record` explains why no wake-up is lost.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from datetime import datetime

import msgspec

from api.chain.logs import (
    MAX_CONTACTS_PER_HOUR,
    LogChanges,
    LogKey,
    LogMatch,
    OrgLog,
    UnknownWallets,
    WalletIndex,
    org_logs,
    stored_org_logs,
)
from api.chain.rpc import Log
from api.chain.watch import NO_WATCHES, ChainWatches, read_watches
from api.clock import to_us, uuid7
from api.crypto import Keyring
from api.ingest.identity import (
    ContactIdentifiers,
    contact_writes,
    find_leading_owners,
    lock_identifiers,
    recognise,
    resolve_contacts,
)
from api.ingest.store import add_entry
from api.store import chain as store
from api.store import events
from api.store.chain import DeadLog, FollowerLease, find_erased_wallets
from api.store.database import RefusedDataError, Transaction
from api.store.events import WAKE_ENGINE, EntryRows, Owner
from api.store.query import COMMIT, ROLLBACK, run
from workbench.language.contact import merge_identifiers
from workbench.language.event import Identifiers
from workbench.language.filter import matches
from workbench.language.trigger import flat_context, needs_email

STORED_BLOCKS = 1_024  # blocks below the cursor that keep their hashes, to find where a reorganization began


class LostError(Exception):
    """Another follower has the lease of the chain; nothing was written."""


class ChangedError(Exception):
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


class PageWriter:
    """Writes the pages of all followers of one process."""

    def __init__(self, keyring: Keyring, max_contacts_per_hour: int = MAX_CONTACTS_PER_HOUR) -> None:
        """`max_contacts_per_hour`: contacts that may be created of unknown wallets for one automation."""
        self._keyring = keyring
        self._wallets = WalletIndex(keyring)
        self._max_contacts_per_hour = max_contacts_per_hour

    async def write(
        self,
        tx: Transaction,
        lease: FollowerLease,
        lease_until: datetime,
        watches: ChainWatches,
        page: BlockPage,
        at: datetime,
    ) -> PageResult:
        """Store a page, renew the lease and commit. Raises LostError or ChangedError before it writes anything.

        The node was asked for the logs of `watches`; the logs are matched with the current watches. The rows get
        the time `at`.
        """
        chain_id = lease.chain_id

        # Check the lease, and that all events that are watched now were requested from the node.
        renewed, epoch = await run(tx, store.renew_chain(lease, lease_until), store.watch_epoch())
        if not renewed:
            raise LostError
        if epoch != watches.epoch:
            requested, watches = watches.requested, await read_watches(tx, chain_id, watches)
            if not watches.requested <= requested:
                raise ChangedError

        # Find out which logs are stored, which were dropped, and which older ones get their last confirmation.
        page_logs = org_logs(watches, page.logs)
        logs = [log for log in page_logs if log.key not in page.dead and (page.trial is None or log.key in page.trial)]
        dead = [
            DeadLog(*log.key, log.contract, log.signature, log.block_number, page.dead[log.key])
            for log in page_logs
            if log.key in page.dead
        ]
        confirmed_ranges = [
            (org_id, page.after - depth, min(page.number - confirmations, page.after))
            for org_id, confirmations, depth in watches.confirmation_depths
        ]
        stored_positions, dropped, confirmed = await run(
            tx,
            store.find_logs(chain_id, [log.key for log in logs]),
            store.dropped_logs(chain_id, sorted({(log.org_id, log.tx_hash) for log in logs})),
            store.confirmed_logs(chain_id, confirmed_ranges),
        )
        if watches.lookbacks:
            await run(tx, store.finish_lookback(watches.lookbacks))
        changes = LogChanges(logs, stored_positions, dropped, at)
        current = [*changes.new, *changes.restored, *stored_org_logs(watches, confirmed)]

        # Find the contacts of the logs' wallets.
        for log in current:
            log.wallet_events = self._wallets.wallet_events(log)
        dated_events = [(event, log.seconds) for log in current for event in log.wallet_events.values()]
        wallet_events = [event for event, _ in dated_events]
        unknown_wallets = UnknownWallets(self._max_contacts_per_hour)
        wallet_digests = [(event.org_id, event.keys[0][1]) for event in wallet_events]
        owners, erased = await run(tx, find_leading_owners(wallet_events), find_erased_wallets(wallet_digests))
        recognised = recognise(wallet_events, owners)
        for position, (event, seconds) in enumerate(dated_events):
            unknown_wallets.exclude(event, seconds, erased.get(position))

        # Create contacts of unknown wallets, as far as automations ask for them.
        due = [match for log in current for match in _due_matches(log, page)]
        # Filters may read the id of the contact, which does not exist yet. Any id gives the same result.
        placeholder_id = uuid7(to_us(at))
        selected = await unknown_wallets.select(
            tx, due, lambda match: self._takes(chain_id, match, recognised, placeholder_id), at
        )
        created = [event for event in wallet_events if not event.contact_id and (event.org_id, event.keys) in selected]
        locked_owners = await lock_identifiers(tx, created) if created else {}
        plan = resolve_contacts(created, locked_owners, to_us(at), recognised)

        # Match, and write everything.
        entries = EntryRows()
        for match in due:
            if match.event.contact_id and self._takes(chain_id, match, plan.identifiers, match.event.contact_id):
                add_entry(entries, match.event, match.active, uuid7(to_us(at)))
        new_ids = {log.id for log in changes.new}
        contacts_of_stored = [
            (log.org_id, log.id, contact_id)
            for log in current
            if log.id not in new_ids and (contact_id := log.contact_id) is not None
        ]
        awaited = [
            (log.org_id, contact_id, log.name)
            for log in (*changes.new, *changes.restored)
            if (log.org_id, log.name) in watches.awaited and (contact_id := log.contact_id) is not None
        ]
        await run(
            tx,
            *contact_writes(plan, at, {contact_id for _, contact_id, _ in awaited}),
            *changes.writes(chain_id, at),
            *([store.set_log_contacts(contacts_of_stored)] if contacts_of_stored else []),
            *([store.add_dead_logs(chain_id, dead, at)] if dead else []),
            *([events.wake_waiting_entries(awaited, at)] if awaited else []),
            *([events.add_entries(entries, at)] if entries.ids else []),
            *unknown_wallets.writes(at),
            *([WAKE_ENGINE] if entries.ids or changes.restored else []),
            store.add_blocks(chain_id, page.blocks),
            store.delete_blocks(chain_id, page.number, page.number - STORED_BLOCKS),
            store.advance_chain(lease, page.number, page.head, at),
            COMMIT if page.trial is None else ROLLBACK,
        )
        # An organization that looked back is read again: its automations need not look back a second time.
        remaining = watches.without(org_id for org_id, _, _ in watches.lookbacks)
        return PageResult(len(changes.new) + len(changes.restored), len(entries.ids), remaining)

    def _takes(
        self, chain_id: int, match: LogMatch, contacts: Mapping[str, ContactIdentifiers | Owner], contact_id: str
    ) -> bool:
        """Return whether a log passes the filters of an automation's trigger."""
        trigger = match.active.trigger
        if not trigger.filters:
            return True
        event, email = match.event, None
        contact = contacts.get(event.contact_id) or ContactIdentifiers()
        if contact.email is not None and needs_email(trigger):
            email = self._keyring.of(event.org_id).open_email(contact.email)
        identifiers = merge_identifiers(event.body.identifiers, Identifiers(contact.wallet, email, contact.external_id))
        payload = match.log.payload(chain_id, match.watch.abi_event)
        return matches(trigger.filters, flat_context(match.log.event, contact_id, identifiers, payload))


def _due_matches(log: OrgLog, page: BlockPage) -> list[LogMatch]:
    """Return a log's matches that get their last confirmation with this page, for automations live at its block."""
    due: list[LogMatch] = []
    for watch in log.watches:
        event = None if watch.wallet_arg is None else log.wallet_events.get(watch.wallet_arg)
        if watch.active is None or event is None or log.seconds < int(watch.since.timestamp()):
            continue
        # Logs at or below the lower bound had their confirmations at the page before.
        lower_bound = page.after - max(watch.confirmations, watch.earlier_confirmations)
        if lower_bound < log.block_number <= page.number - watch.confirmations:
            due.append(LogMatch(log, watch, watch.active, event))
    return due


Trial = Callable[[Set[LogKey]], Awaitable[None]]  # stores some logs and rolls back; raises RefusedDataError


async def find_refused_logs(keys: Sequence[LogKey], trial: Trial) -> dict[LogKey, str]:
    """Return the logs that the database refuses, with the reasons, by halving; so one log does not block a page.

    Raises RefusedDataError if the page is refused even without logs.
    """
    await trial(frozenset())
    return await _refused_among(keys, trial)


async def _refused_among(keys: Sequence[LogKey], trial: Trial) -> dict[LogKey, str]:
    try:
        await trial(frozenset(keys))
    except RefusedDataError as error:
        if len(keys) == 1:
            return {keys[0]: str(error)}
        middle = len(keys) // 2
        return await _refused_among(keys[:middle], trial) | await _refused_among(keys[middle:], trial)
    return {}
