"""Automations: drafts, versions, the audit log, cancelling and resuming entries, goals, and entries as users see them.

The engine's statements for entries (claims, decisions) are in `store.entries`.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.store.database import Transaction, load
from api.store.query import joined, moments, quoted
from workbench.language.run import Channel, State

_SQL = load("automations")

FIRST_ID = "00000000-0000-0000-0000-000000000000"
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


# --- Automations and versions


class AutomationRow(msgspec.Struct, frozen=True):
    """An automation as stored: its draft, and the number of the published version. Specs are JSON text.

    `live_since`: logs of earlier blocks do not start it (None: logs from before it was created).
    `earlier_confirmations`: an earlier version required this many confirmations, and logs may still wait for them.
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


async def insert_automation(tx: Transaction, row: AutomationRow) -> AutomationRow:
    """Store a new automation and return it as Postgres keeps it."""
    return await _written(tx, "insert_automation", row)


async def find_automation(tx: Transaction, org_id: int, automation_id: str) -> AutomationRow | None:
    return await tx.fetch_one(AutomationRow, _SQL["find_automation"], {"org_id": org_id, "id": automation_id})


async def lock_automation(tx: Transaction, org_id: int, automation_id: str) -> AutomationRow | None:
    """Return an automation, locked until this transaction ends."""
    return await tx.fetch_one(AutomationRow, _SQL["lock_automation"], {"org_id": org_id, "id": automation_id})


async def lock_automation_shared(tx: Transaction, org_id: int, automation_id: str) -> bool | None:
    """Return whether an automation is active, and keep it so until this transaction ends; None if it does not exist."""
    cursor = await tx.execute(_SQL["lock_automation_shared"], {"org_id": org_id, "id": automation_id})
    row = await cursor.fetchone()
    return None if row is None else bool(row[0])


async def list_automations(
    tx: Transaction, org_id: int, name: str | None, archived: bool, limit: int, before: str | None = None
) -> list[AutomationRow]:
    """Return the newest automations, archived or not.

    Only those called `name`, or created before the one with id `before`, if given.
    """
    values = {"org_id": org_id, "name": name, "archived": archived, "limit": limit, "before": before}
    return await tx.fetch_all(AutomationRow, _SQL["list_automations"], values)


async def update_automation(tx: Transaction, row: AutomationRow) -> AutomationRow:
    """Write all of a locked automation and return it as Postgres keeps it."""
    return await _written(tx, "update_automation", row)


async def insert_version(tx: Transaction, org_id: int, automation_id: str, row: VersionRow) -> None:
    values = {"org_id": org_id, "automation_id": automation_id, **_columns(row)}
    await tx.execute(_SQL["insert_version"], values)


async def find_version(tx: Transaction, org_id: int, automation_id: str, version: int) -> VersionRow | None:
    values = {"org_id": org_id, "automation_id": automation_id, "version": version}
    return await tx.fetch_one(VersionRow, _SQL["find_version"], values)


async def list_versions(tx: Transaction, org_id: int, automation_id: str, limit: int) -> list[VersionRow]:
    """Return the newest published versions."""
    values = {"org_id": org_id, "automation_id": automation_id, "limit": limit}
    return await tx.fetch_all(VersionRow, _SQL["list_versions"], values)


async def bump_epoch(tx: Transaction, org_id: int) -> None:
    """Make ingest read an organization's automations again. Do this last in a transaction: others wait for the row."""
    await tx.execute(_SQL["bump_epoch"], {"org_id": org_id})


async def _written(tx: Transaction, name: str, row: AutomationRow) -> AutomationRow:
    (written,) = await tx.fetch_all(AutomationRow, _SQL[name], _columns(row))
    return written


def _columns(row: AutomationRow | VersionRow) -> dict[str, Any]:
    # jsonb is read as bytes (`_RawJson`) and written as text: psycopg would send bytes as bytea.
    return {**msgspec.structs.asdict(row), "trigger_spec": row.trigger_spec.decode(), "graph": row.graph.decode()}


# --- Audit log


