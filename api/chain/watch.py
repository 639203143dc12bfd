"""Watched events of a chain: those in the triggers of automations, and those of `workbench chain watch`.

`ChainWatches` is cached per organization with the organization's epoch, which every change of its automations or
watches raises. It is read again in the transaction that stores logs, so logs are matched with the watches of that
moment. The blocks are requested again only if an event was added that the request did not include.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import msgspec

from api.auth import AccessError, keys
from api.auth.keys import operator_transaction
from api.chain.decode import Decoder
from api.ingest.match import ActiveTrigger
from api.store import chain as store
from api.store.automations import bump_epoch
from api.store.chain import Lookback, Watch, awaited_logs, chain_automations, chain_watches, watch_epochs
from api.store.database import Transaction
from api.store.query import run
from workbench.language.abi import AbiEvent, AbiWord, address_problem, event_topic, read_signature
from workbench.language.codec import decode
from workbench.language.onchain import MAX_CHAIN_ID
from workbench.language.trigger import Trigger, read_trigger


async def add_watch(dsn: str, org_name: str, spec: Mapping[str, Any]) -> Watch:
    """Store an event's logs from now on; raise AccessError if the spec is not valid."""
    new_watch = _read_spec(spec)
    async with operator_transaction(dsn) as (tx, now):
        watch = new_watch(org_id=await keys.find_org_or_fail(tx, org_name), created_at=now)
        await store.add_watch(tx, watch)
        await bump_epoch(tx, watch.org_id)
    return watch


async def remove_watch(dsn: str, org_name: str, spec: Mapping[str, Any]) -> None:
    """Stop storing an event's logs; raise AccessError if it was not watched."""
    new_watch = _read_spec(spec)
    async with operator_transaction(dsn) as (tx, now):
        watch = new_watch(org_id=await keys.find_org_or_fail(tx, org_name), created_at=now)
        if not await store.remove_watch(tx, watch):
            raise AccessError(
                f"{org_name} does not watch this event; list its events with: workbench chain watched --org {org_name}"
            )
        await bump_epoch(tx, watch.org_id)


async def list_watches(dsn: str, org_name: str) -> list[Watch]:
    """Return the watched events; raise AccessError if the organization does not exist."""
    async with operator_transaction(dsn) as (tx, _):
        return await store.list_watches(tx, await keys.find_org_or_fail(tx, org_name))


def _read_spec(spec: Mapping[str, Any]) -> partial[Watch]:
    """Return the watch that a spec describes, without organization and time."""
    if not 1 <= spec["chainId"] <= MAX_CHAIN_ID:
        raise AccessError(f"the chain id {spec['chainId']} is not valid: it must be from 1 to {MAX_CHAIN_ID}")
    if reason := address_problem(spec["contract"]):
        raise AccessError(f"{spec['contract']!r} {reason}")
    abi_event = read_signature(spec["signature"])
    if isinstance(abi_event, str):
        raise AccessError(f"the signature {abi_event}")
    wallet_arg = spec.get("walletArg")
    if wallet_arg is not None:
        parameter = abi_event.parameter(wallet_arg)
        if parameter is None or parameter.type != AbiWord("address", 20):
            raise AccessError(f"{abi_event.full} has no address parameter {wallet_arg!r}")
    contract, signature = spec["contract"].lower(), abi_event.full
    return partial(Watch, chain_id=spec["chainId"], contract=contract, signature=signature, wallet_arg=wallet_arg)


class WatchedEvent(msgspec.Struct, frozen=True):
    """One reason to follow an event: an automation, or (`active` None) an operator's watch or a paused automation.

    `since`: when it began; logs of earlier blocks start nothing. `earlier_confirmations`: the confirmations that a
    previous version of the automation required, if more than this one: logs may still be waiting for them (0: none).
    """

    org_id: int
    contract: str
    abi_event: AbiEvent
    decoder: Decoder
    wallet_arg: str | None
    since: datetime
    active: ActiveTrigger | None = None
    earlier_confirmations: int = 0

    @property
    def confirmations(self) -> int:
        """The number of blocks that must follow a log's block."""
        return 0 if self.active is None else self.active.trigger.confirmations

    @property
    def creates_contacts(self) -> bool:
        """Whether an unknown wallet becomes a contact."""
        return self.active is not None and self.active.trigger.creates_contacts

    @property
    def is_requested(self) -> bool:
        """Whether nodes are asked for it. An unpublished automation only uses logs that are read for other watches."""
        return self.active is None or self.active.version is not None


class OrgWatches(msgspec.Struct, frozen=True):
    """The watches of one organization at its epoch. `awaited`: names of logs that its entries can wait for."""

    epoch: int
    watches: tuple[WatchedEvent, ...] = ()
    awaited: frozenset[str] = frozenset()


