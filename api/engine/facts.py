"""The facts of a batch: everything that decisions on its entries may depend on, read from Postgres.

`required_facts` (in the language) says which facts a run can look at, and only those are read. Facts that other entries
and events of the contact change concurrently (`WatchedFacts`) are read twice: without a lock before the decision, and
under the lock of the contact when the decision is recorded. If they differ, the decision was made on stale facts and is
made again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Protocol, TypeVar

import msgspec

from api.crypto import OrgKeys
from api.engine.claims import run_of
from api.store import entries as store
from api.store.contacts import contact_state, identifiers_of
from api.store.database import Database, Transaction
from api.store.entries import Claim, EntryPosition, OtherEntries, joined_names
from api.store.events import EventRow, read_attributes
from api.store.query import run
from workbench.language.abi import AbiEvent, read_signature
from workbench.language.advance import LOOP_LIMIT, LOOP_WINDOW, RequiredFacts, required_facts
from workbench.language.channel import RetryPolicy
from workbench.language.codec import Json, decode
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.facts import CollectingEntry, ContactHistory, Facts, LaterEvent
from workbench.language.graph import Graph, read_graph
from workbench.language.onchain import log_payload
from workbench.language.run import Run, State

T = TypeVar("T")
_NEW_ID = "00000000-0000-8000-8000-000000000000"  # of an entry and an event that do not exist


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
            # Compiling long templates can take seconds, so it runs in a thread, after the transaction.
            graph = await asyncio.to_thread(read_graph, decode(raw)) if raw is not None else ()
            # A stored graph that is no longer valid (a tuple of problems) becomes an empty one: its entries end.
            compiled = graph if isinstance(graph, Graph) else Graph()
            self._graphs[org_id, claim.automation_id, claim.version] = compiled

    def of(self, org_id: int, claim: Claim) -> Graph | None:
        """Return the loaded graph of a claimed entry, or None if the automation was not published when it entered."""
        return None if claim.version is None else self._graphs[org_id, claim.automation_id, claim.version]


class GraphSource(Protocol):
    """The graphs that claimed entries run."""

    def of(self, org_id: int, claim: Claim, /) -> Graph | None: ...


class FactsRequest(msgspec.Struct, frozen=True):
    """An entry, the facts that its next decisions need, and the moment at which they are made."""

    entry: EntryPosition
    required: RequiredFacts
    moment: datetime

    @property
    def is_watched(self) -> bool:
        """Whether the decisions depend on facts that change concurrently, including the absence of an awaited event."""
        required = self.required
        changing = required.later_events or required.attributes
        return required.entries or required.messages is not None or bool(changing)


class WatchedFacts(msgspec.Struct, frozen=True):
    """Facts, by entry id, that other entries and events of the contact change. Entries without any are left out."""

    other_entries: dict[str, OtherEntries]
    message_times: dict[str, list[datetime]]
    later_events: dict[str, list[EventRow]]
    attributes: dict[str, dict[str, Json]]

    def of(self, entry_ids: Iterable[str]) -> "WatchedFacts":
        ids = set(entry_ids)

        def part(values: dict[str, T]) -> dict[str, T]:
            return {entry_id: value for entry_id, value in values.items() if entry_id in ids}

        return WatchedFacts(
            part(self.other_entries), part(self.message_times), part(self.later_events), part(self.attributes)
        )


class BatchFacts(msgspec.Struct, frozen=True):
    """The facts of a batch.

    `read_at`: the real time at which the facts were read; the second read of `watched` must use the same time.
    `requests`, `facts`: by entry id.
    """

    read_at: datetime
    requests: dict[str, FactsRequest]
    facts: dict[str, Facts]
    watched: WatchedFacts


async def read_facts(
    tx: Transaction,
    org_id: int,
    org_keys: OrgKeys,
    claims: list[Claim],
    graphs: GraphSource,
    retries: RetryPolicy,
    now: datetime,
) -> BatchFacts:
    requests = [_request(claim, graphs.of(org_id, claim)) for claim in claims]
    # Before the contacts: an attribute that changes in between differs in the second read.
    watched = await read_watched(tx, org_id, requests, now)
    # Most batches need only these three reads.
    event_rows, contact_rows, automations = await run(
        tx,
        store.load_events(org_id, claims),
        store.load_contacts(org_id, list({claim.contact_id for claim in claims})),
        store.read_automation_statuses(org_id, list({claim.automation_id for claim in claims})),
    )
    events, contacts = {row.id: row for row in event_rows}, {row.id: row for row in contact_rows}
    mailed_ids = {request.entry.contact_id for request in requests if request.required.unsubscribed}
    if mailed_ids:
        (unsubscribed_ids,) = await run(tx, store.find_unsubscribed(org_id, list(mailed_ids)))
        for contact_id in unsubscribed_ids & contacts.keys():
            contact = contacts[contact_id]
            contacts[contact_id] = msgspec.structs.replace(contact, opted_out=(*contact.opted_out, "email"))
    topics = sorted(frozenset().union(*(request.required.topics for request in requests)))
    if topics:
        contact_ids = list({request.entry.contact_id for request in requests if request.required.topics})
        (declined,) = await run(tx, store.find_declined_topics(org_id, contact_ids, topics))
        for contact_id in declined.keys() & contacts.keys():
            names = tuple(declined[contact_id])
            contacts[contact_id] = msgspec.structs.replace(contacts[contact_id], declined=names)
    other_events: dict[str, EventRow] = {}
    if other_claims := [claim for claim in claims if claim.event_id not in events]:
        (other_events,) = await run(tx, store.load_starting_events(org_id, other_claims))
    recent_entries = await _count_recent(tx, org_id, requests)
    collecting = await read_collecting(tx, org_id, requests)
    joined: dict[str, list[EventRow]] = {}
    if joined_entries := [request.entry for request in requests if request.required.joined]:
        (joined,) = await run(tx, store.read_joined_events(org_id, joined_entries))

    request_of = {request.entry.entry_id: request for request in requests}
    open_email = cache(org_keys.open_email)  # most events of a batch carry the address of their contact
    facts = {}
    for claim in claims:
        event = events.get(claim.event_id) or other_events.get(claim.entry_id)
        contact_row = contacts.get(claim.contact_id)
        if event is None or contact_row is None:
            facts[claim.entry_id] = Facts("", Identifiers(), {}, ContactState(""), cancelled="contact_erased")
            continue
        payload = decode(event.payload)
        if event.source is not None:
            payload = log_payload(payload, _abi_event(event.signature))
        automation, required = automations[claim.automation_id], request_of[claim.entry_id].required
        # An entry of an earlier activation is cancelled even if the automation has been activated again.
        expired = "automation_inactive" if claim.activation < automation.activation else None
        facts[claim.entry_id] = Facts(
            event.event,
            identifiers_of(event, open_email),
            payload,
            contact_state(contact_row, open_email),
            cancelled=claim.cancelled_outcome or automation.stopped or expired,
            paused=automation.paused,
            retries=retries,
            history=_history(claim.entry_id, watched, recent_entries, collecting),
            later_events=_later_events(watched.later_events.get(claim.entry_id, ()), open_email),
            joined=_later_events(joined.get(claim.entry_id, ()), open_email) if required.collecting else None,
            at=event.created_at,
            real_now=now,
        )
    return BatchFacts(now, request_of, facts, watched)


async def past_of(
    tx: Transaction, org_id: int, automation_id: str, graph: Graph | None, contact_id: str, now: datetime
) -> ContactHistory:
    """Return the contact's history as the first decision of an entry that is created at `now` would see it."""
    entry = EntryPosition(
        entry_id=_NEW_ID,
        automation_id=automation_id,
        event_id=_NEW_ID,
        event_created_at=now,
        contact_id=contact_id,
        node_id=None,
    )
    required = required_facts(graph, Run(_NEW_ID, automation_id, State.RUNNING, attempt=1))
    required = msgspec.structs.replace(required, later_events=frozenset(), attributes=frozenset())
    requests = [FactsRequest(entry, required, now)]
    watched = await read_watched(tx, org_id, requests, now)
    recent, collecting = await _count_recent(tx, org_id, requests), await read_collecting(tx, org_id, requests)
    history = _history(_NEW_ID, watched, recent, collecting)
    # `now` may be a past time: what came after it is left out.
    if history.entered_at is not None and history.entered_at > now:
        history = msgspec.structs.replace(history, entered_at=None, running=False)
    messages_at = tuple(at for at in history.messages_at if at <= now)
    collecting_then = tuple(entry for entry in history.collecting if entry.at <= now)
    return msgspec.structs.replace(history, messages_at=messages_at, collecting=collecting_then)