class AuditRow(msgspec.Struct, frozen=True):
    """A change to record; without `key_id` it was made by the operator. `detail` is JSON text."""

    org_id: int
    id: str
    key_id: str | None
    action: str
    subject_id: str | None
    detail: str
    created_at: datetime


class AuditQuery(msgspec.Struct, frozen=True):
    """A selection of changes; None selects all.

    `kinds`: first words of actions. `before`: only changes older than the one with this id.
    """

    limit: int
    kinds: Sequence[str] | None = None
    subject_id: str | None = None
    action: str | None = None
    before: str | None = None


class AuditLogRow(msgspec.Struct, frozen=True):
    """A recorded change; `subject` is the name of what it is about, if it has one. `detail` is JSON text."""

    id: str
    at: datetime
    action: str
    key_id: str | None
    key_name: str | None
    key_prefix: str | None
    key_last4: str | None
    subject_id: str | None
    subject: str | None
    detail: bytes


class ChangeRow(msgspec.Struct, frozen=True):
    """A change of an automation, with the key that made it; `detail` is JSON text."""

    at: datetime
    action: str
    key_id: str | None
    key_name: str | None
    detail: bytes


async def insert_audit(tx: Transaction, row: AuditRow) -> None:
    await tx.execute(_SQL["insert_audit"], msgspec.structs.asdict(row))


async def list_audit(tx: Transaction, org_id: int, query: AuditQuery) -> list[AuditLogRow]:
    """Return the selected changes, newest first."""
    return await tx.fetch_all(AuditLogRow, _SQL["list_audit"], {"org_id": org_id} | msgspec.structs.asdict(query))


async def list_changes(tx: Transaction, org_id: int, automation_id: str, limit: int) -> list[ChangeRow]:
    """Return the newest changes of an automation."""
    values = {"org_id": org_id, "automation_id": automation_id, "limit": limit}
    return await tx.fetch_all(ChangeRow, _SQL["list_changes"], values)


# --- Cancelling and resuming entries


class VersionEntriesRow(msgspec.Struct, frozen=True):
    """The number of unfinished entries of a version at a node in a state.

    `version` None: nothing was published when they started.
    """

    version: int | None
    node_id: str | None
    state: str
    entries: int


class Cancellation(msgspec.Struct, frozen=True):
    """Entries of an automation to cancel, except those that a worker holds.

    `due_by`: only paused entries and those that were due by then.
    """

    org_id: int
    automation_id: str
    outcome: str
    at: datetime
    due_by: datetime | None = None


class PausedEntriesRow(msgspec.Struct, frozen=True):
    org_id: int
    automation_id: str
    active: bool
    archived: bool


async def count_entries_of_other_versions(
    tx: Transaction, org_id: int, automation_id: str, version: int | None
) -> list[VersionEntriesRow]:
    """Count the unfinished entries that run another version than this one."""
    values = {"org_id": org_id, "automation_id": automation_id, "version": version}
    return await tx.fetch_all(VersionEntriesRow, _SQL["count_entries_of_other_versions"], values)


async def cancel_entries(tx: Transaction, cancellation: Cancellation, after: str, limit: int) -> tuple[int, str | None]:
    """Cancel up to `limit` entries with ids beyond `after`; return how many, and the last of their ids."""
    values = {**msgspec.structs.asdict(cancellation), "after": after, "limit": limit}
    row = await (await tx.execute(_SQL["cancel_entries"], values)).fetchone()
    assert row is not None
    return row[0], row[1]


async def cancel_claimed_entries(tx: Transaction, org_id: int, automation_id: str, outcome: str) -> None:
    """Let entries that workers hold end with this outcome before their next step. Cancel all others before this."""
    await tx.execute(
        _SQL["cancel_claimed_entries"], {"org_id": org_id, "automation_id": automation_id, "outcome": outcome}
    )


async def find_stranded_entries(tx: Transaction, limit: int) -> list[PausedEntriesRow]:
    """Return automations, of any organization, that are not paused but have paused entries."""
    return await tx.fetch_all(PausedEntriesRow, _SQL["find_stranded_entries"], {"limit": limit})


