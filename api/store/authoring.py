"""Automations in Postgres: the statements of `sql/queries/authoring.sql`."""

from datetime import datetime
from typing import Any

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("authoring")

FIRST_ID = "00000000-0000-0000-0000-000000000000"


class AutomationRow(msgspec.Struct, frozen=True):
    """An automation as stored: its draft, and which version is published. Specs are JSON text.

    `live_since`: logs of blocks before do not start it (None: those before it was made). `earlier_confirmations`: logs may still wait
    for so many, which a version before wanted.
    """

    org_id: int
    id: str
    name: str
    trigger_spec: bytes
    graph: bytes
    active: bool
    published_version: int | None
    revision: int
    archived_at: datetime | None
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None = None
    live_since: datetime | None = None
    earlier_confirmations: int | None = None


class VersionRow(msgspec.Struct, frozen=True):
    """A published version; `published_by` is the id of a key."""

    version: int
    trigger_spec: bytes
    graph: bytes
    published_at: datetime
    published_by: str | None


class EarlierRow(msgspec.Struct, frozen=True):
    """How many entries of a version stand at a node in a state; no version: nothing was published when they came."""

    version: int | None
    node_id: str | None
    state: str
    entries: int


class AuditRow(msgspec.Struct, frozen=True):
    """Who did what; no key: the operator. `detail` is JSON text."""

    org_id: int
    id: str
    key_id: str | None
    action: str
    subject_id: str | None
    detail: str
    created_at: datetime


class ChangeRow(msgspec.Struct, frozen=True):
    """What was done to an automation, and by which key; `detail` is JSON text."""

    at: datetime
    action: str
    key_id: str | None
    key_name: str | None
    detail: bytes


class Cancellation(msgspec.Struct, frozen=True):
    """Which entries are cancelled (of an automation, and held by no worker), with which outcome, when.

    `due_by`: only those that were due then, and those that rest.
    """

    org_id: int
    automation_id: str
    outcome: str
    at: datetime
    due_by: datetime | None = None


class RestingRow(msgspec.Struct, frozen=True):
    """An automation with entries that rest."""

    org_id: int
    automation_id: str
    active: bool
    archived: bool


async def insert_automation(tx: Transaction, row: AutomationRow) -> AutomationRow:
    """Store a new automation and return it as Postgres keeps it."""
    return await _written(tx, "insert_automation", row)


async def find_automation(tx: Transaction, org_id: int, automation_id: str) -> AutomationRow | None:
    """Return one automation."""
    return await _automation(tx, "find_automation", {"org_id": org_id, "id": automation_id})


async def lock_automation(tx: Transaction, org_id: int, automation_id: str) -> AutomationRow | None:
    """Return one automation, which nobody else changes until this transaction ends."""
    return await _automation(tx, "lock_automation", {"org_id": org_id, "id": automation_id})


async def share_automation(tx: Transaction, org_id: int, automation_id: str) -> bool | None:
    """Return whether an automation takes entries, which stays so until this transaction ends; None: there is none."""
    cursor = await tx.execute(_SQL["share_automation"], {"org_id": org_id, "id": automation_id})
    row = await cursor.fetchone()
    return None if row is None else bool(row[0])


async def list_automations(
    tx: Transaction, org_id: int, name: str | None, archived: bool, most: int, before: str | None = None
) -> list[AutomationRow]:
    """Return the newest automations, archived or not, all of `name` when it is given, made before one when its id is."""
    values = {"org_id": org_id, "name": name, "archived": archived, "most": most, "before": before}
    cursor = await tx.execute(_SQL["list_automations"], values)
    return [AutomationRow(*row) async for row in cursor]


async def update_automation(tx: Transaction, row: AutomationRow) -> AutomationRow:
    """Write a locked automation whole and return it as Postgres keeps it."""
    return await _written(tx, "update_automation", row)


