"""Changes of automations: create, update, publish, roll back, activate, pause, archive; and what every change has in
common.

A change is one transaction: the automation at its next revision, an audit row, and the organization's epoch bumped, so
that ingest reads its triggers again. A change without effect (activate an active automation, publish the live version)
writes nothing. Templates are compiled before the transaction begins: that may take seconds, and a transaction holds
locks.

An automation can have many entries. When it is deactivated or archived, the first 20,000 are cancelled in the
transaction of the change (about a second), the rest in further transactions after it, each under the automation's lock.
`resume` works in batches, too. If the process ends in between, `api.automations.entries.run_entry_recovery` completes
the work.

`Author`, `Refusal`, `retry_conflicts` and `record` are shared by all use cases that change something, also of contacts
and segments.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from api.automations.body import AutomationEdit, NewAutomation, publication_errors, read_specs
from api.automations.pins import pin, without_pins
from api.clock import from_us, to_us, uuid7, uuid7_from
from api.store import automations as store
from api.store.automations import FIRST_ID, AutomationRow, VersionRow
from api.store.broadcasts import stop_broadcasts
from api.store.connections import hold_connections, list_connections, read_definition
from api.store.consents import list_topics, lock_topics
from api.store.database import Database, Transaction, TransactionConflictError
from api.store.events import list_newest_wallets, list_newest_wallets_of_all, wake_engine
from api.store.locks import hold_steps, share_steps
from api.store.moves import insert_move, list_former_versions
from api.store.query import run
from workbench.language.actions import SendVia, WaitUntil
from workbench.language.channel import INAPP, is_evm_wallet
from workbench.language.check import EVERY_EVENT, Diagnostic, check_wallets, unknown_topics
from workbench.language.codec import decode, encode, same_json
from workbench.language.connections import check_connections, connections_of
from workbench.language.graph import Graph, read_graph
from workbench.language.moves import MoveMode, check_mapping
from workbench.language.problem import Problem, Problems
from workbench.language.starts import StartSource
from workbench.language.topics import PREFERENCES_LINK
from workbench.language.trigger import Trigger, read_trigger

INACTIVE, ARCHIVED, OVERDUE = "automation_inactive", "automation_archived", "overdue"  # outcomes of cancelled entries

_MAX_TRIES = 5
_MAX_PUBLISH_TRIES = 5
_CANCEL_BATCH = 20_000  # entries: about a second
_RESUME_BATCH = 5_000  # half a second, during which engines that pause an entry of the automation wait for its lock

_MAX_SAMPLED_NAMES = 20
_SAMPLED_EVENTS = 100  # of each name, the newest
_SAMPLED_TIME = timedelta(days=30)

_SUM = re.compile(rb"\|\s*sum\b")  # the filter, in a template

_log = logging.getLogger("workbench.automations")

_P = ParamSpec("_P")
_T = TypeVar("_T")

Reason = Literal["unknown", "conflict", "invalid", "limited"]


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a use case did nothing.

    `unknown`: the organization has no such object; `conflict`: its current state does not allow the change; `invalid`:
    invalid input; `limited`: too many requests.
    """

    reason: Reason
    problems: Problems


def unknown(subject: str, which: str = "") -> Refusal:
    return Refusal("unknown", (Problem("", f"{subject} not found: {which}" if which else f"{subject} not found"),))


def conflict(message: str, field: str = "") -> Refusal:
    return Refusal("conflict", (Problem(field, message),))


def limited(message: str) -> Refusal:
    return Refusal("limited", (Problem("", message),))


def invalid(problems: Problems) -> Refusal:
    return Refusal("invalid", problems)


def log_bug(automation_id: str, error: Exception) -> None:
    """Log an exception that the interpreter raised; the result of the simulation is `internal_error`."""
    _log.error("simulation_failed", extra={"automation_id": automation_id}, exc_info=error)


class Author(msgspec.Struct, frozen=True):
    """The key that makes a change, its organization, and the time of the change (microseconds since the epoch)."""

    org_id: int
    key_id: str
    now_us: int

    @property
    def now(self) -> datetime:
        return from_us(self.now_us)