class ChainWatches(msgspec.Struct, frozen=True, dict=True):
    """The watches of a chain at one moment, by organization."""

    by_org: Mapping[int, OrgWatches] = {}

    @cached_property
    def epoch(self) -> int:
        """A number that increases with every change."""
        return sum(org.epoch for org in self.by_org.values())

    @cached_property
    def watches(self) -> tuple[WatchedEvent, ...]:
        """All reasons to follow an event."""
        return tuple(watch for _, org in sorted(self.by_org.items()) for watch in org.watches)

    @cached_property
    def awaited(self) -> frozenset[tuple[int, str]]:
        """Logs that entries can wait for, as (organization, name of the log)."""
        return frozenset((org_id, name) for org_id, org in self.by_org.items() for name in org.awaited)

    @cached_property
    def requested(self) -> frozenset[tuple[str, str]]:
        """The (contract, topic) pairs that are requested from nodes."""
        return frozenset(
            (watch.contract, event_topic(watch.abi_event.canonical)) for watch in self.watches if watch.is_requested
        )

    @cached_property
    def since(self) -> datetime | None:
        """The time from which the first of the requested events is followed."""
        return min((watch.since for watch in self.watches if watch.is_requested), default=None)

    @cached_property
    def contracts(self) -> list[str]:
        return sorted({contract for contract, _ in self.requested})

    @cached_property
    def topics(self) -> list[str]:
        return sorted({topic for _, topic in self.requested})

    @cached_property
    def by_topic(self) -> dict[tuple[str, str], dict[int, tuple[WatchedEvent, ...]]]:
        """The watches by (contract, topic), then by organization."""
        watches: dict[tuple[str, str], dict[int, tuple[WatchedEvent, ...]]] = {}
        for watch in self.watches:
            by_org = watches.setdefault((watch.contract, event_topic(watch.abi_event.canonical)), {})
            by_org[watch.org_id] = (*by_org.get(watch.org_id, ()), watch)
        return watches

    @cached_property
    def by_signature(self) -> dict[tuple[int, str, str], tuple[WatchedEvent, ...]]:
        """The watches of automations by (organization, contract, canonical signature)."""
        watches: dict[tuple[int, str, str], tuple[WatchedEvent, ...]] = {}
        for watch in self.watches:
            if watch.active is not None:
                key = watch.org_id, watch.contract, watch.abi_event.canonical
                watches[key] = (*watches.get(key, ()), watch)
        return watches

    @cached_property
    def confirmation_depths(self) -> list[tuple[int, int, int]]:
        """The depths of last confirmations: (organization, confirmations, depth below which no log waits)."""
        depths = {
            (watch.org_id, watch.confirmations, max(watch.confirmations, watch.earlier_confirmations))
            for watch in self.watches
        }
        return sorted(depth for depth in depths if depth[2])

    @cached_property
    def lookbacks(self) -> list[Lookback]:
        """The automations that look back once, to logs that waited for more confirmations."""
        return [
            Lookback(watch.org_id, watch.active.automation_id, watch.active.version)
            for watch in self.watches
            if watch.earlier_confirmations and watch.active is not None and watch.active.version is not None
        ]

    def without(self, org_ids: Iterable[int]) -> "ChainWatches":
        """Return these watches without some organizations, so that they are read again."""
        excluded = set(org_ids)
        return ChainWatches({org_id: org for org_id, org in self.by_org.items() if org_id not in excluded})


NO_WATCHES = ChainWatches()


async def read_watches(tx: Transaction, chain_id: int, previous: ChainWatches = NO_WATCHES) -> ChainWatches:
    """Return the watches of a chain; only organizations that have changed since `previous` are read again."""
    (epochs,) = await run(tx, watch_epochs())
    changed = [
        org_id
        for org_id, epoch in epochs.items()
        if org_id not in previous.by_org or previous.by_org[org_id].epoch != epoch
    ]
    if not changed:
        return previous
    automations, watch_rows = await run(tx, chain_automations(chain_id, changed), chain_watches(chain_id, changed))
    watches: defaultdict[int, list[WatchedEvent]] = defaultdict(list)
    for automation in automations:
        if automation.paused and automation.published_version is None:
            continue
        trigger = read_trigger(decode(automation.trigger_spec))
        # A spec that this release cannot read is skipped: it must not stop the chain for the other automations.
        if not isinstance(trigger, Trigger) or (source := trigger.log_source) is None:
            continue
        active = None
        if not automation.paused:
            active = ActiveTrigger(automation.id, automation.published_version, automation.activation, trigger)
        watches[automation.org_id].append(
            WatchedEvent(
                automation.org_id,
                source.contract,
                source.abi_event,
                Decoder(source.abi_event),
                source.wallet_arg,
                automation.live_since,
                active,
                automation.earlier_confirmations or 0,
            )
        )
    for row in watch_rows:
        abi_event = read_signature(row.signature)
        if isinstance(abi_event, AbiEvent):
            decoder = Decoder(abi_event)
            watch = WatchedEvent(row.org_id, row.contract, abi_event, decoder, row.wallet_arg, row.created_at)
            watches[row.org_id].append(watch)
    (awaited,) = await run(tx, awaited_logs(sorted(watches)))
    updated = {
        org_id: OrgWatches(epochs[org_id], tuple(watches.get(org_id, ())), frozenset(awaited.get(org_id, ())))
        for org_id in changed
    }
    return ChainWatches({**previous.by_org, **updated})
