"""`workbench up`: run everything on this machine until Ctrl-C.

The start order is Postgres, migrations, the demo organization, the API, the engine, the chain reader (if configured)
and JupyterLab; the stop order is the reverse. Every child process runs in a session of its own, so that Ctrl-C in the
terminal reaches only this process, which then stops the children in order.

A child that crashes is restarted after 1, 2, 4 … 30 seconds; after one minute of running, its crash count is reset. A
child that cannot be started (a full disk, no memory) counts as crashed. Postgres is restarted in the same way, the
first time at once. Meanwhile the others keep running. If this process is killed, the children end by themselves (see
`network.follow_parent`) and Postgres keeps running until the next `up`, which adopts it.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from api.cli import CommandError, lab, network
from api.cli.database import DatabaseUrls, migrate, read_secret, root_secret, try_require_own_secret
from api.cli.errors import Interrupted, Signals, note, port, say
from api.clock import monotonic_ns
from api.crypto import Keyring
from api.embedded import EmbeddedError, EmbeddedPostgres
from api.private_files import PrivateFileError, make_folder
from api.settings import Settings, child_environment

if TYPE_CHECKING:
    from api.cli.demo import DemoKeys

_PROGRAM = [sys.executable, "-P", "-m", "api"]  # -P: a folder named `api` in the working directory must not shadow ours
_EXAMPLE_EVENT = """{"event":"deposit","contact":{"externalId":"you"},"payload":{"amountUsd":120}}"""

_POLL_INTERVAL_S = 0.1
_MAX_CRASHES_AT_START = 3
_PORT_TIMEOUT_NS = 5_000_000_000  # the children of a killed `up` need a moment to end and free their ports

_FIRST_RESTART_DELAY_S = 1
_STOP_TIMEOUT_S = 15.0  # then SIGKILL
_MAX_LOG_BYTES = 10 * 1024 * 1024  # checked at each start of a child
_TAIL_BYTES = 4096
_TAIL_LINES = 15
_STDERR = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, default=network.DEFAULT_PORT, help="port of the API (default %(default)s)")
    parser.add_argument(
        "--lab-port", type=port, default=network.DEFAULT_LAB_PORT, help="port of JupyterLab (default %(default)s)"
    )
    parser.add_argument("--no-lab", action="store_true", help="do not start JupyterLab")
    parser.add_argument(
        "--demo",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="create a demo organization with 60 days of history",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> None:
    """Run everything until a signal arrives, then stop everything."""
    signals = Signals()
    with signals.handled():
        try:
            with ExitStack() as stack:
                Up(args, settings, signals, stack).run()
        except Interrupted:
            note("stopped")


class Up:
    """One run of the command. Each process it starts is registered on `stack`, which stops them in reverse order."""

    def __init__(self, args: argparse.Namespace, settings: Settings, signals: Signals, stack: ExitStack) -> None:
        self._args = args
        self._settings = settings
        self._signals = signals
        self._stack = stack
        self._postgres: EmbeddedPostgres | None = None
        self._postgres_delay = network.RestartDelay(_FIRST_RESTART_DELAY_S)
        self._postgres_started_ns = 0
        self._urls = DatabaseUrls("", None)
        self._children: list[Child] = []
        self._url = f"http://127.0.0.1:{args.port}"

    def run(self) -> None:
        """Start everything, print the summary and supervise until interrupted."""
        if not self._args.no_lab:
            lab.require_installed()
        make_folder(self._settings.data_dir / "logs")
        _wait_for_port(self._args.port, "--port")
        if not self._args.no_lab:
            _wait_for_port(self._args.lab_port, "--lab-port")
        read_secret(self._settings)  # an unusable one is reported before Postgres starts
        postgres, urls = self._start_postgres()
        self._urls = urls
        migrate(urls)
        secrets = Keyring(root_secret(self._settings, urls.dsn))
        keys = None
        if self._args.demo:
            from api.cli import demo  # the supervisor runs for months and needs the modules of an import only here

            keys = asyncio.run(demo.prepare(urls.dsn, secrets, self._settings.data_dir, note))
        self._start_children(urls, keys)
        self._wait_until_ready()
        with contextlib.suppress(OSError):  # stdout may be a file on a full disk; everything runs
            say(self._summary(postgres, keys))
        while True:
            self._supervise()

    def _start_postgres(self) -> tuple[str, DatabaseUrls]:
        """Return a description of the server for the summary, and its URLs."""
        if self._settings.database_url is not None:
            return "external (DATABASE_URL)", DatabaseUrls(self._settings.database_url, None)
        note("starting Postgres …")
        self._postgres = EmbeddedPostgres(self._settings.data_dir, bin_dir=self._settings.postgres_bin, report=note)
        self._stack.callback(_stop_postgres, self._postgres)
        server = self._postgres.start()
        self._postgres_started_ns = monotonic_ns()
        mode = "embedded" if server.owned else "embedded, shared with the process that started it"
        return f"{server.version}, {mode}", DatabaseUrls(server.dsn, server.admin_dsn)

    def _start_children(self, urls: DatabaseUrls, keys: "DemoKeys | None") -> None:
        data_dir = self._settings.data_dir
        server = child_environment(
            {
                "DATABASE_URL": urls.dsn,
                "WORKBENCH_DATA_DIR": str(data_dir),
                "WORKBENCH_PUBLIC_URL": self._settings.public_url or self._url,
                "PYTHONUNBUFFERED": "1",  # the last lines of a child that crashes are in its log
            }
        )
        self._start_child("api", [*_PROGRAM, "serve", "--port", str(self._args.port), "--leash"], server)
        self._start_child("engine", [*_PROGRAM, "engine", "--leash"], server)
        if self._settings.evm_rpc:
            self._start_child("chain", [*_PROGRAM, "chain", "--leash"], server)
        if not self._args.no_lab:
            credentials = {"WORKBENCH_URL": self._url}
            if keys is not None:
                credentials |= {"WORKBENCH_KEY": keys.workbench, "WORKBENCH_EVENTS_KEY": keys.live}
            self._start_child("lab", lab.command(data_dir, self._args.lab_port), lab.environment(data_dir, credentials))

    def _start_child(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        child = Child(name, command, environment, self._settings.data_dir / "logs" / f"{name}.log", note)
        # A signal between the start and the callback would leave a process that nothing stops.
        with self._signals.deferred():
            child.start()
            self._children.append(child)
            self._stack.callback(_stop_child, child)

    def _wait_until_ready(self) -> None:
        processes = "the API and the engine" if self._args.no_lab else "the API, the engine and JupyterLab"
        note(f"starting {processes} …")
        while not (
            network.status(self._args.port, "/readyz") == 200
            and (self._args.no_lab or network.status(self._args.lab_port, "/api") == 200)
        ):
            self._supervise()
            for child in self._children:
                if child.delay.crashes >= _MAX_CRASHES_AT_START:
                    raise CommandError(
                        f"the {child.name} process crashed {child.delay.crashes} times while starting; "
                        f"the end of {child.log}:\n{child.tail()}"
                    )

    def _supervise(self) -> None:
        """Restart Postgres and the children if they have ended, then sleep briefly."""
        postgres, ended = self._postgres, False
        if postgres is not None and self._postgres_delay.is_over():
            # Without a free file descriptor it is unknown whether Postgres runs; the next call tries again.
            with contextlib.suppress(OSError):
                ended = not postgres.alive()
        if postgres is not None and ended:
            delay_s = self._postgres_delay.crashed((monotonic_ns() - self._postgres_started_ns) / 1e9)
            note("Postgres stopped; restarting it")
            try:
                postgres.start()
            except (EmbeddedError, PrivateFileError, OSError) as error:
                note(f"Postgres cannot be started: {error}; trying again in {delay_s} s")
            self._postgres_started_ns = monotonic_ns()
        for child in self._children:
            with self._signals.deferred():
                crashed = child.restart_if_crashed()
            if crashed:  # perhaps because its secret was replaced by a foreign one: a new child would end, too
                secret = None
                with contextlib.suppress(CommandError, PrivateFileError):  # someone may be restoring the file
                    secret = read_secret(self._settings)
                if secret is not None:
                    try_require_own_secret(self._settings, self._urls, secret)
        time.sleep(_POLL_INTERVAL_S)

    def _summary(self, postgres: str, keys: "DemoKeys | None") -> str:
        lines = ["", "Event Workbench is ready.", ""]
        next_step = "post an event"
        if not self._args.no_lab:
            lines.append(f"  JupyterLab   {lab.address(self._settings.data_dir, self._args.lab_port)}")
            next_step = f"open the JupyterLab address and run {lab.FIRST_NOTEBOOK}, or post an event"
        lines += [
            f"  API          {self._url}/api/v1",
            f"  Postgres     {postgres}",
            f"  Data, logs   {self._settings.data_dir}",
            "",
        ]
        if keys is None:
            lines += ["Next: workbench org create NAME", ""]
        else:
            lines += [
                "  API keys of the organization demo",
                *(f"    {kind:<11}  {getattr(keys, kind)}" for kind in keys.__struct_fields__),
                "",
                f"Next: {next_step}:",
                "",
                f"  curl {self._url}/api/v1/events -H 'Authorization: Bearer {keys.live}' \\",
                f"    -H 'Content-Type: application/json' -d '{_EXAMPLE_EVENT}'",
                "",
            ]
        return "\n".join([*lines, "Ctrl-C stops everything."])


class Child:
    """A supervised process; its output goes to the file `log`. `report` is called with one sentence per crash."""

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], log: Path, report: Callable[[str], None]
    ) -> None:
        self.name = name
        self.log = log
        self.delay = network.RestartDelay(_FIRST_RESTART_DELAY_S)
        self._command = command
        self._environment = environment
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ns = 0

    def start(self) -> None:
        """Start the process. A failure to start counts as a crash; without its log, the process writes to stderr."""
        with ExitStack() as stack:
            output: IO[bytes] | int
            try:
                make_folder(self.log.parent)
                if self.log.exists() and self.log.stat().st_size > _MAX_LOG_BYTES:
                    self.log.replace(self.log.with_suffix(".1.log"))
                self.log.touch(mode=0o600)
                output = stack.enter_context(self.log.open("ab"))
            except (OSError, PrivateFileError) as error:
                self._report(f"{self.name} writes to this terminal, because its log cannot be opened: {error}")
                output = _STDERR
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.PIPE,  # open as long as this process lives; the child ends when it closes
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                self._report(f"{self.name} cannot be started: {error}; trying again in {self.delay.crashed(0)} s")
        self._started_ns = monotonic_ns()

    def restart_if_crashed(self) -> bool:
        """Return whether the process has just crashed, and restart it once its delay is over. Call this often."""
        crashed = self._process is not None and self._process.poll() is not None
        if self._process is not None and (code := self._process.returncode) is not None:
            delay_s = self.delay.crashed((monotonic_ns() - self._started_ns) / 1e9)
            self._close()
            reason = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            self._report(f"{self.name} stopped ({reason}); restarting it in {delay_s} s; see {self.log}")
        if self._process is None and self.delay.is_over():
            self.start()
        return crashed

    def stop(self) -> None:
        """Send SIGTERM and wait; after the timeout kill everything left in the session of the process."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()

    def tail(self) -> str:
        try:
            file = self.log.open("rb")
        except OSError as error:
            return f"the log cannot be read: {error}"
        with file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


def _stop_child(child: Child) -> None:
    child.stop()
    note(f"stopped {child.name}")


def _stop_postgres(postgres: "EmbeddedPostgres") -> None:
    if postgres.stop():
        note("stopped Postgres")


def _wait_for_port(number: int, flag: str) -> None:
    started_ns = monotonic_ns()
    while monotonic_ns() - started_ns < _PORT_TIMEOUT_NS and not network.is_free("127.0.0.1", number):
        time.sleep(_POLL_INTERVAL_S)
    network.require_free_port("127.0.0.1", number, flag)