async def resume_entries(
    tx: Transaction, org_id: int, automation_id: str, at: datetime, after: str, limit: int
) -> tuple[int, str | None]:
    """Resume up to `limit` paused entries with ids beyond `after`; return how many, and the last of their ids."""
    values = {"org_id": org_id, "automation_id": automation_id, "at": at, "after": after, "limit": limit}
    row = await (await tx.execute(_SQL["resume_entries"], values)).fetchone()
    assert row is not None
    return row[0], row[1]


# --- Goals


class GoalEntries(msgspec.Struct, frozen=True):
    """The entries that count for a goal: those of an automation since `since_id`, of `version` or a later one."""

    org_id: int
    automation_id: str
    since_id: str
    version: int


class GoalEntryRow(msgspec.Struct, frozen=True):
    """An entry and the event that started it (received `at`); version 0: nothing was published."""

    id: str
    version: int
    contact_id: str
    event_id: str
    at: datetime
    held_out: bool


class FirstEntryRow(msgspec.Struct, frozen=True):
    """The first admitted entry of a contact.

    `mixed`: the contact was both in the holdout and outside, because two contacts were merged.
    """

    entry_id: str
    mixed: bool


class GoalFilter(msgspec.Struct, frozen=True):
    """Events of the goal's name with payloads that contain one of `forms` (JSON texts; none: any payload).

    `with_payload`: return the payloads, because the caller evaluates filters on them.
    """

    goal: str
    with_payload: bool = False
    forms: tuple[str, ...] = ()


class GoalWindow(msgspec.Struct, frozen=True):
    """The time in which a contact's goal counts: after an event, until a moment."""

    contact_id: str
    after_id: str
    after: datetime
    until: datetime


class GoalEventRow(msgspec.Struct, frozen=True):
    """An event of the goal's name. `email` is sealed; `payload` is JSON text, None unless requested."""

    contact_id: str
    at: datetime
    id: str
    wallet: str | None
    email: str | None
    external_id: str | None
    payload: bytes | None


async def list_goal_entries(tx: Transaction, selection: GoalEntries, before_id: str, limit: int) -> list[GoalEntryRow]:
    """Return the next entries before `before_id`, of any version, newest first."""
    values = {
        "org_id": selection.org_id,
        "automation_id": selection.automation_id,
        "since_id": selection.since_id,
        "before_id": before_id,
        "limit": limit,
    }
    return await tx.fetch_all(GoalEntryRow, _SQL["list_goal_entries"], values)


async def find_first_entries(
    tx: Transaction, selection: GoalEntries, contact_ids: Collection[str]
) -> dict[str, FirstEntryRow]:
    """Return the first admitted entry of each contact, ever; contacts that were never admitted are left out."""
    values = {
        "org_id": selection.org_id,
        "automation_id": selection.automation_id,
        "contact_ids": joined([*contact_ids]),
        "limit": 1_000,  # bounds the work for a contact that enters very often
    }
    return {row[0]: FirstEntryRow(*row[1:]) async for row in await tx.execute(_SQL["find_first_entries"], values)}


async def list_goal_events(
    tx: Transaction, org_id: int, goal_filter: GoalFilter, windows: Sequence[GoalWindow], limit: int
) -> list[GoalEventRow]:
    """Return the next `limit` events of each contact, by contact and in order."""
    values = {
        "org_id": org_id,
        "goal": goal_filter.goal,
        "with_payload": goal_filter.with_payload,
        "forms": quoted(goal_filter.forms),
        "contact_ids": joined([window.contact_id for window in windows]),
        "after_ids": joined([window.after_id for window in windows]),
        "after": moments(window.after for window in windows),
        "until": moments(window.until for window in windows),
        "limit": limit,
    }
    return await tx.fetch_all(GoalEventRow, _SQL["list_goal_events"], values)


# --- Entries as users see them


