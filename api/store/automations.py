"""Automations: drafts, versions, the audit log, cancelling and resuming entries, goals, and entries as users see them.

The engine's statements for entries (claims, decisions) are in `store.entries`.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from api.clock import from_us, uuid7
from api.store.broadcasts import MessageCount
from api.store.database import APPLICATION_NAME, Transaction
from api.store.events import EventRow
from api.store.query import Json, RowCount, Uuid, query
from workbench.language.body import Body, Id, LastId
from workbench.language.codec import encode
from workbench.language.responses import (
    MAX_STOPPED_ENTRIES,
    AuditView,
    AutomationState,
    ChangeView,
    DeadLetterView,
    EntryHistoryView,
    EntryView,
    TransitionView,
)
from workbench.language.run import State, Step

FIRST_ID = "00000000-0000-0000-0000-000000000000"
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


# --- Automations and versions


StateFlags: TypeAlias = tuple[bool | None, bool | None, bool | None]
STATES: Mapping[AutomationState, StateFlags] = {
    "draft": (False, None, None),
    "off": (True, False, None),
    "paused": (True, True, True),
    "live": (True, True, False),
}
"""Whether an automation in a state is published, active and paused; None: either."""


class AutomationRow(msgspec.Struct, frozen=True):
    """An automation as stored: its draft, and the number of the published version.

    `live_since`: logs of earlier blocks do not start it (None: logs from before it was created).
    `earlier_confirmations`: an earlier version required this many confirmations, and logs may still wait for them.
    """

    org_id: int
    id: Uuid
    name: str
    trigger_spec: msgspec.Raw
    graph: msgspec.Raw
    active: bool
    published_version: int | None
    revision: int
    archived_at: datetime | None
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None = None
    live_since: datetime | None = None
    earlier_confirmations: int | None = None

    @property
    def state(self) -> AutomationState:
        flags = self.published_version is not None, self.active, self.paused_at is not None
        return next(
            state
            for state, required in STATES.items()
            if all(value in (None, flag) for value, flag in zip(required, flags, strict=True))
        )


class VersionRow(msgspec.Struct, frozen=True, rename="camel"):
    """A published version; `publishedBy` is the id of a key."""

    version: int
    trigger_spec: msgspec.Raw
    graph: msgspec.Raw
    published_at: datetime
    published_by: str | None


@query
async def insert_automation(tx: Transaction, row: AutomationRow) -> AutomationRow:
    """Store a new automation and return it as Postgres keeps it."""


@query
async def find_automation(tx: Transaction, org_id: int, automation_id: Uuid) -> AutomationRow | None: ...


@query
async def lock_automation(tx: Transaction, org_id: int, automation_id: Uuid) -> AutomationRow | None:
    """Return an automation, locked until this transaction ends."""


@query
async def lock_automation_shared(tx: Transaction, org_id: int, automation_id: Uuid) -> bool | None:
    """Return whether an automation is active, and keep it so until this transaction ends; None if it does not exist."""


@query
async def list_automations(
    tx: Transaction,
    org_id: int,
    name: str | None,
    archived: bool,
    published: bool | None,
    active: bool | None,
    paused: bool | None,
    limit: int,
    before: Uuid | None = None,
) -> list[AutomationRow]:
    """Return the newest automations, archived or not.

    Only those called `name`, with these flags (`STATES`), or created before the one with id `before`, if given.
    """


@query
async def update_automation(tx: Transaction, row: AutomationRow) -> AutomationRow:
    """Write all of a locked automation and return it as Postgres keeps it."""


@query
async def insert_version(
    tx: Transaction, org_id: int, automation_id: Uuid, row: VersionRow, awaits: Collection[str]
) -> None: ...


@query
async def has_older_process(tx: Transaction, migration: str, name: str = APPLICATION_NAME) -> bool:
    """Return whether a process of a version before a migration is connected."""


@query
async def find_version(tx: Transaction, org_id: int, automation_id: Uuid, version: int) -> VersionRow | None: ...


@query
async def list_versions(tx: Transaction, org_id: int, automation_id: Uuid, limit: int) -> list[VersionRow]:
    """Return the newest published versions."""


@query
async def bump_epoch(tx: Transaction, org_id: int) -> None:
    """Make ingest read an organization's automations again. Do this last in a transaction: others wait for the row."""


@query
async def find_stop(tx: Transaction, org_id: int) -> datetime | None:
    """Return since when everything of an organization is stopped, or None."""


@query
async def set_stop(tx: Transaction, org_id: int, stopped_at: datetime | None) -> None:
    """Note since when everything is stopped, or that it runs again. Do this last, like `bump_epoch`."""


@query
async def pause_automations(tx: Transaction, org_id: int, at: datetime) -> list[str]:
    """Pause all automations that are active and not paused; return their ids."""


