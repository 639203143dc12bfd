"""What came of events of one contact in one automation: the statements of `sql/queries/explain.sql`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.language.why import Change, Entered
from api.store.database import Transaction
from api.store.erasure import Subject
from api.store.statements import load

MOST = 100

_SQL = load("explain")


class LogRow(msgspec.Struct, frozen=True):
    """What is known of a log beside its parameters; `place` is where it happened (`language.onchain.PLACE`)."""

    signature: str
    removed: bool
    block_time: datetime
    place: tuple[int, str, str, int, int]


class EventRow(msgspec.Struct, frozen=True):
    """An event, with the identifiers that it carried; `email` is sealed, `payload` JSON text. Of a dry run they are not kept.

    `log`: what it is of a log, whose `payload` is its parameters; None for custom events.
    """

    id: str
    event: str
    created_at: datetime
    payload: bytes
    wallet: str | None
    email: str | None
    external_id: str | None
    dry: bool
    log: LogRow | None = None


def _event(row: tuple[Any, ...]) -> EventRow:
    event = EventRow(*row[:8])
    signature, removed, block_time, *place = row[8:]
    log = None if signature is None else LogRow(signature, removed, block_time, (*place,))
    return event if log is None else msgspec.structs.replace(event, log=log)


async def recent_events(tx: Transaction, who: Subject, most: int) -> list[EventRow]:
    """Return the newest events of a contact, the newest first."""
    values = {**msgspec.structs.asdict(who), "most": most}
    return [_event(row) async for row in await tx.execute(_SQL["recent_events"], values)]


async def one_event(tx: Transaction, who: Subject, event_id: str) -> list[EventRow]:
    """Return the event of that id, in a list that is empty when the contact has none."""
    values = {**msgspec.structs.asdict(who), "event_id": event_id}
    return [_event(row) async for row in await tx.execute(_SQL["one_event"], values)]


async def entries_of_events(
    tx: Transaction, org_id: int, automation_id: str, event_ids: Sequence[str]
) -> dict[str, Entered]:
    """Return the entries that events started in an automation, by event id."""
    values = {"org_id": org_id, "automation_id": automation_id, "event_ids": list(event_ids)}
    return {row[0]: Entered(*row[1:]) async for row in await tx.execute(_SQL["entries_of_events"], values)}


async def switches(tx: Transaction, org_id: int, automation_id: str) -> list[Change]:
    """Return when an automation was switched on and off, in order."""
    values = {"org_id": org_id, "automation_id": automation_id}
    return [Change(*row) async for row in await tx.execute(_SQL["switches"], values)]