class EntryRow(msgspec.Struct, frozen=True):
    """An entry; `event` is the name of the event that started it."""

    id: str
    automation_id: str
    automation_version: int | None
    contact_id: str
    event_id: str
    event: str | None
    state: State
    outcome: str | None
    node_id: str | None
    attempts: int
    last_error: str | None
    due_at: datetime
    created_at: datetime
    updated_at: datetime


class EntryEventRow(msgspec.Struct, frozen=True):
    """The event of an entry; `payload` is JSON text."""

    idempotency_key: str | None
    occurred_at: datetime | None
    payload: bytes | None


class StepRow(msgspec.Struct, frozen=True):
    """One step; `detail` is JSON text."""

    node_id: str
    kind: str
    at: datetime
    outcome: str
    attempt: int
    handle: str | None
    detail: bytes


class MessageRow(msgspec.Struct, frozen=True):
    """One message; `extra` is JSON text, `recipient` a sealed email address or the URL of a webhook."""

    id: str
    node_id: str
    channel: Channel
    status: str
    wallet_address: str | None
    recipient: str | None
    subject: str | None
    body: str | None
    html: bool
    extra: bytes | None
    created_at: datetime
    sent_at: datetime | None
    delivered_at: datetime | None


class TransitionRow(msgspec.Struct, frozen=True):
    from_state: str
    to_state: str
    at: datetime
    reason: str | None


class GraphRow(msgspec.Struct, frozen=True):
    """A graph (JSON text) and the entries that run it."""

    graph: bytes
    entry_ids: list[str]


class DeadRow(msgspec.Struct, frozen=True):
    """The dead entries of one automation, cause and node: how many, the most attempts, and the last error."""

    automation_id: str
    automation: str
    active: bool
    cause: str | None
    node_id: str | None
    entries: int
    attempts: int
    last_error: str | None
    first_at: datetime
    last_at: datetime


class EntryPage(msgspec.Struct, frozen=True):
    """A page of entries: those in a state, older than the entry `after`, at most `limit`."""

    limit: int
    state: State | None = None
    after: str | None = None


async def list_entries(tx: Transaction, org_id: int, page: EntryPage) -> list[EntryRow]:
    return await tx.fetch_all(_entry, _SQL["list_entries"], {"org_id": org_id, **msgspec.structs.asdict(page)})


async def list_entries_of_automation(
    tx: Transaction, org_id: int, automation_id: str, page: EntryPage
) -> list[EntryRow]:
    values = {"org_id": org_id, "automation_id": automation_id, **msgspec.structs.asdict(page)}
    return await tx.fetch_all(_entry, _SQL["list_entries_of_automation"], values)


async def list_entries_of_event(
    tx: Transaction, org_id: int, event_id: str, event: str | None, page: EntryPage
) -> list[EntryRow]:
    """Return the entries of one event; none if the event is not called `event`."""
    values = {"org_id": org_id, "event_id": event_id, "event": event, **msgspec.structs.asdict(page)}
    return await tx.fetch_all(_entry, _SQL["list_entries_of_event"], values)


async def list_entries_by_name(tx: Transaction, org_id: int, event: str, page: EntryPage) -> list[EntryRow]:
    """Return the newest entries of events of one name, among the newest 1,000 of these events."""
    values = {"org_id": org_id, "event": event, **msgspec.structs.asdict(page)}
    return await tx.fetch_all(_entry, _SQL["list_entries_by_name"], values)


async def find_event_by_key(tx: Transaction, org_id: int, key_digest: str) -> str | None:
    values = {"org_id": org_id, "key_digest": key_digest}
    event_id: str | None = await tx.fetch_value(_SQL["find_event_by_key"], values)
    return event_id


async def find_log(tx: Transaction, org_id: int, chain_id: int, tx_hash: str, log_index: int) -> str | None:
    values = {"org_id": org_id, "chain_id": chain_id, "tx_hash": tx_hash, "log_index": log_index}
    log_id: str | None = await tx.fetch_value(_SQL["find_log"], values)
    return log_id


