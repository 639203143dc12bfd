"""Several machines on one database, each with its own data folder, or with shared parts; and a restored database."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from api.embedded import Server
from tests.conftest import clone
from tests.installation import Api, Installation, installation
from tests.promises.test_backup import command

__all__ = ["installation"]

pytestmark = pytest.mark.plain

ROUNDS = int(os.environ.get("BUILDER_ROUNDS", "3"))
FUNNEL = {"since": "2026-01-01T00:00:00Z", "until": "2036-01-01T00:00:00Z", "steps": ["visit", "buy"]}


def start_command(installation: Installation, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `workbench parts …` with a data folder."""
    environment = {**installation.environment, "WORKBENCH_DATA_DIR": str(folder)}
    command = [sys.executable, "-m", "api", "parts", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


async def run_command(installation: Installation, folder: Path, *arguments: str) -> tuple[int, str]:
    process = start_command(installation, folder, *arguments)
    output, _ = await asyncio.to_thread(process.communicate)
    return process.returncode, output


def send(api: Api, key: str, first: int, last: int) -> None:
    with api.client(key) as client:
        for start in range(first, last, 50):
            events = [
                {"event": ("visit", "buy")[number % 2], "contact": {"externalId": f"c-{number % 7}"}}
                for number in range(start, min(start + 50, last))
            ]
            client.post("/events/batch", json={"events": events}).raise_for_status()


def ask(api: Api, key: str) -> tuple[str, Any]:
    """Return where the answer of a funnel came from, and its rows."""
    with api.client(key) as client:
        response: httpx.Response = client.post("/reports/funnel", json=FUNNEL).raise_for_status()
    return response.headers["Answered-From"], response.json()["rows"]


async def test_machines_with_data_folders_of_their_own(installation: Installation, tmp_path: Path) -> None:
    keys = await installation.organization()
    here, there = tmp_path / "here", tmp_path / "there"
    first, second = [installation.start_api(WORKBENCH_DATA_DIR=str(folder)) for folder in (here, there)]
    send(first, keys["live"], 0, 60)
    assert (await run_command(installation, here, "build", "--org", "demo"))[0] == 0
    code, output = await run_command(installation, there, "build", "--org", "demo")
    assert (code, "are in the data folder of another machine" in output) == (1, True)
    source, rows = ask(first, keys["workbench"])
    assert (source, [row[2] for row in rows]) == ("parts", [7, 7])
    assert ask(second, keys["workbench"]) == ("sql", rows)
    first.process.kill()
    first.process.wait()
    assert ask(second, keys["workbench"]) == ("sql", rows)
    with psycopg.connect(installation.dsn) as connection:  # as if no engine had run on that machine for an hour
        connection.execute("SET workbench.org = '*'")
        connection.execute("UPDATE workbench.part_progress SET kept_at = now() - interval '61 minutes'")
    assert (await run_command(installation, there, "build", "--org", "demo"))[0] == 0
    assert ask(second, keys["workbench"]) == ("parts", rows)
    again = installation.start_api(WORKBENCH_DATA_DIR=str(here))
    assert ask(again, keys["workbench"]) == ("sql", rows)
    assert (await run_command(installation, here, "build", "--org", "demo"))[0] == 1
    assert await run_command(installation, there, "verify") == (0, "demo\tparts and database are equal\n")


async def test_machines_that_share_the_folder_of_parts(installation: Installation, tmp_path: Path) -> None:
    """Two builders at a time, one of which is killed at any moment, and two servers that read what they build."""
    keys = await installation.organization()
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    (tmp_path / "shared").mkdir()
    for folder in folders:
        (folder / "parts").symlink_to(tmp_path / "shared")
    apis = [installation.start_api(WORKBENCH_DATA_DIR=str(folder)) for folder in folders]
    chance = random.Random(ROUNDS)
    for number in range(ROUNDS):
        send(apis[number % 2], keys["live"], 60 * number, 60 * number + 60)
        started = [start_command(installation, folder, "build", "--org", "demo") for folder in folders]
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        started[number % 2].kill()
        outputs = [(await asyncio.to_thread(process.communicate))[0] for process in started]
        assert all(code in (0, 1, -9) for code in (process.returncode for process in started)), outputs
        rows, other_rows = [ask(api, keys["workbench"])[1] for api in apis]
        assert rows == other_rows
        assert [row[2] for row in rows] == [7, 7]
    for folder in folders:
        code, output = await run_command(installation, folder, "build", "--org", "demo")
        assert code == 0, output
    assert [ask(api, keys["workbench"])[0] for api in apis] == ["parts", "parts"]
    assert await run_command(installation, folders[1], "verify") == (0, "demo\tparts and database are equal\n")
    with psycopg.connect(installation.dsn) as connection:
        connection.execute("SET workbench.org = '*'")
        row = connection.execute("SELECT count(*), sum(rows) FILTER (WHERE removed_at IS NULL) FROM workbench.parts")
        files, events = row.fetchone() or (0, 0)
    assert (len([*(tmp_path / "shared" / "1").iterdir()]), events) == (files, 60 * ROUNDS)


async def test_a_backup_that_is_older_than_the_files(
    installation: Installation, postgres: Server, template: str, tmp_path: Path
) -> None:
    """The folder has events that the restored database does not have, and the cluster is the same."""
    keys = await installation.organization()
    api = installation.start_api()

    def run(dsn: str, *arguments: str) -> str:
        done = command(installation, dsn, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    send(api, keys["live"], 0, 5)
    run(installation.dsn, "parts", "build", "--org", "demo")
    source, rows = ask(api, keys["workbench"])
    assert (source, [row[2] for row in rows]) == ("parts", [3, 0])
    run(installation.dsn, "backup", str(tmp_path / "backup"))
    send(api, keys["live"], 5, 60)
    run(installation.dsn, "parts", "build", "--org", "demo")
    source, later = ask(api, keys["workbench"])
    assert (source, [row[2] for row in later]) == ("parts", [7, 7])
    with clone(postgres, template) as other:
        run(other, "restore", str(tmp_path / "backup"))
        moved = Installation(other, tmp_path)
        try:
            api = moved.start_api()
            assert ask(api, keys["workbench"]) == ("sql", rows)
            run(other, "parts", "build", "--org", "demo")
            assert ask(api, keys["workbench"]) == ("parts", rows)
        finally:
            moved.stop()
        assert run(other, "parts", "verify") == "demo\tparts and database are equal\n"
        assert len([*(tmp_path / "parts" / "1").iterdir()]) == 1
