"""The live triggers of organizations, for ingest: the statements of `sql/queries/ingest_triggers.sql`.

A cached trigger is never stale: ingest compares epochs in its own transaction and reads the triggers again when one differs.
"""

from collections.abc import Sequence

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("ingest_triggers")


class ActiveAutomation(msgspec.Struct, frozen=True):
    """An automation that takes entries. `published_version` None: they end at once, nothing is sent.

    `trigger_spec` is JSON text (`codec.decode`, then `trigger.read_trigger`).
    """

    id: str
    published_version: int | None
    trigger_spec: bytes


async def epochs(tx: Transaction, org_ids: Sequence[int]) -> dict[int, int]:
    """Return the epoch of every organization named; 0 for one that never had an automation."""
    rows = await tx.execute(_SQL["epochs"], {"org_ids": list(org_ids)})
    return dict.fromkeys(org_ids, 0) | {org_id: epoch async for org_id, epoch in rows}


async def active_automations(tx: Transaction, org_id: int) -> list[ActiveAutomation]:
    """Return the automations of an organization that are active and not archived, oldest first."""
    rows = await tx.execute(_SQL["active_automations"], {"org_id": org_id})
    return [ActiveAutomation(*row) async for row in rows]