def _later_events(rows: Sequence[EventRow], open_email: Callable[[str], str]) -> tuple[LaterEvent, ...]:
    return tuple(
        LaterEvent(row.created_at, row.event, identifiers_of(row, open_email), decode(row.payload), row.id)
        for row in rows
    )


def _history(
    entry_id: str,
    watched: WatchedFacts,
    recent_entries: dict[str, int],
    collecting: dict[str, tuple[CollectingEntry, ...]],
) -> ContactHistory:
    others = watched.other_entries.get(entry_id)
    return ContactHistory(
        entered_at=None if others is None else others.at,
        running=others is not None and others.running,
        recent=recent_entries.get(entry_id, 0),
        messages_at=tuple(watched.message_times.get(entry_id, ())),
        collecting=collecting.get(entry_id, ()),
    )


def _request(claim: Claim, graph: Graph | None) -> FactsRequest:
    required = required_facts(graph, run_of(claim))
    if claim.is_first_walk:  # even if the engine is late: what came since then comes after these decisions
        required = msgspec.structs.replace(required, later_events=frozenset())
    return FactsRequest(claim, required, claim.due_at)


async def _count_recent(tx: Transaction, org_id: int, requests: list[FactsRequest]) -> dict[str, int]:
    entries = [request.entry for request in requests if request.required.recent]
    if not entries:
        return {}
    (recent_entries,) = await run(tx, store.count_recent_entries(org_id, entries, LOOP_WINDOW, LOOP_LIMIT))
    return recent_entries


