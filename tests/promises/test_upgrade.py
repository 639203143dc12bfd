"""A migration with real processes of two versions under load: no accepted event is lost, and no request is rejected
because of it.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psycopg

from api.store.database import libpq_dsn
from tests.installation import Api, Installation
from tests.promises.conftest import Load, automate, check_promises, query, until
from tests.promises.test_workers import get_health_status, has_ended, workers
from workbench import UnavailableError, Workbench
from workbench.language.version import VERSION

ROOT = Path(__file__).parents[2]
GROW = """
ALTER TABLE workbench.events ADD COLUMN source text NOT NULL DEFAULT '';
ALTER TABLE workbench.contacts ADD COLUMN score integer;
ALTER TABLE workbench.entries ADD COLUMN score integer;
ALTER TABLE workbench.engines ADD COLUMN note text NOT NULL DEFAULT '';
"""
INDEX = """-- outside a transaction
DROP INDEX CONCURRENTLY IF EXISTS workbench.contacts_by_score;
CREATE INDEX CONCURRENTLY contacts_by_score ON workbench.contacts (org_id, score);
"""
SHRINK = """-- contract: needs 0002_grow
ALTER TABLE workbench.engines DROP COLUMN next_due_at;
"""


def next_version(folder: Path) -> dict[str, str]:
    """Write the code of a future version, which uses a new column instead of an old one; return its environment."""
    for package in ("api", "sql", "workbench"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("canvas_src")
        )  # compiled modules, too: compiling takes longer than all else
    for name, text in {"0002_grow": GROW, "0003_index": INDEX, "0004_shrink": SHRINK}.items():
        (folder / "sql" / "migrations" / f"{name}.sql").write_text(text)
    for path, old, new in (
        ("workbench/language/version.py", f'"{VERSION}"', '"0.2.0"'),
        ("sql/queries/engines.sql", "seen_at, next_due_at)", "seen_at, note)"),
        (
            "sql/queries/engines.sql",
            ":now, :now, :next_due_at)",
            ":now, :now, coalesce(:next_due_at ::timestamptz::text, ''))",
        ),
        ("sql/queries/engines.sql", "next_due_at = excluded.next_due_at", "note = excluded.note"),
        (
            "sql/queries/engines.sql",
            "SELECT seen_at, next_due_at",
            "SELECT seen_at, nullif(note, '')::timestamptz AS next_due_at",
        ),
    ):
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new))
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


async def migrate(installation: Installation, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run `workbench migrate` to its end; return its exit code and its output."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "api", "migrate", *arguments],
        env={**os.environ, **installation.environment, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.strip()


async def test_b25_two_versions_work_during_a_migration_and_after_it(
    installation: Installation, tmp_path: Path
) -> None:
    new = next_version(tmp_path / "next")
    keys = await installation.organization()
    old_api, old_engine = installation.start_api(), installation.start_engine()
    automate(old_api, keys["workbench"])
    load = Load(keys["live"], [old_api])
    running = asyncio.create_task(load.run(clients=2))
    await send_more(load)
    async with await psycopg.AsyncConnection.connect(libpq_dsn(installation.dsn)) as analyst:
        await analyst.execute("SELECT count(*) FROM workbench.events")  # a long query that blocks the migration
        growing = asyncio.create_task(migrate(installation, **new))
        await wait_until_it_waits(installation)
        await send_more(load)
        assert not growing.done()
    assert await growing == (0, "applied: 0002_grow, 0003_index")

    new_api = await asyncio.to_thread(installation.start_api, **new)
    installation.start_engine(**new)
    load.apis.append(new_api)
    await send_more(load)
    await asyncio.to_thread(check_old_notebook, new_api, keys["workbench"])

    load.apis.remove(old_api)
    for process in (old_api.process, old_engine):
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
    assert await migrate(installation, "--contract", **new) == (0, "applied: 0004_shrink")
    await send_more(load)
    load.stop()
    await running
    await load.settle()
    await check_promises(installation.dsn, load, automations=1)


async def test_b25_workers_replaced_before_the_migration_leave_the_old_ones_running(
    installation: Installation, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    for package in ("api", "sql"):
        shutil.copytree(ROOT / package, code / package)
    own = {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    installation.log = tmp_path / "serve.log"
    api = installation.start_api("--workers", "2", **own)
    old = workers(api)
    (code / "sql" / "migrations" / "0002_grow.sql").write_text(GROW)
    api.process.send_signal(signal.SIGHUP)
    await until(lambda: "older than this code" in (tmp_path / "serve.log").read_text(), seconds=40)
    assert not any(map(has_ended, old))
    assert [await get_health_status(api) for _ in range(4)] == [200] * 4
    assert (await migrate(installation, **own))[0] == 0
    await until(lambda: all(map(has_ended, old)), seconds=60)
    assert await get_health_status(api) == 200


async def send_more(load: Load) -> None:
    """Send some more events."""
    enough = load.count("new") + 50
    await until(lambda: load.count("new") >= enough, seconds=60)


def check_old_notebook(new: Api, key: str) -> None:
    """Use the API of the future version with the notebook package of this one."""
    assert httpx.get(f"{new.url}/api/v1/version").json()["notebooks"] == {"oldest": "0.1", "newest": "0.2"}
    wb = Workbench(new.url, key)
    assert [automation.name for automation in wb.automations] == ["all"]
    rows, deadline = None, time.monotonic() + 30
    while rows is None:
        assert time.monotonic() < deadline
        # The first query creates the organization's role, which may conflict with the engine that starts now (503).
        with contextlib.suppress(UnavailableError):
            rows = wb.sql("SELECT count(*) > 0 AS any FROM app_events").to_dicts()
    assert rows == [{"any": True}]


async def wait_until_it_waits(installation: Installation) -> None:
    """Wait until a migration waits for a lock."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%ADD COLUMN source%%'"
    async with asyncio.timeout(20):
        while not await query(installation.dsn, waiting):
            await asyncio.sleep(0.005)
