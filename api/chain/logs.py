"""Logs as organizations see them: decoded, with the contacts of their wallets, and compared with the stored ones.

A log is identified by its transaction and its content, not by its index: when a reorganization moves a transaction to
another block, its logs get other indexes, and an old index may belong to another log. So a dropped log that returns is
recognised by contract, topics and data; equal ones are paired in order. A log that a transaction no longer contains
stays dropped, and one that it did not contain before is new.

An unknown wallet becomes a contact only for automations that request it, up to an hourly limit: a token has more
holders than an organization has users. A log never recreates an erased contact: logs from before the erasure have no
contact, and later ones only find a contact that an event created since.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from api.chain.decode import UndecodableError
from api.chain.rpc import Log
from api.chain.watch import ChainWatches, WatchedEvent
from api.clock import to_us, uuid7
from api.crypto import Keyring
from api.ingest.match import ActiveTrigger
from api.ingest.parse import MAX_CACHED_IDENTIFIERS, IdentifiedEvent, identify
from api.store.chain import KnownLog, StoredLog, UnknownWalletOutcome, WalletOutcomeCount
from workbench.language.codec import Json, encode
from workbench.language.contact import IdentifierKey
from workbench.language.event import Event, Identifiers
from workbench.language.onchain import LOCATION_FIELDS, log_payload

_log = logging.getLogger("workbench.chain")

LogKey: TypeAlias = tuple[int, str, int]  # organization, transaction hash, log index
WalletKey: TypeAlias = tuple[int, tuple[IdentifierKey, ...]]  # organization, key of the wallet


class WalletEvent(IdentifiedEvent, kw_only=True, gc=False):
    """The event made from a log for the contact of one of its wallets, if the wallet has a contact."""

    contact_id: str | None = None


class OrgLog(StoredLog, kw_only=True):
    """A log with those watches of its organization that it matches; `values`: its decoded parameters.

    `wallet_events`: by wallet parameter, the event made from the log for the wallet's contact.
    """

    values: dict[str, Json]
    watches: tuple[WatchedEvent, ...]
    wallet_events: dict[str, WalletEvent] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> LogKey:
        return self.org_id, self.tx_hash, self.log_index

    @property
    def name(self) -> str:
        """The name that entries wait for, such as `0x…:transfer`."""
        return f"{self.contract}:{self.event.lower()}"


class LogMatch(msgspec.Struct, gc=False):
    """A log that may start an entry, with the event for the contact of its wallet."""

    log: OrgLog
    watch: WatchedEvent
    active: ActiveTrigger
    event: WalletEvent

    def payload(self, chain_id: int) -> dict[str, Json]:
        """Return the payload for filters, with the parameter names of the automation's declaration of the event."""
        log = self.log
        location = (chain_id, log.contract, log.tx_hash, log.log_index, log.block_number)
        return log_payload(dict(zip(LOCATION_FIELDS, location, strict=True), args=log.values), self.watch.abi_event)


def org_logs(watches: ChainWatches, logs: Iterable[Log], at: datetime) -> list[OrgLog]:
    """Return each log once for every organization that watches it, with the id that it gets if it is new."""
    result: list[OrgLog] = []
    for log in logs:
        topic = (log.contract, log.topics[0]) if log.topics else ("", "")
        for org_id, org_watches in watches.by_topic.get(topic, {}).items():
            content = " ".join((log.contract, *log.topics, log.data.lower()))
            values = _decoded(log, org_watches)
            result.append(
                OrgLog(
                    org_id=org_id,
                    # Logs are listed in the order of their ids, because block numbers of different chains cannot be
                    # compared. So a later log gets a greater id.
                    id=uuid7(to_us(at) + len(result)),
                    contract=log.contract,
                    event=org_watches[0].abi_event.name,
                    signature=org_watches[0].abi_event.canonical,
                    tx_hash=log.tx_hash,
                    log_index=log.log_index,
                    block_number=log.block_number,
                    block_hash=log.block_hash,
                    seconds=log.seconds or 0,
                    args=encode(values).decode(),
                    digest=blake2b(content.encode(), digest_size=16).hexdigest(),
                    values=values,
                    watches=org_watches,
                )
            )
    return result