def retry_conflicts(unit: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T]]:
    """Run a unit of work up to five times while it conflicts with other transactions, for example in a deadlock."""

    @wraps(unit)
    async def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for _ in range(_MAX_TRIES - 1):
            try:
                return await unit(*args, **kwargs)
            except TransactionConflictError:
                continue
        return await unit(*args, **kwargs)

    return run


async def record(tx: Transaction, author: Author, action: str, subject_id: str | None, detail: dict[str, Any]) -> None:
    await store.record_change(tx, author.org_id, author.key_id, action, subject_id, detail, author.now_us)


async def record_all(
    tx: Transaction, author: Author, action: str, subject_ids: Sequence[str], detail: dict[str, Any]
) -> None:
    """Record the same change of several subjects."""
    await store.record_changes(tx, author.org_id, author.key_id, action, subject_ids, detail, author.now_us)


async def create(database: Database, author: Author, draft: NewAutomation) -> AutomationRow:
    new_id, now, active = uuid7(author.now_us), author.now, draft.active is not False
    row = AutomationRow(
        org_id=author.org_id,
        id=new_id,
        name=draft.name_or_default,
        trigger_spec=msgspec.Raw(draft.trigger_spec),
        graph=msgspec.Raw(draft.graph),
        active=active,
        published_version=None,
        revision=1,
        archived_at=None,
        created_at=now,
        updated_at=now,
    )
    async with database.transaction() as tx:
        await run(tx, share_steps(author.org_id))
        row, detail = await _heed_stop(tx, author, row, {"name": row.name, "active": active})
        stored = await store.insert_automation(tx, row)
        await record(tx, author, "automation.create", new_id, detail)
        await store.bump_epoch(tx, author.org_id)
    return stored


async def update(
    database: Database, author: Author, automation_id: str, edit: AutomationEdit, *, proposes: bool = False
) -> AutomationRow | Refusal:
    """Change the draft; refused unless it is at the revision that the edit started from.

    `proposes`: nothing of the change may take effect before a publication.
    """

    @retry_conflicts
    async def change() -> _Stopped | Refusal:
        async with database.transaction() as tx:
            row = await _lock(tx, author, automation_id, edit.revision)
            if isinstance(row, Refusal):
                return row
            if proposes and edit.trigger_spec is not None and row.active and row.published_version is None:
                return conflict("the trigger of this draft starts entries already: a change needs automations:write")
            cancelled, last = 0, None
            if edit.active is False:
                cancelled, last = await _cancel(tx, author, row.id, INACTIVE, FIRST_ID)
            elif edit.active and not row.active:
                await _cancel_leftovers(tx, author, row)
            fields = {
                name: value
                for name in ("name", "trigger_spec", "graph", "active")
                if (value := getattr(edit, name)) is not None
            }
            detail = {"changed": list(fields), "cancelled": cancelled}
            if edit.active is not None:
                detail["active"] = edit.active
            if edit.active is False:
                fields["paused_at"] = None
            # Logs from before this moment do not start entries. The draft's trigger is live until the first version is
            # published.
            if (edit.active and not row.active) or (edit.trigger_spec is not None and row.published_version is None):
                fields["live_since"] = author.now
            changed = await _write(tx, author, msgspec.structs.replace(row, **fields), "automation.update", detail)
        return _Stopped(changed, last)

    return await _cancel_rest(database, author, INACTIVE, await change())


class NewMove(msgspec.Struct, frozen=True):
    """A move of waiting entries that belongs to a publication, and how long it comes back to entries that are busy."""

    id: str
    mode: MoveMode
    patience: timedelta


class Permission(msgspec.Struct, frozen=True):
    """A publication that is allowed. `detail`: for the audit log. `activates`: it also activates the automation."""

    detail: dict[str, Any] = {}
    activates: bool = False


Permit = Callable[[Transaction, Author, AutomationRow, AutomationRow], Awaitable[Refusal | Permission]]
"""Decides on a publication of an automation, under its lock, by the draft with its pins."""


