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

import msgspec
import psycopg

from api.clock import monotonic_ns
from api.embedded import cluster, postmaster
from api.embedded.paths import (
    EmbeddedError,
    PostgresPaths,
    SystemUser,
    find_paths,
    make_run,
    prepare_paths,
    server_account,
)

_MEMORY_MB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20

SETTINGS: Mapping[str, str] = {
    # Idempotency keys are spread over their whole index, so it must stay in memory (about 50 MB per million events).
    "shared_buffers": f"{min(max(_MEMORY_MB // 8, 128), 2048)}MB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "effective_cache_size": f"{max(_MEMORY_MB // 2, 256)}MB",
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
    # Error messages and their statements contain event data: they go to the client only; our own log reports the rest.
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
_STOP_TIMEOUT_S = 60.0  # for each of the two ways to stop
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
        self._paths: PostgresPaths | None = None
        self._lock: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        """Start the server, or wait for the process that is starting it; raise EmbeddedError."""
        account = server_account()
        self._paths = paths = prepare_paths(self.home, account)
        started_ns = monotonic_ns()
        reported = False
        while not self._take_lock(paths):
            if (server := find(self.home)) is not None:
                return server
            if not reported and monotonic_ns() - started_ns > _REPORT_AFTER_NS:
                reported = True
                self._report(f"waiting for the process that is starting Postgres in {paths.home}")
            time.sleep(_POLL_INTERVAL_S)
        try:
            if _running_pid(paths.data) is None:
                binaries = cluster.locate(self._bin_dir, account)
                cluster.ensure_data(paths, binaries, account)
                _clear_remains(paths)
                make_run(paths.run(), account)
                if self._child is not None:
                    self._child.wait()  # reap the previous server, which has ended
                self._child = self._spawn(paths, binaries, account)
            while True:
                self._wait_until_ready(paths)
                with contextlib.suppress(psycopg.OperationalError):  # it was ready and went back into recovery
                    cluster.create_application(paths, _socket_folder(paths))
                    return _connect(paths, owned=True)
                time.sleep(_POLL_INTERVAL_S)
        except psycopg.Error as error:  # the database of the application cannot be made, for example on a full disk
            self.stop()
            raise EmbeddedError(str(error).strip()) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> bool:
        """Stop the server if this object owns it; return whether it did."""
        if self._lock is None or self._paths is None:
            return False
        data, child = self._paths.data, self._child

        def has_ended() -> bool:
            # The child is polled first: until it is reaped, a postmaster that has ended is a zombie.
            return (child is None or child.poll() is not None) and _running_pid(data) is None

        try:
            # A fast shutdown, then an immediate one, which needs recovery. SIGKILL would leave back-ends behind.
            for number in (signal.SIGINT, signal.SIGQUIT):
                pid = child.pid if child is not None and child.poll() is None else _running_pid(data)
                if pid is not None:
                    _send(pid, number)
                if _wait_until(has_ended, _STOP_TIMEOUT_S):
                    break
        finally:
            self._child = None
            os.close(self._lock)
            self._lock = None
        return True

    def alive(self) -> bool:
        """Return whether the server process is running; reap it if it was our child and has ended."""
        if self._child is not None:
            self._child.poll()
        return self._paths is not None and _running_pid(self._paths.data) is not None

    @property
    def data(self) -> Path:
        """The data folder; available after `start`."""
        assert self._paths is not None
        return self._paths.data

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _take_lock(self, paths: PostgresPaths) -> bool:
        if self._lock is not None:
            return True
        file = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._lock = file
        return True

    def _spawn(self, paths: PostgresPaths, binaries: cluster.Binaries, account: SystemUser) -> subprocess.Popen[bytes]:
        socket_folder = str(paths.run()).replace('"', '""')  # the setting is a list; quotes keep a comma in the path
        settings = {**self._settings, "unix_socket_directories": f'"{socket_folder}"'}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        if paths.log.exists() and paths.log.stat().st_size > _MAX_LOG_BYTES:
            paths.log.replace(paths.log.with_suffix(".1.log"))
        paths.log.touch(mode=0o600)
        with paths.log.open("ab") as log:
            return subprocess.Popen(
                [binaries.folder / "postgres", "-D", paths.data, *flags],
                cwd=paths.state,
                env={"LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **account.popen(),
            )

    def _wait_until_ready(self, paths: PostgresPaths) -> None:
        started_ns = monotonic_ns()
        reported = False
        while (reason := _connection_error(paths)) is not None:
            running = _running_pid(paths.data) is not None if self._child is None else self._child.poll() is None
            if not running:
                tail = " / ".join(paths.log.read_text(errors="replace").splitlines()[-3:])
                raise EmbeddedError(f"Postgres did not start; the end of {paths.log}: {tail}")
            if not reported and monotonic_ns() - started_ns > _REPORT_AFTER_NS:
                reported = True
                self._report(f"Postgres is recovering or busy; waiting ({reason})")
            time.sleep(_POLL_INTERVAL_S)


def find(home: Path) -> Server | None:
    """Return the server of `home` if one accepts connections now; does not start one."""
    paths = find_paths(home)
    if paths is None or _running_pid(paths.data) is None or paths.password(cluster.APPLICATION) is None:
        return None
    try:
        return _connect(paths, owned=False)
    except psycopg.OperationalError:  # it starts, recovers or stops, or the role does not exist yet
        return None


def _connect(paths: PostgresPaths, owned: bool) -> Server:
    """Return the server after a first connection; raise psycopg.OperationalError if it does not accept connections."""
    run = _socket_folder(paths)
    dsn = cluster.build_dsn(paths, run, cluster.APPLICATION, cluster.APPLICATION)
    with psycopg.connect(dsn, connect_timeout=5) as connection:
        version = connection.info.parameter_status("server_version") or ""
    return Server(dsn, cluster.build_dsn(paths, run, cluster.ADMIN, cluster.APPLICATION), version.split()[0], owned)


def _socket_folder(paths: PostgresPaths) -> Path:
    """Return the socket folder that the server uses, according to its pid file."""
    pid_file = postmaster.read_pid_file(paths.data)
    return pid_file.run if pid_file is not None and pid_file.run is not None else paths.run()


def _running_pid(data: Path) -> int | None:
    pid_file = postmaster.read_pid_file(data)
    return pid_file.pid if pid_file is not None and postmaster.works_in(pid_file.pid, data) else None


def _connection_error(paths: PostgresPaths) -> str | None:
    """Return why the server does not accept connections yet, or None if it does."""
    try:
        dsn = cluster.build_dsn(paths, _socket_folder(paths), cluster.ADMIN, "postgres")
        psycopg.connect(dsn, connect_timeout=5).close()
    except psycopg.OperationalError as error:
        text = " ".join(str(error).split())
        if "password authentication failed" in text:
            raise EmbeddedError(
                f"the superuser password stored in {paths.home} is not the password of the server; restore the file"
            ) from error
        return text
    return None


def _clear_remains(paths: PostgresPaths) -> None:
    """End the remaining processes of a dead server, then remove its pid file and sockets."""
    # The order matters: without the pid file, Postgres would start although a back-end still writes to the data.
    for timeout_s, next_signal in ((2.0, signal.SIGQUIT), (5.0, signal.SIGKILL), (10.0, None)):
        if _wait_until(lambda: not postmaster.list_processes(paths.data), timeout_s):
            break
        if next_signal is None:
            raise EmbeddedError(
                f"processes of a crashed Postgres still use {paths.data} and could not be killed; stop them first"
            )
        for pid in postmaster.list_processes(paths.data):
            _send(pid, next_signal)
    for run in {paths.run(), _socket_folder(paths)}:  # of a home that was moved, the pid file names the old folder
        for socket_file in run.glob(".s.PGSQL.*"):
            socket_file.unlink(missing_ok=True)
    (paths.data / "postmaster.pid").unlink(missing_ok=True)


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_ns = monotonic_ns() + int(timeout_s * 1e9)
    while not condition():
        if monotonic_ns() > deadline_ns:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
