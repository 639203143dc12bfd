"""The live triggers of organizations, for ingest: the statements of `sql/queries/ingest_triggers.sql`.

A cached trigger is never stale: ingest compares epochs in its own transaction and reads the triggers again when one differs.
"""

from collections.abc import Sequence

import msgspec

from api.store.arrays import plain
from api.store.calls import Call, run, statements
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


def epochs(org_ids: Sequence[int]) -> Call[dict[int, int]]:
    """Ask for the epoch of every organization named; 0 for one that never had an automation."""
    return Call(
        _SQL["epochs"],
        lambda rows: dict.fromkeys(org_ids, 0) | dict(rows),
        org_ids=plain(org_ids),
    )


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
