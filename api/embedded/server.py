"""The life cycle of the embedded server: find it, adopt it, or recover and start it; its owner stops it.

The server is a direct child process in a session of its own, so that Ctrl-C in the terminal does not reach it and it
survives a crash of its owner. It is ready when a connection succeeds; recovery may take any time.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec
import psycopg

from api.clock import monotonic_ns
from api.embedded import cluster
from api.embedded import places as embedded_places
from api.embedded.cluster import Binaries, locate
from api.embedded.places import (
    HomeUnusableError,
    PostgresPaths,
    StartFailedError,
    SystemUser,
    existing,
    make_run,
    prepare,
    server_account,
)

_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20  # MB

SETTINGS: Mapping[str, str] = {
    # idempotency keys are spread over their whole index, which must therefore stay in memory (about 50 MB per million events)
    "shared_buffers": f"{min(max(_MEMORY // 8, 128), 2048)}MB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "effective_cache_size": f"{max(_MEMORY // 2, 256)}MB",
    "random_page_cost": "1.1",
    "jit": "off",
    "max_connections": "200",
    "max_locks_per_transaction": "256",  # a statement over all months locks every partition and its indexes
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "wal_init_zero": "off",  # filling a new segment delayed every commit by 100 ms, every 12,000 events
    "temp_file_limit": "2GB",  # without it one analyst's query wrote 80 GB in five minutes
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_naptime": "15s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # error messages and their statements contain event data: they go to the client only; our own log reports the rest
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "cluster_name": "event-workbench",
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
}
_POLL_INTERVAL_S = 0.02
_REPORT_AFTER_NS = 2_000_000_000  # a longer wait is reported to the user
_STOP_TIMEOUT_S = 60.0
_MAX_LOG_BYTES = 10 * 1024 * 1024


class Server(msgspec.Struct, frozen=True):
    """A running server: URLs for the application and for the superuser; `owned` if the caller started or adopted it."""

    dsn: str
    admin_dsn: str
    version: str
    owned: bool


class EmbeddedPostgres:
    """The server of one home folder; a context manager that starts (or joins) and stops (or leaves) it."""

    def __init__(
        self,
        home: Path,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        report: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        """`settings` override SETTINGS. `report` is called with a sentence when a step takes long. Starts nothing."""
        self.home = home.absolute()
        self._bin_dir = bin_dir
        self._settings = {**SETTINGS, **(settings or {})}
        self._report = report
        self._places: PostgresPaths | None = None
        self._lock: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        """Start the server, or wait for the process that is starting it; raise EmbeddedError."""
        account = server_account()
        self._places = places = prepare(self.home, account)
        started_ns = monotonic_ns()
        reported = False
        while not self._take_lock(places):
            if (server := find(self.home)) is not None:
                return server
            if not reported and monotonic_ns() - started_ns > _REPORT_AFTER_NS:
                reported = True
                self._report(f"waiting for the process that is starting Postgres in {places.home}")
            time.sleep(_POLL_INTERVAL_S)
        try:
            return self._start_as_owner(places, account)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> bool:
        """Stop the server if this object owns it; return whether it did."""
        if self._lock is None or self._places is None:
            return False
        try:
            _stop(self._places.data, self._child)
        finally:
            self._child = None
            os.close(self._lock)
            self._lock = None
        return True

    def alive(self) -> bool:
        """Return whether the server process is running; reap it if it was our child and has ended."""
        if self._child is not None:
            self._child.poll()
        return self._places is not None and _postmaster(self._places.data) is not None

    @property
    def data(self) -> Path:
        """The data folder; available after `start`."""
        assert self._places is not None
        return self._places.data

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _take_lock(self, places: PostgresPaths) -> bool:
        if self._lock is not None:
            return True
        file = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._lock = file
        return True

    def _start_as_owner(self, places: PostgresPaths, account: SystemUser) -> Server:
        if _postmaster(places.data) is None:
            binaries = locate(self._bin_dir, account)
            cluster.ensure(places, binaries, account)
            _clear_remains(places)
            make_run(places.run(), account)
            if self._child is not None:
                self._child.wait()  # reap the previous server, which has ended
            self._child = self._spawn(places, binaries, account)
        while True:
            self._wait_until_ready(places)
            with contextlib.suppress(psycopg.OperationalError):  # it was ready and went back into recovery
                cluster.give_first_role(places, _run(places))
                return _server(places, owned=True)
            time.sleep(_POLL_INTERVAL_S)

    def _spawn(self, places: PostgresPaths, binaries: Binaries, account: SystemUser) -> subprocess.Popen[bytes]:
        socket_folder = str(places.run()).replace('"', '""')
        settings = {**self._settings, "unix_socket_directories": f'"{socket_folder}"'}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with _log(places.log) as log:
            return subprocess.Popen(
                [binaries.folder / "postgres", "-D", places.data, *flags],
                cwd=places.state,
                env={"LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **account.popen(),
            )

    def _wait_until_ready(self, places: PostgresPaths) -> None:
        started_ns = monotonic_ns()
        reported = False
        while (refusal := _refusal(places)) is not None:
            if not self._starting(places):
                raise StartFailedError(f"Postgres did not start; the end of {places.log}: {_tail(places.log)}")
            if not reported and monotonic_ns() - started_ns > _REPORT_AFTER_NS:
                reported = True
                self._report(f"Postgres is recovering or busy; waiting ({refusal})")
            time.sleep(_POLL_INTERVAL_S)

    def _starting(self, places: PostgresPaths) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return _postmaster(places.data) is not None


def find(home: Path) -> Server | None:
    """Return the server of `home` if one accepts connections now; starts nothing."""
    places = existing(home)
    if places is None or _postmaster(places.data) is None or places.password(cluster.APPLICATION) is None:
        return None
    try:
        return _server(places, owned=False)
    except psycopg.OperationalError:  # starting, recovering or stopping; or the role is not made yet
        return None


def _server(places: PostgresPaths, owned: bool) -> Server:
    run = _run(places)
    dsn = cluster.dsn(places, run, cluster.APPLICATION, cluster.APPLICATION)
    with psycopg.connect(dsn, connect_timeout=5) as connection:
        version = connection.info.parameter_status("server_version") or ""
    return Server(dsn, cluster.dsn(places, run, cluster.ADMIN, cluster.APPLICATION), version.split()[0], owned)


def _run(places: PostgresPaths) -> Path:
    """Return the socket folder that the server uses, according to its pid file."""
    record = embedded_places.recorded(places.data)
    return record.run if record is not None and record.run is not None else places.run()


def _postmaster(data: Path) -> int | None:
    record = embedded_places.recorded(data)
    return record.pid if record is not None and embedded_places.works_in(record.pid, data) else None


def _refusal(places: PostgresPaths) -> str | None:
    """Return why the server does not accept connections yet, or None if it does."""
    try:
        psycopg.connect(cluster.dsn(places, _run(places), cluster.ADMIN, "postgres"), connect_timeout=5).close()
    except psycopg.OperationalError as error:
        text = " ".join(str(error).split())
        if "password authentication failed" in text:
            raise HomeUnusableError(
                f"the superuser password stored in {places.home} is not the password of the server; restore the file"
            ) from error
        return text
    return None


def _clear_remains(places: PostgresPaths) -> None:
    """End the remaining processes of a dead server, then remove its pid file and sockets, in this order to protect the data."""
    for timeout_s, next_signal in ((2.0, signal.SIGQUIT), (5.0, signal.SIGKILL), (10.0, None)):
        if _gone(lambda: not embedded_places.workers(places.data), timeout_s):
            break
        if next_signal is None:
            raise HomeUnusableError(
                f"processes of a dead Postgres still use {places.data} and could not be killed; end them first"
            )
        for pid in embedded_places.workers(places.data):
            _send(pid, next_signal)
    stale = embedded_places.recorded(places.data)
    for run in {places.run(), stale.run if stale is not None and stale.run is not None else places.run()}:
        for socket_file in run.glob(".s.PGSQL.*"):
            socket_file.unlink(missing_ok=True)
    (places.data / "postmaster.pid").unlink(missing_ok=True)


def _stop(data: Path, child: subprocess.Popen[bytes] | None) -> None:
    """Request a fast shutdown, then an immediate one, after which the next start recovers. Never send SIGKILL."""

    def ended() -> bool:
        if child is not None and child.poll() is None:
            return False
        return _postmaster(data) is None

    for number in (signal.SIGINT, signal.SIGQUIT):
        pid = child.pid if child is not None and child.poll() is None else _postmaster(data)
        if pid is not None:
            _send(pid, number)
        if _gone(ended, _STOP_TIMEOUT_S):
            return


def _gone(check: Callable[[], bool], seconds: float) -> bool:
    deadline_ns = monotonic_ns() + int(seconds * 1e9)
    while not check():
        if monotonic_ns() > deadline_ns:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _log(path: Path) -> IO[bytes]:
    """Open the log for appending, after rotating a large one."""
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_suffix(".1.log"))
    path.touch(mode=0o600)
    return path.open("ab")


def _tail(path: Path) -> str:
    return " / ".join(path.read_text(errors="replace").splitlines()[-3:])
