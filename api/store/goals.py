"""Who entered an automation and what they did then: the statements of `sql/queries/goals.sql`."""

import asyncio
from datetime import date, datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("goals")
_AT_ONCE = 500  # rows, between which others have their turn


class Entered(msgspec.Struct, frozen=True):
    """Which entries count: the newest `most` of an automation since `since_id`, of `version` or a later one.

    `goal`: the event that is looked for, within `horizon` of the entry.
    """

    org_id: int
    automation_id: str
    since_id: str
    version: int
    most: int
    goal: str
    horizon: timedelta


class EntrantsRow(msgspec.Struct, frozen=True):
    """How many contacts entered on a day on one side, and how many of them sent an event of the goal's name."""

    day: date
    held_out: bool
    contacts: int
    came: int


class GoalEventRow(msgspec.Struct, frozen=True):
    """An event of the goal's name, of a contact that entered on a day. `email` is sealed, `payload` JSON text."""

    contact_id: str
    day: date
    held_out: bool
    at: datetime
    wallet: str | None
    email: str | None
    external_id: str | None
    payload: bytes


async def count_entrants(tx: Transaction, entered: Entered) -> list[EntrantsRow]:
    """Return the contacts that entered, by day and side."""
    cursor = await tx.execute(_SQL["count_entrants"], msgspec.structs.asdict(entered))
    return [EntrantsRow(*row) async for row in cursor]


async def list_goal_events(tx: Transaction, entered: Entered, most_events: int) -> list[GoalEventRow]:
    """Return their events, up to so many of each contact, by contact and time."""
    values = msgspec.structs.asdict(entered) | {"most_events": most_events}
    cursor = await tx.execute(_SQL["list_goal_events"], values)
    found: list[GoalEventRow] = []
    while rows := await cursor.fetchmany(_AT_ONCE):
        found += [GoalEventRow(*row) for row in rows]
        await asyncio.sleep(0)
    return found
