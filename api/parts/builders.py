"""Processes that build parts: an engine looks every minute, and starts one if there is enough to do.

A process of its own, because building uses a core for seconds and up to 700 MB, and an engine has to send
messages meanwhile. It has a low priority. Of several engines, one builds for an organization at a time; of several
machines, the one whose data folder has the files, until no engine has looked after that folder for an hour. With
`WORKBENCH_PARTS=off` an engine drops the parts in its folder instead, because nothing would remove erased contacts from
them.
"""

import asyncio
import contextlib
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
from api.store.database import Database, DatabaseUnavailableError, is_distributed, key_value_dsn

CHECK_INTERVAL_S = 60.0
MIN_EVENTS = 400_000  # at 250,000, some reports cost less CPU by SQL: the process that counts takes 0.15 s or more
NEW_EVENTS = 5_000  # fewer cost a reader about 10 ms
MAX_BUILD_DELAY = timedelta(hours=1)
_UNBUILT_INTERVAL = timedelta(hours=1)
_PAUSE_AFTER_FAILURE = timedelta(minutes=10)
_LOWEST_PRIORITY = 19
_CONNECTIONS = 3  # for the turn, a snapshot, and what is written meanwhile
STATEMENT_MS = 600_000

_log = logging.getLogger("workbench.parts")


async def keep_built(database: Database, settings: Settings, dsn: str, clock: Clock) -> None:
    """Start builders until cancelled, and keep other machines from building the parts in this folder meanwhile."""
    due = DueBuilds(database, settings.data_dir)

    async def keep_folder() -> None:
        folder = await files.look(files.find_folder_id, settings.data_dir)
        async with database.transaction() as tx:
            await store.keep_folder(tx, folder, clock.now())

    async def build_due() -> None:
        await tidy_up(database, settings.data_dir)
        org_ids = await due.find_due(clock.now())
        if org_ids and not await start_builder(settings, dsn, org_ids):
            due.pause(clock.now())

    async with asyncio.TaskGroup() as jobs:  # a first build takes longer than the lease on the folder
        jobs.create_task(every(CHECK_INTERVAL_S, "keep_parts_folder", keep_folder))
        jobs.create_task(every(CHECK_INTERVAL_S, "build_parts", build_due))


async def keep_dropped(database: Database, data_dir: Path, clock: Clock) -> None:
    """Drop the parts in this folder until cancelled: they are switched off."""

    async def drop_built() -> None:
        await drop_all(database, data_dir, clock.now())
        await tidy_up(database, data_dir)

    await every(CHECK_INTERVAL_S, "drop_parts", drop_built)


async def drop_all(database: Database, data_dir: Path, at: datetime) -> None:
    """Drop the parts of every organization that has its files in `data_dir`."""
    folder = await files.look(files.find_folder_id, data_dir)
    async with database.transaction() as tx:
        if await is_distributed(tx):
            return
        org_ids = [row.org_id for row in await store.list_progress(tx) if row.folder == folder]
    for org_id in org_ids:
        with contextlib.suppress(build.BusyError):  # the next run drops them
            await build.drop(database, data_dir, org_id, at)


async def tidy_up(database: Database, data_dir: Path) -> None:
    """Delete unused files in `data_dir`, and marks of touched contacts in organizations without parts."""
    folder = await files.look(files.find_folder_id, data_dir)
    async with database.transaction() as tx:
        if await is_distributed(tx):
            return
        organizations = await list_organizations(tx)
        folders = {row.org_id: row.folder for row in await store.list_progress(tx)}
        org_ids = set(await store.list_marked_without_parts(tx))
    for org_id in organizations:
        unused = [] if folders.get(org_id) == folder else await files.look(files.list_files, data_dir, org_id)
        if unused:
            org_ids.add(org_id)
    for org_id in sorted(org_ids):
        with contextlib.suppress(build.BusyError):
            await build.tidy(database, data_dir, org_id)


class DueBuilds:
    """Decides which organizations need a builder."""

    def __init__(self, database: Database, data_dir: Path) -> None:
        self._database, self._data_dir = database, data_dir
        self._paused_until: datetime | None = None
        self._next_search: datetime | None = None
        self._has_logged_citus = False

    def pause(self, now: datetime) -> None:
        """Look again after a while: the last builder failed."""
        self._paused_until = now + _PAUSE_AFTER_FAILURE

    async def find_due(self, now: datetime) -> list[int]:
        """Return the organizations with work for a builder."""
        if self._paused_until is not None and now < self._paused_until:
            return []
        folder = await files.look(files.find_folder_id, self._data_dir)
        async with self._database.transaction() as tx:
            if await is_distributed(tx):
                if not self._has_logged_citus:
                    self._has_logged_citus = True
                    _log.warning("parts_unsupported", extra={"reason": build.ON_CITUS})
                return []
            oldest, _ = await store.find_oldest_open(tx)
            due = await store.find_due(
                tx, folder, oldest, NEW_EVENTS, now - MAX_BUILD_DELAY, now - timedelta(seconds=build.REMOVED_FILE_S)
            )
            due += await store.find_rewrites_due(tx, folder, now - build.REWRITE_INTERVAL, build.MANY_TOUCHED)
            if self._next_search is None or now >= self._next_search:
                # Not at the start: after an outage the engine of the other machine may start a little later.
                if self._next_search is not None:
                    due += await store.list_abandoned(tx, folder, now - build.FOLDER_LEASE)
                self._next_search = now + _UNBUILT_INTERVAL
                for org_id in await store.list_unbuilt(tx):
                    if await store.count_tail(tx, org_id, 0, MIN_EVENTS) == MIN_EVENTS:
                        due.append(org_id)
        return sorted(set(due))


async def start_builder(settings: Settings, dsn: str, org_ids: Sequence[int]) -> bool:
    """Build for organizations in a process of its own; return whether it succeeded."""
    environment = child_environment({"DATABASE_URL": key_value_dsn(dsn), "WORKBENCH_DATA_DIR": str(settings.data_dir)})
    command = (sys.executable, "-P", "-m", "api", "parts", "build", "--ids", *map(str, org_ids))
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        return await process.wait() == 0
    finally:
        if process.returncode is None:  # the engine stops
            process.kill()


def of_organization(database: Database, org_id: int) -> Database:
    """Return a pool for a builder, which sees the rows of its organization only."""
    return Database(database.dsn, size=_CONNECTIONS, statement_ms=STATEMENT_MS, org=str(org_id))


async def build_all(
    database: Database, data_dir: Path, org_ids: Sequence[int], now: Callable[[], datetime]
) -> dict[int, str]:
    """Build for organizations, one after another; return why it failed for some. `parts status` shows the reason."""
    problems: dict[int, str] = {}
    for org_id in org_ids:
        try:
            async with of_organization(database, org_id) as own:
                result = await build.build(own, data_dir, org_id, now)
        except build.BusyError:
            continue
        except (build.OtherFolderError, build.UnsupportedError) as error:
            # Not a failed build: the files are elsewhere, or there can be none.
            problems[org_id] = str(error)
        except DatabaseUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001  one organization that fails must not keep the others from parts
            problems[org_id] = str(error) or repr(error)
            _log.exception("parts_not_built", extra={"org_id": org_id, "problem": problems[org_id]})
            if isinstance(error, files.DamagedFileError):  # the next run builds them again
                await build.drop(database, data_dir, org_id, now())
            else:
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
