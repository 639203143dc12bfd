"""`workbench parts`: files of events that answer questions about many events (docs/parts.md)."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from api.auth.keys import find_org_or_fail
from api.cli import CommandError
from api.cli.database import database
from api.cli.errors import add_action, add_actions, note, option, say
from api.clock import Clock
from api.parts import build as building
from api.parts import builders, files
from api.parts import verify as verifying
from api.process import install_logging
from api.settings import Settings
from api.store.access import list_organization_names
from api.store.database import Database

_Result = TypeVar("_Result")


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    org = option("--org", metavar="NAME", help="one organization (default: all that have parts)")
    add_action(actions, "status", show_status, "show what is in parts, and what is not yet", org)
    ids = option("--ids", type=int, nargs="+", help=argparse.SUPPRESS)  # from an engine
    description = "bring parts up to date; with --org, also of an organization that is too small for them"
    add_action(actions, "build", build, description, org, ids)
    add_action(actions, "verify", verify, "compare parts with the database; reads all events", org)
    add_action(actions, "drop", drop, "delete parts; engines build them again, unless WORKBENCH_PARTS=off", org)


def show_status(args: argparse.Namespace, settings: Settings) -> int:
    """Print one line per organization; return 1 if a build failed."""

    async def read(database: Database) -> dict[str, verifying.PartsStatus | None]:
        return {name: await verifying.read_status(database, org_id) for org_id, name in await _chosen(database, args)}

    statuses = _run(settings, read)
    for name, status in statuses.items():
        if status is None:
            say(f"{name}\tno parts")
            continue
        built_at = "never" if status.closed_at is None else status.closed_at.isoformat(timespec="seconds")
        events = f"{status.rows} events in {status.files} files, {status.size / 1e6:.1f} MB"
        waiting = f"{status.tail} not yet\tbuilt {built_at}\t{status.touched} contacts outdated"
        if status.erased_at is not None:
            waiting += f", among them erased ones since {status.erased_at.isoformat(timespec='seconds')}"
        if status.removed:
            waiting += f"\t{status.removed} files to delete"
        say(f"{name}\t{events}\t{waiting}\t{status.problem or 'ok'}")
    return int(any(status is not None and status.problem is not None for status in statuses.values()))


def build(args: argparse.Namespace, settings: Settings) -> int:
    """Build now; return 1 if that failed for an organization."""
    if args.ids is not None:
        install_logging()
        builders.lower_priority()
    clock = Clock()

    async def run(database: Database) -> int:
        await database.calibrate(clock)
        org_ids = args.ids or [org_id for org_id, _ in await _chosen(database, args)]
        if args.org is not None:
            async with builders.of_organization(database, org_ids[0]) as own:
                try:
                    result = await building.build(own, settings.data_dir, org_ids[0], clock.now)
                except (OSError, files.DamagedFileError) as error:
                    raise CommandError(f"the parts were not built: {error}") from error
            note(f"{result.added} events added, {result.rewritten} files rewritten, {result.deleted} files deleted")
            return 0
        problems = await builders.build_all(database, settings.data_dir, org_ids, clock.now)
        for org_id, problem in problems.items():
            note(f"organization {org_id}: {problem}")
        return int(bool(problems))

    try:
        return _run(settings, run)
    except (building.BusyError, building.OtherFolderError, building.UnsupportedError) as error:
        raise CommandError(str(error)) from error


def verify(args: argparse.Namespace, settings: Settings) -> int:
    """Print each difference; return 1 if there is one."""

    async def compare(database: Database) -> dict[str, list[str]]:
        chosen = await _chosen(database, args)
        return {name: await verifying.verify(database, settings.data_dir, org_id) for org_id, name in chosen}

    results = _run(settings, compare)
    for name, differences in results.items():
        for difference in differences or ["parts and database are equal"]:
            say(f"{name}\t{difference}")
    return int(any(results.values()))


def drop(args: argparse.Namespace, settings: Settings) -> None:
    clock = Clock()

    async def run(database: Database) -> list[tuple[str, int]]:
        at, data_dir = await database.calibrate(clock), settings.data_dir
        chosen = await _chosen(database, args)
        return [(name, await building.drop(database, data_dir, org_id, at)) for org_id, name in chosen]

    try:
        for name, count in _run(settings, run):
            note(f"{name}: {count} files are no longer used")
    except (building.BusyError, building.UnsupportedError) as error:
        raise CommandError(str(error)) from error


async def _chosen(database: Database, args: argparse.Namespace) -> list[tuple[int, str]]:
    """Return the ids and names of the organization in `--org`, or of all with parts or enough events for them."""
    async with database.transaction() as tx:
        if args.org is not None:
            return [(await find_org_or_fail(tx, args.org), args.org)]
        names = await list_organization_names(tx)
    return [(org_id, names[org_id]) for org_id in await builders.large_organizations(database)]


def _run(settings: Settings, work: Callable[[Database], Awaitable[_Result]]) -> _Result:
    async def run(dsn: str) -> _Result:
        async with Database(dsn, size=3, statement_ms=builders.STATEMENT_MS) as pool:
            return await work(pool)

    with database(settings) as urls:
        return asyncio.run(run(urls.dsn))
