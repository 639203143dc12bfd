"""Entries as people see them: the statements of `sql/queries/histories.sql`. The engine has its own, for claims."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.language.run import State
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("histories")


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
    """What the event of an entry brought; `payload` is JSON text."""

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
    """One message; `extra` is JSON text, `recipient` a sealed email address or the url of a webhook."""

    id: str
    node_id: str
    channel: str
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


class GraphRow(msgspec.Struct, frozen=True):
    """The graph (JSON text) that entries run."""

    graph: bytes
    entry_ids: list[str]


class TransitionRow(msgspec.Struct, frozen=True):
    """One move between states."""

    from_state: str
    to_state: str
    at: datetime
    reason: str | None


class DeadRow(msgspec.Struct, frozen=True):
    """Dead entries of one automation, cause and node: how many, the most attempts, and what the last of them said."""

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


class Page(msgspec.Struct, frozen=True):
    """Which entries of a list: those in a state, older than the entry `after`, at most so many."""

    most: int
    state: State | None = None
    after: str | None = None


async def graphs_of_entries(tx: Transaction, org_id: int, entry_ids: Collection[str]) -> list[GraphRow]:
    """Return the graphs that these entries run; those that ran nothing are missing."""
    cursor = await tx.execute(_SQL["graphs_of_entries"], {"org_id": org_id, "ids": list(entry_ids)})
    return [GraphRow(*row) async for row in cursor]


async def list_entries(tx: Transaction, org_id: int, page: Page) -> list[EntryRow]:
    """Return the newest entries of the organization."""
    cursor = await tx.execute(_SQL["list_entries"], {"org_id": org_id, **msgspec.structs.asdict(page)})
    return [_entry(*row) async for row in cursor]


async def list_entries_of_automation(tx: Transaction, org_id: int, automation_id: str, page: Page) -> list[EntryRow]:
    """Return the newest entries of one automation."""
    values = {"org_id": org_id, "automation_id": automation_id, **msgspec.structs.asdict(page)}
    return [_entry(*row) async for row in await tx.execute(_SQL["list_entries_of_automation"], values)]


async def list_entries_of_event(
    tx: Transaction, org_id: int, event_id: str, event: str | None, page: Page
) -> list[EntryRow]:
    """Return the entries of one event, none when it is not called `event`."""
    values = {"org_id": org_id, "event_id": event_id, "event": event, **msgspec.structs.asdict(page)}
    return [_entry(*row) async for row in await tx.execute(_SQL["list_entries_of_event"], values)]


async def list_entries_by_name(tx: Transaction, org_id: int, event: str, page: Page) -> list[EntryRow]:
    """Return the newest entries of events of one name; only its newest 1,000 events are looked at."""
    values = {"org_id": org_id, "event": event, **msgspec.structs.asdict(page)}
    return [_entry(*row) async for row in await tx.execute(_SQL["list_entries_by_name"], values)]


async def find_event_of_key(tx: Transaction, org_id: int, key_digest: str) -> str | None:
    """Return the id of the event that holds an idempotency key."""
    cursor = await tx.execute(_SQL["find_event_of_key"], {"org_id": org_id, "key_digest": key_digest})
    row = await cursor.fetchone()
    return None if row is None else row[0]


async def find_log(tx: Transaction, org_id: int, chain_id: int, tx_hash: str, log_index: int) -> str | None:
    """Return the id of a log that is kept."""
    values = {"org_id": org_id, "chain_id": chain_id, "tx_hash": tx_hash, "log_index": log_index}
    row = await (await tx.execute(_SQL["find_log"], values)).fetchone()
    return None if row is None else row[0]


async def find_entry(tx: Transaction, org_id: int, entry_id: str) -> tuple[EntryRow, EntryEventRow] | None:
    """Return one entry and what its event brought."""
    row = await (await tx.execute(_SQL["find_entry"], {"org_id": org_id, "id": entry_id})).fetchone()
    return None if row is None else (_entry(*row[:-3]), EntryEventRow(*row[-3:]))


async def list_steps(tx: Transaction, org_id: int, entry_id: str) -> list[StepRow]:
    """Return the steps of an entry in order."""
    cursor = await tx.execute(_SQL["list_steps"], {"org_id": org_id, "entry_id": entry_id})
    return [StepRow(*row) async for row in cursor]


async def list_messages(tx: Transaction, org_id: int, entry_id: str) -> list[MessageRow]:
    """Return the messages of an entry in order."""
    cursor = await tx.execute(_SQL["list_messages"], {"org_id": org_id, "entry_id": entry_id})
    return [MessageRow(*row) async for row in cursor]


async def list_transitions(tx: Transaction, org_id: int, entry_id: str) -> list[TransitionRow]:
    """Return the moves of an entry in order."""
    cursor = await tx.execute(_SQL["list_transitions"], {"org_id": org_id, "entry_id": entry_id})
    return [TransitionRow(*row) async for row in cursor]


async def count_standings(
    tx: Transaction, org_id: int, automation_id: str, most: int
) -> list[tuple[State, str | None, int]]:
    """Return (state, node id, count) of where an automation's newest `most` entries stand; before the first node there is no id."""
    values = {"org_id": org_id, "automation_id": automation_id, "most": most}
    cursor = await tx.execute(_SQL["count_standings"], values)
    return [(State(state), node_id, count) async for state, node_id, count in cursor]


async def count_outcomes(tx: Transaction, org_id: int, automation_id: str, most: int) -> list[tuple[str, str, int]]:
    """Return (node id, outcome, count) of the steps of an automation's newest `most` entries, every attempt counted."""
    values = {"org_id": org_id, "automation_id": automation_id, "most": most}
    cursor = await tx.execute(_SQL["count_outcomes"], values)
    return [(node_id, outcome, count) async for node_id, outcome, count in cursor]


async def count_dead(tx: Transaction, org_id: int, automation_id: str | None, most: int) -> list[DeadRow]:
    """Return the newest `most` dead entries of each automation (or of one) by cause and node, what died last first."""
    values = {"org_id": org_id, "automation_id": automation_id, "most": most}
    return [DeadRow(*row) async for row in await tx.execute(_SQL["count_dead"], values)]


async def lock_entry(tx: Transaction, org_id: int, entry_id: str) -> tuple[State, str | None] | None:
    """Return state and outcome of an entry, which stay so until this transaction ends."""
    row = await (await tx.execute(_SQL["lock_entry"], {"org_id": org_id, "id": entry_id})).fetchone()
    return None if row is None else (State(row[0]), row[1])


async def find_dead(
    tx: Transaction, org_id: int, automation_id: str, cause: str | None, *, after: str, most: int
) -> list[str]:
    """Return the ids of up to `most` dead entries beyond `after`, held until this transaction ends."""
    values = {"org_id": org_id, "automation_id": automation_id, "cause": cause, "after": after, "most": most}
    return [row[0] async for row in await tx.execute(_SQL["find_dead"], values)]


async def find_dead_automations(tx: Transaction, org_id: int) -> list[str]:
    """Return the ids of active automations that have dead entries."""
    return [row[0] async for row in await tx.execute(_SQL["find_dead_automations"], {"org_id": org_id})]


async def revive_entries(tx: Transaction, org_id: int, ids: Sequence[str], at: datetime) -> int:
    """Move dead entries to pending, due at `at`; return how many were dead."""
    cursor = await tx.execute(_SQL["revive_entries"], {"org_id": org_id, "ids": list(ids), "at": at})
    return cursor.rowcount


def _entry(*columns: Any) -> EntryRow:
    values = (*columns[:6], State(columns[6]), *columns[7:])
    return EntryRow(*values)
