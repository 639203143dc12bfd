"""The secret of a database: unusable, missing and foreign ones are refused; `workbench secret rotate` replaces it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest

from api.auth.keys import create_org
from api.cli import CommandError, database
from api.crypto import next_chain, read_chain
from api.embedded import Server
from api.settings import Settings
from tests.running import free_port

Run = Callable[..., tuple[int, str, str]]
Workbench = Callable[..., subprocess.CompletedProcess[str]]

NEW = "the new secret of these tests"
FOREIGN = "this is not the secret of this database"
DOCTOR_FAILS = "fail  the secret is missing, or it is not the secret of this database"
UNUSABLE = [
    (b"", "is shorter than 16 characters; restore the file from your copy"),
    (b"short\n", "is shorter than 16 characters; restore the file from your copy"),
    (b"a secret with the bytes \xff\xfe", "cannot be read: it is not UTF-8 text"),
    (b"a secret \x00 of two lines\nand more", "contains characters that cannot be printed"),
    (b"one of the secrets,another of them,next:third", "exactly one secret must have no role before it"),
    (b"a long secret of this database,next:short", "is shorter than 16 characters"),
]


@pytest.mark.parametrize(("content", "sentence"), UNUSABLE)
def test_an_unusable_secret_in_the_data_folder_is_refused(
    run: Run, tmp_path: Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "secret").write_bytes(content)
    (tmp_path / "secret").chmod(0o600)
    for command in (["org", "create", "acme"], ["engine"], ["serve", "--port", str(free_port())], ["up", "--no-lab"]):
        code, stdout, stderr = run(*command)
        assert (code, stdout, stderr.count("\n")) == (1, "", 1)
        assert sentence in stderr
    assert re.search(f"fail  .*{re.escape(sentence.partition(';')[0])}", run("doctor")[1])
    assert (tmp_path / "secret").read_bytes() == content


@pytest.mark.parametrize(
    "command", [["engine"], ["serve"], ["serve", "--workers", "2"], ["up", "--no-lab", "--no-demo"]]
)
def test_a_missing_or_foreign_secret_is_refused(run: Run, tmp_path: Path, command: list[str]) -> None:
    assert run("org", "create", "acme")[0] == 0
    key = run("key", "create", "--org", "acme", "--kind", "live")[1].strip()
    file = tmp_path / "secret"
    file.rename(tmp_path / "copy")
    process = [*command, *([] if command == ["engine"] else ["--port", str(free_port())])]

    def refusal(*arguments: str, secret: str = "") -> str:
        code, _, stderr = run(*arguments, secret=secret)
        assert code == 1
        return stderr

    assert (
        f"the secret {file} is missing, and the database contains data that only this secret can read; "
        "restore the file from your copy, or set WORKBENCH_SECRET"
    ) in refusal(*process)
    assert not file.exists()
    assert DOCTOR_FAILS in run("doctor")[1]
    file.write_text(NEW)
    assert f"workbench: {file}: {FOREIGN}" in refusal(*process)
    assert DOCTOR_FAILS in run("doctor")[1]
    create = ("key", "create", "--org", "acme", "--kind", "live")
    assert f"workbench: WORKBENCH_SECRET: {FOREIGN}" in refusal(*create, secret=NEW)
    (tmp_path / "copy").rename(file)
    assert "ok    the secret belongs to this database" in run("doctor")[1]
    assert run("key", "revoke", key)[0] == 0


def test_doctor_reports_a_missing_secret_next_to_a_stopped_database(workbench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "data" / "postgres").mkdir(parents=True)
    done = workbench("doctor", DATABASE_URL="")
    assert f"warn  the secret {tmp_path / 'data' / 'secret'} is missing\n" in done.stdout


def test_a_process_with_a_foreign_secret_ends_when_its_database_is_migrated(database_url: str) -> None:
    asyncio.run(create_org(database_url, "acme"))
    stopped = threading.Event()
    handler = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    urls, refusal = database.DatabaseUrls(database_url, None), Future[NoReturn]()
    checking = threading.Thread(target=database._stop_if_foreign, args=(Settings(secret=NEW), urls, NEW, refusal))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO workbench.root_secrets (fingerprints) VALUES ('{another}')")
        connection.execute("ALTER TABLE public.workbench_migrations RENAME TO later")
        connection.execute("ALTER TABLE workbench.root_secrets RENAME TO later")
        checking.start()
        checking.join(3)
        assert checking.is_alive()
        connection.execute("ALTER TABLE workbench.later RENAME TO root_secrets")
        connection.execute("ALTER TABLE public.later RENAME TO workbench_migrations")
    assert stopped.wait(60)
    checking.join()
    assert FOREIGN in str(refusal.exception())
    signal.signal(signal.SIGTERM, handler)


def test_a_secret_is_not_refused_while_another_transaction_holds_the_fingerprints(database_url: str) -> None:
    asyncio.run(create_org(database_url, "acme"))
    secret = Settings(secret=NEW), database.DatabaseUrls(database_url, None), NEW
    with psycopg.connect(database_url) as connection:
        connection.execute("INSERT INTO workbench.root_secrets (fingerprints) VALUES ('{another}')")
        connection.execute("LOCK TABLE workbench.root_secrets")
        assert not database.try_require_own_secret(*secret)
    with pytest.raises(CommandError, match=FOREIGN):
        database.try_require_own_secret(*secret)


@pytest.mark.parametrize("command", ["engine", "serve", "serve --workers 2", "chain"])
def test_a_process_that_finds_late_that_its_secret_is_foreign_fails(
    postgres: Server, database_url: str, workbench: Workbench, tmp_path: Path, command: str
) -> None:
    assert workbench("org", "create", "acme").returncode == 0
    name = urlsplit(database_url).path[1:]
    environment = {**os.environ, "DATABASE_URL": database_url, "WORKBENCH_DATA_DIR": str(tmp_path)}
    environment |= {"WORKBENCH_SECRET": NEW, "WORKBENCH_EVM_RPC": "http://127.0.0.1:1"}
    port = ["--port", str(free_port())] if command.startswith("serve") else []
    with psycopg.connect(postgres.admin_dsn, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        with subprocess.Popen(
            [sys.executable, "-m", "api", *command.split(), *port], env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            while "psycopg.pool" not in process.stderr.readline():  # it has started, and its pools try to connect
                assert process.poll() is None
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
            _, stderr = process.communicate(timeout=60)
    assert (process.returncode, f"workbench: WORKBENCH_SECRET: {FOREIGN}" in stderr) == (1, True)


def test_the_secret_of_a_database_without_organizations_may_change(run: Run) -> None:
    for secret in ("the first secret of the tests", NEW):
        assert run("secret", "rotate", secret=secret)[0] == 0
    assert run("org", "create", "acme", secret=NEW)[0] == 0
    assert run("org", "create", "other", secret="the first secret of the tests")[0] == 1


def test_a_secret_in_the_data_folder_is_replaced_there(run: Run, tmp_path: Path) -> None:
    run("org", "create", "acme")
    key = run("key", "create", "--org", "acme", "--kind", "live")[1].strip()
    file = tmp_path / "secret"
    old = file.read_text().strip()
    assert "begin one with --new" in run("secret", "rotate")[2]
    parts = []
    for arguments in (["--new"], [], []):
        code, stdout, _ = run("secret", "rotate", *arguments)
        assert (code, stdout) == (0, "")
        parts.append(read_chain(file.read_text().strip()).part)
    assert parts == ["next", "former", "settled"]
    assert old not in file.read_text()
    assert run("key", "revoke", key)[0] == 0  # found by its new hash
    assert "the rotation is finished" in run("secret", "rotate")[2]
    assert "begin one with --new" in run("secret", "rotate")[2]


def test_during_a_rotation_the_secrets_of_two_phases_belong_to_the_database(run: Run) -> None:
    """A process is accepted with the secret of the phase that is done, and with that of the next one."""
    old = "the old secret of these tests"
    assert run("org", "create", "acme", secret=old)[0] == 0
    chains = [old, run("secret", "rotate", "--new", secret=old)[1].strip()]

    def accepted() -> list[str]:
        guessed = [chains[-1], next_chain(chains[-1], NEW), chains[-1].rpartition(":")[2], next_chain(old, NEW)]
        tried = dict.fromkeys([*chains, *guessed])
        return [chain for chain in tried if run("reader", "list", "--org", "acme", secret=chain)[0] == 0]

    assert accepted() == chains
    for _ in range(2):
        chains.append(run("secret", "rotate", secret=chains[-1])[1].strip())
        assert accepted() == chains[-2:]
    assert run("secret", "rotate", secret=chains[-1])[0] == 0
    assert accepted() == chains[-1:]


def test_a_secret_in_the_environment_is_printed_alone(run: Run) -> None:
    old = "a secret of the environment"
    code, stdout, note = run("secret", "rotate", "--new", secret=old)
    assert (code, stdout.startswith(f"{old},next:"), stdout.count("\n")) == (0, True, 1)
    assert "restart every process with this WORKBENCH_SECRET" in note
    code, stdout, note = run("secret", "rotate", secret="one of the two,another of them,next:third")
    assert (code, stdout) == (1, "")
    assert "exactly one secret must have no role before it" in note