async def read_collecting(
    tx: Transaction, org_id: int, requests: list[FactsRequest]
) -> dict[str, tuple[CollectingEntry, ...]]:
    """Read the entries that collect events.

    Other entries cannot change them until a decision is recorded, because entries take turns. But they can be moved to
    another contact, by an undone merge, or to another version. So they are read again before an entry joins one.
    """
    entries = [request.entry for request in requests if request.required.collecting]
    if not entries:
        return {}
    (rows,) = await run(tx, store.find_collecting(org_id, entries))
    return {
        entry_id: tuple(
            CollectingEntry(
                row.entry_id, row.node_id, row.event, decode(row.payload), row.at, row.event_id, row.until, row.joined
            )
            for row in collecting_rows
        )
        for entry_id, collecting_rows in rows.items()
    }


async def read_watched(tx: Transaction, org_id: int, requests: list[FactsRequest], now: datetime) -> WatchedFacts:
    """Read the facts that other entries and events of the contacts change."""
    reentrant = [request.entry for request in requests if request.required.entries]
    capped = [
        (request.entry, now - request.required.messages)
        for request in requests
        if request.required.messages is not None
    ]
    waiting = [request for request in requests if request.required.later_events]
    following = [request for request in requests if request.required.attributes]
    if not (reentrant or capped or waiting or following):
        return WatchedFacts({}, {}, {}, {})
    contact_ids = [request.entry.contact_id for request in following]
    other_entries, message_times, later_events, attributes = await run(
        tx,
        store.read_other_entries(org_id, reentrant),
        store.read_message_times(org_id, [entry for entry, _ in capped], [since for _, since in capped]),
        store.read_later_events(
            org_id,
            [request.entry for request in waiting],
            [joined_names(request.required.later_events) for request in waiting],
            [request.required.since for request in waiting],
            [request.required.since_id for request in waiting],
            [request.moment for request in waiting],
        ),
        read_attributes([org_id] * len(contact_ids), contact_ids),
    )
    followed: dict[str, dict[str, Json]] = {}
    for request in following:
        of_contact = decode(attributes.get(request.entry.contact_id, "{}").encode())
        followed[request.entry.entry_id] = {name: of_contact.get(name) for name in request.required.attributes}
    return WatchedFacts(other_entries, message_times, later_events, followed)


@lru_cache(maxsize=1_024)
def _abi_event(signature: str | None) -> AbiEvent | None:
    abi_event = None if signature is None else read_signature(signature)
    return abi_event if isinstance(abi_event, AbiEvent) else None
