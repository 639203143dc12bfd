import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from api.auth.key_format import parse
from api.clock import token
from api.embedded import Server
from api.store.database import describe_database
from tests.running import free_port
from tests.servers import create_database, database_dsn, drop_database
from workbench.language.version import VERSION

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_key_is_the_only_thing_on_stdout(workbench: Run, process: Run) -> None:
    workbench("org", "create", "acme")
    done = process("key", "create", "--org", "acme", "--kind", "workbench", "--scopes", "sql:read,pii:read")
    assert (done.returncode, done.stderr) == (0, "")
    assert parse(done.stdout.removesuffix("\n")) == "workbench"


def test_keys_are_listed_rolled_and_revoked_without_being_shown_again(workbench: Run) -> None:
    workbench("org", "create", "acme")
    first = workbench("key", "create", "--org", "acme", "--kind", "live", "--name", "shop").stdout.strip()
    second = workbench("key", "roll", first).stdout.strip()
    assert workbench("key", "revoke", first).returncode == 0
    listed = workbench("key", "list", "--org", "acme").stdout
    assert listed.count("shop") == 2
    assert listed.count("revoked") == 1
    assert first not in listed
    assert second not in listed


def test_a_key_is_made_strict(workbench: Run) -> None:
    workbench("org", "create", "acme")
    key = workbench("key", "create", "--org", "acme", "--kind", "live", "--strict").stdout.strip()
    assert workbench("key", "list", "--org", "acme").stdout.count(" strict ") == 1
    edited = workbench("key", "edit", key, "--no-strict")
    assert edited.stderr == "within 5 seconds every process accepts events of this key with unknown fields\n"
    assert workbench("key", "list", "--org", "acme").stdout.count(" strict ") == 0


@pytest.mark.plain
def test_a_direct_login_is_printed_alone_listed_and_revoked(
    workbench: Run, postgres: Server, database_url: str
) -> None:
    admin_dsn = urlsplit(postgres.admin_dsn)._replace(path=urlsplit(database_url).path).geturl()
    assert workbench("migrate", "--admin-dsn", admin_dsn).returncode == 0
    workbench("org", "create", "acme")
    assert workbench("reader", "list", "--org", "acme").stderr.startswith("acme has no direct login; create one with:")
    created = workbench("reader", "create", "--org", "acme")
    assert (created.returncode, created.stderr, created.stdout.count("\n")) == (0, "", 1)
    with psycopg.connect(created.stdout.strip()) as login:
        assert login.execute("SELECT count(*) FROM app_events").fetchone() == (0,)
        listed = workbench("reader", "list", "--org", "acme").stdout
        assert listed.startswith(f"{urlsplit(created.stdout).username}  sessions: 1\n")
        assert workbench("reader", "revoke", "--org", "acme").stderr == "revoked; sessions ended: 1\n"
        with pytest.raises(psycopg.OperationalError):
            login.execute("SELECT 1")


def test_the_secret_created_by_the_first_command_is_private_and_kept(workbench: Run, tmp_path: Path) -> None:
    workbench("org", "create", "acme")
    key = workbench("key", "create", "--org", "acme", "--kind", "live").stdout.strip()
    secret_path = tmp_path / "data" / "secret"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (secret_path, secret_path.parent)] == [0o600, 0o700]
    assert workbench("key", "revoke", key).returncode == 0
    assert workbench("key", "revoke", key, WORKBENCH_SECRET="x" * 32).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["org", "create", "A B"], "'A B' is not an organization name; use 1 to 40 of a-z, 0-9 and -"),
        (["key", "list", "--org", "no"], "organization not found: no; create it with: workbench org create no"),
        (["import", "nofile", "--org", "acme"], "File not found: nofile"),
    ],
)
def test_an_error_made_by_the_user_is_one_sentence_and_exit_code_1(
    process: Run, arguments: list[str], sentence: str
) -> None:
    done = process(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"workbench: {sentence}\n")


@pytest.mark.parametrize(
    ("changes", "beginning"),
    [
        ({"DATABASE_URL": "postgresql://no@/no?host=/nonexistent"}, "workbench: the database cannot be reached"),
        ({"DATABASE_URL": "nonsense://"}, "workbench: "),
        ({"WORKBENCH_SECRET": "short"}, "workbench: WORKBENCH_SECRET is shorter than 16 characters"),
        ({"WORKBENCH_INGEST_RATE": "many"}, "workbench: WORKBENCH_INGEST_RATE: 'many' is not a number"),
    ],
)
def test_an_invalid_environment_variable_is_named(workbench: Run, changes: dict[str, str], beginning: str) -> None:
    done = workbench("key", "create", "--org", "acme", "--kind", "live", **changes)
    assert done.returncode == 1
    assert done.stderr.startswith(beginning)
    assert done.stderr.count("\n") == 1


def wrong_usage(command: str) -> int:
    """Return the exit code after wrong usage. Of `automations` it is 1, because 2 means that `plan` has differences."""
    return 1 if command == "automations" else 2


