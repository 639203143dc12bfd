"""A second installation beside the load: `workbench up` with its own Postgres and data folder. Its children are killed
while their logs cannot be written, no process can be started, or the secret is gone.

Each attack kills a child, waits until `up` says what is wrong and runs the child if it can, puts everything right, and
waits until the child runs. Meanwhile the other children must stay the same processes, and the API must serve.
"""

import asyncio
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random

import httpx
import msgspec

from api.embedded.paths import find_paths
from tests.running import free_port
from tests.torture.installation import children
from tests.torture.log import AttackOnUp, Log

_WITHIN_S = 180.0
_PAUSES_S = (20.0, 90.0)  # after a minute a child is restarted after a second again
_RESTARTED = "stopped (SIGKILL); restarting it in "


class Way(msgspec.Struct, frozen=True):
    """A way to attack: the child that is killed, what `up` says then, and whether the child can run nevertheless."""

    name: str
    victim: str
    expected_output: str
    can_run: bool = True


WAYS = (
    Way("the disk of its log is full", "api", _RESTARTED),
    Way("no file can be opened", "api", "cannot be started: ", can_run=False),
    Way("its log folder is lost", "engine", _RESTARTED),
    Way("its log is read-only", "engine", "writes to this terminal, because its log cannot be opened: "),
    Way("the secret is empty", "engine", "stopped (exit code 1); restarting it in ", can_run=False),
)


class Supervised:
    """A running `workbench up`; what it reports is in `log`, and the disk of its standard output is full."""

    def __init__(self, home: Path, log: Path) -> None:
        self.log = log
        home.chmod(0o755)  # Postgres may run as a user of its own
        self._data = home / "data"
        self._port = free_port()
        self._http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", timeout=20)
        without = ("DATABASE_URL", "PGOPTIONS", "WORKBENCH_SECRET")
        command = ["up", "--no-lab", "--no-demo", "--port", str(self._port), "--data-dir", str(self._data)]
        with log.open("wb") as reports, Path("/dev/full").open("wb") as full:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "api", *command],
                env={name: value for name, value in os.environ.items() if name not in without},
                cwd=Path(__file__).parents[2],
                stdout=full,
                stderr=reports,
            )

    async def attack(self, seed: int, log: Log, is_over: Callable[[], bool]) -> None:
        """Attack in every way once, then in random ways until the load is over."""
        chance = Random(f"{seed}/up")
        await _until(self._is_ready)
        await asyncio.to_thread(self._create_organization)  # from now on no secret may be made
        for way in itertools.chain(WAYS, iter(lambda: chance.choice(WAYS), None)):
            if len(log.attacks) >= len(WAYS):
                if is_over():
                    return
                await asyncio.sleep(chance.uniform(*_PAUSES_S))
            log.attacks.append(await self._attack(way))

    async def close(self) -> None:
        """Stop `up`, and remove its data, which lies outside of its folder if Postgres runs as a user of its own."""
        await self._http.aclose()
        self._process.send_signal(signal.SIGINT)
        try:
            await asyncio.to_thread(self._process.wait, _WITHIN_S)
        finally:
            self._process.kill()
            if (paths := find_paths(self._data)) is not None:
                shutil.rmtree(paths.state, ignore_errors=True)

    async def _attack(self, way: Way) -> AttackOnUp:
        async def is_whole() -> bool:
            return len(self._children()) == 3

        await _until(is_whole)
        before, said, statuses = self._children(), self.log.stat().st_size, list[int]()

        async def is_restarted() -> bool:
            if way.victim != "api":
                statuses.append(await self._status("/healthz"))
            restarted = self._children().get(way.victim, before[way.victim]) != before[way.victim]
            return restarted and await self._is_ready()

        with self._damaged(way):
            os.kill(before[way.victim], signal.SIGKILL)
            await _until(self._is_said(said, f"{way.victim} {way.expected_output}"))
            if way.can_run:
                await _until(is_restarted)
        restarted = await _until(is_restarted)
        output = self._said(said)
        kept = {**self._children(), way.victim: 0} == {**before, way.victim: 0}
        return AttackOnUp(way.name, way.victim, way.expected_output, output, statuses, kept, restarted)

    @contextmanager
    def _damaged(self, way: Way) -> Iterator[None]:
        """Damage the installation of `up`, then put it right."""
        logs, secret = self._data / "logs", self._data / "secret"
        log = logs / f"{way.victim}.log"
        match way.name:
            case "its log folder is lost":
                shutil.rmtree(logs)
                yield
            case "its log is read-only":
                aside = logs.rename(logs.with_name("aside"))
                logs.symlink_to("/proc")  # a file system in which not even root can create a file
                try:
                    yield
                finally:
                    logs.unlink()
                    aside.rename(logs)
            case "the disk of its log is full":
                log.unlink(missing_ok=True)  # lost with its folder
                log.symlink_to("/dev/full")
                try:
                    yield
                finally:
                    log.unlink()
            case "no file can be opened":
                usual = resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
                try:
                    yield
                finally:
                    resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, usual)
            case "the secret is empty":
                text = secret.read_text()
                secret.write_text("")
                try:
                    yield
                finally:
                    secret.write_text(text)
            case other:
                raise AssertionError(other)

    def _children(self) -> dict[str, int]:
        """Return the pids of the children by name."""
        found = {}
        for pid in children(self._process.pid):
            with suppress(FileNotFoundError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                kinds = {"serve": "api", "engine": "engine", "-D": "postgres"}
                found |= {name: pid for word, name in kinds.items() if word in words}
        return found

    def _said(self, begin: int) -> str:
        return self.log.read_bytes()[begin:].decode()

    def _is_said(self, begin: int, words: str) -> Callable[[], Awaitable[bool]]:
        async def is_said() -> bool:
            return words in self._said(begin)

        return is_said

    def _create_organization(self) -> None:
        command = [sys.executable, "-m", "api", "org", "create", "acme", "--data-dir", str(self._data)]
        environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PGOPTIONS")}
        subprocess.run(command, env=environment, check=True, capture_output=True)

    async def _is_ready(self) -> bool:
        return await self._status("/readyz") == 200

    async def _status(self, path: str) -> int:
        """Return the status of an answer of the API, 0 without one."""
        try:
            return (await self._http.get(path)).status_code
        except httpx.TransportError:
            return 0


async def _until(holds: Callable[[], Awaitable[bool]]) -> bool:
    """Wait until a condition holds, at most _WITHIN_S seconds; return whether it does."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_WITHIN_S):
            while not await holds():
                await asyncio.sleep(0.1)
            return True
    return False


@asynccontextmanager
async def supervised(folder: Path) -> AsyncIterator[Supervised]:
    """Run a second installation until the block ends; its output stays in `folder`."""
    with tempfile.TemporaryDirectory(prefix="workbench-torture-up-") as home:
        up = Supervised(Path(home), folder / "up.log")
        try:
            yield up
        finally:
            await up.close()
