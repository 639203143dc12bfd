"""Embedded servers run under root and ordinary users. The other files of this folder use the current user."""

import os
import pwd
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from api.embedded import EmbeddedError, EmbeddedPostgres, cluster, postmaster
from api.embedded.paths import server_account

OTHER_USER = pwd.getpwnam("nobody")  # initdb requires a user with a name


@pytest.fixture
def public_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="wb-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_other_user(work: Callable[[], None]) -> None:
    """Run `work` in a forked child without the rights of root; if this process has none, run it here."""
    if os.geteuid() != 0:
        work()
        return
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    try:
        os.setgroups([])
        os.setgid(OTHER_USER.pw_gid)
        os.setuid(OTHER_USER.pw_uid)
        work()
        os._exit(0)
    finally:  # must not return to pytest
        traceback.print_exc()
        os._exit(1)


def uid_of(path: Path) -> int:
    return path.stat().st_uid


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_ordinary_user_runs_the_server_with_the_data_in_the_home(public_folder: Path) -> None:
    programs = cluster.locate(None, server_account()).folder

    def work() -> None:
        postgres = EmbeddedPostgres(public_folder / "home", bin_dir=programs)
        with postgres as server:
            assert postgres.data == public_folder / "home" / "postgres" / "data"
            assert uid_of(postgres.data) == os.geteuid()
            with psycopg.connect(server.dsn) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        assert postmaster.list_processes(postgres.data) == []

    as_other_user(work)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_path_too_long_for_a_socket_still_works(public_folder: Path) -> None:
    programs = cluster.locate(None, server_account()).folder

    def work() -> None:
        with EmbeddedPostgres(public_folder / ("long" * 25) / "home", bin_dir=programs) as server:
            folder = psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]
            assert stat.S_IMODE(Path(str(folder)).stat().st_mode) == 0o700
        shutil.rmtree(str(folder))

    as_other_user(work)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_home_of_another_user_is_refused(public_folder: Path) -> None:
    (public_folder / "home" / "postgres").mkdir(parents=True, mode=0o755)
    if os.geteuid() != 0:
        (public_folder / "home" / "postgres").chmod(0o755)

    def work() -> None:
        with pytest.raises(EmbeddedError, match=r"belongs to another user|can be read by others"):
            EmbeddedPostgres(public_folder / "home").start()

    as_other_user(work)


def test_root_never_runs_the_server_as_root(home: Path) -> None:
    postgres = EmbeddedPostgres(home)
    with postgres:
        pid_file = postmaster.read_pid_file(postgres.data)
        assert pid_file is not None
        assert uid_of(Path("/proc") / str(pid_file.pid)) == server_account().uid != 0
        assert uid_of(postgres.data) == server_account().uid


def test_programs_in_a_folder_only_root_can_enter_are_copied_and_the_folder_stays_closed(tmp_path: Path) -> None:
    private = tmp_path / "closed"
    private.mkdir(mode=0o700)
    source = cluster.locate(None, server_account()).folder
    package = source.parents[1]
    shutil.copytree(package, private / package.name, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, private / libraries.name)
    binaries = cluster.locate(private / source.relative_to(package.parent), server_account())
    assert binaries.major >= 15
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    if server_account().switched:
        assert not binaries.folder.is_relative_to(private)
