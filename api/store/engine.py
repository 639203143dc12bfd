"""Finding work, claiming it, recording what was decided: `sql/queries/engine.sql`. Each takes one organization's batch."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.arrays import moments, plain, quoted
from api.store.database import Transaction
from api.store.inbox import announce_messages
from api.store.statements import load

_SQL = load("engine")


class Due(msgspec.Struct, frozen=True):
    """Which lanes of an organization hold work now."""

    org_id: int
    ready: bool
    retrying: bool
    expired: bool


class Claim(msgspec.Struct, frozen=True):
    """An entry taken by this worker, with the token that its writes must carry; `came_from` is its state before."""

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
    came_from: str


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


async def due_organizations(tx: Transaction, now: datetime) -> list[Due]:
    """Return the organizations that have work."""
    cursor = await tx.execute(_SQL["due_organizations"], {"now": now})
    return [Due(*row) for row in await cursor.fetchall()]


async def next_due(tx: Transaction) -> datetime | None:
    """Return when the next entry is due, if any waits."""
    row = await (await tx.execute(_SQL["next_due"])).fetchone()
    return None if row is None else row[0]


async def claim_ready(tx: Transaction, org_id: int, now: datetime, lease_until: datetime, most: int) -> list[Claim]:
    """Take entries that are due in the first lane."""
    return await _claim(tx, "claim_ready", org_id, now, lease_until, most)


async def claim_retrying(tx: Transaction, org_id: int, now: datetime, lease_until: datetime, most: int) -> list[Claim]:
    """Take entries that are due for another try."""
    return await _claim(tx, "claim_retrying", org_id, now, lease_until, most)


async def _claim(tx: Transaction, name: str, org_id: int, now: datetime, until: datetime, most: int) -> list[Claim]:
    cursor = await tx.execute(_SQL[name], {"org_id": org_id, "now": now, "lease_until": until, "most": most})
    return [Claim(*row) for row in await cursor.fetchall()]


async def rescue(tx: Transaction, org_id: int, now: datetime, most: int) -> list[str]:
    """Give entries with an expired lease back; return their ids."""
    cursor = await tx.execute(_SQL["rescue"], {"org_id": org_id, "now": now, "most": most})
    return [row[0] for row in await cursor.fetchall()]


async def renew_leases(tx: Transaction, org_id: int, claims: Sequence[Claim], lease_until: datetime) -> set[str]:
    """Keep claimed entries longer; return the ids of those whose lease was still ours."""
    cursor = await tx.execute(
        _SQL["renew_leases"],
        {
            "org_id": org_id,
            "lease_until": lease_until,
            "ids": plain(claim.entry_id for claim in claims),
            "tokens": plain(claim.token for claim in claims),
        },
    )
    return {row[0] for row in await cursor.fetchall()}


async def record_entries(tx: Transaction, org_id: int, standings: Sequence[Standing], now: datetime) -> set[str]:
    """Write where entries stand; return the ids of those whose lease was still ours."""
    cursor = await tx.execute(
        _SQL["record_entries"],
        {
            "org_id": org_id,
            "now": now,
            "ids": plain(each.entry_id for each in standings),
            "tokens": plain(each.token for each in standings),
            "states": plain(each.state for each in standings),
            "outcomes": quoted([each.outcome for each in standings]),
            "node_ids": quoted([each.node_id for each in standings]),
            "steps": plain(each.step for each in standings),
            "attempts": plain(each.attempt for each in standings),
            "due": moments([each.due_at for each in standings]),
            "errors": quoted([each.error for each in standings]),
            "since": moments([each.since for each in standings]),
            "awaits": quoted([each.awaits for each in standings]),
        },
    )
    return {row[0] for row in await cursor.fetchall()}


async def add_transitions(
    tx: Transaction, org_id: int, moves: Sequence[tuple[str, str, str, str | None]], at: datetime
) -> None:
    """Log moves: (entry, from, to, reason)."""
    if not moves:
        return
    await tx.execute(
        _SQL["add_transitions"],
        {
            "org_id": org_id,
            "at": at,
            "entry_ids": plain(move[0] for move in moves),
            "from_states": plain(move[1] for move in moves),
            "to_states": plain(move[2] for move in moves),
            "reasons": quoted([move[3] for move in moves]),
        },
    )


async def add_steps(tx: Transaction, org_id: int, steps: Sequence[StepRow], at: datetime) -> None:
    """Log steps taken at `at`."""
    if not steps:
        return
    await tx.execute(
        _SQL["add_steps"],
        {
            "org_id": org_id,
            "at": at,
            "entry_ids": plain(step.entry_id for step in steps),
            "claims": plain(step.claim for step in steps),
            "steps": plain(step.step for step in steps),
            "attempts": plain(step.attempt for step in steps),
            "node_ids": quoted([step.node_id for step in steps]),
            "kinds": quoted([step.kind for step in steps]),
            "outcomes": plain(step.outcome for step in steps),
            "handles": quoted([step.handle for step in steps]),
            "details": quoted([step.detail for step in steps]),
        },
    )


async def add_messages(tx: Transaction, org_id: int, messages: Sequence[MessageRow], at: datetime) -> set[str]:
    """Store in-app messages and announce them; return the ids of those that were not there yet."""
    if not messages:
        return set()
    cursor = await tx.execute(
        _SQL["add_messages"],
        {
            "org_id": org_id,
            "at": at,
            "ids": plain(each.id for each in messages),
            "contact_ids": plain(each.contact_id for each in messages),
            "automation_ids": plain(each.automation_id for each in messages),
            "entry_ids": plain(each.entry_id for each in messages),
            "node_ids": quoted([each.node_id for each in messages]),
            "wallets": quoted([each.wallet for each in messages]),
            "subjects": quoted([each.title for each in messages]),
            "bodies": quoted([each.body for each in messages]),
            "extras": quoted([each.extra for each in messages]),
        },
    )
    new = {row[0] for row in await cursor.fetchall()}
    await announce_messages(tx, org_id, {each.wallet for each in messages if each.id in new})
    return new


async def change_tags(tx: Transaction, org_id: int, changes: Sequence[TagChange], at: datetime) -> None:
    """Take tags from contacts, then give them others; the contacts' locks are held."""
    if not changes:
        return
    await tx.execute(
        _SQL["change_tags"],
        {
            "org_id": org_id,
            "at": at,
            "ids": plain(each.contact_id for each in changes),
            "removed": quoted([each.removed for each in changes]),
            "added": quoted([each.added for each in changes]),
        },
    )
