import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from api.embedded import EmbeddedError, EmbeddedPostgres, find, postmaster

Make = Callable[[], EmbeddedPostgres]

SUPERVISOR = """
import sys, time
from pathlib import Path
from api.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(Path(sys.argv[1]))
print(postgres.start().owned, flush=True)
time.sleep(600)
"""


def fetch_value(dsn: str, question: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(question.encode()).fetchone()
    return row[0] if row else None


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(statement.encode())


def postmaster_pid(postgres: EmbeddedPostgres) -> int:
    pid_file = postmaster.read_pid_file(postgres.data)
    assert pid_file is not None
    return pid_file.pid


def supervisor(home: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", SUPERVISOR, home], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    return child


def killed(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_the_first_start_makes_a_database_its_role_owns_without_being_superuser(embedded: Make) -> None:
    server = embedded().start()
    assert server.owned
    assert fetch_value(server.dsn, "SELECT current_user") == "workbench"
    assert fetch_value(server.dsn, "SELECT current_database()") == "workbench"
    rights = "SELECT rolsuper::text || rolcreaterole || rolcreatedb FROM pg_roles WHERE rolname = current_user"
    assert fetch_value(server.dsn, rights) == "falsetruetrue"
    assert fetch_value(server.dsn, "SELECT pg_has_role(current_user, 'pg_signal_backend', 'member')") is True
    assert fetch_value(server.dsn, "SELECT has_parameter_privilege('temp_file_limit', 'SET')") is True
    assert fetch_value(server.admin_dsn, "SELECT current_setting('is_superuser')") == "on"


def test_the_server_has_the_settings_for_durability_and_limits(embedded: Make) -> None:
    dsn = embedded().start().dsn
    names = ("fsync", "synchronous_commit", "full_page_writes", "data_checksums", "temp_file_limit", "listen_addresses")
    assert [fetch_value(dsn, f"SHOW {name}") for name in names] == ["on", "on", "on", "on", "2GB", ""]
    assert fetch_value(dsn, "SELECT datlocale FROM pg_database WHERE datname = current_database()") == "C.UTF-8"


def test_a_warm_start_keeps_data_and_addresses(embedded: Make) -> None:
    postgres = embedded()
    first = postgres.start()
    execute(first.dsn, "CREATE TABLE warm AS SELECT 7 AS n")
    postgres.stop()
    again = embedded().start()
    assert again == first
    assert fetch_value(again.dsn, "SELECT n FROM warm") == 7


def test_a_clean_stop_leaves_no_process_and_no_pid_file(embedded: Make) -> None:
    postgres = embedded()
    postgres.start()
    data = postgres.data
    postgres.stop()
    postgres.stop()
    assert postmaster.list_processes(data) == []
    assert postmaster.read_pid_file(data) is None
    assert find(postgres.home) is None
    assert "database system is shut down" in (postgres.home / "postgres" / "postgres.log").read_text()


def test_a_second_process_joins_the_server_and_does_not_stop_it(home: Path, embedded: Make) -> None:
    child = supervisor(home)
    joined = embedded()
    server = joined.start()
    joined.stop()
    assert not server.owned
    assert find(home) == server
    killed(child)
    embedded().start()  # adopts, so that the fixture stops it


def test_concurrent_starts_get_one_server_with_one_owner(embedded: Make) -> None:
    many = [embedded() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        servers = list(pool.map(EmbeddedPostgres.start, many))
    assert len({server.dsn for server in servers}) == 1
    assert [server.owned for server in servers].count(True) == 1


def test_after_kill_9_of_the_postmaster_the_next_start_recovers_what_was_committed(embedded: Make) -> None:
    postgres = embedded()
    dsn = postgres.start().dsn
    execute(dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    busy = psycopg.connect(dsn)
    busy.execute("SELECT 1")
    os.kill(postmaster_pid(postgres), signal.SIGKILL)
    while postgres.alive():
        pass
    server = postgres.start()
    assert server.owned
    assert fetch_value(server.dsn, "SELECT n FROM kept") == 7
    busy.close()


def test_a_busy_back_end_of_a_dead_server_is_ended_before_the_data_is_opened_again(embedded: Make) -> None:
    postgres = embedded()
    dsn = postgres.start().dsn
    busy = psycopg.connect(dsn)
    pid = busy.info.backend_pid
    busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 100000000000)")
    os.kill(postmaster_pid(postgres), signal.SIGKILL)
    while postgres.alive():
        pass
    postgres.start()
    assert pid not in postmaster.list_processes(postgres.data)
    busy.close()


def test_after_kill_9_of_the_supervisor_the_next_start_adopts_the_living_server(home: Path, embedded: Make) -> None:
    killed(supervisor(home))
    before = find(home)
    assert before is not None
    postgres = embedded()
    server = postgres.start()
    assert server.owned
    assert server.dsn == before.dsn
    postgres.stop()
    assert find(home) is None


def test_a_pid_file_with_the_pid_of_another_process_is_ignored(embedded: Make) -> None:
    postgres = embedded()
    postgres.start()
    pid_file = postgres.data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    os.kill(postmaster_pid(postgres), signal.SIGKILL)
    while postgres.alive():
        pass
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert find(postgres.home) is None
    assert fetch_value(postgres.start().dsn, "SELECT 1") == 1


def test_a_server_that_cannot_be_looked_at_has_not_ended(embedded: Make) -> None:
    postgres = embedded()
    postgres.start()
    pid, limits = postmaster_pid(postgres), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            postmaster.works_in(pid, postgres.data)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_data_of_another_major_version_is_refused_and_not_changed(embedded: Make) -> None:
    postgres = embedded()
    postgres.start()
    version = postgres.data / "PG_VERSION"
    postgres.stop()
    ours = version.read_text()
    version.write_text("16\n")
    with pytest.raises(EmbeddedError, match=r"created by Postgres 16.* are Postgres \d\d"):
        embedded().start()
    assert version.read_text() == "16\n"
    version.write_text(ours)


def test_a_setting_that_postgres_rejects_is_reported_with_its_message(home: Path) -> None:
    with pytest.raises(EmbeddedError, match="no_such_setting"):
        EmbeddedPostgres(home, settings={"no_such_setting": "1"}).start()


def test_lost_data_is_not_replaced_by_an_empty_database(embedded: Make) -> None:
    postgres = embedded()
    postgres.start()
    postgres.stop()
    postgres.data.rename(postgres.data.with_name("elsewhere"))
    with pytest.raises(EmbeddedError, match="is missing; restore it"):
        embedded().start()
    postgres.data.with_name("elsewhere").rename(postgres.data)


def test_passwords_and_folders_are_private_and_foreign_folders_keep_their_mode(fresh_home: Path) -> None:
    parent = fresh_home.parent
    parent.chmod(0o700)
    with EmbeddedPostgres(fresh_home) as server:
        assert fetch_value(server.dsn, "SELECT 1") == 1
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (parent, *parent.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.name.endswith(".password")} == {0o600}
    assert modes[parent] == modes[parent / "home"] == modes[parent / "home" / "postgres"] == 0o700


def test_a_home_that_others_can_read_is_refused(fresh_home: Path) -> None:
    (fresh_home / "postgres").mkdir(parents=True)
    (fresh_home / "postgres").chmod(0o755)
    with pytest.raises(EmbeddedError, match="can be read by others"):
        EmbeddedPostgres(fresh_home).start()