@query
async def find_stopped(tx: Transaction, org_id: int, paused_at: datetime) -> list[str]:
    """Return the ids of the automations that were paused at this moment."""


@query
async def resume_automations(tx: Transaction, org_id: int, paused_at: datetime, at: datetime) -> list[str]:
    """End the pause of the automations that were paused at `paused_at`; return their ids."""


@query
async def count_stopped(
    tx: Transaction,
    org_id: int,
    paused_at: datetime | None,
    automation_id: Uuid | None = None,
    limit: int = MAX_STOPPED_ENTRIES,
) -> tuple[int, int, int, int]:
    """Count what was paused at this moment (None: what is not paused), of all automations or one of them.

    Active automations, their entries that have not ended (at most `limit`), and messages of these entries that wait for
    another attempt or are being sent.
    """


class UsingAutomation(msgspec.Struct, frozen=True):
    """An automation that contains a text. `draft` and `live` are its graphs that contain it, otherwise None."""

    id: Uuid
    name: str
    draft: Json | None
    version: int | None
    live: Json | None


@query
async def list_using_automations(tx: Transaction, org_id: int, quoted: str) -> list[UsingAutomation]:
    """Return the automations whose graphs contain a name in quotes; the language decides whether they use it."""


# --- Audit log


class ChangesQuery(Body, frozen=True, rename="camel"):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    subject_id: Id | None = None
    action: str | None = None
    before: LastId | None = None


async def record_change(
    tx: Transaction,
    org_id: int,
    key_id: str | None,
    action: str,
    subject_id: str | None,
    detail: Mapping[str, object],
    now_us: int,
) -> None:
    """Record a change that a key made; without one, the operator made it."""
    row = uuid7(now_us), key_id, action, subject_id, encode(detail).decode(), from_us(now_us)
    await _insert_audit(tx, org_id, *row)


async def record_changes(
    tx: Transaction,
    org_id: int,
    key_id: str | None,
    action: str,
    subject_ids: Sequence[str],
    detail: Mapping[str, object],
    now_us: int,
) -> None:
    """Record the same change of several subjects."""
    ids = [uuid7(now_us) for _ in subject_ids]
    await _insert_audits(tx, org_id, ids, key_id, action, subject_ids, encode(detail).decode(), from_us(now_us))


@query
async def _insert_audit(
    tx: Transaction,
    org_id: int,
    id: Uuid,  # noqa: A002  the name of the column
    key_id: Uuid | None,
    action: str,
    subject_id: Uuid | None,
    detail: str,
    created_at: datetime,
) -> None: ...


@query
async def _insert_audits(
    tx: Transaction,
    org_id: int,
    ids: Sequence[Uuid],
    key_id: Uuid | None,
    action: str,
    subject_ids: Sequence[Uuid],
    detail: str,
    created_at: datetime,
) -> None: ...


@query
async def list_audit(
    tx: Transaction, org_id: int, kinds: Sequence[str] | None, selection: ChangesQuery
) -> list[AuditView]:
    """Return the selected changes, newest first. `kinds`: first words of actions; None: of any kind."""


@query
async def list_changes(tx: Transaction, org_id: int, automation_id: Uuid, limit: int) -> list[ChangeView]:
    """Return the newest changes of an automation."""


# --- Cancelling and resuming entries


@query
async def count_entries_of_other_versions(
    tx: Transaction, org_id: int, automation_id: Uuid, version: int | None
) -> list[tuple[int | None, str | None, str, int]]:
    """Count the unfinished entries that run another version than this one, by version, node and state.

    Version None: nothing was published when they started.
    """


@query
async def cancel_entries(
    tx: Transaction,
    org_id: int,
    automation_id: Uuid,
    outcome: str,
    at: datetime,
    after: Uuid,
    limit: int,
    due_by: datetime | None = None,
) -> tuple[int, str | None]:
    """Cancel up to `limit` entries with ids beyond `after`, except those that a worker holds.

    `due_by`: only paused entries and those that were due by then. Returns their number and the last id.
    """


@query
async def cancel_claimed_entries(tx: Transaction, org_id: int, automation_id: Uuid, outcome: str) -> None:
    """Let entries that workers hold end with this outcome before their next step. Cancel all unclaimed ones first."""


@query
async def find_stranded_entries(tx: Transaction, limit: int) -> list[tuple[int, str, bool, bool]]:
    """Return automations, of any organization, that are not paused but have paused entries.

    Each with its organization and id, and whether it is active and archived.
    """


@query
async def resume_entries(
    tx: Transaction, org_id: int, automation_id: Uuid, at: datetime, after: Uuid, limit: int
) -> tuple[int, int, str | None]:
    """Resume up to `limit` paused entries with ids beyond `after`.

    Returns their number, that of their messages that wait for another attempt, and the last of their ids.
    """


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


