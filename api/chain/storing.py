"""One page of blocks, one transaction: keep its logs, find their contacts, match, enter, move the cursor.

It begins with the lease, so that a follower that was frozen writes nothing, and looks whether what is followed is still what the
node was asked for. A log is one row per organization for ever; an automation enters it once, also when a reorganization drops it
and brings it back. Locks are taken in the order of everybody (`store.locks`): identifiers, contacts, entries. A log that an entry may
wait for is stored under the lock of its contact, like any event: see `engine.record` for why no wake-up is lost.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from api.chain.rpc import Log
from api.chain.sightings import Faces, Sighting, remembered, sighted
from api.chain.watching import Watch, Watched
from api.clock import to_us, uuid7
from api.ingest.arrival import Arrival
from api.ingest.directory import Directory, Known
from api.ingest.lookup import all_keys, ask, ask_for
from api.ingest.matching import Active
from api.ingest.writing import add_entry, contact_writes
from api.keyring import Keyring
from api.language.codec import encode
from api.language.contact import identifiers_of
from api.language.event import Identifiers
from api.language.filter import matches
from api.language.trigger import flat_context, needs_email
from api.store import chain as store
from api.store import ingest
from api.store.calls import COMMIT, Call, run
from api.store.chain import Lease, LogRows, RestoredRows
from api.store.database import Transaction
from api.store.ingest import EntryRows, Owner
from api.store.locks import hold_identifiers
from api.store.wake import WAKE_ENGINE

REMEMBERED = 1_024  # blocks below the cursor whose hashes are kept


class LostError(Exception):
    """The chain has another follower; nothing was written."""


class ChangedError(Exception):
    """What is followed has changed since the node was asked; nothing was written."""


class Page(msgspec.Struct, frozen=True):
    """Blocks after `after` up to `number`, with their logs. `blocks`: (number, hash) of those to remember; `head`: of the chain."""

    after: int
    number: int
    head: int
    logs: list[Log]
    blocks: Sequence[tuple[int, str]]


class Told(msgspec.Struct, frozen=True):
    """What a page came to: logs that are new or back, and entries."""

    logs: int = 0
    entries: int = 0


class _Match(msgspec.Struct, gc=False):
    """A log that an automation may enter, and who arrives with it."""

    sighting: Sighting
    watch: Watch
    active: Active
    arrival: Arrival


class Keeper:
    """Writes what the followers of one process have read."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._faces = Faces(keyring)

    async def keep(
        self, tx: Transaction, lease: Lease, until: datetime, watched: Watched, page: Page, at: datetime
    ) -> Told:
        """Store a page at `at`, renew the lease and commit; raise LostError or ChangedError before anything is written."""
        sightings = sighted(watched, page.logs)
        kept, epoch, known, confirmed = await run(
            tx,
            store.keep_chain(lease, until),
            store.watch_epoch(),
            store.find_logs(lease.chain_id, [(each.org_id, each.tx_hash, each.log_index) for each in sightings]),
            store.confirmed_logs(lease.chain_id, *_confirming(watched, page)),
        )
        if not kept:
            raise LostError
        if epoch != watched.epoch:
            raise ChangedError
        news = _News(sightings, known, at)
        seen = [*news.fresh, *news.back, *remembered(watched, confirmed)]
        for sighting in seen:
            sighting.faces = self._faces.of(sighting)
        arrivals = [arrival for each in seen for arrival in each.faces.values()]
        directory = Directory(arrivals)
        (owners,) = await run(tx, ask(arrivals))
        directory.recognise(arrivals, owners)
        due = [match for each in seen for match in _due(each, page)]
        await self._place(tx, lease.chain_id, directory, arrivals, due, at)
        entries = EntryRows()
        for each in due:
            if each.arrival.contact_id and self._takes(lease.chain_id, each, directory, each.arrival.contact_id):
                add_entry(entries, each.arrival, each.active, uuid7(to_us(at)))
        awaited = [
            (each.org_id, contact_id, each.name)
            for each in (*news.fresh, *news.back)
            if (each.org_id, each.name) in watched.awaited and (contact_id := each.contact_id) is not None
        ]
        await run(
            tx,
            *contact_writes(directory, at, {contact_id for _, contact_id, _ in awaited}),
            *news.writes(lease.chain_id, at),
            *_given(seen, news),
            *([ingest.wake_waiting(awaited, at)] if awaited else []),
            *([ingest.add_entries(entries, at)] if entries.ids else []),
            *([WAKE_ENGINE] if entries.ids or news.back else []),
            store.add_blocks(lease.chain_id, page.blocks),
            store.forget_blocks(lease.chain_id, page.number, page.number - REMEMBERED),
            store.advance_chain(lease, page.number, page.head, at),
            COMMIT,
        )
        return Told(len(news.fresh) + len(news.back), len(entries.ids))

    async def _place(
        self,
        tx: Transaction,
        chain_id: int,
        directory: Directory,
        arrivals: list[Arrival],
        due: list[_Match],
        at: datetime,
    ) -> None:
        """Make contacts of the strangers that an automation takes in, under the locks of their wallets."""
        unknown = uuid7(to_us(at))  # stands for a contact that is still to be made: filters cannot tell it from another
        wanted = {
            (each.arrival.org_id, each.arrival.keys)
            for each in due
            if not each.arrival.contact_id
            and each.watch.creates_contacts
            and self._takes(chain_id, each, directory, unknown)
        }
        strangers = [each for each in arrivals if not each.contact_id and (each.org_id, each.keys) in wanted]
        if strangers:
            keys = all_keys(strangers)
            _, owners = await run(tx, hold_identifiers(keys), ask_for(keys))
            directory.learn(owners, keys)
            directory.place(strangers, to_us(at))

    def _takes(self, chain_id: int, match: _Match, directory: Directory, contact_id: str) -> bool:
        """Return whether the filters of an automation let a log in."""
        trigger = match.active.trigger
        if not trigger.filters:
            return True
        arrival, email = match.arrival, None
        known: Known | Owner = directory.known(arrival) if arrival.contact_id else Known()
        if known.email is not None and needs_email(trigger):
            email = self._keyring.of(arrival.org_id).open_email(known.email)
        who = identifiers_of(arrival.event.identifiers, Identifiers(known.wallet, email, known.external_id))
        payload = match.sighting.payload(chain_id, match.watch.declared)
        return matches(trigger.filters, flat_context(match.sighting.event, contact_id, who, payload))


