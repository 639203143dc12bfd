"""The engine's statements: find and claim due entries, load what decisions need, and record the decisions.

All of them are calls on one organization's batch (`store.query`). A claim is a lease with a token that grows with every
claim; writes carry the token, so a worker that lost its lease writes nothing.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from api.store.events import EventRow
from api.store.query import Json, Uuid, call
from workbench.language.actions import MAX_COLLECTED
from workbench.language.channel import CAPPED_CHANNELS
from workbench.language.responses import ContactView

# --- Finding and claiming

Lane: TypeAlias = Literal["ready", "retrying"]
"""Entries that are due for the first attempt of a step, or for another one."""


class DueWork(msgspec.Struct, frozen=True):
    """The kinds of due entries that an organization has: ready, retrying, or with an expired lease."""

    org_id: int
    ready: bool
    retrying: bool
    expired: bool


class DueEntry(msgspec.Struct, frozen=True):
    entry_id: Uuid
    contact_id: Uuid


class EntryPosition(msgspec.Struct, frozen=True):
    """An entry at a node, with the event that started it: the contact's history is read relative to them."""

    entry_id: Uuid
    automation_id: Uuid
    event_id: Uuid
    event_created_at: datetime
    contact_id: Uuid
    node_id: str | None


class Claim(EntryPosition, frozen=True):
    """An entry claimed by this worker, with the token that its writes must carry.

    `due_at`: the moment at which it is decided, however late the engine is. `cancelled_outcome`: the entry is to end at
    once, with this outcome. `resumed`: it was paused, or replayed.
    """

    version: int | None
    step: int
    attempt: int
    token: int
    lease_until: datetime
    due_at: datetime
    since: datetime | None
    since_id: Uuid | None
    activation: int
    request_id: str | None = None
    cancelled_outcome: str | None = None
    resumed: bool = False

    @property
    def is_first_walk(self) -> bool:
        """Whether the entry is still at the moment of the event that started it: no later event has come before."""
        return self.since is None and self.due_at <= self.event_created_at


@call
def find_due_work(now: datetime) -> list[DueWork]: ...


@call
def next_due() -> datetime | None:
    """Read when the next entry of any organization is due, or None."""


@call
def lock_due_entries(org_id: int, lane: Lane, now: datetime, limit: int) -> list[DueEntry]:
    """Read the first due entries, and lock the turns of their contacts until this transaction ends.

    Entries are left out while another transaction holds the turn of their contact.
    """


@call
def claim_entries(
    org_id: int, due_entries: Sequence[DueEntry], now: datetime, lease_until: datetime, put_back_until: datetime
) -> list[Claim]:
    """Claim the first due entry of each contact that has no running one, and put the later ones back."""


@call
def release_turns(org_id: int, contact_ids: Collection[Uuid]) -> bool:
    """Make the next entry of each contact due that was put back; return whether there was one."""


@call
def rescue_entries(org_id: int, now: datetime, limit: int) -> int:
    """Release entries with expired leases; return their number."""


@call
def renew_leases(org_id: int, claims: Sequence[Claim], lease_until: datetime) -> set[Uuid]:
    """Extend the leases of claimed entries; returns the ids of those that this worker still holds."""


# --- Loading what decisions need


class AutomationStatus(msgspec.Struct, frozen=True):
    """The activation of an automation; `stopped`: the outcome of its entries if it does not run."""

    activation: int
    stopped: str | None
    paused: bool


class OtherEntries(msgspec.Struct, frozen=True):
    """The other entries of a contact in an automation: when the newest was created, and whether one has not ended."""

    at: datetime
    running: bool


class CollectingRow(msgspec.Struct, frozen=True):
    """An entry that waits and collects events, with the event that started it, and how many have joined it."""

    entry_id: str
    node_id: str
    event: str
    payload: Json
    at: datetime
    event_id: str
    until: datetime
    joined: int


@call
def load_events(org_id: int, claims: Sequence[Claim]) -> list[EventRow]:
    """Load the events of claimed entries."""


@call
def load_starting_events(org_id: int, claims: Sequence[Claim]) -> dict[str, EventRow]:
    """Load the logs and starts that started claimed entries, by entry id."""


@call
def load_contacts(org_id: int, ids: Sequence[Uuid]) -> list[ContactView]: ...


@call
def find_unsubscribed(org_id: int, ids: Sequence[Uuid]) -> set[str]:
    """Find the contacts that unsubscribed one of their addresses."""


@call
def find_declined_topics(org_id: int, ids: Sequence[Uuid], topics: Sequence[str]) -> dict[str, list[str]]:
    """Return which of these topics each contact declined; contacts that declined none are left out."""


@call
def read_automation_statuses(org_id: int, ids: Sequence[Uuid]) -> dict[str, AutomationStatus]: ...