async def publish(
    database: Database,
    author: Author,
    automation_id: str,
    revision: int | None,
    move: NewMove | None = None,
    permit: Permit | None = None,
) -> AutomationRow | Refusal:
    """Make the draft the live version, and plan a move to it; refused if the draft or the move has errors.

    `permit`: what else has to allow it.
    """
    for _ in range(_MAX_PUBLISH_TRIES):
        async with database.transaction() as tx:
            checked = _changeable(await store.find_automation(tx, author.org_id, automation_id), revision)
            if isinstance(checked, Refusal):
                return checked
            graph = msgspec.Raw(await pin(tx, author.org_id, bytes(checked.graph)))
        if problems := await asyncio.to_thread(publication_errors, checked.trigger_spec, graph):
            return invalid(problems)
        if move is not None:
            async with database.transaction() as tx:
                draft = msgspec.structs.replace(checked, graph=graph)
                problems = await check_move(tx, draft, move.mode)
            if problems:
                return invalid(problems)
        async with database.transaction() as tx:
            row = await _lock(tx, author, automation_id, revision)
            if isinstance(row, Refusal):
                return row
            if not _same_specs(row, checked):  # edited since the check
                continue
            live, draft = await _live_version(tx, row), msgspec.structs.replace(row, graph=graph)
            if live is not None and _same_specs(live, draft):
                await _plan_move(tx, author, row, move)
                return row
            permission = Permission() if permit is None else await permit(tx, author, row, draft)
            if isinstance(permission, Refusal):
                return permission
            published = await _add_version(tx, author, row, live, draft)
            if isinstance(published, Refusal):
                return published
            await _plan_move(tx, author, published, move)
            if permission.activates:
                published = msgspec.structs.replace(published, active=True)
            detail: dict[str, Any] = {"version": published.published_version, **permission.detail}
            if move is not None:
                detail |= {"move": move.id, "mode": move.mode}
            return await _write(tx, author, published, "automation.publish", detail)
    return conflict("the draft is being edited right now; publish again")


async def _plan_move(tx: Transaction, author: Author, row: AutomationRow, move: NewMove | None) -> None:
    if move is not None:
        assert row.published_version is not None
        ids, patient_until = (author.org_id, move.id, row.id), author.now + move.patience
        await insert_move(tx, *ids, row.published_version, encode(move.mode), patient_until, author.now, author.key_id)


async def check_move(tx: Transaction, draft: AutomationRow, mode: MoveMode) -> Problems:
    """Return what is wrong with the mapping of a move to a draft; `draft` has its pins."""
    if not isinstance(mode, dict):
        return ()
    numbers = await list_former_versions(tx, draft.org_id, draft.id, 0)
    versions = [await store.find_version(tx, draft.org_id, draft.id, number) for number in numbers]
    graphs = [draft.graph, *(version.graph for version in versions if version is not None)]
    compiled = await asyncio.to_thread(lambda: [read_graph(decode(graph)) for graph in graphs])
    to, *earlier = [graph if isinstance(graph, Graph) else Graph() for graph in compiled]
    return check_mapping(mode, to, earlier, "move")


async def draft_to_publish(
    tx: Transaction, author: Author, automation_id: str, trigger_spec: bytes | None, graph: bytes | None
) -> AutomationRow | Refusal:
    """Return an automation with its draft, or these specs, as it would be published, and the number of the version."""
    row = _changeable(await store.find_automation(tx, author.org_id, automation_id), None)
    if isinstance(row, Refusal):
        return row
    if trigger_spec is not None:
        row = msgspec.structs.replace(row, trigger_spec=msgspec.Raw(trigger_spec))
    if graph is not None:
        row = msgspec.structs.replace(row, graph=msgspec.Raw(graph))
    graph = msgspec.Raw(await pin(tx, author.org_id, bytes(row.graph)))
    draft, live = msgspec.structs.replace(row, graph=graph), await _live_version(tx, row)
    if live is not None and _same_specs(live, draft):
        return draft
    return msgspec.structs.replace(draft, published_version=(row.published_version or 0) + 1)


async def check_recent_wallets(database: Database, author: Author, row: AutomationRow) -> list[Diagnostic]:
    """Return warnings about in-app messages if events of the last 30 days have wallets that can never sign in."""
    automation = await asyncio.to_thread(read_specs, row.trigger_spec, row.graph)
    if isinstance(automation, tuple) or automation.graph is None:
        return []
    trigger = automation.trigger
    if trigger.source is not None or not any(node.action.channel is INAPP for node in automation.graph.nodes):
        return []
    org_id, since = author.org_id, author.now - _SAMPLED_TIME
    if trigger.is_wildcard:
        first_id = uuid7_from(to_us(since), bytes(8))
        names, calls = [EVERY_EVENT], [list_newest_wallets_of_all(org_id, first_id, since, _SAMPLED_EVENTS)]
    else:
        names = sorted(trigger.names)[:_MAX_SAMPLED_NAMES]
        calls = [list_newest_wallets(org_id, name, since, _SAMPLED_EVENTS) for name in names]
    async with database.transaction() as tx:
        wallets = dict(zip(names, await run(tx, *calls), strict=True))
    undeliverable = {
        name: (sum(wallet != "" and not is_evm_wallet(wallet) for wallet in sampled), len(sampled))
        for name, sampled in wallets.items()
    }
    return list(check_wallets(undeliverable, trigger, automation.graph))


