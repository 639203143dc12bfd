"""The engine's statements: find and claim due entries, load what decisions need, and record the decisions.

All of them are calls on one organization's batch (`store.query`). A claim is a lease with a token that grows with every
claim; writes carry the token, so a worker that lost its lease writes nothing.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from api.store.query import Call, Rows, Value, moments, nothing, plain, quoted, statements, uuids

_CALLS = statements("entries")


# --- Finding and claiming


class DueWork(msgspec.Struct, frozen=True):
    """The kinds of due entries that an organization has: ready, retrying, or with an expired lease."""

    org_id: int
    ready: bool
    retrying: bool
    expired: bool


class Claim(msgspec.Struct, frozen=True):
    """An entry claimed by this worker, with the token that its writes must carry.

    `cancelled_outcome`: the entry is to end at once, with this outcome.
    """

    entry_id: str
    automation_id: str
    version: int | None
    event_id: str
    event_created_at: datetime
    contact_id: str
    node_id: str | None
    step: int
    attempt: int
    token: int
    lease_until: datetime
    since: datetime | None
    activation: int
    request_id: str | None = None
    cancelled_outcome: str | None = None


def find_due_work(now: datetime) -> Call[list[DueWork]]:
    return Call(_CALLS["find_due_work"], lambda rows: [DueWork(*row) for row in rows], now=now)


def next_due() -> Call[datetime | None]:
    """Read when the next entry of any organization is due, or None."""
    return Call(_CALLS["next_due"], lambda rows: rows[0][0])


def claim_ready(org_id: int, now: datetime, lease_until: datetime, limit: int) -> Call[list[Claim]]:
    """Claim pending and waiting entries that are due."""
    return _claim("claim_ready", org_id, now, lease_until, limit)


def claim_retrying(org_id: int, now: datetime, lease_until: datetime, limit: int) -> Call[list[Claim]]:
    """Claim entries that are due for another attempt."""
    return _claim("claim_retrying", org_id, now, lease_until, limit)


def _claim(name: str, org_id: int, now: datetime, lease_until: datetime, limit: int) -> Call[list[Claim]]:
    return Call(
        _CALLS[name],
        lambda rows: [Claim(*row) for row in rows],
        org_id=org_id,
        now=now,
        lease_until=lease_until,
        limit=limit,
    )


def rescue_entries(org_id: int, now: datetime, limit: int) -> Call[int]:
    """Release entries with expired leases; returns how many."""
    return Call(_CALLS["rescue_entries"], lambda rows: int(rows[0][0]), org_id=org_id, now=now, limit=limit)


def renew_leases(org_id: int, claims: Sequence[Claim], lease_until: datetime) -> Call[set[str]]:
    """Extend the leases of claimed entries; returns the ids of those that this worker still holds."""
    return Call(
        _CALLS["renew_leases"],
        _ids,
        org_id=org_id,
        lease_until=lease_until,
        ids=uuids([claim.entry_id for claim in claims]),
        tokens=plain(claim.token for claim in claims),
    )


# --- Loading what decisions need


class EventRow(msgspec.Struct, frozen=True):
    """An event as stored; `email` is sealed, `payload` JSON text."""

    id: str
    name: str
    payload: bytes
    wallet: str | None
    email: str | None
    external_id: str | None


class EntryLogRow(msgspec.Struct, frozen=True):
    """The log that started an entry; `args` is JSON text, `place` identifies it (`language.onchain.LOCATION_FIELDS`).

    `signature`: of the version that the entry runs, None if it runs none.
    """

    name: str
    args: bytes
    wallet: str | None
    place: tuple[int, str, str, int, int]
    signature: str | None


class EntryContactRow(msgspec.Struct, frozen=True):
    """A contact as stored; `email` is sealed, `attributes` JSON text."""

    id: str
    wallet: str | None
    email: str | None
    external_id: str | None
    attributes: bytes
    tags: list[str]
    segments: list[str]
    opted_out: list[str]


class AutomationStatus(msgspec.Struct, frozen=True):
    """The activation of an automation; `stopped`: the outcome of its entries if it does not run."""

    activation: int
    stopped: str | None
    paused: bool


class OtherEntries(msgspec.Struct, frozen=True):
    """The other entries of a contact in an automation: when the newest was created, and whether one has not ended."""

    at: datetime
    running: bool


class LaterEventRow(msgspec.Struct, frozen=True):
    """An event after the one that started the entry; `email` is sealed, `payload` JSON text."""

    at: datetime
    name: str
    wallet: str | None
    email: str | None
    external_id: str | None
    payload: bytes
    id: str


MAX_OTHER_ENTRIES = 1_000  # per entry: the newest ones
MAX_LATER_EVENTS = 1_000  # per entry: the newest ones


def load_events(org_id: int, claims: Sequence[Claim]) -> Call[dict[str, EventRow]]:
    """Load the events of claimed entries, by event id."""
    return Call(
        _CALLS["load_events"],
        lambda rows: {row[0]: EventRow(*row) for row in rows},
        org_id=org_id,
        ids=uuids([claim.event_id for claim in claims]),
        created=moments(claim.event_created_at for claim in claims),
    )


def load_logs(org_id: int, claims: Sequence[Claim]) -> Call[dict[str, EntryLogRow]]:
    """Load the logs that started claimed entries, by entry id."""
    return Call(
        _CALLS["load_logs"],
        lambda rows: {row[0]: EntryLogRow(row[1], row[2], row[3], row[4:9], row[9]) for row in rows},
        org_id=org_id,
        ids=uuids([claim.entry_id for claim in claims]),
        event_ids=uuids([claim.event_id for claim in claims]),
        automation_ids=uuids([claim.automation_id for claim in claims]),
        versions=plain(claim.version for claim in claims),
    )


def load_contacts(org_id: int, ids: Sequence[str]) -> Call[dict[str, EntryContactRow]]:
    return Call(
        _CALLS["load_contacts"],
        lambda rows: {row[0]: EntryContactRow(*row) for row in rows},
        org_id=org_id,
        ids=uuids(ids),
    )


def find_unsubscribed(org_id: int, ids: Sequence[str]) -> Call[set[str]]:
    """Find the contacts that unsubscribed one of their addresses."""
    return Call(_CALLS["find_unsubscribed"], _ids, org_id=org_id, ids=uuids(ids))


def read_automation_statuses(org_id: int, ids: Sequence[str]) -> Call[dict[str, AutomationStatus]]:
    return Call(
        _CALLS["read_automation_statuses"],
        lambda rows: {row[0]: AutomationStatus(*row[1:]) for row in rows},
        org_id=org_id,
        ids=plain(ids),
    )


def load_graph(org_id: int, automation_id: str, version: int) -> Call[bytes | None]:
    """Load a published graph as JSON text."""
    return Call(
        _CALLS["load_graph"],
        lambda rows: rows[0][0] if rows else None,
        org_id=org_id,
        automation_id=automation_id,
        version=version,
    )


def read_other_entries(org_id: int, claims: Sequence[Claim]) -> Call[dict[str, OtherEntries]]:
    """Read the other entries of the same contact and automation, by entry id; entries without others are left out."""
    return Call(
        _CALLS["read_other_entries"],
        lambda rows: {row[0]: OtherEntries(*row[1:]) for row in rows},
        limit=MAX_OTHER_ENTRIES,
        **_columns(org_id, claims),
    )


def count_recent_entries(org_id: int, claims: Sequence[Claim], within: timedelta, limit: int) -> Call[dict[str, int]]:
    """Count the entries of the same contact and automation created within this time before, up to `limit`."""
    return Call(
        _CALLS["count_recent_entries"],
        lambda rows: {row[0]: row[1] for row in rows},
        seconds=int(within.total_seconds()),
        limit=limit,
        **_columns(org_id, claims),
    )


def read_message_times(
    org_id: int, requests: Sequence[tuple[Claim, datetime]]
) -> Call[dict[str, tuple[datetime, ...]]]:
    """Read when messages were sent to the contacts since the given times, by entry id."""
    claims = [claim for claim, _ in requests]
    return Call(
        _CALLS["read_message_times"],
        lambda rows: {entry_id: tuple(at for at, *_ in group) for entry_id, group in _grouped(rows).items()},
        org_id=org_id,
        ids=plain(claim.entry_id for claim in claims),
        contact_ids=plain(claim.contact_id for claim in claims),
        node_ids=quoted([claim.node_id for claim in claims]),
        since=moments(since for _, since in requests),
    )


def read_later_events(
    org_id: int, requests: Sequence[tuple[Claim, frozenset[str], datetime | None]]
) -> Call[dict[str, tuple[LaterEventRow, ...]]]:
    """Read the newest events of the given names since a time, by entry id and in order."""
    return Call(
        _CALLS["read_later_events"],
        lambda rows: {
            entry_id: tuple(LaterEventRow(*row) for row in group) for entry_id, group in _grouped(rows).items()
        },
        org_id=org_id,
        ids=plain(claim.entry_id for claim, _, _ in requests),
        contact_ids=plain(claim.contact_id for claim, _, _ in requests),
        event_ids=plain(claim.event_id for claim, _, _ in requests),
        created=moments(claim.event_created_at for claim, _, _ in requests),
        since=moments(since for _, _, since in requests),
        names=quoted([joined_names(names) for _, names, _ in requests]),
        limit=MAX_LATER_EVENTS,
    )


def joined_names(names: frozenset[str]) -> str:
    return ",".join(sorted(names))  # names contain no commas


def _columns(org_id: int, claims: Sequence[Claim]) -> dict[str, Value]:
    return {
        "org_id": org_id,
        "ids": plain(claim.entry_id for claim in claims),
        "automation_ids": plain(claim.automation_id for claim in claims),
        "contact_ids": plain(claim.contact_id for claim in claims),
        "created": moments(claim.event_created_at for claim in claims),
    }


def _grouped(rows: Rows) -> dict[str, Rows]:
    groups: dict[str, Rows] = {}
    for entry_id, *row in rows:
        groups.setdefault(entry_id, []).append(tuple(row))
    return groups


# --- Recording decisions


class EntryUpdate(msgspec.Struct, frozen=True):
    """The state of an entry after a decision.

    `awaits`: the names of events that wake it early while it waits, comma-separated.
    """

    entry_id: str
    token: int
    state: str
    outcome: str | None
    node_id: str | None
    step: int
    attempt: int
    due_at: datetime | None
    error: str | None
    since: datetime | None = None
    awaits: str | None = None


class EntryStepRow(msgspec.Struct, frozen=True):
    """One logged step; `detail` is JSON text."""

    entry_id: str
    claim: int
    step: int
    attempt: int
    node_id: str
    kind: str
    outcome: str
    handle: str | None
    detail: str


class InappMessageRow(msgspec.Struct, frozen=True):
    """An in-app message; `extra` is JSON text."""

    id: str
    contact_id: str
    automation_id: str
    entry_id: str
    node_id: str
    wallet: str
    title: str
    body: str
    extra: str | None


class TagChange(msgspec.Struct, frozen=True):
    """JSON arrays of tags to remove from a contact, then of tags to add."""

    contact_id: str
    removed: str
    added: str


def record_entries(
    org_id: int, updates: Sequence[EntryUpdate], now: datetime, *, happened: bool = False
) -> Call[set[str]]:
    """Write the states of entries, with their transitions; returns the ids of those that this worker still holds.

    An entry that has been cancelled is left out, as if its lease were lost, unless this update cancels it or `happened`
    is set: its effect has happened already.
    """
    return Call(
        _CALLS["record_entries"],
        _ids,
        org_id=org_id,
        now=now,
        ids=uuids([update.entry_id for update in updates]),
        tokens=plain(update.token for update in updates),
        states=plain(update.state for update in updates),
        outcomes=quoted([update.outcome for update in updates]),
        node_ids=quoted([update.node_id for update in updates]),
        steps=plain(update.step for update in updates),
        attempts=plain(update.attempt for update in updates),
        due=moments(update.due_at for update in updates),
        errors=quoted([update.error for update in updates]),
        since=moments(update.since for update in updates),
        awaits=quoted([update.awaits for update in updates]),
        happened=happened,
    )


def find_cancellation(org_id: int, claim: Claim) -> Call[str | None]:
    """Lock an entry and read the outcome it was cancelled with; None if it was not cancelled, or its lease is lost."""
    return Call(
        _CALLS["find_cancellation"],
        lambda rows: rows[0][0] if rows else None,
        org_id=org_id,
        id=claim.entry_id,
        token=claim.token,
    )


def count_paused(org_id: int, automation_ids: Sequence[str]) -> Call[int]:
    """Count the paused automations among these, and keep them so until this transaction ends."""
    return Call(_CALLS["count_paused"], lambda rows: int(rows[0][0]), org_id=org_id, ids=uuids(automation_ids))


def has_step(org_id: int, step: EntryStepRow) -> Call[bool]:
    """Return whether a step is logged under its claim."""
    return Call(_CALLS["has_step"], bool, org_id=org_id, entry_id=step.entry_id, claim=step.claim, step=step.step)


def add_steps(org_id: int, steps: Sequence[EntryStepRow], at: datetime) -> Call[None]:
    return Call(
        _CALLS["add_steps"],
        nothing,
        org_id=org_id,
        at=at,
        entry_ids=uuids([step.entry_id for step in steps]),
        claims=plain(step.claim for step in steps),
        steps=plain(step.step for step in steps),
        attempts=plain(step.attempt for step in steps),
        node_ids=quoted([step.node_id for step in steps]),
        kinds=quoted([step.kind for step in steps]),
        outcomes=plain(step.outcome for step in steps),
        handles=quoted([step.handle for step in steps]),
        details=quoted([step.detail for step in steps]),
    )


def add_messages(org_id: int, messages: Sequence[InappMessageRow], at: datetime) -> Call[set[str]]:
    """Store in-app messages; returns the ids of new ones."""
    return Call(
        _CALLS["add_messages"],
        _ids,
        org_id=org_id,
        at=at,
        ids=uuids([message.id for message in messages]),
        contact_ids=uuids([message.contact_id for message in messages]),
        automation_ids=uuids([message.automation_id for message in messages]),
        entry_ids=uuids([message.entry_id for message in messages]),
        node_ids=quoted([message.node_id for message in messages]),
        wallets=quoted([message.wallet for message in messages]),
        subjects=quoted([message.title for message in messages]),
        bodies=quoted([message.body for message in messages]),
        extras=quoted([message.extra for message in messages]),
    )


def change_tags(org_id: int, changes: Sequence[TagChange], at: datetime) -> Call[None]:
    """Remove tags from contacts, then add others; the contacts' locks are held."""
    return Call(
        _CALLS["change_tags"],
        nothing,
        org_id=org_id,
        at=at,
        ids=uuids([change.contact_id for change in changes]),
        removed=quoted([change.removed for change in changes]),
        added=quoted([change.added for change in changes]),
    )


def _ids(rows: Rows) -> set[str]:
    return {row[0] for row in rows}
