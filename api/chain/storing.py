"""One page of blocks, one transaction: keep its logs, find their contacts, match, enter, move the cursor.

It begins with the lease, so that a follower that was frozen writes nothing, and matches with what is followed at that moment; where that
is more than the node was asked for, the page is thrown away. An automation takes the logs of blocks since it is live, once they have
their confirmations. A log is one row per organization for ever; an automation enters it once, also when a reorganization drops it
and brings it back (`chain.news`). Locks are taken in the order of everybody (`store.locks`): identifiers, contacts, entries. A log that an entry may
wait for is stored under the lock of its contact, like any event: see `engine.record` for why no wake-up is lost.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime

import msgspec

from api.chain.answers import Log
from api.chain.news import News
from api.chain.sightings import Faces, Place, Sighting, remembered, sighted
from api.chain.strangers import MOST_AN_HOUR, Match, Strangers, wallets
from api.chain.watching import NOTHING, Watch, Watched, read_watched
from api.clock import to_us, uuid7
from api.ingest.arrival import Arrival
from api.ingest.directory import Directory, Known
from api.ingest.lookup import all_keys, ask, ask_for
from api.ingest.writing import add_entry, contact_writes
from api.keyring import Keyring
from api.language.contact import identifiers_of
from api.language.event import Identifiers
from api.language.filter import matches
from api.language.trigger import flat_context, needs_email
from api.store import chain as store
from api.store import ingest
from api.store.calls import COMMIT, ROLLBACK, Call, run
from api.store.chain import DeadLog, Lease
from api.store.database import Transaction
from api.store.ingest import EntryRows, Owner
from api.store.locks import hold_identifiers
from api.store.strangers import find_erased
from api.store.wake import WAKE_ENGINE

REMEMBERED = 1_024  # blocks below the cursor whose hashes are kept


class LostError(Exception):
    """The chain has another follower; nothing was written."""


class ChangedError(Exception):
    """What is followed has changed since the node was asked; nothing was written."""


class Page(msgspec.Struct, frozen=True):
    """Blocks after `after` up to `number`, with their logs. `blocks`: (number, hash) of those to remember; `head`: of the chain.

    `dead`: why the database refuses a log of an organization; those are noted and passed over. `trial`: store these alone, and undo it.
    """

    after: int
    number: int
    head: int
    logs: list[Log]
    blocks: Sequence[tuple[int, str]]
    dead: Mapping[Place, str] = {}
    trial: Set[Place] | None = None

    def takes(self, sighting: Sighting) -> bool:
        """Return whether a log of it is to be stored."""
        return sighting.place not in self.dead and (self.trial is None or sighting.place in self.trial)


class Told(msgspec.Struct, frozen=True):
    """What a page came to: logs that are new or back, and entries; and what was followed then."""

    logs: int = 0
    entries: int = 0
    watched: Watched = NOTHING


class _Look(msgspec.Struct, frozen=True):
    """The logs of a page, and what the store knows of them and of those that wait for its blocks."""

    sightings: list[Sighting]
    known: Set[int]
    dropped: list[store.DroppedLog]
    confirmed: list[store.StoredLog]
    dead: list[DeadLog]


class _Present(msgspec.Struct, frozen=True):
    """Who arrives with the logs of a page."""

    arrivals: list[Arrival]
    directory: Directory
    strangers: Strangers


class Keeper:
    """Writes what the followers of one process have read."""

    def __init__(self, keyring: Keyring, most_strangers: int = MOST_AN_HOUR) -> None:
        """`most_strangers`: of how many wallets that nobody knows an automation makes contacts in an hour."""
        self._keyring = keyring
        self._faces = Faces(keyring)
        self._most_strangers = most_strangers

    async def keep(
        self, tx: Transaction, lease: Lease, until: datetime, watched: Watched, page: Page, at: datetime
    ) -> Told:
        """Store a page at `at`, renew the lease and commit; raise LostError or ChangedError before anything is written.

        `watched`: what the node was asked for. It is matched with what is followed now.
        """
        kept, epoch = await run(tx, store.keep_chain(lease, until), store.watch_epoch())
        if not kept:
            raise LostError
        if epoch != watched.epoch:
            asked, watched = watched, await read_watched(tx, lease.chain_id, watched)
            if not watched.asked_for <= asked.asked_for:
                raise ChangedError
        look = await _look(tx, lease.chain_id, watched, page)
        if watched.settling:
            await run(tx, store.settle_automations(watched.settling))
        news = News(look.sightings, look.known, look.dropped, at)
        seen = [*news.fresh, *news.back, *remembered(watched, look.confirmed)]
        present = await self._recognised(tx, seen)
        directory = present.directory
        due = [match for each in seen for match in _due(each, page)]
        await self._place(tx, lease.chain_id, present, due, at)
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
            *([store.add_dead_logs(lease.chain_id, look.dead, at)] if look.dead else []),
            *([ingest.wake_waiting(awaited, at)] if awaited else []),
            *([ingest.add_entries(entries, at)] if entries.ids else []),
            *present.strangers.counted(at),
            *([WAKE_ENGINE] if entries.ids or news.back else []),
            store.add_blocks(lease.chain_id, page.blocks),
            store.forget_blocks(lease.chain_id, page.number, page.number - REMEMBERED),
            store.advance_chain(lease, page.number, page.head, at),
            COMMIT if page.trial is None else ROLLBACK,
        )
        followed = watched.without(org_id for org_id, _, _ in watched.settling)
        return Told(len(news.fresh) + len(news.back), len(entries.ids), followed)

    async def _recognised(self, tx: Transaction, seen: Sequence[Sighting]) -> _Present:
        """Find who logs are about, where they are known."""
        for sighting in seen:
            sighting.faces = self._faces.of(sighting)
        present = [(arrival, each.seconds) for each in seen for arrival in each.faces.values()]
        arrivals = [arrival for arrival, _ in present]
        directory, strangers = Directory(arrivals), Strangers(self._most_strangers)
        owners, erased = await run(tx, ask(arrivals), find_erased(wallets(arrivals)))
        directory.recognise(arrivals, owners)
        for position, (arrival, seconds) in enumerate(present):
            strangers.bar(arrival, seconds, erased.get(position))
        return _Present(arrivals, directory, strangers)

    async def _place(self, tx: Transaction, chain_id: int, present: _Present, due: list[Match], at: datetime) -> None:
        """Make contacts of the strangers that an automation takes in, under the locks of their wallets."""
        directory = present.directory
        unknown = uuid7(to_us(at))  # stands for a contact that is still to be made: filters cannot tell it from another
        chosen = await present.strangers.chosen(
            tx, due, lambda each: self._takes(chain_id, each, directory, unknown), at
        )
        made = [each for each in present.arrivals if not each.contact_id and (each.org_id, each.keys) in chosen]
        if made:
            keys = all_keys(made)
            _, owners = await run(tx, hold_identifiers(keys), ask_for(keys))
            directory.learn(owners, keys)
            directory.place(made, to_us(at))

    def _takes(self, chain_id: int, match: Match, directory: Directory, contact_id: str) -> bool:
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


async def _look(tx: Transaction, chain_id: int, watched: Watched, page: Page) -> _Look:
    """Ask what is known of the logs of a page, and for those that get their last confirmation with it."""
    seen = sighted(watched, page.logs)
    sightings = [each for each in seen if page.takes(each)]
    dead = [_dead(each, page.dead[each.place]) for each in seen if each.place in page.dead]
    due = [
        (org_id, page.after - depth, min(page.number - blocks, page.after))
        for org_id, blocks, depth in watched.patience
    ]
    known, dropped, confirmed = await run(
        tx,
        store.find_logs(chain_id, [each.place for each in sightings]),
        store.dropped_logs(chain_id, sorted({(each.org_id, each.tx_hash) for each in sightings})),
        store.confirmed_logs(chain_id, due),
    )
    return _Look(sightings, known, dropped, confirmed, dead)


def _dead(each: Sighting, reason: str) -> DeadLog:
    return DeadLog(*each.place, each.contract, each.signature, each.block_number, reason)


def _due(sighting: Sighting, page: Page) -> Iterator[Match]:
    """Yield the automations for which a log has its confirmations with this page, and whose blocks are not older than they are."""
    for watch in sighting.watches:
        arrival = None if watch.wallet_arg is None else sighting.faces.get(watch.wallet_arg)
        if watch.active is not None and arrival is not None and _is_due(sighting, watch, page):
            yield Match(sighting, watch, watch.active, arrival)


def _is_due(sighting: Sighting, watch: Watch, page: Page) -> bool:
    waited = max(watch.confirmations, watch.earlier)
    reached = page.after - waited < sighting.block_number <= page.number - watch.confirmations
    return reached and sighting.seconds >= int(watch.since.timestamp())


def _given(seen: list[Sighting], news: News) -> Iterator[Call[None]]:
    """Yield the call that names contacts that logs stored before have now."""
    fresh = {each.id for each in news.fresh}
    rows = [
        (each.org_id, each.id, contact_id)
        for each in seen
        if each.id not in fresh and (contact_id := each.contact_id) is not None
    ]
    if rows:
        yield store.give_contacts(rows)