async def insert_version(tx: Transaction, org_id: int, automation_id: str, row: VersionRow) -> None:
    """Publish a version."""
    values = {"org_id": org_id, "automation_id": automation_id, **_columns(row)}
    await tx.execute(_SQL["insert_version"], values)


async def find_version(tx: Transaction, org_id: int, automation_id: str, version: int) -> VersionRow | None:
    """Return one published version."""
    values = {"org_id": org_id, "automation_id": automation_id, "version": version}
    row = await (await tx.execute(_SQL["find_version"], values)).fetchone()
    return None if row is None else VersionRow(*row)


async def list_versions(tx: Transaction, org_id: int, automation_id: str, most: int) -> list[VersionRow]:
    """Return the newest published versions."""
    values = {"org_id": org_id, "automation_id": automation_id, "most": most}
    return [VersionRow(*row) async for row in await tx.execute(_SQL["list_versions"], values)]


async def count_earlier(tx: Transaction, org_id: int, automation_id: str, version: int | None) -> list[EarlierRow]:
    """Return where the entries stand that have not ended and run another version than this one."""
    values = {"org_id": org_id, "automation_id": automation_id, "version": version}
    return [EarlierRow(*row) async for row in await tx.execute(_SQL["count_earlier"], values)]


async def raise_epoch(tx: Transaction, org_id: int) -> None:
    """Tell ingest that the organization's automations changed. Last in a transaction: others wait for this row."""
    await tx.execute(_SQL["raise_epoch"], {"org_id": org_id})


async def insert_audit(tx: Transaction, row: AuditRow) -> None:
    """Keep the record of a change."""
    await tx.execute(_SQL["insert_audit"], msgspec.structs.asdict(row))


async def list_changes(tx: Transaction, org_id: int, automation_id: str, most: int) -> list[ChangeRow]:
    """Return the newest changes of an automation."""
    values = {"org_id": org_id, "automation_id": automation_id, "most": most}
    return [ChangeRow(*row) async for row in await tx.execute(_SQL["list_changes"], values)]


async def cancel_entries(tx: Transaction, cancellation: Cancellation, after: str, most: int) -> tuple[int, str | None]:
    """Cancel up to `most` entries with ids beyond `after`; return how many, and the last id of them."""
    values = {**msgspec.structs.asdict(cancellation), "after": after, "most": most}
    row = await (await tx.execute(_SQL["cancel_entries"], values)).fetchone()
    assert row is not None
    return row[0], row[1]


async def call_off(tx: Transaction, org_id: int, automation_id: str, outcome: str) -> None:
    """Let entries that workers hold end, with this outcome, before their next step; whoever cancels the others does this last."""
    await tx.execute(_SQL["call_off"], {"org_id": org_id, "automation_id": automation_id, "outcome": outcome})


async def left_resting(tx: Transaction, most: int) -> list[RestingRow]:
    """Return automations, of any organization, that are not paused and have entries that rest all the same."""
    return [RestingRow(*row) async for row in await tx.execute(_SQL["left_resting"], {"most": most})]


async def resume_entries(
    tx: Transaction, org_id: int, automation_id: str, at: datetime, after: str, most: int
) -> tuple[int, str | None]:
    """Let up to `most` resting entries with ids beyond `after` go on; return how many, and the last id of them."""
    values = {"org_id": org_id, "automation_id": automation_id, "at": at, "after": after, "most": most}
    row = await (await tx.execute(_SQL["resume_entries"], values)).fetchone()
    assert row is not None
    return row[0], row[1]


async def _automation(tx: Transaction, name: str, values: dict[str, Any]) -> AutomationRow | None:
    row = await (await tx.execute(_SQL[name], values)).fetchone()
    return None if row is None else AutomationRow(*row)


async def _written(tx: Transaction, name: str, row: AutomationRow) -> AutomationRow:
    written = await _automation(tx, name, _columns(row))
    assert written is not None
    return written


def _columns(row: AutomationRow | VersionRow) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(row),
        "trigger_spec": row.trigger_spec.decode(),
        "graph": row.graph.decode(),
    }
