"""Statements of counting events by hour (`sql/queries/counting.sql`)."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from api.clock import from_us
from api.store.arrays import moments, plain, quoted
from api.store.calls import Call, nothing, statements
from api.store.database import Transaction
from api.store.locks import COUNTING, try_turn
from api.store.statements import load

_SQL = load("counting")
_CALLS = statements("counting")

RESTING = datetime(9000, 1, 1, tzinfo=UTC)
"""Up to where an organization is closed while nothing comes."""

Late = tuple[int, str, int]
"""Organization, event, and the moment in microseconds that begins the hour, or the few minutes, it is dated in."""


class Reached(msgspec.Struct, frozen=True):
    """Up to where an organization's events are counted, and closed."""

    counted_until: datetime
    closed_until: datetime


async def close_hours(tx: Transaction, first: datetime, until: datetime) -> None:
    """Let events dated before `until` be late from now on; an organization not seen before is counted from `first`."""
    await tx.execute(_SQL["close_hours"], {"first": first, "until": until})


async def wake(tx: Transaction, until: datetime) -> None:
    """Close up to `until` the organizations that rest and for which something was noted."""
    await tx.execute(_SQL["wake"], {"until": until, "resting": RESTING})


def reached(org_id: int) -> Call[Reached | None]:
    """Ask where one organization is counted and closed; None: it was not seen yet."""
    return Call(_CALLS["reached"], lambda rows: Reached(*rows[0]) if rows else None, org_id=org_id)


async def uncounted(tx: Transaction) -> list[tuple[int, Reached]]:
    """Return the organizations that are closed further than they are counted, and do not rest."""
    rows = await (await tx.execute(_SQL["uncounted"], {"resting": RESTING})).fetchall()
    return [(org_id, Reached(counted, closed)) for org_id, counted, closed in rows]


async def writers(tx: Transaction) -> set[str]:
    """Return the transactions that may be storing events now."""
    return {row[0] for row in await (await tx.execute(_SQL["writers"])).fetchall()}


async def count_closed(tx: Transaction, org_id: int, since: datetime, until: datetime) -> int | None:
    """Count the events dated between two moments; return in how many hours of how many names there were some.

    None: another process is at it, or was faster.
    """
    span = {"org_id": org_id, "since": since, "until": until}
    if not await try_turn(tx, COUNTING, org_id) or not (await tx.execute(_SQL["advance"], span)).rowcount:
        return None
    await tx.execute(_SQL["hold_notes"], span)
    rows = await (await tx.execute(_SQL["count_closed"], span)).fetchall()
    if rows:
        events, hours, counts = map(list, zip(*rows, strict=True))
        await tx.execute(_SQL["add_counts"], {"org_id": org_id, "events": events, "hours": hours, "counts": counts})
    return len(rows)


async def rest(tx: Transaction, org_id: int) -> None:
    """Let an organization rest for which all is counted and nothing noted."""
    await tx.execute(_SQL["rest"], {"org_id": org_id, "resting": RESTING})


def note_late(counts: Mapping[Late, int], source: str | None = None) -> Call[None]:
    """Note how many events came late; an import, the `source`, adds to its own notes, and gives them sorted."""
    return Call(
        _CALLS["note_late"],
        nothing,
        source=source,
        org_ids=plain(org_id for org_id, _, _ in counts),
        events=quoted([event for _, event, _ in counts]),
        ats=moments(from_us(at_us) for _, _, at_us in counts),
        counts=plain(counts.values()),
    )


async def forget_counts(tx: Transaction, org_id: int, before: datetime) -> None:
    """Delete the counts of hours and days that began before a moment."""
    await tx.execute(_SQL["forget_counts"], {"org_id": org_id, "before": before})
