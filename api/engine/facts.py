"""The facts of a batch: everything that decisions on its entries may depend on, read from Postgres.

`required_facts` (in the language) says which facts a run can look at, and only those are read. Facts that other entries
and events of the contact change concurrently (`WatchedFacts`) are read twice: without a lock before the decision, and
under the lock of the contact when the decision is recorded. If they differ, the decision was made on stale facts and is
made again.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, lru_cache
from typing import TypeAlias, TypeVar

import msgspec

from api.crypto import OrgKeys
from api.engine.claims import run_of
from api.store import entries as store
from api.store.database import Database, Transaction
from api.store.entries import Claim, EntryContactRow, EntryLogRow, EventRow, LaterEventRow, OtherEntries
from api.store.query import COMMIT, run
from workbench.language.abi import AbiEvent, read_signature
from workbench.language.advance import LOOP_LIMIT, LOOP_WINDOW, RequiredFacts, required_facts
from workbench.language.codec import decode
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.facts import ContactHistory, Facts, LaterEvent
from workbench.language.graph import Graph, read_graph
from workbench.language.onchain import LOCATION_FIELDS, log_payload
from workbench.language.run import RetryPolicy

T = TypeVar("T")
OpenEmail: TypeAlias = Callable[[str], str]


class Graphs:
    """Compiled graphs of published versions. A published version never changes, so each is read and compiled once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._graphs: dict[tuple[int, str, int], Graph] = {}

    async def load(self, org_id: int, claims: list[Claim]) -> None:
        """Read the graphs of these claims that are not loaded yet."""
        for claim in claims:
            if claim.version is None or (org_id, claim.automation_id, claim.version) in self._graphs:
                continue
            async with self._database.transaction() as tx:
                (raw,) = await run(tx, store.load_graph(org_id, claim.automation_id, claim.version))
            # Compiling long templates takes up to seconds: it runs in a thread, and after the transaction.
            graph = await asyncio.to_thread(read_graph, decode(raw)) if raw is not None else ()
            # A stored graph that no longer reads (a tuple of problems) becomes an empty one: its entries end.
            compiled = graph if isinstance(graph, Graph) else Graph()
            self._graphs[org_id, claim.automation_id, claim.version] = compiled

    def of(self, org_id: int, claim: Claim) -> Graph | None:
        """Return the loaded graph of a claimed entry, or None if the automation was not published when it entered."""
        return None if claim.version is None else self._graphs[org_id, claim.automation_id, claim.version]


class FactsRequest(msgspec.Struct, frozen=True):
    """A claimed entry, and the facts that its next decisions can look at."""

    claim: Claim
    required: RequiredFacts

    @property
    def looks_back(self) -> bool:
        """Whether the decisions depend on what other entries of the contact did (re-entry, message cap)."""
        return self.required.entries or self.required.messages is not None

    @property
    def is_watched(self) -> bool:
        """Whether the decisions depend on facts that change concurrently, including the absence of an awaited event."""
        return self.looks_back or bool(self.required.later_events)


class WatchedFacts(msgspec.Struct, frozen=True):
    """Facts, by entry id, that other entries and events of the contact change. Entries without any are left out."""

    other_entries: dict[str, OtherEntries]
    message_times: dict[str, tuple[datetime, ...]]
    later_events: dict[str, tuple[LaterEventRow, ...]]

    def of(self, entry_ids: Iterable[str]) -> "WatchedFacts":
        ids = set(entry_ids)

        def part(values: dict[str, T]) -> dict[str, T]:
            return {entry_id: value for entry_id, value in values.items() if entry_id in ids}

        return WatchedFacts(part(self.other_entries), part(self.message_times), part(self.later_events))


class BatchFacts(msgspec.Struct, frozen=True):
    """The facts of a batch.

    `read_at`: the time for which they were read; the second reading of `watched` has to use the same one.
    `decide_at`: the time at which decisions are made, not before the newest event in `watched`.
    `requests`, `facts`: by entry id.
    """

    read_at: datetime
    decide_at: datetime
    requests: dict[str, FactsRequest]
    facts: dict[str, Facts]
    watched: WatchedFacts


def facts_request(org_id: int, claim: Claim, graphs: Graphs) -> FactsRequest:
    return FactsRequest(claim, required_facts(graphs.of(org_id, claim), run_of(claim)))


