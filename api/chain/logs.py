"""Logs as organizations see them: decoded, with the contacts of their wallets, and compared with the stored ones.

A log is identified by its transaction and its content, not by its index: when a reorganization moves a transaction to
another block, its logs get other indexes, and an old index may belong to another log. So a dropped log that returns is
recognized by contract, topics and data; equal ones are paired in order. A log that a transaction does not contain any
more stays dropped, and one that it did not contain before is new.

An unknown wallet becomes a contact only for automations that request it, up to an hourly limit: a token has more
holders than an organization has users. A log never recreates an erased contact: logs from before the erasure have no
contact, and later ones only find a contact that an event created since.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from datetime import datetime
from hashlib import blake2b
from typing import Any

import msgspec

from api.chain.decode import UndecodableError
from api.chain.rpc import Log
from api.chain.watch import ChainWatches, WatchedEvent
from api.clock import to_us, uuid7
from api.crypto import Keyring
from api.ingest.match import ActiveTrigger
from api.ingest.parse import IdentifierCache, ParsedEvent
from api.store import chain as store
from api.store.chain import DroppedLog, LogRows, StoredLog, UnknownWalletOutcome, add_unknown_wallets, count_created
from api.store.database import Transaction
from api.store.query import Call, run
from workbench.language.abi import AbiEvent
from workbench.language.codec import Json, decode, encode
from workbench.language.contact import IdentifierKey
from workbench.language.event import Event, Identifiers
from workbench.language.onchain import LOCATION_FIELDS, ZERO_ADDRESS, log_payload

MAX_CONTACTS_PER_HOUR = 10_000  # created for one automation

_log = logging.getLogger("workbench.chain")

LogKey = tuple[int, str, int]  # organization, transaction hash, log index
_WalletKey = tuple[int, tuple[IdentifierKey, ...]]


class OrgLog(msgspec.Struct, gc=False):
    """A log as an organization sees it.

    `id`: of its row, and of the event of the entries that it starts. `seconds`: the timestamp of its block. `log`: None
    if the row was stored earlier and may have its confirmations with this page. `digest`: of the log's content, in hex.
    `wallet_events`: by wallet parameter, the event that the log is for the wallet's contact.
    """

    org_id: int
    id: str
    contract: str
    event: str
    signature: str
    tx_hash: str
    log_index: int
    block_number: int
    args: dict[str, Json]
    watches: tuple[WatchedEvent, ...]
    seconds: int = 0
    log: Log | None = None
    digest: str = ""
    wallet_events: dict[str, ParsedEvent] = {}

    @property
    def contact_id(self) -> str | None:
        """The first contact among its wallets."""
        return next((event.contact_id for event in self.wallet_events.values() if event.contact_id), None)

    @property
    def key(self) -> LogKey:
        return self.org_id, self.tx_hash, self.log_index

    @property
    def name(self) -> str:
        """The name that entries wait for, such as `0x…:transfer`."""
        return f"{self.contract}:{self.event.lower()}"

    def payload(self, chain_id: int, abi_event: AbiEvent) -> dict[str, Json]:
        """Return the payload for filters, with the parameter names of one declaration of the event."""
        location = (chain_id, self.contract, self.tx_hash, self.log_index, self.block_number)
        return log_payload(dict(zip(LOCATION_FIELDS, location, strict=True)), self.args, abi_event)


class LogMatch(msgspec.Struct, gc=False):
    """A log that an automation may enter, with the event for the contact of its wallet."""

    log: OrgLog
    watch: WatchedEvent
    active: ActiveTrigger
    event: ParsedEvent


def org_logs(watches: ChainWatches, logs: Iterable[Log]) -> list[OrgLog]:
    """Return one log per log and organization that follows it, still without ids."""
    result: list[OrgLog] = []
    for log in logs:
        watches_by_org = watches.by_topic.get((log.contract, log.topics[0]), {}) if log.topics else {}
        if not watches_by_org:
            continue
        content = " ".join((log.contract, *log.topics, log.data.lower()))
        digest = blake2b(content.encode(), digest_size=16).hexdigest()
        for org_id, org_watches in watches_by_org.items():
            abi_event = org_watches[0].abi_event
            # Automations may name the parameters of one event differently. The row has the values under all these
            # names; reversed, so that the first watch decides where declarations disagree.
            args: dict[str, Any] = {}
            for declaration, decoder in {watch.abi_event: watch.decoder for watch in reversed(org_watches)}.items():
                try:
                    args |= decoder.args(log.topics, log.data)
                except (UndecodableError, RecursionError) as error:
                    location = {"contract": log.contract, "tx": log.tx_hash, "log_index": log.log_index}
                    _log.warning("log_undecodable", extra={**location, "event": declaration.name, "reason": str(error)})
            result.append(
                OrgLog(
                    org_id=org_id,
                    id="",
                    contract=log.contract,
                    event=abi_event.name,
                    signature=abi_event.canonical,
                    tx_hash=log.tx_hash,
                    log_index=log.log_index,
                    block_number=log.block_number,
                    args=args,
                    watches=org_watches,
                    seconds=log.seconds or 0,
                    log=log,
                    digest=digest,
                )
            )
    return result


def stored_org_logs(watches: ChainWatches, rows: Iterable[StoredLog]) -> list[OrgLog]:
    """Return stored logs with the automations that follow them now."""
    return [
        OrgLog(
            org_id=row.org_id,
            id=row.id,
            contract=row.contract,
            event=row.event,
            signature=row.signature,
            tx_hash=row.tx_hash,
            log_index=row.log_index,
            block_number=row.block_number,
            args=decode(row.args),
            watches=row_watches,
            seconds=row.seconds,
        )
        for row in rows
        if (row_watches := watches.by_signature.get((row.org_id, row.contract, row.signature)))
    ]


class WalletIndex:
    """Turns the wallets of logs into the identifiers of ingest, so that both find the same contacts."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._identifiers = IdentifierCache()

    def wallet_events(self, log: OrgLog) -> dict[str, ParsedEvent]:
        """Return a log's events by wallet parameter, still without contacts."""
        events: dict[str, ParsedEvent] = {}
        for wallet_arg in dict.fromkeys(watch.wallet_arg for watch in log.watches):
            wallet = None if wallet_arg is None else log.args.get(wallet_arg)
            if isinstance(wallet_arg, str) and isinstance(wallet, str):
                identifiers = Identifiers(wallet, None, None, wallet)
                keys, _ = self._identifiers.get(log.org_id, self._keyring.of(log.org_id), identifiers)
                event = Event(log.event, identifiers, on_chain=True)
                events[wallet_arg] = ParsedEvent(log.org_id, event, log.id, "", "", "", 0, keys, (), "", dry=False)
        return events


