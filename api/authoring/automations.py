"""Changes of automations, each one transaction.

It holds the automation at its next revision, an audit row, and the organization's epoch raised, so that ingest reads the
triggers again.
A change that changes nothing (activate what is active, publish what is live) writes nothing and answers what there is.
Switching off takes effect at once, however many entries wait: the first 20,000 are cancelled in the same transaction
(about a second), the others after it. Templates are compiled before the transaction begins: they may take seconds, and a transaction holds locks.
"""

import asyncio
from datetime import datetime
from typing import Any

import msgspec

from api.authoring.again import retried
from api.authoring.draft import Draft, Edit, objections
from api.authoring.refusal import Refusal, conflict, invalid, unknown
from api.clock import from_us, uuid7
from api.language.codec import decode, encode
from api.language.onchain import OnChain
from api.language.problem import Problem
from api.language.trigger import Trigger, read_trigger
from api.store import authoring as store
from api.store.authoring import FIRST_ID, AuditRow, AutomationRow, Cancellation, VersionRow
from api.store.database import Database, Transaction
from api.store.wake import wake_engine

INACTIVE, ARCHIVED, OVERDUE = "automation_inactive", "automation_archived", "overdue"

_CANCELLED_AT_ONCE = 20_000
_RESUMED_AT_ONCE = 5_000  # half a second, in which engines that let an entry of it rest wait
_LOOKS = 5


class Author(msgspec.Struct, frozen=True):
    """Which key asks for a change, of which organization, and when (microseconds since the epoch)."""

    org_id: int
    key_id: str
    now_us: int

    @property
    def now(self) -> datetime:
        """The moment of the change."""
        return from_us(self.now_us)


async def create(database: Database, author: Author, draft: Draft) -> AutomationRow:
    """Store a new automation, unpublished."""
    new_id, now = uuid7(author.now_us), author.now
    row = AutomationRow(
        author.org_id, new_id, draft.name, draft.trigger_spec, draft.graph, draft.active, None, 1, None, now, now
    )
    async with database.transaction() as tx:
        stored = await store.insert_automation(tx, row)
        await record(tx, author, "automation.create", new_id, {"name": draft.name, "active": draft.active})
        await store.raise_epoch(tx, author.org_id)
    return stored


async def update(database: Database, author: Author, automation_id: str, edit: Edit) -> AutomationRow | Refusal:
    """Change the draft; refused when it is no longer at the revision the edit started from."""
    return await _cancel_rest(database, author, INACTIVE, await _update(database, author, automation_id, edit))


async def publish(
    database: Database, author: Author, automation_id: str, revision: int | None
) -> AutomationRow | Refusal:
    """Make the draft the live version; refused while an error stands against it."""
    for _ in range(_LOOKS):  # once, unless somebody edits it between the judgement and the lock
        judged = await _judged(database, author, automation_id, revision)
        if isinstance(judged, Refusal):
            return judged
        async with database.transaction() as tx:
            row = await _locked(tx, author, automation_id, revision)
            if isinstance(row, Refusal):
                return row
            if (row.trigger_spec, row.graph) == (judged.trigger_spec, judged.graph):
                return await _publish_draft(tx, author, row)
    return conflict("it is being edited at this moment; publish again")


async def rollback(database: Database, author: Author, automation_id: str, version: int) -> AutomationRow | Refusal:
    """Publish what an old version said as a new version. A draft without unpublished changes follows; others stay."""
    old = await _found_version(database, author, automation_id, version)
    if isinstance(old, Refusal):
        return old
    if problems := await asyncio.to_thread(objections, old.trigger_spec, old.graph):
        return invalid(problems)
    async with database.transaction() as tx:
        row = await _locked(tx, author, automation_id)
        if isinstance(row, Refusal):
            return row
        live = await _live_version(tx, row)
        if live is not None and _same(live, old):
            return row
        published = await _add_version(tx, author, row, live, old)
        if live is not None and _same(live, row):
            published = msgspec.structs.replace(published, trigger_spec=old.trigger_spec, graph=old.graph)
        detail = {"from": version, "version": published.published_version}
        return await _change(tx, author, published, "automation.rollback", detail)


