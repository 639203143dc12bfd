"""Forgetting contacts: the statements of `sql/queries/erasure.sql`."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TypeAlias, TypeVar

import msgspec

from api.store.calls import Call, Rows, Value, nothing, run, statements
from api.store.database import Transaction
from api.store.locks import share_members

PAGE = 1_000

_SQL = statements("erasure")
_T = TypeVar("_T")

Cursor: TypeAlias = tuple[datetime, str]
"""Where a page ends: the moment and id of its last row."""

BEGINNING: Cursor = (datetime(1, 1, 1, tzinfo=UTC), "00000000-0000-0000-0000-000000000000")

Part: TypeAlias = Literal["events", "messages", "entries"]


class Subject(msgspec.Struct, frozen=True):
    """Who is forgotten."""

    org_id: int
    contact_id: str


class Erased(msgspec.Struct, frozen=True):
    """When a contact was erased, and which contact it was merged into; None: it was not.

    `unsettled`: a merge was taken back, and rows of the other contact may still be with this one.
    """

    at: datetime | None
    merged_into: str | None
    unsettled: bool


async def erased_contact(tx: Transaction, who: Subject) -> Erased | None:
    """Return whether a contact was erased, None when nobody knows it."""
    (found,) = await run(tx, _about(who, "erased_contact", lambda rows: Erased(*rows[0]) if rows else None))
    return found


async def forget(tx: Transaction, who: Subject, at: datetime) -> int:
    """Take from a contact what it is known by, and end its entries; return how many. Its lock is held."""
    await run(
        tx,
        _about(who, "keep_wallets", nothing, at=at),
        _about(who, "forget_sign_in", nothing),
        _about(who, "forget_contact", nothing, at=at),
        _about(who, "forget_identities", nothing),
        _about(who, "forget_conflicts", nothing),
        _about(who, "forget_merges", nothing),
        share_members(who.org_id),
        _about(who, "forget_segments", nothing),
        _about(who, "forget_onchain", nothing),
        _about(who, "forget_dry_runs_of", nothing),
    )
    (cancelled,) = await run(tx, _about(who, "cancel_entries_of", lambda rows: int(rows[0][0]), at=at))
    return cancelled


async def clean(tx: Transaction, part: Part, who: Subject, after: Cursor) -> Cursor | None:
    """Take what they say from the next rows about a contact; return where the page ends, None when there was none."""
    page: dict[str, Value] = {"after_at": after[0], "after_id": after[1], "most": PAGE}
    (end,) = await run(tx, _about(who, f"clean_{part}", _end, **page))
    return end


async def await_erasure(tx: Transaction, who: Subject, due_at: datetime) -> None:
    """Look at an erased contact once more, later."""
    await run(tx, _about(who, "await_erasure", nothing, due_at=due_at))


async def due_erasures(tx: Transaction, now: datetime, most: int) -> list[Subject]:
    """Return erased contacts that are to be looked at once more."""
    (found,) = await run(
        tx, Call(_SQL["due_erasures"], lambda rows: [Subject(*row) for row in rows], now=now, most=most)
    )
    return found


async def end_erasure(tx: Transaction, who: Subject, now: datetime) -> None:
    """Note that this was the last look, unless the contact was erased once more meanwhile."""
    await run(tx, _about(who, "end_erasure", nothing, now=now))


def _about(who: Subject, name: str, read: Callable[[Rows], _T], **values: Value) -> Call[_T]:
    return Call(_SQL[name], read, org_id=who.org_id, contact_id=who.contact_id, **values)


def _end(rows: Rows) -> Cursor | None:
    return (rows[0][0], rows[0][1]) if rows else None
