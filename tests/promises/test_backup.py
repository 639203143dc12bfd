"""A backup that is taken under load comes back as it was at one moment (docs/trust.md B22)."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api.embedded import Server
from api.store.migrate import require_fit_server
from tests.acceptance.conftest import House
from tests.conftest import clone
from tests.promises.conftest import Load, automate, query, until
from tests.servers import database_dsn, nodes
from tests.store.test_schema import catalog

TOTALS = "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM entries)"


@pytest.fixture
def dumped_dsn(postgres: Server, database_url: str) -> str:
    """The address to back the house up from: on Citus a dump shows all rows to a superuser alone."""
    is_citus = len(nodes(postgres.admin_dsn)) > 1
    return database_dsn(postgres.admin_dsn, urlsplit(database_url).path[1:]) if is_citus else database_url


def without_brackets(found: list[tuple[str, str, str]]) -> list[list[str]]:
    """Return a catalog as it reads without brackets: Postgres sets others when it reads what it has written."""
    return [[cell.translate({ord("("): None, ord(")"): None}) for cell in row] for row in found]


def command(house: House, dsn: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **house.environment, "DATABASE_URL": dsn, **changes}
    return subprocess.run(
        [sys.executable, "-m", "api", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_a_backup_of_a_house_at_rest_comes_back_whole(
    house: House, dumped_dsn: str, postgres: Server, template: str, tmp_path: Path
) -> None:
    keys = await house.organization()
    with house.start_api().client(keys["live"]) as backend:
        for number in range(20):
            event = {"event": "deposit", "contact": {"externalId": f"u{number % 5}"}, "idempotencyKey": f"k{number}"}
            assert backend.post("/events", json=event).json()["accepted"] is True
    house.stop()
    folder = str(tmp_path / "backup")
    done = await asyncio.to_thread(command, house, dumped_dsn, "backup", folder)
    assert done.returncode == 0, done.stderr
    with clone(postgres, template) as other:
        done = await asyncio.to_thread(command, house, other, "restore", folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert "; no contradictions" in done.stdout
        assert await query(other, TOTALS) == [(20, 20, 0)]
        await require_fit_server(other)
        assert without_brackets(catalog(other)) == without_brackets(catalog(house.dsn))
        moved = House(other, tmp_path)
        try:
            with moved.start_api().client(keys["live"]) as backend:
                assert backend.post("/events", json=event).json()["deduplicated"] is True
        finally:
            moved.stop()


@pytest.mark.plain
async def test_b22_a_backup_under_load_comes_back_whole(
    house: House, dumped_dsn: str, postgres: Server, template: str, tmp_path: Path
) -> None:
    keys = await house.organization()
    load = Load(keys["live"], [house.start_api()])
    automate(load.apis[0], keys["workbench"])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 100)
    before = [key for key, answer in load.log if answer in ("new", "again")]
    folder = str(tmp_path / "backup")
    done = await asyncio.to_thread(command, house, dumped_dsn, "backup", folder)
    assert (done.returncode, done.stdout.split()[1:3]) == (0, ["rows", "in"]), done.stderr
    enough = load.count("new") + 100
    await until(lambda: load.count("new") >= enough)
    load.stop()
    await running
    with clone(postgres, template) as other:
        done = await asyncio.to_thread(command, house, other, "restore", folder)
        assert done.returncode == 0, done.stderr
        assert "; no contradictions" in done.stdout
        ((events, identifiers, entries),) = await query(other, TOTALS)
        assert len(before) <= events == identifiers == entries < (await query(house.dsn, TOTALS))[0][0]
        restored = {key for (key,) in await query(other, "SELECT idempotency_key FROM events")}
        assert restored >= set(before)
        again = await asyncio.to_thread(command, house, other, "restore", folder)
        assert (again.returncode, again.stderr) == (
            1,
            "workbench: this database contains data of organizations; restore into an empty database\n",
        )
        moved = House(other, tmp_path)
        try:
            with moved.start_api().client(keys["live"]) as backend:
                event = load.sent[before[0]]
                assert backend.post("/events", json=event).json()["deduplicated"] is True
            with moved.start_api().client(keys["workbench"]) as analyst:
                rows = analyst.post("/sql", json={"sql": "SELECT count(*) FROM app_events"}).json()["rows"]
                assert rows == [[events]]
        finally:
            moved.stop()


def test_a_backup_is_whole_private_and_of_one_secret(house: House, dumped_dsn: str, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    assert command(house, dumped_dsn, "backup", str(folder)).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["database.dump", "manifest.json"]
    assert folder.stat().st_mode & 0o077 == 0
    assert "already exists" in command(house, dumped_dsn, "backup", str(folder)).stderr
    other = {"WORKBENCH_SECRET": "another-secret-of-forty-characters-xxxxx"}
    assert "made with another secret" in command(house, house.dsn, "restore", str(folder), **other).stderr


@pytest.mark.parametrize("spoilt", ["manifest.json", "database.dump"])
def test_a_damaged_backup_is_refused_and_changes_nothing(
    house: House, dumped_dsn: str, tmp_path: Path, spoilt: str
) -> None:
    folder = tmp_path / "backup"
    assert command(house, dumped_dsn, "backup", str(folder)).returncode == 0
    whole = (folder / spoilt).read_bytes()
    (folder / spoilt).write_bytes(whole[: len(whole) // 2])
    done = command(house, house.dsn, "restore", str(folder))
    assert done.returncode == 1
    assert done.stderr.startswith("workbench: ")
    assert "Traceback" not in done.stderr