async def rollback(database: Database, author: Author, automation_id: str, version: int) -> AutomationRow | Refusal:
    """Publish an old version as a new version. If the draft has no unpublished changes, it is set to that version."""
    async with database.transaction() as tx:
        current = await store.find_automation(tx, author.org_id, automation_id)
        old = await store.find_version(tx, author.org_id, automation_id, version)
    if current is None:
        return unknown("automation")
    if old is None:
        last = current.published_version
        existing = f"versions are 1 to {last}" if last else "nothing is published yet"
        return invalid((Problem("version", f"version {version} not found; {existing}"),))
    # Checked again: the rules may have become stricter since the version was published.
    if problems := await asyncio.to_thread(publication_errors, old.trigger_spec, old.graph):
        return invalid(problems)
    async with database.transaction() as tx:
        row = await _lock(tx, author, automation_id)
        if isinstance(row, Refusal):
            return row
        live = await _live_version(tx, row)
        if live is not None and _same_specs(live, old):
            return row
        published = await _add_version(tx, author, row, live, old)
        if isinstance(published, Refusal):
            return published
        # A draft with unpublished changes is work in progress, and stays.
        if live is not None and _same_specs(_as_draft(live), row):
            old = _as_draft(old)
            published = msgspec.structs.replace(published, trigger_spec=old.trigger_spec, graph=old.graph)
        detail = {"from": version, "version": published.published_version}
        return await _write(tx, author, published, "automation.rollback", detail)


