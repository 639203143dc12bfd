"""A primary of a test's own, and a real hot standby that streams from it."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec
import psycopg

from api.embedded import EmbeddedPostgres, Server
from api.embedded.cluster import locate
from api.embedded.paths import server_account
from api.embedded.server import SETTINGS
from api.store.database import libpq_dsn
from tests.installation import until


class Standby:
    """The server process of the standby; a test may stop it."""

    def __init__(self, folder: Path, primary: Server) -> None:
        self._folder, self._primary = folder, primary
        self._account = server_account()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Copy the primary, and start to follow it."""
        programs, data = locate(None, self._account).folder, self._folder / "data"
        copy = [programs / "pg_basebackup", "-D", data, "-d", libpq_dsn(self._primary.admin_dsn), "-c", "fast", "-R"]
        subprocess.run(copy, check=True, capture_output=True, cwd=self._folder, **self._account.popen())
        settings = {**SETTINGS, "unix_socket_directories": str(self._folder), "max_standby_streaming_delay": "0"}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [programs / "postgres", "-D", data, *flags],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._account.popen(),
        )
        until(self._answers, "the standby answers")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # does not wait for connected clients
            self._process.wait(30)
            self._process = None

    def dsn(self, of: str) -> str:
        """Return the standby's URL for a URL of the primary."""
        return urlsplit(of)._replace(query=urlencode({"host": str(self._folder), "port": "5432"})).geturl()

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement on the standby as a superuser."""
        with psycopg.connect(self.dsn(self._primary.admin_dsn), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []

    def _answers(self) -> bool:
        try:
            return self.execute("SELECT pg_is_in_recovery()") == [(True,)]
        except psycopg.OperationalError:
            return False


class Pair(msgspec.Struct, frozen=True):
    """A primary and its standby."""

    primary: Server
    standby: Standby


@contextmanager
def pair() -> Iterator[Pair]:
    """Run a primary and its standby until the block ends."""
    home = Path(tempfile.mkdtemp(prefix="workbench-pair-"))
    folder = Path(tempfile.mkdtemp(prefix="workbench-standby-"))
    server_account().own(folder)
    embedded = EmbeddedPostgres(home)
    try:
        with embedded as primary:
            standby = Standby(folder, primary)
            try:
                standby.start()
                yield Pair(primary, standby)
            finally:
                standby.stop()
    finally:
        shutil.rmtree(embedded.data.parent, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)
