"""A backup that is taken under load restores the state of one moment (docs/trust.md B22)."""

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api.cli.backup import DUMP, MANIFEST
from api.embedded import Server
from api.store.migrate import require_fit_server
from tests.conftest import clone
from tests.installation import Installation
from tests.promises.conftest import Load, automate, query, until
from tests.servers import database_dsn, nodes
from tests.store.test_schema import catalog

TOTALS = "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM entries)"


@pytest.fixture
def dumped_dsn(postgres: Server, database_url: str) -> str:
    """The address for the backup: on Citus only a superuser's dump has all rows."""
    is_citus = len(nodes(postgres.admin_dsn)) > 1
    return database_dsn(postgres.admin_dsn, urlsplit(database_url).path[1:]) if is_citus else database_url


def without_brackets(found: list[tuple[str, str, str]]) -> list[list[str]]:
    """Return a catalog without brackets: Postgres sets other brackets when it restores its own dump."""
    return [[cell.translate({ord("("): None, ord(")"): None}) for cell in row] for row in found]


def command(installation: Installation, dsn: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **installation.environment, "DATABASE_URL": dsn, **changes}
    return subprocess.run(
        [sys.executable, "-m", "api", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def modes(folder: Path) -> dict[str, str]:
    return {path.name: stat.filemode(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_backup_without_traffic_is_restored_completely(
    installation: Installation, dumped_dsn: str, postgres: Server, template: str, tmp_path: Path
) -> None:
    keys = await installation.organization()
    with installation.start_api().client(keys["live"]) as backend:
        for number in range(20):
            event = {"event": "deposit", "contact": {"externalId": f"u{number % 5}"}, "idempotencyKey": f"k{number}"}
            assert backend.post("/events", json=event).json()["accepted"] is True
    installation.stop()
    folder = str(tmp_path / "backup")
    done = await asyncio.to_thread(command, installation, dumped_dsn, "backup", folder)
    assert done.returncode == 0, done.stderr
    assert modes(Path(folder)) == {DUMP: "-rw-------", MANIFEST: "-rw-------"}
    with clone(postgres, template) as other:
        done = await asyncio.to_thread(command, installation, other, "restore", folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert "; no contradictions" in done.stdout
        assert await query(other, TOTALS) == [(20, 20, 0)]
        await require_fit_server(other)
        assert without_brackets(catalog(other)) == without_brackets(catalog(installation.dsn))
        moved = Installation(other, tmp_path)
        try:
            with moved.start_api().client(keys["live"]) as backend:
                assert backend.post("/events", json=event).json()["deduplicated"] is True
        finally:
            moved.stop()


@pytest.mark.plain
async def test_b22_a_backup_under_load_is_restored_completely(
    installation: Installation, dumped_dsn: str, postgres: Server, template: str, tmp_path: Path
) -> None:
    keys = await installation.organization()
    load = Load(keys["live"], [installation.start_api()])
    automate(load.apis[0], keys["workbench"])
    running = asyncio.create_task(load.run())
    await until(lambda: load.count("new") >= 100)
    before = [key for key, answer in load.log if answer in ("new", "again")]
    folder = str(tmp_path / "backup")
    done = await asyncio.to_thread(command, installation, dumped_dsn, "backup", folder)
    assert (done.returncode, done.stdout.split()[1:3]) == (0, ["rows", "in"]), done.stderr
    enough = load.count("new") + 100
    await until(lambda: load.count("new") >= enough)
    load.stop()
    await running
    with clone(postgres, template) as other:
        done = await asyncio.to_thread(command, installation, other, "restore", folder)
        assert done.returncode == 0, done.stderr
        assert "; no contradictions" in done.stdout
        ((events, identifiers, entries),) = await query(other, TOTALS)
        assert len(before) <= events == identifiers == entries < (await query(installation.dsn, TOTALS))[0][0]
        restored = {key for (key,) in await query(other, "SELECT idempotency_key FROM events")}
        assert restored >= set(before)
        again = await asyncio.to_thread(command, installation, other, "restore", folder)
        assert (again.returncode, again.stderr) == (
            1,
            "workbench: this database contains data of organizations; restore into an empty database\n",
        )
        moved = Installation(other, tmp_path)
        try:
            with moved.start_api().client(keys["live"]) as backend:
                event = load.sent[before[0]]
                assert backend.post("/events", json=event).json()["deduplicated"] is True
            with moved.start_api().client(keys["workbench"]) as analyst:
                rows = analyst.post("/sql", json={"sql": "SELECT count(*) FROM app_events"}).json()["rows"]
                assert rows == [[events]]
        finally:
            moved.stop()


def test_a_backup_is_complete_private_and_bound_to_one_secret(
    installation: Installation, dumped_dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    assert command(installation, dumped_dsn, "backup", str(folder)).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["database.dump", "manifest.json"]
    assert folder.stat().st_mode & 0o077 == 0
    assert "already exists" in command(installation, dumped_dsn, "backup", str(folder)).stderr
    other = {"WORKBENCH_SECRET": "another-secret-of-forty-characters-xxxxx"}
    assert "made with another secret" in command(installation, installation.dsn, "restore", str(folder), **other).stderr


def test_a_backup_of_another_format_is_refused_with_what_to_do(
    installation: Installation, dumped_dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    assert command(installation, dumped_dsn, "backup", str(folder)).returncode == 0
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    assert '"format": 2' in text
    for number in (1, 3):
        manifest.write_text(text.replace('"format": 2', f'"format": {number}'))
        assert command(installation, installation.dsn, "restore", str(folder)).stderr == (
            f"workbench: {folder} is a backup of format {number}, and this version reads format 2; "
            "restore it with the version that made it\n"
        )


@pytest.mark.parametrize("spoilt", ["manifest.json", "database.dump"])
def test_a_damaged_backup_is_refused_and_changes_nothing(
    installation: Installation, dumped_dsn: str, tmp_path: Path, spoilt: str
) -> None:
    folder = tmp_path / "backup"
    assert command(installation, dumped_dsn, "backup", str(folder)).returncode == 0
    whole = (folder / spoilt).read_bytes()
    (folder / spoilt).write_bytes(whole[: len(whole) // 2])
    done = command(installation, installation.dsn, "restore", str(folder))
    assert done.returncode == 1
    assert done.stderr.startswith("workbench: ")
    assert "Traceback" not in done.stderr
