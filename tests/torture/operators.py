"""Operators run commands beside the load: they look at the installation, back it up, pull automations, and start
processes with a secret that is missing, short, empty or foreign. A direct login lifts its own limits.

Whatever fails at that moment, a command ends with an exit code and a sentence.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import LiteralString

import psycopg

from tests.running import free_port
from tests.torture.installation import Installation
from tests.torture.leaks import ORGANIZATIONS
from tests.torture.log import CommandRun, LiftedLimit, Log, now_us
from tests.torture.terminals import shown

BACKUP = "backup"
PULLED = "pulled file"
REFUSED_START = "a start with "
_PAUSES_S = (3.0, 10.0)  # a command takes a second of processor time
_KILLED_AFTER_S = 120.0
_PUT_BACK_WITHIN_US = 60_000_000
_STARTS = (["serve", "--port", "{port}"], ["serve", "--port", "{port}", "--workers", "2"], ["engine"])
_SECRETS = {
    "no secret": None,
    "a short secret": "short",
    "an empty secret": "",
    "a foreign secret": "the secret of another installation",
    "a secret that is no text": "\udcff\udcfe of bytes that are no text",
}


class Operators:
    """Runs commands with the environment of an installation, each in a new folder, and logs how they ended."""

    def __init__(self, installation: Installation, seed: int, log: Log) -> None:
        self._environment = installation.environment
        self._url = installation.urls[0]
        self._metrics = installation.metrics
        self._keys = installation.accounts[0].keys
        self._chance = Random(f"{seed}/operators")
        self._log = log
        self._logins: dict[str, str] = {}

    async def create_logins(self) -> None:
        """Create the direct login of each organization, before the faults begin."""
        for org in ORGANIZATIONS:
            run = await self._run("reader create", "reader", "create", "--org", org)
            (self._logins[org],) = (line for line in run.output.splitlines() if line.startswith("postgresql://"))

    async def work(self) -> None:
        """Run random commands until cancelled."""
        while True:
            await asyncio.sleep(self._chance.uniform(*_PAUSES_S))
            await self._chance.choice((self._look, self._back_up, self._pull, self._start_wrongly, self._lift))()

    async def do_everything(self) -> None:
        """Run every command once, without faults."""
        await self._look()
        await self._back_up()
        await self._pull()
        for place, secret in enumerate(_SECRETS):
            await self._start(_STARTS[place % len(_STARTS)], secret, in_file=place % 2 == 0)
        await self._lift()

    async def _look(self) -> None:
        for words in (
            ["top", "--once", "--url", self._metrics],
            ["key", "list", "--org", ORGANIZATIONS[0]],
            ["reader", "list", "--org", ORGANIZATIONS[1]],
            ["doctor"],
        ):
            await self._run(" ".join(words[:2]), *words)

    async def _back_up(self) -> None:
        await self._run(BACKUP, "backup", "{folder}/backup")

    async def _pull(self) -> None:
        environment = {"WORKBENCH_URL": self._url, "WORKBENCH_KEY": self._keys["admin"]}
        await self._run("automations plan", "automations", "plan", "{folder}", **environment)
        await self._run(PULLED, "automations", "pull", "{folder}", **environment)

    async def _start_wrongly(self) -> None:
        chance = self._chance
        await self._start(chance.choice(_STARTS), chance.choice(list(_SECRETS)), in_file=chance.random() < 0.5)

    async def _start(self, words: list[str], secret: str, *, in_file: bool) -> None:
        value = _SECRETS[secret]
        files = {"secret": value} if in_file and value is not None else {}
        own = "" if in_file or value is None else value
        name = f"{REFUSED_START}{secret} in {'its file' if in_file else 'the environment'}: {words[0]}"
        await self._run(name, *words, files=files, WORKBENCH_SECRET=own)

    async def _run(self, name: str, *words: str, files: dict[str, str] | None = None, **environment: str) -> CommandRun:
        """Run a command in a data folder of its own with some `files`."""
        with tempfile.TemporaryDirectory(prefix="workbench-operator-") as home:
            folder = Path(home)
            for file, text in (files or {}).items():
                (folder / file).write_bytes(os.fsencode(text))
            given = _files(folder)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "api"),
                *(word.format(folder=folder, port=free_port()) for word in words),
                env={**self._environment, "WORKBENCH_DATA_DIR": home, **environment},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output = b""
            try:
                async with asyncio.timeout(_KILLED_AFTER_S):
                    output, _ = await process.communicate()
            except TimeoutError:
                output = b"it did not end"
            finally:
                if (code := process.returncode) is None:
                    process.kill()
                    await process.wait()
            made = {path: mode for path, mode in _files(folder).items() if path not in given}
            run = CommandRun(
                name, code, output.decode(errors="replace"), {path.name: mode for path, mode in made.items()}
            )
            self._log.commands.append(run)
            self._log.shown.append(shown(f"output of {name}", run.output))
            if name == PULLED:
                self._log.shown += [shown(PULLED, path.read_text()) for path in made if path.suffix]
            return run

    async def _lift(self) -> None:
        """Remove a limit of a direct login for its later sessions, and look until it is back."""
        org = self._chance.choice(ORGANIZATIONS)
        if await self._ask(org, "ALTER ROLE CURRENT_USER SET statement_timeout = 0") is None:
            return
        began = now_us()
        while now_us() < began + _PUT_BACK_WITHIN_US:
            if await self._ask(org, "SHOW statement_timeout") not in (None, "0"):
                self._log.lifted.append(LiftedLimit(org, began, now_us()))
                return
            await asyncio.sleep(0.1)
        self._log.lifted.append(LiftedLimit(org, began, 0))

    async def _ask(self, org: str, statement: LiteralString) -> str | None:
        """Return the result of a statement in a new session of a direct login; None if it is not known."""
        try:
            async with await psycopg.AsyncConnection.connect(
                self._logins[org], autocommit=True, options="-c default_transaction_read_only=off"
            ) as connection:
                cursor = await connection.execute(statement)
                return "" if cursor.description is None else str((await cursor.fetchone() or [""])[0])
        except psycopg.Error:
            return None


def _files(folder: Path) -> dict[Path, int]:
    """Return the files and folders below a folder with their modes."""
    return {path: path.stat().st_mode & 0o777 for path in sorted(folder.rglob("*"))}
