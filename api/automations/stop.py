"""Stopping everything of an organization, and resuming it.

A stop pauses all automations that take entries, in one transaction, so a crash leaves everything running or everything
stopped. It waits for the transactions that record steps and keeps new ones out (`locks.hold_steps`); from then on an
entry that comes due becomes `paused`, as after a single pause. Automations that the stop paused, and those that are
switched on during it, have the moment of the stop as their `paused_at`; a resume finds them by it.
"""

import asyncio

from api.automations.automations import (
    Author,
    cancel_last_overdue,
    cancel_overdue_entries,
    record,
    record_all,
    resume_rest,
    retry_conflicts,
)
from api.store import automations as store
from api.store.database import Database
from api.store.locks import hold_steps
from api.store.query import run
from workbench.language.responses import StoppedView


async def count_stopped(database: Database, org_id: int) -> StoppedView:
    """Count what is stopped, or what a stop would stop now."""
    async with database.transaction() as tx:
        stopped_at = await store.find_stop(tx, org_id)
        return StoppedView(stopped_at, *await store.count_stopped(tx, org_id, stopped_at))


@retry_conflicts
async def stop_all(database: Database, author: Author) -> None:
    """Pause every automation that takes entries. No step of any entry is recorded after this."""
    async with database.transaction() as tx:
        await run(tx, hold_steps(author.org_id))
        if await store.find_stop(tx, author.org_id) is not None:
            return
        automation_ids = await store.pause_automations(tx, author.org_id, author.now)
        await record_all(tx, author, "automation.pause", automation_ids, {"all": True})
        await record(tx, author, "automation.stop_all", None, {"automations": len(automation_ids)})
        await store.set_stop(tx, author.org_id, author.now)


async def resume_all(database: Database, author: Author, *, cancel_overdue: bool) -> StoppedView:
    """Resume the automations that a stop paused. Entries that came due run now, or are cancelled as `overdue`.

    Returns the numbers of automations, of entries that run now, and of their messages that wait for another attempt.
    They are counted as they are resumed: to count all entries beforehand could take longer than a request may.

    As with a single resume, a job continues with the entries after a crash.
    """

    @retry_conflicts
    async def run_again() -> list[str]:
        async with database.transaction() as tx:
            await run(tx, hold_steps(author.org_id))
            stopped_at = await store.find_stop(tx, author.org_id)
            if stopped_at is None:
                return []
            automation_ids = await store.resume_automations(tx, author.org_id, stopped_at, author.now)
            detail = {"paused_at": stopped_at, "overdue": "cancel" if cancel_overdue else "run"}
            if cancel_overdue:
                for automation_id in automation_ids:
                    await cancel_last_overdue(tx, author, automation_id)
            await record_all(tx, author, "automation.resume", automation_ids, {"all": True, **detail})
            await record(tx, author, "automation.resume_all", None, {"automations": len(automation_ids), **detail})
            await store.set_stop(tx, author.org_id, None)
        return automation_ids

    async def resume_entries(automation_ids: list[str]) -> StoppedView:
        counts = [await resume_rest(database, author, automation_id) for automation_id in automation_ids]
        entries, unsent = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        return StoppedView(None, len(automation_ids), entries, unsent, 0)

    if cancel_overdue:
        async with database.transaction() as tx:
            stopped_at = await store.find_stop(tx, author.org_id)
            stopped_ids = [] if stopped_at is None else await store.find_stopped(tx, author.org_id, stopped_at)
        for automation_id in stopped_ids:
            await cancel_overdue_entries(database, author, automation_id)
    # Shielded: a client that disconnects must not interrupt it.
    return await asyncio.shield(resume_entries(await run_again()))