async def read_facts(
    tx: Transaction, org_id: int, org_keys: OrgKeys, requests: list[FactsRequest], retries: RetryPolicy, now: datetime
) -> BatchFacts:
    claims = [request.claim for request in requests]
    # Most batches need only these three reads. The reads that follow need no common snapshot with them: whatever
    # changes concurrently and matters is read again under a lock, so COMMIT can save its round trip here.
    events, contacts, automations, _ = await run(
        tx,
        store.load_events(org_id, claims),
        store.load_contacts(org_id, list({claim.contact_id for claim in claims})),
        store.read_automation_statuses(org_id, list({claim.automation_id for claim in claims})),
        COMMIT,
    )
    mailed_ids = {request.claim.contact_id for request in requests if request.required.unsubscribed}
    if mailed_ids:
        (unsubscribed_ids,) = await run(tx, store.find_unsubscribed(org_id, list(mailed_ids)))
        for contact_id in unsubscribed_ids & contacts.keys():
            contact = contacts[contact_id]
            contacts[contact_id] = msgspec.structs.replace(contact, opted_out=[*contact.opted_out, "email"])
    logs: dict[str, EntryLogRow] = {}
    if log_claims := [claim for claim in claims if claim.event_id not in events]:
        (logs,) = await run(tx, store.load_logs(org_id, log_claims))
    watched = await read_watched(tx, org_id, requests, now)
    recent_entries: dict[str, int] = {}
    if counted_claims := [request.claim for request in requests if request.required.recent]:
        (recent_entries,) = await run(tx, store.count_recent_entries(org_id, counted_claims, LOOP_WINDOW, LOOP_LIMIT))

    open_email = cache(org_keys.open_email)  # most events of a batch carry the address of their contact
    facts = {}
    for claim in claims:
        event = events.get(claim.event_id) or logs.get(claim.entry_id)
        base = _event_and_contact(open_email, event, contacts.get(claim.contact_id))
        automation = automations[claim.automation_id]
        # An entry of an earlier activation is cancelled even if the automation has been activated again.
        expired = "automation_inactive" if claim.activation < automation.activation else None
        others = watched.other_entries.get(claim.entry_id)
        later_events = tuple(
            LaterEvent(
                row.at,
                row.name,
                Identifiers(row.wallet, _opened(open_email, row.email), row.external_id),
                decode(row.payload),
                row.id,
            )
            for row in watched.later_events.get(claim.entry_id, ())
        )
        facts[claim.entry_id] = msgspec.structs.replace(
            base,
            cancelled=base.cancelled or claim.cancelled_outcome or automation.stopped or expired,
            paused=automation.paused,
            retries=retries,
            history=ContactHistory(
                None if others is None else others.at,
                others is not None and others.running,
                recent_entries.get(claim.entry_id, 0),
                watched.message_times.get(claim.entry_id, ()),
            ),
            later_events=later_events,
        )
    # Clocks of two processes differ: an event may carry a later time than `now`, and no decision may precede it.
    decide_at = max([now, *(rows[-1].at for rows in watched.later_events.values())])
    return BatchFacts(now, decide_at, {request.claim.entry_id: request for request in requests}, facts, watched)


async def read_watched(tx: Transaction, org_id: int, requests: list[FactsRequest], now: datetime) -> WatchedFacts:
    """Read the facts that other entries and events of the contacts change."""
    reentrant = [request.claim for request in requests if request.required.entries]
    capped = [
        (request.claim, now - request.required.messages)
        for request in requests
        if request.required.messages is not None
    ]
    waiting = [
        (request.claim, request.required.later_events, request.required.since)
        for request in requests
        if request.required.later_events
    ]
    if not (reentrant or capped or waiting):
        return WatchedFacts({}, {}, {})
    return WatchedFacts(
        *await run(
            tx,
            store.read_other_entries(org_id, reentrant),
            store.read_message_times(org_id, capped),
            store.read_later_events(org_id, waiting),
        )
    )


def _event_and_contact(
    open_email: OpenEmail, event: EventRow | EntryLogRow | None, contact: EntryContactRow | None
) -> Facts:
    if event is None or contact is None:
        return Facts("", Identifiers(), {}, ContactState(""), "contact_erased")
    if isinstance(event, EntryLogRow):
        sent = Identifiers(event.wallet)
        args = decode(event.args)
        payload = log_payload(dict(zip(LOCATION_FIELDS, event.place, strict=True)), args, _abi_event(event.signature))
    else:
        sent = Identifiers(event.wallet, _opened(open_email, event.email), event.external_id)
        payload = decode(event.payload)
    return Facts(
        event.name,
        sent,
        payload,
        ContactState(
            contact.id,
            Identifiers(contact.wallet, _opened(open_email, contact.email), contact.external_id),
            decode(contact.attributes),
            tuple(contact.tags),
            tuple(contact.segments),
            tuple(contact.opted_out),
        ),
    )


@lru_cache(maxsize=1_024)
def _abi_event(signature: str | None) -> AbiEvent | None:
    abi_event = None if signature is None else read_signature(signature)
    return abi_event if isinstance(abi_event, AbiEvent) else None


def _opened(open_email: OpenEmail, sealed: str | None) -> str | None:
    return None if sealed is None else open_email(sealed)