@call
def load_graph(org_id: int, automation_id: Uuid, version: int) -> Json | None:
    """Load a published graph."""


@call
def read_other_entries(
    org_id: int,
    entries: Sequence[EntryPosition],
    limit: int = 1_000,  # per entry; older ones are not read
) -> dict[str, OtherEntries]:
    """Read the other entries of the same contact and automation, by entry id; entries without others are left out."""


@call
def count_recent_entries(
    org_id: int, entries: Sequence[EntryPosition], within: timedelta, limit: int
) -> dict[str, int]:
    """Count the earlier entries of the same contact and automation that are at most `within` older, up to `limit`."""


@call
def find_collecting(
    org_id: int, entries: Sequence[EntryPosition], limit: int = MAX_COLLECTED
) -> dict[str, list[CollectingRow]]:
    """Find the other entries of the same contact and automation that collect events, by entry id, the oldest first."""


@call
def count_joined(org_id: int, ids: Sequence[Uuid]) -> dict[str, int]:
    """Count the events that joined these entries; entries without any are left out."""


@call
def read_joined_events(org_id: int, entries: Sequence[EntryPosition]) -> dict[str, list[EventRow]]:
    """Read the events that joined the entries, in order, by entry id."""


@call
def read_message_times(
    org_id: int,
    entries: Sequence[EntryPosition],
    sent_after: Sequence[datetime],
    channels: Sequence[str] = CAPPED_CHANNELS,
) -> dict[str, list[datetime]]:
    """Read when messages were sent to the contacts since the given times, by entry id."""


@call
def read_later_events(
    org_id: int,
    entries: Sequence[EntryPosition],
    names: Sequence[str],
    received_after: Sequence[datetime | None],
    after_ids: Sequence[Uuid | None],
    received_until: Sequence[datetime],
    limit: int = 1_000,  # per entry: the newest events, and as many of the newest logs
) -> dict[str, list[EventRow]]:
    """Read the newest events and logs of the given names (`joined_names`) up to a time, oldest first, by entry id.

    They follow the event that started the entry, and the given time and id (`LaterEvent.follows`).
    """


def joining_key(entry_id: str) -> str:
    """Return the key by which the last event that joins an entry wakes it; no event can have this name."""
    return f"+{entry_id}"


def joined_names(names: frozenset[str]) -> str:
    return ",".join(sorted(names))  # names contain no commas


# --- Recording decisions


class EntryUpdate(msgspec.Struct, frozen=True):
    """The state of an entry after a decision.

    `awaits`: what wakes it early while it waits: names of events, keys of attributes, and its own (`joining_key`) if it
    collects events; comma-separated.
    """

    entry_id: Uuid
    token: int
    state: str
    outcome: str | None
    node_id: str | None
    step: int
    attempt: int
    due_at: datetime | None
    error: str | None
    since: datetime | None = None
    since_id: Uuid | None = None
    awaits: str | None = None


class EntryStepRow(msgspec.Struct, frozen=True):
    """One logged step; `detail` is JSON text."""

    entry_id: Uuid
    claim: int
    step: int
    attempt: int
    node_id: str
    kind: str
    outcome: str
    handle: str | None
    detail: str
    at: datetime


class EntryJoin(msgspec.Struct, frozen=True):
    """An entry, and the one that it joined."""

    entry_id: Uuid
    joined_entry: Uuid


class TagChange(msgspec.Struct, frozen=True):
    """JSON arrays of tags to remove from a contact, then of tags to add."""

    contact_id: Uuid
    removed: str
    added: str


@call
def record_entries(org_id: int, updates: Sequence[EntryUpdate], now: datetime, happened: bool = False) -> set[str]:
    """Write the states of entries, with their transitions; return the ids of those that this worker still holds.

    A cancelled entry is treated as if its lease were lost, except by the update that cancels it. With `happened` it is
    written nevertheless, because its effect has happened already.
    """


@call
def find_cancellation(org_id: int, claim: Claim) -> str | None:
    """Lock an entry and read the outcome it was cancelled with; None if it was not cancelled, or its lease is lost."""


@call
def find_paused(org_id: int, ids: Collection[Uuid]) -> set[str]:
    """Find the paused automations among these, and keep them paused until this transaction ends."""


@call
def has_step(org_id: int, step: EntryStepRow) -> bool:
    """Return whether a step is logged under its claim."""


@call
def add_steps(org_id: int, steps: Sequence[EntryStepRow]) -> None: ...


@call
def join_entries(org_id: int, joins: Sequence[EntryJoin]) -> None:
    """Record which entries joined which; the contacts' locks are held."""


@call
def change_tags(org_id: int, changes: Sequence[TagChange], at: datetime) -> None:
    """Remove tags from contacts, then add others; the contacts' locks are held."""