@retry_conflicts
async def activate(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    async with database.transaction() as tx:
        row = await _lock(tx, author, automation_id)
        if isinstance(row, Refusal) or row.active:
            return row
        await _cancel_leftovers(tx, author, row)
        active = msgspec.structs.replace(row, active=True, live_since=author.now)
        return await _write(tx, author, active, "automation.activate", {})


async def deactivate(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    """Start no more entries, and cancel those that no worker has claimed."""
    return await _stop(database, author, automation_id, INACTIVE)


async def archive(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    return await _stop(database, author, automation_id, ARCHIVED)


async def _stop(database: Database, author: Author, automation_id: str, outcome: str) -> AutomationRow | Refusal:
    archives = outcome == ARCHIVED

    @retry_conflicts
    async def change() -> _Stopped | Refusal:
        async with database.transaction() as tx:
            row = await store.lock_automation(tx, author.org_id, automation_id)
            if row is None:
                return unknown("automation")
            if row.archived_at is not None and not archives:
                return _Stopped(row)
            cancelled, last = await _cancel(tx, author, row.id, outcome, FIRST_ID)
            if row.active or (archives and row.archived_at is None):
                archived_at = author.now if archives else None
                stopped = msgspec.structs.replace(row, active=False, paused_at=None, archived_at=archived_at)
                action = "automation.archive" if archives else "automation.deactivate"
                await stop_broadcasts(tx, author.org_id, row.id, INACTIVE, author.now)
                row = await _write(tx, author, stopped, action, {"cancelled": cancelled})
        return _Stopped(row, last)

    return await _cancel_rest(database, author, outcome, await change())


@retry_conflicts
async def pause(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    """Start no more entries, and park existing ones when they come due. Nothing is cancelled.

    No step is recorded after this. An automation that was stopped with all others stays paused when they are resumed.
    """
    async with database.transaction() as tx:
        await run(tx, hold_steps(author.org_id))
        row = await _lock(tx, author, automation_id)
        if isinstance(row, Refusal) or (
            row.paused_at is not None and row.paused_at != await store.find_stop(tx, author.org_id)
        ):
            return row
        if not row.active:
            return conflict("the automation is not active, so there is nothing to pause")
        paused = msgspec.structs.replace(row, paused_at=author.now)
        return await _write(tx, author, paused, "automation.pause", {})


async def resume(
    database: Database, author: Author, automation_id: str, *, cancel_overdue: bool
) -> AutomationRow | Refusal:
    """Resume a paused automation. Entries that came due during the pause run now, or are cancelled as `overdue`.

    Entries are resumed in batches. After an early interruption the automation is still paused; after a later one, a job
    resumes the remaining entries. Overdue entries that a worker has claimed end before their next step.
    """

    @retry_conflicts
    async def run_again() -> AutomationRow | Refusal:
        async with database.transaction() as tx:
            row = await _lock(tx, author, automation_id)
            if isinstance(row, Refusal) or row.paused_at is None:
                return row
            if cancel_overdue:
                await cancel_last_overdue(tx, author, automation_id)
            detail = {"paused_at": row.paused_at, "overdue": "cancel" if cancel_overdue else "run"}
            resumed = msgspec.structs.replace(row, paused_at=None, live_since=author.now)
            return await _write(tx, author, resumed, "automation.resume", detail)

    async with database.transaction() as tx:
        row = _changeable(await store.find_automation(tx, author.org_id, automation_id), None)
        stopped_at = await store.find_stop(tx, author.org_id)
    if not isinstance(row, Refusal) and stopped_at is not None and row.paused_at == stopped_at:
        return conflict("everything is stopped: resume everything (POST /api/v1/resume, wb.resume_all())")
    if cancel_overdue:
        await cancel_overdue_entries(database, author, automation_id)
    row = await run_again()
    if isinstance(row, Refusal) or not row.active:
        return row
    # Shielded: a client that disconnects must not interrupt it.
    await asyncio.shield(resume_rest(database, author, automation_id))
    return row


async def cancel_overdue_entries(database: Database, author: Author, automation_id: str) -> None:
    """Cancel the entries that came due during the pause, whether or not an engine has parked them."""

    @retry_conflicts
    async def cancel_next(after: str) -> str | None:
        async with database.transaction() as tx:
            row = await _lock(tx, author, automation_id)
            if isinstance(row, Refusal) or row.paused_at is None:
                return None
            _, last = await _cancel(tx, author, automation_id, OVERDUE, after, due_by=author.now)
        return last

    await _in_batches(cancel_next)


async def cancel_last_overdue(tx: Transaction, author: Author, automation_id: str) -> None:
    """Cancel the entries that were paused since the last batch; no more are paused under the automation's lock."""

    async def cancel_next(after: str) -> str | None:
        _, last = await _cancel(tx, author, automation_id, OVERDUE, after, due_by=author.now)
        return last

    await _in_batches(cancel_next)
    await store.cancel_claimed_entries(tx, author.org_id, automation_id, OVERDUE)


async def cancel_rest(
    database: Database, author: Author, automation_id: str, outcome: str, after: str | None = FIRST_ID
) -> None:
    """Cancel all unclaimed entries with an id beyond `after`, unless the automation has been activated again."""

    @retry_conflicts
    async def cancel_next(after: str) -> str | None:
        async with database.transaction() as tx:
            if await store.lock_automation_shared(tx, author.org_id, automation_id) is not False:
                return None  # activated again: the entries that exist now are meant to run
            _, last = await _cancel(tx, author, automation_id, outcome, after)
        return last

    await _in_batches(cancel_next, after)


async def resume_rest(database: Database, author: Author, automation_id: str) -> tuple[int, int]:
    """Make all parked entries due, unless the automation has been paused again. Several processes may do this at once.

    Returns the numbers of entries and of their messages that wait for another attempt.
    """
    entries = unsent = 0

    @retry_conflicts
    async def resume_next(after: str) -> str | None:
        nonlocal entries, unsent
        async with database.transaction() as tx:
            row = await _lock(tx, author, automation_id)
            if isinstance(row, Refusal) or row.paused_at is not None:
                return None
            page = await store.resume_entries(tx, author.org_id, automation_id, author.now, after, _RESUME_BATCH)
            await run(tx, wake_engine())
        entries, unsent = entries + page[0], unsent + page[1]
        return page[2]

    await _in_batches(resume_next)
    return entries, unsent


async def _in_batches(next_batch: Callable[[str], Awaitable[str | None]], after: str | None = FIRST_ID) -> None:
    """Call `next_batch` with the id of the last entry of the batch before, until it returns None."""
    while after is not None:
        after = await next_batch(after)


class _Stopped(msgspec.Struct, frozen=True):
    """An automation after a change. `last`: the last entry that was cancelled with it; None if no entry is left."""

    row: AutomationRow
    last: str | None = None


async def _cancel(
    tx: Transaction, author: Author, automation_id: str, outcome: str, after: str, due_by: datetime | None = None
) -> tuple[int, str | None]:
    """Cancel the next unclaimed entries; return their number and the last id (None: there were none).

    An entry that a concurrent ingest commits after this is cancelled by the engine, which checks before every claim's
    steps.
    """
    return await store.cancel_entries(
        tx, author.org_id, automation_id, outcome, author.now, after, _CANCEL_BATCH, due_by
    )


async def _cancel_rest(
    database: Database, author: Author, outcome: str, stopped: _Stopped | Refusal
) -> AutomationRow | Refusal:
    """Cancel the entries that were too many for the transaction of the change."""
    if isinstance(stopped, Refusal):
        return stopped
    await cancel_rest(database, author, stopped.row.id, outcome, stopped.last)
    return stopped.row


async def _cancel_leftovers(tx: Transaction, author: Author, row: AutomationRow) -> None:
    """Cancel the entries that an interrupted deactivation left, so that the activation does not revive them."""
    last: str | None = FIRST_ID
    while last is not None:
        _, last = await _cancel(tx, author, row.id, INACTIVE, last)


async def _lock(
    tx: Transaction, author: Author, automation_id: str, revision: int | None = None
) -> AutomationRow | Refusal:
    await run(tx, share_steps(author.org_id))  # `stop_all` sees all of a change, or the change sees the stop
    return _changeable(await store.lock_automation(tx, author.org_id, automation_id), revision)


def _changeable(row: AutomationRow | None, revision: int | None) -> AutomationRow | Refusal:
    if row is None:
        return unknown("automation")
    if row.archived_at is not None:
        return conflict("the automation is archived")
    if revision is not None and revision != row.revision:
        return conflict(f"the automation is at revision {row.revision} now, not {revision}", "revision")
    return row


async def _heed_stop(
    tx: Transaction, author: Author, row: AutomationRow, detail: dict[str, Any]
) -> tuple[AutomationRow, dict[str, Any]]:
    """Pause an automation that would start entries while everything is stopped: it waits with the others."""
    if row.active and row.paused_at is None and (stopped_at := await store.find_stop(tx, author.org_id)) is not None:
        return msgspec.structs.replace(row, paused_at=stopped_at), {**detail, "stopped": True}
    return row, detail


async def _write(
    tx: Transaction, author: Author, row: AutomationRow, action: str, detail: dict[str, Any]
) -> AutomationRow:
    row, detail = await _heed_stop(tx, author, row, detail)
    next_row = msgspec.structs.replace(row, revision=row.revision + 1, updated_at=author.now)
    stored = await store.update_automation(tx, next_row)
    await record(tx, author, action, row.id, {**detail, "revision": stored.revision})
    # Last, because all changes of the organization wait for the lock of its epoch.
    await store.bump_epoch(tx, author.org_id)
    return stored


async def _check_topics(tx: Transaction, org_id: int, graph: Graph) -> Problems:
    """Return a problem for each topic that a node names and the organization does not have; keep the others."""
    topics = await lock_topics(tx, org_id, sorted(graph.named_topics))
    if len(topics) < len(graph.named_topics):  # all of them, for a suggestion
        topics = await list_topics(tx, org_id)
    names = [topic.name for topic in topics]
    return tuple(
        Problem(f"node {error.node_id}", f"{error.field}: {error.message}") for error in unknown_topics(graph, names)
    )


async def _add_version(
    tx: Transaction, author: Author, row: AutomationRow, live: VersionRow | None, source: AutomationRow | VersionRow
) -> AutomationRow | Refusal:
    before, after = _trigger(live), _trigger(source)
    version = (row.published_version or 0) + 1
    new = VersionRow(version, source.trigger_spec, source.graph, author.now, author.key_id)
    # In a thread: templates that the cache does not hold are compiled again, which may take seconds.
    graph = await asyncio.to_thread(read_graph, decode(source.graph))
    assert isinstance(graph, Graph), "publishing refuses other graphs"
    # An older process ignores `where`, `locales` and snippets: it would let every event in, send the default texts to
    # everyone, or include no text. Its refreshes of segments start nothing, and the other features end its entries.
    specs = bytes(source.trigger_spec) + bytes(source.graph)
    features = (
        ("topic", "0020_consent", graph.named_topics),
        (PREFERENCES_LINK, "0020_consent", PREFERENCES_LINK.encode() in specs),
        ("where", "0008_where", b'"where"' in specs),
        ("locales", "0010_snippets", b'"locales"' in specs),
        ("snippets", "0010_snippets", b'"snippets"' in specs),
        ("send_via", "0019_connections", SendVia in graph.actions),
        ("wait_until", "0009_wait_until", WaitUntil in graph.actions),
        ("timezone", "0009_wait_until", graph.settings.timezone is not None),
        ("frequencyCap.per", "0029_parts", _has_daily_cap(graph)),
        (after.type, "0014_schedules", isinstance(after.source, StartSource)),
        ("the time zone of the organization", "0017_collect", graph.settings.organization_timezone),
        ("collect", "0017_collect", graph.collects),
        ("sum", "0017_collect", _SUM.search(specs)),
        ("several edges from one handle", "0016_bounces", graph.route.sequences),
    )
    for name, migration, is_used in features:
        if is_used and await store.has_older_process(tx, migration):
            return conflict(
                f"`{name}` cannot be published while a process of an older version runs: finish the upgrade first"
            )
    if SendVia in graph.actions and (problems := await _check_connections(tx, author.org_id, graph)):
        return invalid(problems)
    if graph.named_topics and (problems := await _check_topics(tx, author.org_id, graph)):
        return invalid(problems)
    await store.insert_version(tx, author.org_id, row.id, new, sorted(graph.wakes))
    since: datetime | None = author.now
    earlier: int | None = None
    if after.continues(before):
        # With the same log source, the new version continues where the live version is. If it needs fewer
        # confirmations, it must not skip the logs that the live version was still waiting for.
        since, confirmations = row.live_since, max(before.confirmations, row.earlier_confirmations or 0)
        earlier = confirmations if confirmations > after.confirmations else None
    return msgspec.structs.replace(row, published_version=version, live_since=since, earlier_confirmations=earlier)


def _has_daily_cap(graph: Graph) -> bool:
    cap = graph.settings.frequency_cap
    return cap is not None and cap.zone_attribute is not None


async def _check_connections(tx: Transaction, org_id: int, graph: Graph) -> Problems:
    """Lock the connections until the commit, and return the problems of nodes that they cannot serve."""
    names = sorted(connections_of(graph))
    rows = await hold_connections(tx, org_id, names)
    if len(rows) < len(names):  # all of them, for a suggestion
        rows = await list_connections(tx, org_id)
    problems = await asyncio.to_thread(
        lambda: [*check_connections(graph, {row.name: read_definition(row) for row in rows})]
    )
    return tuple(Problem(f"node {node_id}", f"{field}: {reason}") for node_id, field, reason in problems)


def _trigger(specs: AutomationRow | VersionRow | None) -> Trigger:
    trigger = None if specs is None else read_trigger(decode(specs.trigger_spec))
    return trigger if isinstance(trigger, Trigger) else Trigger()


async def _live_version(tx: Transaction, row: AutomationRow) -> VersionRow | None:
    if row.published_version is None:
        return None
    return await store.find_version(tx, row.org_id, row.id, row.published_version)


def _as_draft(version: VersionRow) -> VersionRow:
    return msgspec.structs.replace(version, graph=msgspec.Raw(without_pins(bytes(version.graph))))


def _same_specs(left: AutomationRow | VersionRow, right: AutomationRow | VersionRow) -> bool:
    # Not compared as jsonb, which considers 1.0 and 1 equal: a template prints them differently.
    if (left.trigger_spec, left.graph) == (right.trigger_spec, right.graph):
        return True
    pairs = (left.trigger_spec, right.trigger_spec), (left.graph, right.graph)
    return all(same_json(decode(one), decode(other)) for one, other in pairs)