@retried
async def activate(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    """Let the automation take entries."""
    async with database.transaction() as tx:
        row = await _locked(tx, author, automation_id)
        if isinstance(row, Refusal) or row.active:
            return row
        await _cancel_leftovers(tx, author, row)
        return await _change(
            tx, author, msgspec.structs.replace(row, active=True, live_since=author.now), "automation.activate", {}
        )


async def deactivate(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    """Take no more entries, and cancel those that no worker holds."""
    return await _cancel_rest(database, author, INACTIVE, await _deactivate(database, author, automation_id))


@retried
async def pause(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    """Let the automation stand still: no new entries, and those on their way rest once they are due. Nothing is cancelled."""
    async with database.transaction() as tx:
        row = await _locked(tx, author, automation_id)
        if isinstance(row, Refusal) or row.paused_at is not None:
            return row
        if not row.active:
            return conflict("the automation is not active, so there is nothing to pause")
        paused = msgspec.structs.replace(row, paused_at=author.now)
        return await _change(tx, author, paused, "automation.pause", {})


async def resume(
    database: Database, author: Author, automation_id: str, *, cancel_overdue: bool
) -> AutomationRow | Refusal:
    """Let a paused automation go on, with what came due meanwhile; or cancel that, as `overdue`.

    Entries move in stretches. Cut short before it runs again, it is paused still; afterwards, a chore lets the rest go on. What
    workers hold when it is cancelled, too, ends before its next step.
    """
    last: str | None = FIRST_ID if cancel_overdue else None
    while last is not None:
        last = await _cancel_overdue(database, author, automation_id, last)
    row = await _resume(database, author, automation_id, cancel_overdue)
    if isinstance(row, Refusal) or not row.active:
        return row
    resuming = asyncio.ensure_future(resume_rest(database, author, automation_id))
    await asyncio.shield(resuming)  # whoever asked may hang up; what has begun is done
    return row


async def archive(database: Database, author: Author, automation_id: str) -> AutomationRow | Refusal:
    """Put the automation away for good: readable, never active again."""
    return await _cancel_rest(database, author, ARCHIVED, await _archive(database, author, automation_id))


async def record(tx: Transaction, author: Author, action: str, subject_id: str, detail: dict[str, Any]) -> None:
    """Keep the audit row of a change."""
    audit_id = uuid7(author.now_us)
    text = encode(detail).decode()
    await store.insert_audit(tx, AuditRow(author.org_id, audit_id, author.key_id, action, subject_id, text, author.now))


class _Stopped(msgspec.Struct, frozen=True):
    """An automation after a change, and the last entry cancelled with it; None when no entry is left to cancel."""

    row: AutomationRow
    last: str | None = None


@retried
async def _update(database: Database, author: Author, automation_id: str, edit: Edit) -> _Stopped | Refusal:
    async with database.transaction() as tx:
        row = await _locked(tx, author, automation_id, edit.revision)
        if isinstance(row, Refusal):
            return row
        cancelled, last = 0, None
        if edit.active is False:
            cancelled, last = await _cancel(tx, author, row.id, INACTIVE, FIRST_ID)
        elif edit.active and not row.active:
            await _cancel_leftovers(tx, author, row)
        given = {
            name: value
            for name in ("name", "trigger_spec", "graph", "active")
            if (value := getattr(edit, name)) is not None
        }
        detail = {"changed": list(given), "cancelled": cancelled}
        if edit.active is not None:
            detail["active"] = edit.active
        if edit.active is False:
            given["paused_at"] = None
        if (edit.active and not row.active) or (edit.trigger_spec is not None and row.published_version is None):
            given["live_since"] = author.now
        changed = await _change(tx, author, msgspec.structs.replace(row, **given), "automation.update", detail)
    return _Stopped(changed, last)


@retried
async def _deactivate(database: Database, author: Author, automation_id: str) -> _Stopped | Refusal:
    async with database.transaction() as tx:
        row = await store.lock_automation(tx, author.org_id, automation_id)
        if row is None:
            return unknown("automation")
        if row.archived_at is not None:
            return _Stopped(row)
        cancelled, last = await _cancel(tx, author, row.id, INACTIVE, FIRST_ID)
        if row.active:
            stopped = msgspec.structs.replace(row, active=False, paused_at=None)
            row = await _change(tx, author, stopped, "automation.deactivate", {"cancelled": cancelled})
    return _Stopped(row, last)


@retried
async def _archive(database: Database, author: Author, automation_id: str) -> _Stopped | Refusal:
    async with database.transaction() as tx:
        row = await store.lock_automation(tx, author.org_id, automation_id)
        if row is None:
            return unknown("automation")
        cancelled, last = await _cancel(tx, author, row.id, ARCHIVED, FIRST_ID)
        if row.archived_at is None:
            put_away = msgspec.structs.replace(row, active=False, paused_at=None, archived_at=author.now)
            row = await _change(tx, author, put_away, "automation.archive", {"cancelled": cancelled})
    return _Stopped(row, last)


async def _cancel(
    tx: Transaction, author: Author, automation_id: str, outcome: str, after: str
) -> tuple[int, str | None]:
    """Cancel the next entries no worker holds; return how many, and the last of them (None: there were none).

    An entry that a concurrent ingest commits after this is cancelled by the engine, which looks before every claim's steps.
    """
    cancellation = Cancellation(author.org_id, automation_id, outcome, author.now)
    return await store.cancel_entries(tx, cancellation, after, _CANCELLED_AT_ONCE)


async def _cancel_rest(
    database: Database, author: Author, outcome: str, stopped: _Stopped | Refusal
) -> AutomationRow | Refusal:
    """Cancel what was too much for the transaction of the change."""
    if isinstance(stopped, Refusal):
        return stopped
    await cancel_rest(database, author, stopped.row.id, outcome, stopped.last)
    return stopped.row


async def cancel_rest(
    database: Database, author: Author, automation_id: str, outcome: str, after: str | None = FIRST_ID
) -> None:
    """Cancel all entries beyond an id that no worker holds, unless the automation is switched on again."""
    last = after
    while last is not None:
        last = await _cancel_more(database, author, automation_id, outcome, last)


@retried
async def _cancel_more(database: Database, author: Author, automation_id: str, outcome: str, after: str) -> str | None:
    async with database.transaction() as tx:
        if await store.share_automation(tx, author.org_id, automation_id) is not False:
            return None  # switched on again meanwhile: what is there now is meant to run
        _, last = await _cancel(tx, author, automation_id, outcome, after)
    return last


@retried
async def _cancel_overdue(database: Database, author: Author, automation_id: str, after: str) -> str | None:
    """Cancel the next of what came due while the automation was paused, whether or not an engine has seen it."""
    async with database.transaction() as tx:
        row = await _locked(tx, author, automation_id)
        if isinstance(row, Refusal) or row.paused_at is None:
            return None
        return await _cancel_more_overdue(tx, author, automation_id, after)


async def _cancel_more_overdue(tx: Transaction, author: Author, automation_id: str, after: str) -> str | None:
    cancellation = Cancellation(author.org_id, automation_id, OVERDUE, author.now, due_by=author.now)
    _, last = await store.cancel_entries(tx, cancellation, after, _CANCELLED_AT_ONCE)
    return last


@retried
async def _resume(
    database: Database, author: Author, automation_id: str, cancel_overdue: bool
) -> AutomationRow | Refusal:
    async with database.transaction() as tx:
        row = await _locked(tx, author, automation_id)
        if isinstance(row, Refusal) or row.paused_at is None:
            return row
        if cancel_overdue:
            await _cancel_latest(tx, author, automation_id)
        detail = {"paused_at": row.paused_at, "overdue": "cancel" if cancel_overdue else "run"}
        resumed = msgspec.structs.replace(row, paused_at=None, live_since=author.now)
        return await _change(tx, author, resumed, "automation.resume", detail)


async def _cancel_latest(tx: Transaction, author: Author, automation_id: str) -> None:
    """Cancel what came to rest since the last stretch; nothing comes to rest any more. What workers hold ends soon."""
    last: str | None = FIRST_ID
    while last is not None:
        last = await _cancel_more_overdue(tx, author, automation_id, last)
    await store.call_off(tx, author.org_id, automation_id, OVERDUE)


async def resume_rest(database: Database, author: Author, automation_id: str) -> None:
    """Let all entries of an automation go on that rest, unless it is paused again; beside others that do, too."""
    last: str | None = FIRST_ID
    while last is not None:
        last = await _resume_more(database, author, automation_id, last)


@retried
async def _resume_more(database: Database, author: Author, automation_id: str, after: str) -> str | None:
    """Make the next entries due that rest; none when the automation was paused again meanwhile."""
    async with database.transaction() as tx:
        row = await _locked(tx, author, automation_id)
        if isinstance(row, Refusal) or row.paused_at is not None:
            return None
        _, last = await store.resume_entries(tx, author.org_id, automation_id, author.now, after, _RESUMED_AT_ONCE)
        await wake_engine(tx)
    return last


async def _cancel_leftovers(tx: Transaction, author: Author, row: AutomationRow) -> None:
    """Cancel what a deactivation that was cut short left, so that nothing of before comes back to life."""
    last: str | None = FIRST_ID
    while last is not None:
        _, last = await _cancel(tx, author, row.id, INACTIVE, last)


async def _locked(
    tx: Transaction, author: Author, automation_id: str, revision: int | None = None
) -> AutomationRow | Refusal:
    return _changeable(await store.lock_automation(tx, author.org_id, automation_id), revision)


def _changeable(row: AutomationRow | None, revision: int | None) -> AutomationRow | Refusal:
    if row is None:
        return unknown("automation")
    if row.archived_at is not None:
        return conflict("the automation is archived")
    if revision is not None and revision != row.revision:
        return conflict(f"the automation is at revision {row.revision} now, not {revision}", "revision")
    return row


async def _change(
    tx: Transaction, author: Author, row: AutomationRow, action: str, detail: dict[str, Any]
) -> AutomationRow:
    """Write a change at the next revision; the epoch comes last, because every change of the organization waits for it."""
    following = msgspec.structs.replace(row, revision=row.revision + 1, updated_at=author.now)
    stored = await store.update_automation(tx, following)
    await record(tx, author, action, row.id, {**detail, "revision": stored.revision})
    await store.raise_epoch(tx, author.org_id)
    return stored


async def _judged(
    database: Database, author: Author, automation_id: str, revision: int | None
) -> AutomationRow | Refusal:
    async with database.transaction() as tx:
        row = _changeable(await store.find_automation(tx, author.org_id, automation_id), revision)
    if isinstance(row, Refusal):
        return row
    problems = await asyncio.to_thread(objections, row.trigger_spec, row.graph)
    return invalid(problems) if problems else row


async def _publish_draft(tx: Transaction, author: Author, row: AutomationRow) -> AutomationRow:
    live = await _live_version(tx, row)
    if live is not None and _same(live, row):
        return row
    published = await _add_version(tx, author, row, live, row)
    detail = {"version": published.published_version}
    return await _change(tx, author, published, "automation.publish", detail)


async def _add_version(
    tx: Transaction, author: Author, row: AutomationRow, live: VersionRow | None, source: AutomationRow | VersionRow
) -> AutomationRow:
    version = (row.published_version or 0) + 1
    new = VersionRow(version, source.trigger_spec, source.graph, author.now, author.key_id)
    await store.insert_version(tx, author.org_id, row.id, new)
    since, earlier = _listening(row, live, source, author.now)
    return msgspec.structs.replace(row, published_version=version, live_since=since, earlier_confirmations=earlier)


def _listening(
    row: AutomationRow, live: VersionRow | None, source: AutomationRow | VersionRow, now: datetime
) -> tuple[datetime | None, int | None]:
    """Return since when logs start a new version, and how many confirmations those may wait for that the live one has not taken yet."""
    before, after = _logs(live), _logs(source)
    if before is None or after is None or before.key != after.key:
        return now, None
    earlier = max(before.confirmations, row.earlier_confirmations or 0)
    return row.live_since, earlier if earlier > after.confirmations else None


def _logs(specs: AutomationRow | VersionRow | None) -> OnChain | None:
    trigger = None if specs is None else read_trigger(decode(specs.trigger_spec))
    return trigger.source if isinstance(trigger, Trigger) else None


async def _found_version(database: Database, author: Author, automation_id: str, version: int) -> VersionRow | Refusal:
    async with database.transaction() as tx:
        row = await store.find_automation(tx, author.org_id, automation_id)
        old = await store.find_version(tx, author.org_id, automation_id, version)
    if row is None:
        return unknown("automation")
    if old is None:
        known = f"there are 1 to {row.published_version}" if row.published_version else "nothing is published yet"
        return invalid((Problem("version", f"there is no version {version}; {known}"),))
    return old


async def _live_version(tx: Transaction, row: AutomationRow) -> VersionRow | None:
    if row.published_version is None:
        return None
    return await store.find_version(tx, row.org_id, row.id, row.published_version)


def _same(left: AutomationRow | VersionRow, right: AutomationRow | VersionRow) -> bool:
    """Whether two specs are the same to the last digit: jsonb's own equality takes 1.0 for 1, templates print them apart."""
    return (left.trigger_spec, left.graph) == (right.trigger_spec, right.graph)
