"""The installation under test: an embedded Postgres, API processes and engines.

Each of them can be killed and frozen.

Every process is started with the command that an operator uses, and keeps its command, port and log across restarts.
Children run with `--leash`, so they end when this process ends, however it ends.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psycopg
import psycopg.rows

from api.auth import keys
from api.auth.key_format import WORKBENCH, Kind
from api.cli.network import is_free
from api.crypto import Keyring
from api.embedded import EmbeddedPostgres
from api.store.migrate import migrate
from tests.running import free_port
from tests.torture import recorder
from tests.torture.accounts import Account
from tests.torture.journeys import ORG as JOURNEYS
from tests.torture.leaks import ORGANIZATIONS, SECRET
from tests.torture.sinks import Sinks, sinks

WORKERS = 2
RETRY_DELAYS = (0.5, 1, 2, 3, 5)  # seconds, for every channel
_SETTINGS = {"track_commit_timestamp": "on"}  # the checker orders events by their commits
_READY_WITHIN = 180.0
_STOP_WITHIN = 45.0
_ENDED_WELL = (0, -signal.SIGTERM)  # SIGTERM: stopped before it began to serve
_BROKEN, _UNAVAILABLE = 500, 503
_EXPECTED_ERRORS = frozenset({"worker_died"})  # the parent must report a killed worker


class Process:
    """A process that can be stopped, killed, frozen and restarted, one fault at a time. It listens on `port`."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path, port: int = 0) -> None:
        self.name = name
        self.busy = asyncio.Lock()
        self.complaints: list[str] = []
        self._command = [sys.executable, "-m", "api", *command, "--leash"]
        self._environment = environment
        self._log = log
        self._port = port
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process once its port is free: the workers of a killed API take a moment to end."""
        while self._port and not is_free("127.0.0.1", self._port):
            time.sleep(0.02)
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def send(self, order: signal.Signals) -> None:
        assert self._running is not None
        self._running.send_signal(order)

    @property
    def alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._end()

    def stop(self) -> None:
        """Stop the process gracefully; a wrong exit code is recorded in `complaints`."""
        if self._running is None:
            return
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self._running.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
        code = self._end()
        if code not in _ENDED_WELL:
            self.complaints.append(f"{self.name} received SIGTERM and ended with {code}")

    def _end(self) -> int:
        assert self._running is not None
        code = self._running.wait()
        if self._running.stdin is not None:
            self._running.stdin.close()
        return code


class Postgres:
    """The Postgres server, its postmaster and its backends."""

    def __init__(self, home: Path) -> None:
        self.busy = asyncio.Lock()
        self.log = home / "postgres" / "postgres.log"
        self._embedded = EmbeddedPostgres(home, settings=_SETTINGS)
        self.server = self._embedded.start()

    async def start(self) -> None:
        """Start the server again once it has ended. Returns when it accepts connections."""
        while self._embedded.alive():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._embedded.start)

    async def recover(self, pid: int) -> None:
        """Wait until the server has noticed the end of a backend and accepts connections again."""
        while _exists(pid):
            await asyncio.sleep(0.01)
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                return await (await self._connected()).close()
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._embedded.stop()

    def remove(self) -> None:
        """Remove the data folder, which lies outside of `home` where Postgres runs as a user of its own."""
        shutil.rmtree(self._embedded.data.parent, ignore_errors=True)

    def postmaster(self) -> int:
        return int((self._embedded.data / "postmaster.pid").read_text().split()[0])

    def pids(self) -> list[int]:
        """Return the postmaster and its children."""
        postmaster = self.postmaster()
        return [postmaster, *children(postmaster)]

    async def backend(self, *, terminate: bool = False) -> int:
        """Return the pid of a backend of our processes, preferably one that is writing; terminate it if `terminate`."""
        while True:
            with contextlib.suppress(psycopg.OperationalError):  # still recovering from the previous fault
                async with await self._connected() as connection:
                    return await _find_backend(connection, terminate)
            await asyncio.sleep(0.1)

    async def _connected(self) -> psycopg.AsyncConnection[tuple[int]]:
        return await psycopg.AsyncConnection.connect(
            self.server.admin_dsn, autocommit=True, row_factory=psycopg.rows.tuple_row
        )


_LOOKS = 200
_WRITING = "backend_xid IS NOT NULL"
_BACKEND = """
    SELECT pid{terminated} FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND {which}
    ORDER BY random() LIMIT 1"""


async def _find_backend(connection: psycopg.AsyncConnection[tuple[int]], terminate: bool) -> int:
    terminated = ", pg_terminate_backend(pid)" if terminate else ""
    for look in itertools.count():
        which = _WRITING if look < _LOOKS else "true"
        cursor = await connection.execute(_BACKEND.format(terminated=terminated, which=which))
        if row := await cursor.fetchone():
            return row[0]
        await asyncio.sleep(0.005)
    raise AssertionError("unreachable")


def children(pid: int) -> list[int]:
    try:
        return [int(part) for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@asynccontextmanager
async def frozen(pids: list[int]) -> AsyncIterator[None]:
    signal_all(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(pids, signal.SIGCONT)


def signal_all(pids: Iterable[int], order: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, order)


class Installation:
    """The running processes and their addresses."""

    def __init__(self, postgres: Postgres, sinks: Sinks, folder: Path, apis: int, engines: int) -> None:
        self.postgres = postgres
        self.sinks = sinks
        self.folder = folder
        self.keyring = Keyring(SECRET)
        self.accounts: list[Account] = []
        self.marketer: Account | None = None
        self.environment = environment = {
            **os.environ,
            "DATABASE_URL": postgres.server.dsn,
            "WORKBENCH_SECRET": SECRET,
            "WORKBENCH_INGEST_RATE": "0",
            "WORKBENCH_DATA_DIR": str(folder),
            "WORKBENCH_RETRY_DELAYS": ",".join(map(str, RETRY_DELAYS)),
            "WORKBENCH_SMTP_URL": f"smtp://127.0.0.1:{sinks.smtp_port}?starttls=never",
            "WORKBENCH_WEBHOOK_ALLOW": "127.0.0.0/8",
            "WORKBENCH_METRICS": str(free_port()),
            "WORKBENCH_LOG_REQUESTS": "all",
        }
        self.metrics = f"http://127.0.0.1:{environment['WORKBENCH_METRICS']}/metrics"
        ports = [free_port() for _ in range(apis)]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        environment["WORKBENCH_PUBLIC_URL"] = self.urls[0]
        self.apis = [
            Process(f"api-{place}", _serve(place, port), environment, folder / f"api-{place}.log", port)
            for place, port in enumerate(ports)
        ]
        self.engines = [
            Process(f"engine-{place}", ["engine"], environment, folder / f"engine-{place}.log")
            for place in range(engines)
        ]

    @property
    def processes(self) -> list[Process]:
        return self.apis + self.engines

    @property
    def logs(self) -> list[Path]:
        """The logs of all processes and of Postgres."""
        return [*sorted(self.folder.glob("*-*.log")), self.postgres.log]

    def complaints(self) -> list[str]:
        """Return what no process may do: end by itself, exit with an error, or log an error."""
        ended = [f"{process.name} ended by itself" for process in self.processes if not process.alive]
        stopped = [complaint for process in self.processes for complaint in process.complaints]
        logged = [error for log in sorted(self.folder.glob("*-*.log")) for error in _errors(log)]
        return ended + stopped + logged

    async def start(self) -> None:
        server = self.postgres.server
        await migrate(server.dsn, admin_dsn=server.admin_dsn)
        await recorder.install(server.admin_dsn)
        self.accounts = [await self._account(org) for org in ORGANIZATIONS]
        self.marketer = await self._account(JOURNEYS)
        for process in self.processes:
            process.start()
        await self.ready()

    async def ready(self) -> None:
        """Wait until every API reports that it is ready."""
        async with asyncio.timeout(_READY_WITHIN), httpx.AsyncClient(timeout=2) as client:
            for url in self.urls:
                while await _status(client, url) != 200:
                    await asyncio.sleep(0.05)

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    async def _account(self, org: str) -> Account:
        await keys.create_org(self.postgres.server.dsn, org)
        kinds: tuple[Kind, ...] = ("live", "test", "publishable", "workbench")
        dsn, keyring = self.postgres.server.dsn, self.keyring
        made: dict[str, str] = {kind: await keys.create(dsn, keyring, org, kind, None, kind) for kind in kinds}
        admin = [scope for scope in WORKBENCH if scope != "pii:read"]
        made["admin"] = await keys.create(dsn, keyring, org, "workbench", admin, "admin")
        made["strict"] = await keys.create(dsn, keyring, org, "live", None, "strict", strict=True)
        return Account(org, made)


def _serve(place: int, port: int) -> list[str]:
    """Return the command of an API: the first has several workers behind one port, the others are single processes."""
    return ["serve", "--port", str(port), *(["--workers", str(WORKERS)] if place == 0 else [])]


def _errors(log: Path) -> Iterator[str]:
    for line in log.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            yield f"{log.name}: {line}"
        else:
            if record["level"] == "error" and record["word"] not in _EXPECTED_ERRORS:
                yield f"{log.name}: {record['word']} {record.get('exception', '')[-300:]}"
            if record.get("status", 0) >= _BROKEN and record["status"] != _UNAVAILABLE:
                yield f"{log.name}: {record['route']} was answered {record['status']}"


@asynccontextmanager
async def installed(folder: Path, seed: int, apis: int, engines: int) -> AsyncIterator[Installation]:
    """Run an installation until the block ends. Its logs stay in `folder`; everything else is removed."""
    home = _home()
    postgres = Postgres(home)
    try:
        async with sinks(seed) as receivers:
            installation = Installation(postgres, receivers, folder, apis, engines)
            try:
                await installation.start()
                yield installation
            finally:
                await asyncio.to_thread(installation.stop)
    finally:
        postgres.stop()
        shutil.copy(postgres.log, folder)
        postgres.remove()
        shutil.rmtree(home, ignore_errors=True)


def _home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="workbench-torture-"))
    home.chmod(0o755)  # Postgres may run as a user of its own
    return home


async def _status(client: httpx.AsyncClient, url: str) -> int:
    try:
        return (await client.get(f"{url}/readyz")).status_code
    except httpx.TransportError:
        return 0
