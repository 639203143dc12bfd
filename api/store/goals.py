"""Who entered an automation and what they did then: the statements of `sql/queries/goals.sql`."""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from api.store.arrays import joined, moments, quoted
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("goals")

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_MOST_SIDES = 1_000  # entries of one contact, looked at for whether it has been on both


class Entered(msgspec.Struct, frozen=True):
    """Which entries count: those of an automation since `since_id`, of `version` or a later one."""

    org_id: int
    automation_id: str
    since_id: str
    version: int


class EntryRow(msgspec.Struct, frozen=True):
    """An entry and the event that started it (received `at`); version 0: nothing was published."""

    id: str
    version: int
    contact_id: str
    event_id: str
    at: datetime
    held_out: bool


class FirstRow(msgspec.Struct, frozen=True):
    """The first entry of a contact that was let in; `mixed`: it has been on both sides."""

    entry_id: str
    mixed: bool


class Sought(msgspec.Struct, frozen=True):
    """Which events are looked for: those of a name, whose payloads contain one of `forms` (JSON texts; none: whatever they contain).

    `judged`: somebody looks at what they carried.
    """

    goal: str
    judged: bool = False
    forms: tuple[str, ...] = ()


class Search(msgspec.Struct, frozen=True):
    """Where a contact's goal is looked for: after an event, until a moment."""

    contact_id: str
    after_id: str
    after: datetime
    until: datetime


class GoalEventRow(msgspec.Struct, frozen=True):
    """An event of the goal's name. `email` is sealed; `payload` is JSON text, None where nobody looks at it."""

    contact_id: str
    at: datetime
    id: str
    wallet: str | None
    email: str | None
    external_id: str | None
    payload: bytes | None


async def list_entries(tx: Transaction, entered: Entered, before_id: str, most: int) -> list[EntryRow]:
    """Return the next entries before one of them, of any version, the newest first."""
    values = {
        "org_id": entered.org_id,
        "automation_id": entered.automation_id,
        "since_id": entered.since_id,
        "before_id": before_id,
        "most": most,
    }
    return [EntryRow(*row) async for row in await tx.execute(_SQL["list_entries"], values)]


async def find_first_entries(tx: Transaction, entered: Entered, contact_ids: Collection[str]) -> dict[str, FirstRow]:
    """Return where each of these contacts first entered, ever; whoever was never let in is missing."""
    values = {
        "org_id": entered.org_id,
        "automation_id": entered.automation_id,
        "contact_ids": joined([*contact_ids]),
        "most": _MOST_SIDES,
    }
    return {row[0]: FirstRow(*row[1:]) async for row in await tx.execute(_SQL["find_first_entries"], values)}


async def list_goal_events(
    tx: Transaction, org_id: int, sought: Sought, searches: Sequence[Search], most: int
) -> list[GoalEventRow]:
    """Return the next `most` events of each contact, by contact and in their order."""
    values = {
        "org_id": org_id,
        "goal": sought.goal,
        "judged": sought.judged,
        "forms": quoted(sought.forms),
        "contact_ids": joined([each.contact_id for each in searches]),
        "after_ids": joined([each.after_id for each in searches]),
        "after": moments(each.after for each in searches),
        "until": moments(each.until for each in searches),
        "most": most,
    }
    return [GoalEventRow(*row) async for row in await tx.execute(_SQL["list_goal_events"], values)]