def test_wrong_usage_is_exit_code_2(workbench: Run) -> None:
    assert workbench("key", "create", "--org", "acme").returncode == 2
    assert workbench().returncode == 2


@pytest.mark.parametrize(
    ("arguments", "advice"), [(["improt"], "import"), (["key", "creat"], "create"), (["automations", "aply"], "apply")]
)
def test_a_misspelt_command_gets_a_suggestion(workbench: Run, arguments: list[str], advice: str) -> None:
    done = workbench(*arguments)
    assert done.returncode == wrong_usage(arguments[0])
    assert done.stderr.endswith(f"{arguments[-1]!r} is unknown; did you mean {advice!r}?\n")


@pytest.mark.parametrize(
    ("arguments", "unknown", "advice"),
    [
        (["up", "--prot", "9000"], "--prot 9000", "; did you mean '--port'?"),
        (["key", "list", "--org", "acme", "--data_dir=x"], "--data_dir=x", "; did you mean '--data-dir'?"),
        (["automations", "plan", "--jsn"], "--jsn", "; did you mean '--json'?"),
        (["doctor", "--color"], "--color", ""),
    ],
)
def test_a_misspelt_option_gets_a_suggestion(workbench: Run, arguments: list[str], unknown: str, advice: str) -> None:
    done = workbench(*arguments)
    assert done.returncode == wrong_usage(arguments[0])
    assert done.stderr.endswith(f"{unknown}{advice}\n")


def test_a_misspelt_option_that_is_required_gets_a_suggestion(workbench: Run) -> None:
    done = workbench("key", "list", "--ogr", "acme")
    assert done.returncode == 2
    assert done.stderr.endswith("the following arguments are required: --org; did you mean '--org'?\n")


def test_the_version_is_printed(workbench: Run) -> None:
    assert workbench("--version").stdout == f"workbench {VERSION}\n"


def test_an_import_names_its_organization_and_database(workbench: Run, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "history.ndjson").write_text("")
    workbench("org", "create", "acme")
    done = workbench("import", "history.ndjson", "--org", "acme", "--url", database_url, DATABASE_URL="")
    assert done.returncode == 0
    target = f"importing into the organization acme of the database {urlsplit(database_url).path[1:]} on "
    assert done.stderr.startswith(target)


def test_an_import_creates_no_database_in_a_misspelt_data_folder(workbench: Run, tmp_path: Path) -> None:
    (tmp_path / "history.ndjson").write_text("")
    folder = tmp_path / "misspelt"
    done = workbench("import", "history.ndjson", "--org", "acme", "--data-dir", str(folder), DATABASE_URL="")
    assert done.returncode == 1
    assert done.stderr == f"workbench: there is no database in {folder}; `workbench up` creates one\n"
    assert not folder.exists()


@pytest.mark.parametrize(
    "url", ["postgresql://user:secret@db.example:5433/events", "host=db.example port=5433 dbname=events"]
)
def test_the_name_of_a_database_has_no_password(url: str) -> None:
    assert describe_database(url) == "the database events on db.example:5433"


def test_a_port_in_use_is_named_with_its_option(workbench: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = workbench("serve", "--port", port)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"workbench: port {port} is already in use; stop the program that uses it, or choose another with --port\n"
    )


def test_a_database_that_was_never_migrated_is_reported_with_the_command(workbench: Run, postgres: Server) -> None:
    name = f"test_{token(4).hex()}"
    create_database(postgres, name)
    done = workbench("org", "create", "acme", DATABASE_URL=database_dsn(postgres.dsn, name))
    drop_database(postgres, name)
    assert done.returncode == 1
    assert "run: workbench migrate" in done.stderr


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_b14_a_server_that_may_lose_commits_is_refused(workbench: Run, database_url: str, command: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
    done = workbench(command, *(["--port", str(free_port())] if command == "serve" else []))
    assert done.returncode == 1
    assert "the database may lose committed data: synchronous_commit off" in done.stderr


def test_doctor_finds_no_problem_with_a_migrated_database(workbench: Run) -> None:
    done = workbench("doctor")
    assert "ok    the database is up to date" in done.stdout
    assert "fail" not in done.stdout.replace("fail  port", "")  # another program may use the default ports


def test_doctor_warns_of_a_role_that_bypasses_row_level_security(
    workbench: Run, postgres: Server, database_url: str
) -> None:
    above = database_dsn(postgres.admin_dsn, urlsplit(database_url).path[1:])
    assert "row-level security does not apply" not in workbench("doctor").stdout
    assert "row-level security does not apply to the application role" in workbench("doctor", DATABASE_URL=above).stdout


def test_doctor_reports_problems(workbench: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    done = workbench("doctor", DATABASE_URL="postgresql://no@/no?host=/nonexistent")
    assert done.returncode == 1
    assert f"chmod 700 {tmp_path / 'data'}" in done.stdout
    assert "fail  the database cannot be reached" in done.stdout
