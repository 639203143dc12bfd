"""Finding work, claiming it, recording what was decided: `sql/queries/engine.sql`, as calls on one organization's batch."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.arrays import moments, plain, quoted, uuids
from api.store.calls import Call, Rows, nothing, statements

_SQL = statements("engine")


class Due(msgspec.Struct, frozen=True):
    """Which lanes of an organization hold work now."""

    org_id: int
    ready: bool
    retrying: bool
    expired: bool


class Claim(msgspec.Struct, frozen=True):
    """An entry taken by this worker, with the token that its writes must carry. `called_off`: the outcome it ends with at once."""

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
    stint: int
    request_id: str | None = None
    called_off: str | None = None


class Standing(msgspec.Struct, frozen=True):
    """Where an entry stands after a decision; `awaits`: the names of events that wake it while it waits, with commas."""

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


class StepRow(msgspec.Struct, frozen=True):
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


class MessageRow(msgspec.Struct, frozen=True):
    """One in-app message; `extra` is JSON text."""

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
    """Tags that a contact loses, then those that it gets: JSON arrays."""

    contact_id: str
    removed: str
    added: str


def due_organizations(now: datetime) -> Call[list[Due]]:
    """Ask for the organizations that have work."""
    return Call(_SQL["due_organizations"], lambda rows: [Due(*row) for row in rows], now=now)


def next_due() -> Call[datetime | None]:
    """Ask when the next entry is due, if any waits."""
    return Call(_SQL["next_due"], lambda rows: rows[0][0])


def claim_ready(org_id: int, now: datetime, lease_until: datetime, most: int) -> Call[list[Claim]]:
    """Take entries that are due in the first lane."""
    return _claim("claim_ready", org_id, now, lease_until, most)


def claim_retrying(org_id: int, now: datetime, lease_until: datetime, most: int) -> Call[list[Claim]]:
    """Take entries that are due for another try."""
    return _claim("claim_retrying", org_id, now, lease_until, most)


def _claim(name: str, org_id: int, now: datetime, lease_until: datetime, most: int) -> Call[list[Claim]]:
    return Call(
        _SQL[name],
        lambda rows: [Claim(*row) for row in rows],
        org_id=org_id,
        now=now,
        lease_until=lease_until,
        most=most,
    )


def rescue(org_id: int, now: datetime, most: int) -> Call[int]:
    """Give entries with an expired lease back; read how many."""
    return Call(_SQL["rescue"], lambda rows: int(rows[0][0]), org_id=org_id, now=now, most=most)


def renew_leases(org_id: int, claims: Sequence[Claim], lease_until: datetime) -> Call[set[str]]:
    """Keep claimed entries longer; read the ids of those whose lease was still ours."""
    return Call(
        _SQL["renew_leases"],
        _ids,
        org_id=org_id,
        lease_until=lease_until,
        ids=uuids([claim.entry_id for claim in claims]),
        tokens=plain(claim.token for claim in claims),
    )


def record_entries(
    org_id: int, standings: Sequence[Standing], now: datetime, *, happened: bool = False
) -> Call[set[str]]:
    """Write where entries stand, with their moves; read the ids of those whose lease was still ours.

    What was called off is only cancelled, unless its step has `happened`: not written, it looks like one that is lost.
    """
    return Call(
        _SQL["record_entries"],
        _ids,
        org_id=org_id,
        now=now,
        ids=uuids([each.entry_id for each in standings]),
        tokens=plain(each.token for each in standings),
        states=plain(each.state for each in standings),
        outcomes=quoted([each.outcome for each in standings]),
        node_ids=quoted([each.node_id for each in standings]),
        steps=plain(each.step for each in standings),
        attempts=plain(each.attempt for each in standings),
        due=moments(each.due_at for each in standings),
        errors=quoted([each.error for each in standings]),
        since=moments(each.since for each in standings),
        awaits=quoted([each.awaits for each in standings]),
        happened=happened,
    )


def called_off(org_id: int, claim: Claim) -> Call[str | None]:
    """Read the outcome that an entry was called off with; None: it was not, or is not ours. It stays so in this transaction."""
    return Call(
        _SQL["called_off"],
        lambda rows: rows[0][0] if rows else None,
        org_id=org_id,
        id=claim.entry_id,
        token=claim.token,
    )


def share_paused(org_id: int, automation_ids: Sequence[str]) -> Call[int]:
    """Read how many of these automations are paused, which stays so until this transaction ends."""
    return Call(_SQL["share_paused"], lambda rows: int(rows[0][0]), org_id=org_id, ids=uuids(automation_ids))


def has_step(org_id: int, step: StepRow) -> Call[bool]:
    """Read whether a step is logged under its claim."""
    return Call(_SQL["has_step"], bool, org_id=org_id, entry_id=step.entry_id, claim=step.claim, step=step.step)


def add_steps(org_id: int, steps: Sequence[StepRow], at: datetime) -> Call[None]:
    """Log steps taken at `at`."""
    return Call(
        _SQL["add_steps"],
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


def add_messages(org_id: int, messages: Sequence[MessageRow], at: datetime) -> Call[set[str]]:
    """Store in-app messages; read the ids of those that were not there yet."""
    return Call(
        _SQL["add_messages"],
        _ids,
        org_id=org_id,
        at=at,
        ids=uuids([each.id for each in messages]),
        contact_ids=uuids([each.contact_id for each in messages]),
        automation_ids=uuids([each.automation_id for each in messages]),
        entry_ids=uuids([each.entry_id for each in messages]),
        node_ids=quoted([each.node_id for each in messages]),
        wallets=quoted([each.wallet for each in messages]),
        subjects=quoted([each.title for each in messages]),
        bodies=quoted([each.body for each in messages]),
        extras=quoted([each.extra for each in messages]),
    )


def change_tags(org_id: int, changes: Sequence[TagChange], at: datetime) -> Call[None]:
    """Take tags from contacts, then give them others; the contacts' locks are held."""
    return Call(
        _SQL["change_tags"],
        nothing,
        org_id=org_id,
        at=at,
        ids=uuids([each.contact_id for each in changes]),
        removed=quoted([each.removed for each in changes]),
        added=quoted([each.added for each in changes]),
    )


def _ids(rows: Rows) -> set[str]:
    return {row[0] for row in rows}
