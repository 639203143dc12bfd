"""`workbench up`: everything on this machine, until Ctrl-C.

Postgres, then migrations, the demo organization, the API, the engine and JupyterLab; stopped in the opposite order. A
child that crashes is started again, Postgres too. If we are killed, the children end by themselves (see `leash`) and
Postgres waits for the next `up`, which adopts it.
"""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from api.clock import monotonic_ns
from api.commands import CommandError, http, lab, ports, private, summary
from api.commands.arguments import Subparsers, port
from api.commands.children import Child
from api.commands.database import Addresses, migrate
from api.commands.secret import root_secret
from api.commands.signals import Interrupted, Signals
from api.commands.terminal import note, say
from api.settings import Settings, child_environment

if TYPE_CHECKING:  # imported when needed: the command line must start fast
    from api.commands.demo_organization import DemoKeys
    from api.embedded import EmbeddedPostgres

_PAUSE = 0.1
_PATIENCE_CRASHES = 3
_PORT_PATIENCE_NS = 5_000_000_000  # the children of a killed `up` need a moment to end


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("up", help="run everything on this machine: Postgres, API, engine, JupyterLab")
    parser.add_argument("--port", type=port, default=8000, help="port of the API (default %(default)s)")
    parser.add_argument("--lab-port", type=port, default=8888, help="port of JupyterLab (default %(default)s)")
    parser.add_argument("--no-lab", action="store_true", help="without JupyterLab")
    parser.add_argument("--data-dir", type=Path, help="where data and logs live (default .workbench)")
    parser.add_argument(
        "--demo",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a demo organization with 60 days of history",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Run everything until interrupted, then stop everything; return 0."""
    signals = Signals()
    with signals.heard():
        try:
            with ExitStack() as running:
                Up(args, settings, signals, running).go()
        except Interrupted:
            note("stopped")
    return 0


class Up:
    """One run of the command; whatever it starts is on the stack `running`, which stops it."""

    def __init__(self, args: argparse.Namespace, settings: Settings, signals: Signals, running: ExitStack) -> None:
        self._args = args
        self._settings = settings
        self._signals = signals
        self._running = running
        self._postgres: EmbeddedPostgres | None = None
        self._children: list[Child] = []

    def go(self) -> None:
        """Start everything, say what there is, and watch it until interrupted."""
        self._check()
        secret = root_secret(self._settings)
        where, addresses = self._database()
        migrate(addresses)
        keys = self._demo(addresses, secret)
        self._start_children(addresses, keys)
        self._wait_until_ready()
        say(summary.text(self._summary(where, keys)))
        while True:
            self._watch()

    def _check(self) -> None:
        if not self._args.no_lab:
            lab.must_be_installed()
        private.make_folder(self._settings.data_dir / "logs")
        _wait_for_port(self._args.port, "--port")
        if not self._args.no_lab:
            _wait_for_port(self._args.lab_port, "--lab-port")

    def _database(self) -> tuple[str, Addresses]:
        if self._settings.database_url is not None:
            return "the one in DATABASE_URL", Addresses(self._settings.database_url, None)
        from api.embedded import EmbeddedPostgres

        note("starting Postgres …")
        self._postgres = EmbeddedPostgres(self._settings.data_dir, bin_dir=self._settings.postgres_bin, report=note)
        self._running.callback(_stop_postgres, self._postgres)
        server = self._postgres.start()
        how = "embedded" if server.owned else "embedded, shared with the process that started it"
        return f"{server.version}, {how}", Addresses(server.dsn, server.admin_dsn)

    def _demo(self, addresses: Addresses, secret: str) -> "DemoKeys | None":
        if not self._args.demo:
            return None
        from api.commands import demo_organization
        from api.keyring import Keyring

        return demo_organization.prepare(addresses.dsn, Keyring(secret), self._settings, note)

    def _start_children(self, addresses: Addresses, keys: "DemoKeys | None") -> None:
        server = child_environment(
            {
                "DATABASE_URL": addresses.dsn,
                "WORKBENCH_DATA_DIR": str(self._settings.data_dir),
                "WORKBENCH_PUBLIC_URL": self._settings.public_url or self._url(),
                "PYTHONUNBUFFERED": "1",
            }
        )
        self._start("api", [*_OURS, "serve", "--port", str(self._args.port), "--leash"], server)
        self._start("engine", [*_OURS, "engine", "--leash"], server)
        if self._settings.evm_rpc:
            self._start("chain", [*_OURS, "chain", "--leash"], server)
        if not self._args.no_lab:
            credentials = {"WORKBENCH_URL": self._url()}
            if keys is not None:
                credentials |= {"WORKBENCH_KEY": keys.workbench, "WORKBENCH_EVENTS_KEY": keys.live}
            data_dir = self._settings.data_dir
            self._start("lab", lab.command(data_dir, self._args.lab_port), lab.environment(data_dir, credentials))

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        child = Child(name, command, environment, self._settings.data_dir / "logs" / f"{name}.log", note)
        with self._signals.held():
            child.start()
            self._children.append(child)
            self._running.callback(_stop, child)

    def _wait_until_ready(self) -> None:
        note(
            "starting the API, the engine and JupyterLab …"
            if not self._args.no_lab
            else "starting the API and the engine …"
        )
        while not self._ready():
            self._watch()
            for child in self._children:
                if child.crashes >= _PATIENCE_CRASHES:
                    raise CommandError(
                        f"the {child.name} process does not start; the end of {child.log}:\n{child.tail()}"
                    )

    def _ready(self) -> bool:
        if http.status(self._args.port, "/readyz") != 200:
            return False
        return self._args.no_lab or http.status(self._args.lab_port, "/api") == 200

    def _watch(self) -> None:
        """Look after everything once, and rest a little."""
        if self._postgres is not None and not self._postgres.alive():
            note("Postgres stopped; starting it again")
            _patiently(self._postgres.start)
        for child in self._children:
            with self._signals.held():
                child.watch()
        time.sleep(_PAUSE)

    def _summary(self, where: str, keys: "DemoKeys | None") -> summary.Summary:
        lab_url = None if self._args.no_lab else lab.address(self._settings.data_dir, self._args.lab_port)
        return summary.Summary(
            api_url=self._url(),
            lab_url=lab_url,
            postgres=where,
            data_dir=self._settings.data_dir,
            keys=None if keys is None else msgspec.structs.asdict(keys),
        )

    def _url(self) -> str:
        return f"http://127.0.0.1:{self._args.port}"


_OURS = [sys.executable, "-m", "api"]


def _stop(child: Child) -> None:
    child.stop()
    note(f"stopped {child.name}")


def _stop_postgres(postgres: "EmbeddedPostgres") -> None:
    if postgres.stop():
        note("stopped Postgres")


def _patiently(start: Callable[[], object]) -> None:
    """Start Postgres again; what hinders it is said, and tried again at the next look."""
    from api.embedded import EmbeddedError

    try:
        start()
    except EmbeddedError as error:
        note(str(error))
        time.sleep(5.0)


def _wait_for_port(number: int, flag: str) -> None:
    since = monotonic_ns()
    while monotonic_ns() - since < _PORT_PATIENCE_NS and not ports.is_free("127.0.0.1", number):
        time.sleep(_PAUSE)
    ports.must_be_free("127.0.0.1", number, flag)