def _decoded(log: Log, watches: Sequence[WatchedEvent]) -> dict[str, Json]:
    # Automations may name the parameters of one event differently. The row has the values under all these names;
    # reversed, so that the first watch decides where declarations disagree.
    args: dict[str, Json] = {}
    for declaration, decoder in {watch.abi_event: watch.decoder for watch in reversed(watches)}.items():
        try:
            args |= decoder.args(log.topics, log.data)
        except (UndecodableError, RecursionError) as error:
            location = {"contract": log.contract, "tx": log.tx_hash, "log_index": log.log_index}
            _log.warning("log_undecodable", extra={**location, "event": declaration.name, "reason": str(error)})
    return args


_identify = lru_cache(MAX_CACHED_IDENTIFIERS)(identify)


def add_wallet_events(logs: Iterable[OrgLog], keyring: Keyring) -> None:
    """Set `wallet_events` of the logs, with the identifier keys of ingest, so that both find the same contacts."""
    for log in logs:
        for wallet_arg in dict.fromkeys(watch.wallet_arg for watch in log.watches):
            wallet = None if wallet_arg is None else log.values.get(wallet_arg)
            if isinstance(wallet_arg, str) and isinstance(wallet, str):
                sent = Identifiers(wallet, None, None, wallet)
                keys, _ = _identify(keyring.of(log.org_id), sent)
                event = Event(log.event, sent)
                log.wallet_events[wallet_arg] = WalletEvent(org_id=log.org_id, body=event, event_id=log.id, keys=keys)


def compare_logs(logs: Iterable[OrgLog], known_logs: Iterable[KnownLog]) -> tuple[list[OrgLog], list[OrgLog]]:
    """Return new logs, and dropped ones that returned, in the order of the chain; give these the ids of their rows."""
    new: list[OrgLog] = []
    restored: list[OrgLog] = []
    stored: set[LogKey] = set()
    dropped_ids: defaultdict[tuple[int, str, str], list[str]] = defaultdict(list)  # the one with the lowest index last
    for known_log in sorted(known_logs, key=lambda known_log: known_log.log_index, reverse=True):
        if known_log.removed:
            dropped_ids[known_log.org_id, known_log.tx_hash, known_log.digest].append(known_log.id)
        else:
            stored.add((known_log.org_id, known_log.tx_hash, known_log.log_index))
    for log in logs:
        if log.key in stored:
            continue
        if ids := dropped_ids[log.org_id, log.tx_hash, log.digest]:
            log.id = ids.pop()
            restored.append(log)
        else:
            new.append(log)
    return new, restored


def wallet_key(event: WalletEvent) -> WalletKey:
    return event.org_id, event.keys


def select_wallets(
    matches: Iterable[LogMatch],
    excluded: Mapping[WalletKey, UnknownWalletOutcome],
    created: Mapping[str, int],
    max_per_hour: int,
) -> tuple[set[WalletKey], list[WalletOutcomeCount]]:
    """Return the wallets without a contact that become contacts, and the counts of all by automation and outcome.

    `created`: the contacts that automations have created in this hour.
    """
    selected: set[WalletKey] = set()
    outcomes: list[tuple[LogMatch, UnknownWalletOutcome]] = []
    created_now: Counter[str] = Counter()
    for match in matches:
        automation_id, wallet = match.active.automation_id, wallet_key(match.event)
        if wallet in excluded:
            outcomes.append((match, excluded[wallet]))
        elif not match.watch.creates_contacts:
            outcomes.append((match, "unknown"))
        elif created.get(automation_id, 0) + created_now[automation_id] >= max_per_hour:
            outcomes.append((match, "limit"))
        elif wallet not in selected:
            created_now[automation_id] += 1
            selected.add(wallet)
            outcomes.append((match, "created"))
    # A wallet over the limit of one automation may be selected for another one.
    counts = Counter(
        (match.event.org_id, match.active.automation_id, outcome)
        for match, outcome in outcomes
        if outcome != "limit" or wallet_key(match.event) not in selected
    )
    return selected, [WalletOutcomeCount(*key, count) for key, count in counts.items()]