async def find_entry(tx: Transaction, org_id: int, entry_id: str) -> tuple[EntryRow, EntryEventRow] | None:
    row = await (await tx.execute(_SQL["find_entry"], {"org_id": org_id, "id": entry_id})).fetchone()
    return None if row is None else (_entry(*row[:-3]), EntryEventRow(*row[-3:]))


async def list_steps(tx: Transaction, org_id: int, entry_id: str) -> list[StepRow]:
    return await tx.fetch_all(StepRow, _SQL["list_steps"], {"org_id": org_id, "entry_id": entry_id})


async def list_messages(tx: Transaction, org_id: int, entry_id: str) -> list[MessageRow]:
    return await tx.fetch_all(MessageRow, _SQL["list_messages"], {"org_id": org_id, "entry_id": entry_id})


async def list_transitions(tx: Transaction, org_id: int, entry_id: str) -> list[TransitionRow]:
    return await tx.fetch_all(TransitionRow, _SQL["list_transitions"], {"org_id": org_id, "entry_id": entry_id})


async def graphs_of_entries(tx: Transaction, org_id: int, entry_ids: Collection[str]) -> list[GraphRow]:
    """Return the graphs that these entries run; entries without a version are left out."""
    return await tx.fetch_all(GraphRow, _SQL["graphs_of_entries"], {"org_id": org_id, "ids": list(entry_ids)})


async def count_entries_by_node(
    tx: Transaction, org_id: int, automation_id: str, limit: int
) -> list[tuple[State, str | None, int]]:
    """Count an automation's newest `limit` entries by state and node id (None before the first node)."""
    values = {"org_id": org_id, "automation_id": automation_id, "limit": limit}
    cursor = await tx.execute(_SQL["count_entries_by_node"], values)
    return [(State(state), node_id, count) async for state, node_id, count in cursor]


async def count_step_outcomes(
    tx: Transaction, org_id: int, automation_id: str, limit: int
) -> list[tuple[str, str, int]]:
    """Count the steps of an automation's newest `limit` entries by node id and outcome; every attempt counts."""
    values = {"org_id": org_id, "automation_id": automation_id, "limit": limit}
    cursor = await tx.execute(_SQL["count_step_outcomes"], values)
    return [(node_id, outcome, count) async for node_id, outcome, count in cursor]


def _entry(*columns: Any) -> EntryRow:
    values = (*columns[:6], State(columns[6]), *columns[7:])
    return EntryRow(*values)


# --- Replaying dead entries


async def count_dead(tx: Transaction, org_id: int, automation_id: str | None, limit: int) -> list[DeadRow]:
    """Return the newest `limit` dead entries of each automation (or of one) by cause and node, latest death first."""
    values = {"org_id": org_id, "automation_id": automation_id, "limit": limit}
    return await tx.fetch_all(DeadRow, _SQL["count_dead"], values)


async def lock_entry(tx: Transaction, org_id: int, entry_id: str) -> tuple[State, str | None] | None:
    """Return state and outcome of an entry, locked until this transaction ends."""
    row = await (await tx.execute(_SQL["lock_entry"], {"org_id": org_id, "id": entry_id})).fetchone()
    return None if row is None else (State(row[0]), row[1])


async def find_dead(
    tx: Transaction, org_id: int, automation_id: str, cause: str | None, *, after: str, limit: int
) -> list[str]:
    """Return the ids of up to `limit` dead entries beyond `after`, locked until this transaction ends."""
    values = {"org_id": org_id, "automation_id": automation_id, "cause": cause, "after": after, "limit": limit}
    return [row[0] async for row in await tx.execute(_SQL["find_dead"], values)]


async def find_dead_automations(tx: Transaction, org_id: int) -> list[str]:
    """Return the ids of active automations that have dead entries."""
    return [row[0] async for row in await tx.execute(_SQL["find_dead_automations"], {"org_id": org_id})]


async def revive_entries(tx: Transaction, org_id: int, ids: Sequence[str], at: datetime) -> int:
    """Move dead entries to pending, due at `at`; return how many were dead."""
    cursor = await tx.execute(_SQL["revive_entries"], {"org_id": org_id, "ids": list(ids), "at": at})
    return cursor.rowcount
