"""Entries that rest although their automation is not paused any more: whoever resumed it, or switched it off, died on the way.

A resume commits that the automation runs, then moves its entries in stretches; a switch-off cancels them so. Either is taken up here,
by whichever process comes first and beside a second call: each stretch is a transaction under the automation's lock.
"""

from api.authoring.automations import ARCHIVED, INACTIVE, Author, cancel_rest, resume_rest
from api.chores import every, one_by_one
from api.clock import Clock
from api.store import authoring as store
from api.store.authoring import RestingRow
from api.store.database import Database

LOOK_SECONDS = 10.0
AT_ONCE = 100

_NOBODY = ""  # no key asked for this; nothing of it is in the audit log


async def keep_moving(database: Database, clock: Clock) -> None:
    """Take up what was left, until cancelled."""
    await every(LOOK_SECONDS, "resting_entries", lambda: move_on(database, clock))


async def move_on(database: Database, clock: Clock) -> int:
    """Let entries go on, or end, that are left resting; return of how many automations they were."""
    async with database.transaction() as tx:
        left = await store.left_resting(tx, AT_ONCE)

    async def move(row: RestingRow) -> None:
        author = Author(row.org_id, _NOBODY, clock.now_us())
        if row.active:
            await resume_rest(database, author, row.automation_id)
        else:
            await cancel_rest(database, author, row.automation_id, ARCHIVED if row.archived else INACTIVE)

    await one_by_one("resting_entries", left, move)
    return len(left)
