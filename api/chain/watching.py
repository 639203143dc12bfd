"""What is followed on a chain, and for whom: the triggers of automations, and what `workbench chain watch` named.

Cached by a number that every change raises. It is read again in the transaction that stores logs: what was asked of the
node for other triggers than those of that moment is thrown away.
"""

from collections.abc import Iterable
from functools import cached_property

import msgspec

from api.chain.decode import Decoder
from api.ingest.matching import Active
from api.language.abi import Declared, read_signature
from api.language.codec import decode
from api.language.keccak import topic
from api.language.trigger import Trigger, read_trigger
from api.store.calls import run
from api.store.chain import AutomationRow, WatchRow, awaited_logs, chain_automations, chain_watches, watch_epoch
from api.store.database import Transaction

Spot = tuple[str, str]
"""A contract's address and the canonical signature of one of its events."""


class Watch(msgspec.Struct, frozen=True):
    """One reason to follow an event: somebody's automation, or (`active` None: also of one that is paused) the wish to have it."""

    org_id: int
    contract: str
    declared: Declared
    decoder: Decoder
    wallet_arg: str | None
    active: Active | None = None

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


class Watched(msgspec.Struct, frozen=True, dict=True):
    """Everything that is followed on a chain at one moment (`epoch`)."""

    epoch: int
    watches: tuple[Watch, ...] = ()
    awaited: frozenset[tuple[int, str]] = frozenset()
    """What entries can wait for: organizations and names of logs."""

    @cached_property
    def contracts(self) -> list[str]:
        """The addresses to ask for. What nobody has published is not asked for, but matched where it is there."""
        return sorted({each.contract for each in self.watches if _is_asked_for(each)})

    @cached_property
    def topics(self) -> list[str]:
        """The topics to ask for."""
        return sorted({topic(each.declared.canonical) for each in self.watches if _is_asked_for(each)})

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
    def patient(self) -> list[int]:
        """The organizations with automations that wait for confirmations."""
        return sorted({each.org_id for each in self.watches if each.confirmations})

    @cached_property
    def most_confirmations(self) -> int:
        """How many blocks the most patient of them waits for."""
        return max((each.confirmations for each in self.watches), default=0)


def _is_asked_for(each: Watch) -> bool:
    return each.active is None or each.active.version is not None


async def read_watched(tx: Transaction, chain_id: int) -> Watched:
    """Return what is followed on a chain now. Specs that the language no longer reads are passed over."""
    (epoch,) = await run(tx, watch_epoch())
    automations, watches = await run(tx, chain_automations(chain_id), chain_watches(chain_id))
    found = (*_of_automations(automations), *_of_watches(watches))
    (awaited,) = await run(tx, awaited_logs(sorted({each.org_id for each in found})))
    return Watched(epoch, found, awaited)


def _of_automations(rows: Iterable[AutomationRow]) -> Iterable[Watch]:
    for row in rows:
        if row.paused and row.published_version is None:
            continue
        trigger = read_trigger(decode(row.trigger_spec))
        if isinstance(trigger, Trigger) and (source := trigger.source) is not None:
            active = None if row.paused else Active(row.id, row.published_version, row.stint, trigger)
            decoder = Decoder(source.declared)
            yield Watch(row.org_id, source.contract, source.declared, decoder, source.wallet_arg, active)


def _of_watches(rows: Iterable[WatchRow]) -> Iterable[Watch]:
    for row in rows:
        declared = read_signature(row.signature)
        if isinstance(declared, Declared):
            yield Watch(row.org_id, row.contract, declared, Decoder(declared), row.wallet_arg)
