"""When parts are built: an engine looks every minute, and starts a process if there is enough to do.

A process of its own, because building uses a core for seconds and a few hundred megabytes, and an engine has to send
messages meanwhile. It has a low priority. Of several engines, one builds for an organization at a time; of several
machines, the one whose data folder has the files.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from api.clock import Clock
from api.jobs import every
from api.parts import build, files
from api.settings import Settings, child_environment
from api.store import parts as store
from api.store.access import list_organizations
from api.store.database import Database, is_distributed

CHECK_INTERVAL_S = 60.0
MIN_EVENTS = 200_000  # the reports answer fewer from the database within a second
NEW_EVENTS = 5_000  # fewer cost a reader about 10 ms
MAX_BUILD_DELAY = timedelta(hours=1)
_UNBUILT_INTERVAL = timedelta(hours=1)
_PAUSE_AFTER_FAILURE = timedelta(minutes=10)
_LOWEST_PRIORITY = 19

_log = logging.getLogger("workbench.parts")


async def keep_built(database: Database, settings: Settings, dsn: str, clock: Clock) -> None:
    """Start builders until cancelled."""
    schedule = Schedule(database, settings.data_dir)

    async def build_due() -> None:
        org_ids = await schedule.find_due(clock.now())
        if org_ids and not await start_builder(settings, dsn, org_ids):
            schedule.pause(clock.now())

    await every(CHECK_INTERVAL_S, "build_parts", build_due)


class Schedule:
    """Decides which organizations need a builder."""

    def __init__(self, database: Database, data_dir: Path) -> None:
        self._database, self._data_dir = database, data_dir
        self._paused_until: datetime | None = None
        self._next_search: datetime | None = None

    def pause(self, now: datetime) -> None:
        """Look again after a while: the last builder failed."""
        self._paused_until = now + _PAUSE_AFTER_FAILURE

    async def find_due(self, now: datetime) -> list[int]:
        """Return the organizations with work for a builder."""
        if self._paused_until is not None and now < self._paused_until:
            return []
        folder = files.folder_id(self._data_dir)
        async with self._database.transaction() as tx:
            if await is_distributed(tx):
                return []
            due = await store.find_due(
                tx,
                folder,
                NEW_EVENTS,
                now - MAX_BUILD_DELAY,
                now - build.REWRITE_INTERVAL,
                now - timedelta(seconds=build.REMOVED_FILE_S),
            )
            if self._next_search is None or now >= self._next_search:
                self._next_search = now + _UNBUILT_INTERVAL
                for org_id in await store.list_unbuilt(tx):
                    if await store.count_tail(tx, org_id, 0, MIN_EVENTS) == MIN_EVENTS:
                        due.append(org_id)
        return due


async def start_builder(settings: Settings, dsn: str, org_ids: Sequence[int]) -> bool:
    """Build for organizations in a process of its own; return whether it succeeded."""
    environment = child_environment({"DATABASE_URL": dsn, "WORKBENCH_DATA_DIR": str(settings.data_dir)})
    command = (sys.executable, "-P", "-m", "api", "parts", "build", "--ids", *map(str, org_ids))
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        return await process.wait() == 0
    finally:
        if process.returncode is None:  # the engine stops
            process.kill()


async def build_all(
    database: Database, data_dir: Path, org_ids: Sequence[int], now: Callable[[], datetime]
) -> dict[int, str]:
    """Build for organizations, one after another; return why it failed for some. `parts status` shows the reason."""
    problems: dict[int, str] = {}
    for org_id in org_ids:
        try:
            result = await build.build(database, data_dir, org_id, now)
        except build.BusyError:
            continue
        except build.OtherFolderError as error:  # nothing is wrong where the files are
            problems[org_id] = str(error)
        except (store.MissingContactError, OSError) as error:
            problems[org_id] = str(error)
            _log.error("parts_not_built", extra={"org_id": org_id, "problem": problems[org_id]})
            async with database.transaction() as tx:
                await store.note_problem(tx, org_id, problems[org_id])
        else:
            extra = {"org_id": org_id, "added": result.added, "rewritten": result.rewritten, "deleted": result.deleted}
            _log.info("parts_built", extra=extra)
    return problems


async def large_organizations(database: Database) -> list[int]:
    """Return the organizations that have parts, or enough events for them."""
    async with database.transaction() as tx:
        unbuilt = await store.list_unbuilt(tx)
        large = [org_id for org_id in unbuilt if await store.count_tail(tx, org_id, 0, MIN_EVENTS) == MIN_EVENTS]
        return [org_id for org_id in await list_organizations(tx) if org_id in large or org_id not in unbuilt]


def lower_priority() -> None:
    """Let the other processes of this machine go first."""
    os.nice(_LOWEST_PRIORITY)