class LogChanges:
    """The logs of a page to store, in the order of the chain: `new` ones, and `restored` ones with their old ids."""

    def __init__(
        self, logs: Iterable[OrgLog], stored_positions: Set[int], dropped: Iterable[DroppedLog], at: datetime
    ) -> None:
        self.new: list[OrgLog] = []
        self.restored: list[OrgLog] = []
        dropped_ids: dict[tuple[int, str, str], list[str]] = {}  # the one with the lowest index is last
        for row in sorted(dropped, key=lambda row: row.log_index, reverse=True):
            dropped_ids.setdefault((row.org_id, row.tx_hash, row.digest), []).append(row.id)
        for position, log in enumerate(logs):
            if position in stored_positions:
                continue
            if ids := dropped_ids.get((log.org_id, log.tx_hash, log.digest)):
                log.id = ids.pop()
                self.restored.append(log)
            else:
                # Later logs get greater ids, since "newest" is decided by id: block numbers of two chains do not
                # compare.
                log.id = uuid7(to_us(at) + len(self.new))
                self.new.append(log)

    def writes(self, chain_id: int, at: datetime) -> Iterator[Call[object]]:
        """Yield the statements that store the changes."""
        if self.restored:
            yield store.restore_logs(_rows(self.restored))
        if self.new:
            yield store.add_logs(chain_id, _rows(self.new), at)
        for org_id in sorted({log.org_id for log in self.restored}):
            yield store.restore_entries(org_id, [log.id for log in self.restored if log.org_id == org_id], at)


