"""Who entered an automation and what they did then: the statement of `sql/queries/goals.sql`."""

from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("goals")


class Entered(msgspec.Struct, frozen=True):
    """Which entries count: the newest `most` of an automation since `since_id`, of `version` or a later one."""

    org_id: int
    automation_id: str
    since_id: str
    version: int
    most: int


class Reached(msgspec.Struct, frozen=True):
    """Which events are looked for: up to `most_events` of a name, each within `horizon` of the entry; `filtered`: with payloads."""

    goal: str
    horizon: timedelta
    most_events: int
    filtered: bool


class EntrantRow(msgspec.Struct, frozen=True):
    """A contact that entered at a moment, and one event of the goal's name (none: `came_at` is None). `email` is sealed."""

    contact_id: str
    held_out: bool
    entered_at: datetime
    came_at: datetime | None
    wallet: str | None
    email: str | None
    external_id: str | None
    payload: bytes | None


async def entrants(tx: Transaction, entered: Entered, reached: Reached) -> list[EntrantRow]:
    """Return the contacts that entered, a row for each event, by contact and time."""
    values = msgspec.structs.asdict(entered) | msgspec.structs.asdict(reached)
    return [EntrantRow(*row) async for row in await tx.execute(_SQL["entrants"], values)]
