"""The live triggers of organizations, for ingest: the statements of `sql/queries/ingest_triggers.sql`.

A cached trigger is never stale: ingest compares epochs in its own transaction and reads the triggers again when one differs.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api.store.arrays import plain
from api.store.calls import Call, Rows, run, statements
from api.store.database import Transaction

_SQL = statements("ingest_triggers")


class ActiveAutomation(msgspec.Struct, frozen=True):
    """An automation that takes entries. `published_version` None: they end at once, nothing is sent.

    `stint`: how often it was switched on; `trigger_spec` is JSON text (`codec.decode`, then `trigger.read_trigger`).
    """

    id: str
    published_version: int | None
    stint: int
    trigger_spec: bytes


class Standing(msgspec.Struct, frozen=True):
    """Of organizations: the epoch, 0 for one that never had an automation, and where it is closed (see `ingest.counting`)."""

    epochs: dict[int, int]
    closed_until: dict[int, datetime]


def standing(org_ids: Sequence[int]) -> Call[Standing]:
    """Ask how organizations stand."""
    return Call(_SQL["standing"], lambda rows: _standing(org_ids, rows), org_ids=plain(org_ids))


def _standing(org_ids: Sequence[int], rows: Rows) -> Standing:
    known = {org_id: epoch for org_id, epoch, _ in rows if epoch is not None}
    closed = {org_id: moment for org_id, _, moment in rows if moment is not None}
    return Standing(dict.fromkeys(org_ids, 0) | known, closed)


async def awaited_events(tx: Transaction, org_id: int) -> frozenset[str]:
    """Return the events that an entry of those automations, whatever its version, can wait for or have as its goal."""
    (rows,) = await run(tx, Call(_SQL["awaited_events"], list, org_id=org_id))
    return frozenset(row[0] for row in rows)


async def active_automations(tx: Transaction, org_id: int) -> list[ActiveAutomation]:
    """Return the automations of an organization that are active and not archived, oldest first."""
    (found,) = await run(
        tx, Call(_SQL["active_automations"], lambda rows: [ActiveAutomation(*row) for row in rows], org_id=org_id)
    )
    return found