def _rows(org_logs: Sequence[OrgLog]) -> LogRows:
    logs = [org_log.log for org_log in org_logs if org_log.log is not None]
    return LogRows(
        org_ids=[log.org_id for log in org_logs],
        ids=[log.id for log in org_logs],
        contact_ids=[log.contact_id for log in org_logs],
        contracts=[log.contract for log in org_logs],
        events=[log.event for log in org_logs],
        signatures=[log.signature for log in org_logs],
        tx_hashes=[log.tx_hash for log in org_logs],
        log_indexes=[log.log_index for log in org_logs],
        digests=[log.digest for log in org_logs],
        block_numbers=[log.block_number for log in org_logs],
        block_hashes=[log.block_hash for log in logs],
        block_seconds=[log.seconds or 0 for log in logs],
        args=[encode(log.args).decode() for log in org_logs],
    )


class UnknownWallets:
    """The wallets of one page that have no contact: those that become contacts, and counts of the others by reason."""

    def __init__(self, max_per_hour: int) -> None:
        self._max_per_hour = max_per_hour
        self._excluded: dict[_WalletKey, UnknownWalletOutcome] = {}
        self._counts: Counter[tuple[int, str, UnknownWalletOutcome]] = Counter()

    def exclude(self, event: ParsedEvent, seconds: int, erased_at: float | None) -> None:
        """Exclude an event's wallet in a block of `seconds` if it is the zero address or its contact was erased."""
        # The zero address is not a wallet, whatever an event says: tokens are minted from it and burned to it.
        if event.body.identifiers.wallet == ZERO_ADDRESS:
            self._excluded[_wallet_key(event)] = "zero_address"
            event.contact_id = ""
        elif erased_at is not None:
            self._excluded[_wallet_key(event)] = "erased"
            # Replayed or late confirmed blocks from before the erasure stay without a contact, even if a newer one
            # exists.
            if seconds <= erased_at:
                event.contact_id = ""

    async def select(
        self, tx: Transaction, matches: Sequence[LogMatch], takes: Callable[[LogMatch], bool], at: datetime
    ) -> set[_WalletKey]:
        """Return the wallets that become contacts: those of logs that automations take, up to the hourly limits."""
        candidates: list[LogMatch] = []
        for match in matches:
            if match.event.contact_id or not takes(match):
                continue
            reason = self._excluded.get(_wallet_key(match.event))
            if reason is None and not match.watch.creates_contacts:
                reason = "unknown"
            if reason is None:
                candidates.append(match)
            else:
                self._count(match, reason)
        if not candidates:
            return set()
        automations = sorted({(match.event.org_id, match.active.automation_id) for match in candidates})
        (created,) = await run(tx, count_created(automations, at))
        selected: set[_WalletKey] = set()
        for match in candidates:
            automation_id, wallet = match.active.automation_id, _wallet_key(match.event)
            if wallet not in selected and created.get(automation_id, 0) < self._max_per_hour:
                created[automation_id] = created.get(automation_id, 0) + 1
                selected.add(wallet)
                self._count(match, "created")
        # Only now: a wallet over the limit of one automation may be selected for another one.
        for match in candidates:
            if _wallet_key(match.event) not in selected:
                self._count(match, "limit")
        return selected

    def writes(self, at: datetime) -> list[Call[None]]:
        """Return the statement that stores the counts, if there are any."""
        return [add_unknown_wallets(self._counts, at)] if self._counts else []

    def _count(self, match: LogMatch, outcome: UnknownWalletOutcome) -> None:
        self._counts[match.event.org_id, match.active.automation_id, outcome] += 1


def _wallet_key(event: ParsedEvent) -> _WalletKey:
    return event.org_id, event.keys
