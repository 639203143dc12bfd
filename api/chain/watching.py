"""What is followed on a chain, and for whom: the triggers of automations, and what `workbench chain watch` named.

Cached by organization, with the number that every change of it raises, and read again in the transaction that stores logs: these are
matched with what is followed at that moment. Only where somebody follows more than the node was asked for, it has to be asked again.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property

import msgspec

from api.chain.decode import Decoder
from api.ingest.matching import Active
from api.language.abi import Declared, read_signature
from api.language.codec import decode
from api.language.keccak import topic
from api.language.trigger import Trigger, read_trigger
from api.store.calls import run
from api.store.chain import AutomationRow, WatchRow, awaited_logs, chain_automations, chain_watches, watch_epochs
from api.store.database import Transaction

Spot = tuple[str, str]
"""A contract's address and the canonical signature of one of its events."""


class Watch(msgspec.Struct, frozen=True):
    """One reason to follow an event: somebody's automation, or (`active` None) the wish to have it.

    `since`: when that began; logs of blocks before start nothing. `earlier`: for how many confirmations logs may be waiting still
    because a version before wanted more (0: for none).
    """

    org_id: int
    contract: str
    declared: Declared
    decoder: Decoder
    wallet_arg: str | None
    since: datetime
    active: Active | None = None
    earlier: int = 0

    @property
    def confirmations(self) -> int:
        """How many blocks have to stand on top of a log's own."""
        source = None if self.active is None else self.active.trigger.source
        return 0 if source is None else source.confirmations

    @property
    def creates_contacts(self) -> bool:
        """Whether a wallet that nobody knows becomes a contact."""
        source = None if self.active is None else self.active.trigger.source
        return source is not None and source.creates_contacts


class Part(msgspec.Struct, frozen=True):
    """What one organization follows, as of its epoch; `awaited`: the names of logs that its entries can wait for."""

    epoch: int
    watches: tuple[Watch, ...] = ()
    awaited: frozenset[str] = frozenset()


class Watched(msgspec.Struct, frozen=True, dict=True):
    """Everything that is followed on a chain at one moment, by organization."""

    parts: Mapping[int, Part] = {}

    @cached_property
    def epoch(self) -> int:
        """A number that every change raises."""
        return sum(part.epoch for part in self.parts.values())

    @cached_property
    def watches(self) -> tuple[Watch, ...]:
        """Every reason to follow something."""
        return tuple(each for _, part in sorted(self.parts.items()) for each in part.watches)

    @cached_property
    def awaited(self) -> frozenset[tuple[int, str]]:
        """What entries can wait for: organizations and names of logs."""
        return frozenset((org_id, name) for org_id, part in self.parts.items() for name in part.awaited)

    @cached_property
    def asked_for(self) -> frozenset[tuple[str, str]]:
        """The contracts and topics that nodes are asked for. What nobody has published is not, but matched where it is there."""
        return frozenset(
            (each.contract, topic(each.declared.canonical)) for each in self.watches if _is_asked_for(each)
        )

    @cached_property
    def since(self) -> datetime | None:
        """When the first of what nodes are asked for began to be followed."""
        return min((each.since for each in self.watches if _is_asked_for(each)), default=None)

    def without(self, org_ids: Iterable[int]) -> "Watched":
        """Return the same with some organizations to be read again."""
        left_out = set(org_ids)
        return Watched({org_id: part for org_id, part in self.parts.items() if org_id not in left_out})

    @cached_property
    def contracts(self) -> list[str]:
        """The addresses to ask for."""
        return sorted({contract for contract, _ in self.asked_for})

    @cached_property
    def topics(self) -> list[str]:
        """The topics to ask for."""
        return sorted({topic for _, topic in self.asked_for})

    @cached_property
    def by_topic(self) -> dict[tuple[str, str], dict[int, tuple[Watch, ...]]]:
        """By contract and topic, by organization, who follows it."""
        found: dict[tuple[str, str], dict[int, tuple[Watch, ...]]] = {}
        for each in self.watches:
            orgs = found.setdefault((each.contract, topic(each.declared.canonical)), {})
            orgs[each.org_id] = (*orgs.get(each.org_id, ()), each)
        return found

    @cached_property
    def by_spot(self) -> dict[tuple[int, Spot], tuple[Watch, ...]]:
        """By organization, contract and signature, which automations follow it."""
        found: dict[tuple[int, Spot], tuple[Watch, ...]] = {}
        for each in self.watches:
            if each.active is not None:
                key = each.org_id, (each.contract, each.declared.canonical)
                found[key] = (*found.get(key, ()), each)
        return found

    @cached_property
    def patience(self) -> list[tuple[int, int, int]]:
        """Which stored logs may start something: (organization, confirmations to wait for, blocks above which logs may wait still)."""
        found = {(each.org_id, each.confirmations, max(each.confirmations, each.earlier)) for each in self.watches}
        return sorted(each for each in found if each[2])

    @cached_property
    def settling(self) -> list[tuple[int, str, int]]:
        """The (organization, automation, version)s that look back once, because a version before wanted more confirmations."""
        actives = [(each.org_id, each.active) for each in self.watches if each.earlier]
        return [
            (org_id, it.automation_id, it.version)
            for org_id, it in actives
            if it is not None and it.version is not None
        ]


NOTHING = Watched()


def _is_asked_for(each: Watch) -> bool:
    return each.active is None or each.active.version is not None


async def read_watched(tx: Transaction, chain_id: int, before: Watched = NOTHING) -> Watched:
    """Return what is followed on a chain now; of organizations in which nothing changed since `before` that is not read again.

    Specs that the language no longer reads are passed over.
    """
    (epochs,) = await run(tx, watch_epochs())
    changed = [org_id for org_id, epoch in epochs.items() if _epoch(before, org_id) != epoch]
    if not changed:
        return before
    automations, watches = await run(tx, chain_automations(chain_id, changed), chain_watches(chain_id, changed))
    found: dict[int, tuple[Watch, ...]] = {}
    for each in (*_of_automations(automations), *_of_watches(watches)):
        found[each.org_id] = (*found.get(each.org_id, ()), each)
    (awaited,) = await run(tx, awaited_logs(sorted(found)))
    fresh = {
        org_id: Part(epochs[org_id], found.get(org_id, ()), awaited.get(org_id, frozenset())) for org_id in changed
    }
    return Watched({**before.parts, **fresh})


def _epoch(watched: Watched, org_id: int) -> int | None:
    part = watched.parts.get(org_id)
    return None if part is None else part.epoch


def _of_automations(rows: Iterable[AutomationRow]) -> Iterable[Watch]:
    for row in rows:
        trigger = read_trigger(decode(row.trigger_spec))
        if isinstance(trigger, Trigger) and (source := trigger.source) is not None:
            active = Active(row.id, row.published_version, row.stint, trigger)
            decoder = Decoder(source.declared)
            where = (row.org_id, source.contract, source.declared, decoder, source.wallet_arg)
            yield Watch(*where, row.live_since, active, row.earlier_confirmations or 0)


def _of_watches(rows: Iterable[WatchRow]) -> Iterable[Watch]:
    for row in rows:
        declared = read_signature(row.signature)
        if isinstance(declared, Declared):
            yield Watch(row.org_id, row.contract, declared, Decoder(declared), row.wallet_arg, row.created_at)