class _News:
    """Which sightings of a page are new, and which were dropped once and are back."""

    def __init__(self, sightings: list[Sighting], known: list[store.KnownLog], at: datetime) -> None:
        self.fresh: list[Sighting] = []
        self.back: list[Sighting] = []
        by_position = {each.position: each for each in known}
        for position, each in enumerate(sightings):
            stored = by_position.get(position)
            if stored is None:
                each.id = uuid7(to_us(at))
                self.fresh.append(each)
            elif stored.removed:
                each.id = stored.id
                self.back.append(each)

    def writes(self, chain_id: int, at: datetime) -> Iterator[Call[object]]:
        """Yield what is written of them."""
        if self.fresh:
            yield store.add_logs(chain_id, _log_rows(self.fresh), at)
        if self.back:
            yield store.restore_logs(_restored_rows(self.back))
        for org_id in sorted({each.org_id for each in self.back}):
            yield store.revive_entries(org_id, [each.id for each in self.back if each.org_id == org_id], at)


def _confirming(watched: Watched, page: Page) -> tuple[list[int], int, int]:
    """Return of whom, and of which blocks, stored logs may get their last block of confirmation with this page."""
    return watched.patient, page.after - watched.most_confirmations, page.after


def _due(sighting: Sighting, page: Page) -> Iterator[_Match]:
    """Yield the automations for which a log has its confirmations with this page."""
    for watch in sighting.watches:
        arrival = None if watch.wallet_arg is None else sighting.faces.get(watch.wallet_arg)
        reached = page.after < sighting.block_number + watch.confirmations <= page.number
        if watch.active is not None and arrival is not None and reached:
            yield _Match(sighting, watch, watch.active, arrival)


def _given(seen: list[Sighting], news: _News) -> Iterator[Call[None]]:
    """Yield the call that names contacts that logs stored before have now."""
    fresh = {each.id for each in news.fresh}
    rows = [
        (each.org_id, each.id, contact_id)
        for each in seen
        if each.id not in fresh and (contact_id := each.contact_id) is not None
    ]
    if rows:
        yield store.give_contacts(rows)


def _log_rows(fresh: Sequence[Sighting]) -> LogRows:
    logs = [each.log for each in fresh if each.log is not None]
    return LogRows(
        org_ids=[each.org_id for each in fresh],
        ids=[each.id for each in fresh],
        contact_ids=[each.contact_id for each in fresh],
        contracts=[each.contract for each in fresh],
        events=[each.event for each in fresh],
        signatures=[each.signature for each in fresh],
        tx_hashes=[each.tx_hash for each in fresh],
        log_indexes=[each.log_index for each in fresh],
        block_numbers=[each.block_number for each in fresh],
        block_hashes=[each.block_hash for each in logs],
        block_seconds=[each.seconds or 0 for each in logs],
        args=[encode(each.args).decode() for each in fresh],
    )


def _restored_rows(back: Sequence[Sighting]) -> RestoredRows:
    logs = [each.log for each in back if each.log is not None]
    return RestoredRows(
        org_ids=[each.org_id for each in back],
        ids=[each.id for each in back],
        block_numbers=[each.block_number for each in back],
        block_hashes=[each.block_hash for each in logs],
        block_seconds=[each.seconds or 0 for each in logs],
    )


async def roll_back(tx: Transaction, lease: Lease, until: datetime, block: tuple[int, str], at: datetime) -> Told:
    """Take back what happened above a block (number, hash): the last one that we and the chain have in common; commit."""
    number = block[0]
    kept, org_ids = await run(tx, store.keep_chain(lease, until), store.dropped_organizations(lease.chain_id, number))
    if not kept:
        raise LostError
    dropped = await run(tx, *(store.drop_logs(org_id, lease.chain_id, number, at) for org_id in org_ids))
    await run(
        tx,
        store.add_blocks(lease.chain_id, [block] if number >= 0 else []),
        store.forget_blocks(lease.chain_id, number, 0),
        store.advance_chain(lease, number, number, at),
        COMMIT,
    )
    return Told(sum(logs for logs, _ in dropped), sum(entries for _, entries in dropped))