class GoalFilter(msgspec.Struct, frozen=True):
    """Events of the goal's name with payloads that contain one of `forms` (JSON texts; none: any payload).

    `with_payload`: return the payloads, because the caller evaluates filters on them.
    """

    goal: str
    with_payload: bool = False
    forms: tuple[str, ...] = ()


class GoalWindow(msgspec.Struct, frozen=True):
    """The period in which a contact's goal counts: after the event `after_id`, received at `after`, until `until`."""

    contact_id: Uuid
    after_id: Uuid
    after: datetime
    until: datetime


@query
async def list_goal_entries(tx: Transaction, selection: GoalEntries, before_id: Uuid, limit: int) -> list[GoalEntryRow]:
    """Return the next entries before `before_id`, of any version, newest first."""


@query
async def find_first_entries(
    tx: Transaction,
    selection: GoalEntries,
    contact_ids: Collection[Uuid],
    limit: int = 1_000,  # bounds the work for a contact that enters very often
) -> dict[str, tuple[str, bool]]:
    """Return the id of the first admitted entry of each contact, ever; contacts that were never admitted are left out.

    With it, whether the contact was both in the holdout and outside, because two contacts were merged.
    """


@query
async def list_goal_events(
    tx: Transaction, org_id: int, goal_filter: GoalFilter, windows: Sequence[GoalWindow], limit: int
) -> dict[str, list[EventRow]]:
    """Return the next `limit` events of each contact, by contact and in order."""


# --- Entries as users see them


class EntriesQuery(Body, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    state: State | None = None
    after: LastId | None = None


@query
async def list_entries(tx: Transaction, org_id: int, page: EntriesQuery) -> list[EntryView]: ...


@query
async def list_entries_of_automation(
    tx: Transaction, org_id: int, automation_id: Uuid, page: EntriesQuery
) -> list[EntryView]: ...


@query
async def list_entries_of_event(
    tx: Transaction, org_id: int, event_id: Uuid, event: str | None, page: EntriesQuery
) -> list[EntryView]:
    """Return the entries of one event; none if the event is not called `event`."""


@query
async def list_entries_by_name(tx: Transaction, org_id: int, event: str, page: EntriesQuery) -> list[EntryView]:
    """Return the newest entries of events of one name, among the newest 1,000 of these events."""


@query
async def find_event_by_key(tx: Transaction, org_id: int, key: str, key_digest: Uuid) -> str | None: ...


@query
async def find_entry(tx: Transaction, org_id: int, entry_id: Uuid) -> EntryHistoryView | None:
    """Return an entry with its event, without steps, messages and transitions."""


@query
async def list_steps(tx: Transaction, org_id: int, entry_id: Uuid) -> list[Step]: ...


@query
async def list_transitions(tx: Transaction, org_id: int, entry_id: Uuid) -> list[TransitionView]: ...


@query
async def graphs_of_entries(tx: Transaction, org_id: int, entry_ids: Collection[Uuid]) -> list[tuple[Json, list[str]]]:
    """Return the graphs that these entries run, each with their ids; entries without a version are left out."""


@query
async def count_entries_by_node(
    tx: Transaction, org_id: int, automation_id: Uuid, limit: int
) -> list[tuple[State, str | None, int]]:
    """Count an automation's newest `limit` entries by state and node id (None before the first node)."""


@query
async def count_step_outcomes(
    tx: Transaction, org_id: int, automation_id: Uuid, limit: int
) -> list[tuple[str, str, int]]:
    """Count the steps of an automation's newest `limit` entries by node id and outcome; every attempt counts."""


@query
async def count_messages_by_node(tx: Transaction, org_id: int, automation_id: Uuid, limit: int) -> list[MessageCount]:
    """Count the messages of an automation's newest `limit` entries."""


# --- Replaying dead entries


@query
async def count_dead(tx: Transaction, org_id: int, automation_id: Uuid | None, limit: int) -> list[DeadLetterView]:
    """Return the newest `limit` dead entries of each automation (or of one) by cause and node, latest death first."""


@query
async def lock_entry(tx: Transaction, org_id: int, entry_id: Uuid) -> tuple[State, str | None] | None:
    """Return the state and outcome of an entry, locked until this transaction ends."""


@query
async def find_dead(
    tx: Transaction, org_id: int, automation_id: Uuid, cause: str | None, after: Uuid, limit: int
) -> list[str]:
    """Return the ids of up to `limit` dead entries beyond `after`, locked until this transaction ends."""


@query
async def find_dead_automations(tx: Transaction, org_id: int) -> list[str]:
    """Return the ids of active automations that have dead entries."""


@query
async def revive_entries(tx: Transaction, org_id: int, entry_ids: Sequence[Uuid], at: datetime) -> RowCount:
    """Move dead entries to pending, due at `at`; return how many were dead."""
