"""Who entered an automation and what they did then: the statements of `sql/queries/goals.sql`."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.arrays import joined, moments, quoted
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("goals")

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class Entered(msgspec.Struct, frozen=True):
    """Which entries count: those of an automation since `since_id`, of `version` or a later one."""

    org_id: int
    automation_id: str
    since_id: str
    version: int


class EnteredRow(msgspec.Struct, frozen=True):
    """An entry. `is_first`: its contact counts from here; `is_later`: the contact had been let in before. Neither: nobody was let in yet.

    `mixed`: the contact has entries on both sides. `at`, `event_id`: the event that started it.
    """

    id: str
    is_first: bool | None
    is_later: bool | None
    mixed: bool | None
    contact_id: str
    held_out: bool
    at: datetime
    event_id: str


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


async def list_entered(tx: Transaction, entered: Entered, before_id: str, most: int) -> list[EnteredRow]:
    """Return the next entries before one of them, the newest first."""
    values = msgspec.structs.asdict(entered) | {"before_id": before_id, "most": most}
    return [EnteredRow(*row) async for row in await tx.execute(_SQL["list_entered"], values)]


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
