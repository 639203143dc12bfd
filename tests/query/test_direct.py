"""A direct login reads only its organization's rows, whatever it sets; the server limits what it cannot forbid."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import polars
import psycopg
import pytest
from psycopg import errors
from sqlalchemy import create_engine, make_url

from api.auth import AccessError, sql_logins
from api.auth.sql_logins import end
from api.cli import database as commands
from api.crypto import Keyring
from api.embedded import Server
from api.store.migrate import migrate
from api.store.sql_roles import SessionLimits, reset_changed_logins
from tests.query.test_isolation import CANARIES

pytestmark = pytest.mark.plain

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
async def address(service: Any, keyring: Keyring, postgres: Server) -> AsyncIterator[str]:
    """The URL of organization a's login."""
    # A clone is not hardened either: it does not inherit rights to the database.
    with pytest.raises(AccessError, match="the server is not hardened"):
        await sql_logins.create(service.dsn, keyring, "a")
    await migrate(
        service.dsn, admin_dsn=urlsplit(postgres.admin_dsn)._replace(path=urlsplit(service.dsn).path).geturl()
    )
    await service.ben.rows("SELECT 1")  # creates the role of organization b
    yield await sql_logins.create(service.dsn, keyring, "a")
    await sql_logins.revoke(service.dsn, keyring, "a")


@pytest.fixture
def login(address: str) -> Iterator[Connection]:
    """A session that has lifted every limit it can."""
    with closing(psycopg.connect(address, autocommit=True)) as connection:
        for setting in (
            "default_transaction_read_only = off",
            "statement_timeout = 0",
            "lock_timeout = 0",
            "work_mem = '1GB'",
        ):
            connection.execute(f"SET {setting}")
        yield connection


def reason(connection: Connection) -> str:
    """Return the reason why the server ended a session."""
    with pytest.raises(psycopg.OperationalError) as ended:
        connection.execute("SELECT 1")
    return str(ended.value)


@pytest.mark.parametrize(("table", "column"), CANARIES.items())
def test_a_login_sees_only_its_own_rows(login: Connection, table: str, column: str) -> None:
    assert login.execute(f"SELECT {column} FROM {table}").fetchall() == [("canary_a",)]


def test_no_view_of_a_login_shows_an_address(login: Connection) -> None:
    for table in CANARIES:
        rows = login.execute(f"SELECT row_to_json(t)::text FROM {table} t").fetchall()
        assert rows
        assert not any("ann@" in row[0] or "enc1_" in row[0] for row in rows)
    assert login.execute("SELECT email_domain FROM contacts").fetchall() == [("example.com",)]
    for column in ("email", "contacts.email"):
        with pytest.raises(errors.UndefinedColumn):
            login.execute(f"SELECT {column} FROM contacts")


DENIED = [
    "SELECT * FROM analyst.contacts",
    "SELECT * FROM analyst_past.app_events",
    "SELECT email FROM workbench.contacts",
    "SELECT * FROM workbench.events_other",
    "SELECT channel FROM workbench.channels",
    "SELECT rolname FROM pg_roles",
    "SELECT query FROM pg_stat_activity",
    "SELECT reltuples FROM pg_class",
    "SELECT * FROM pg_policies",
    "SELECT * FROM pg_listening_channels()",
    "SELECT * FROM information_schema.tables",
    "SELECT set_config('row_security', 'off', false)",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_notify('a', 'b')",
    "SELECT pg_terminate_backend(1)",
    "SELECT pg_current_xact_id()",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT * FROM contacts FOR UPDATE",
    "INSERT INTO contacts (id) VALUES (gen_random_uuid())",
    "UPDATE contacts SET external_id = ''",
    "DELETE FROM app_events",
    "BEGIN; LOCK TABLE app_events IN ACCESS EXCLUSIVE MODE",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/x'",
    "DO 'BEGIN END'",
    "CREATE TEMPORARY TABLE t ()",
    "CREATE TABLE analyst.t ()",
    "CREATE SCHEMA s",
    "CREATE ROLE r",
    "CREATE FUNCTION analyst.f() RETURNS int LANGUAGE sql RETURN 1",
    "DROP OWNED BY CURRENT_USER",
    "DROP POLICY p ON workbench.contacts",
    "ALTER TABLE workbench.contacts DISABLE ROW LEVEL SECURITY",
    "ALTER ROLE {gateway} PASSWORD 'x'",
    "ALTER ROLE CURRENT_USER CONNECTION LIMIT -1",
    "ALTER ROLE CURRENT_USER SET temp_file_limit = -1",
    "GRANT {gateway} TO CURRENT_USER",
    "SET temp_file_limit = -1",
    "SET ROLE {gateway}",
    "SET ROLE {owner}",
    "SET SESSION AUTHORIZATION {gateway}",
]


@pytest.mark.parametrize("statement", DENIED)
def test_statements_that_a_login_may_not_run_are_refused(
    login: Connection, service: Any, keyring: Keyring, statement: str
) -> None:
    with pytest.raises((errors.InsufficientPrivilege, errors.UndefinedObject)):
        login.execute(
            statement.format(gateway=keyring.reader_role(service.ben.org_id), owner=urlsplit(service.dsn).username)
        )


def test_switching_row_security_off_shows_nothing(login: Connection) -> None:
    login.execute("SET row_security = off")
    with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
        login.execute("SELECT * FROM app_events")


async def test_a_login_that_changes_its_password_does_not_lock_the_gateway_out(
    login: Connection, address: str, service: Any
) -> None:
    login.execute("ALTER ROLE CURRENT_USER PASSWORD 'mine'")
    assert await service.ann.rows("SELECT event FROM app_events") == [["canary_a"]]
    login.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{urlsplit(address).password}'")


async def test_limits_that_a_login_changed_do_not_outlive_the_session(
    login: Connection, address: str, database: Any, service: Any
) -> None:
    def limits() -> list[Any]:
        with closing(psycopg.connect(address)) as later:
            return [
                later.execute(f"SHOW {name}").fetchone() for name in ("statement_timeout", "work_mem", "search_path")
            ]

    before = limits()
    login.execute("ALTER ROLE CURRENT_USER SET statement_timeout = 0")
    login.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {urlsplit(service.dsn).path[1:]} SET work_mem = '1GB'")
    login.execute("ALTER ROLE CURRENT_USER RESET search_path")
    assert all(setting != was for setting, was in zip(limits(), before, strict=True))
    await end(database, SessionLimits())
    assert limits() == before
    async with database.transaction() as tx:
        assert await reset_changed_logins(tx) == []


ENDLESS = "SELECT count(*) FROM " + ", ".join(f"generate_series(1, 1000) s{n}" for n in range(4))


async def test_a_session_with_an_endless_statement_is_ended(login: Connection, database: Any) -> None:
    asking = asyncio.create_task(asyncio.to_thread(login.execute, ENDLESS))
    while not asking.done():
        await asyncio.sleep(0.02)
        await end(database, SessionLimits(statement_seconds=0.1))
    with pytest.raises(errors.AdminShutdown):
        await asking


async def test_a_session_with_an_idle_transaction_is_ended(login: Connection, database: Any) -> None:
    login.execute("BEGIN")
    login.execute("SELECT 1")
    await end(database, SessionLimits())
    assert login.execute("SELECT 1").fetchone() == (1,)
    await end(database, SessionLimits(transaction_seconds=0))
    assert "terminating connection" in reason(login)


async def test_a_session_that_makes_others_wait_is_ended(login: Connection, database: Any) -> None:
    login.execute("BEGIN")
    login.execute("ALTER ROLE CURRENT_USER SET work_mem = '2GB'")  # its lock would make `revoke` wait
    await end(database, SessionLimits())
    assert "terminating connection" in reason(login)


async def test_a_session_with_too_many_locks_is_ended(login: Connection, database: Any) -> None:
    login.execute("BEGIN")
    login.execute("SELECT * FROM app_events")
    await end(database, SessionLimits(locks=2))
    assert "terminating connection" in reason(login)


async def test_idle_transactions_end_while_the_notification_queue_fills_up(
    address: str, login: Connection, database: Any
) -> None:
    login.execute("LISTEN anything")
    login.execute("BEGIN")  # later statements wait for it
    login.execute("SELECT 1")
    with closing(psycopg.connect(address, autocommit=True)) as other:
        other.execute("SET default_transaction_read_only = off")
        for number in range(20):
            other.execute(f"NOTIFY anything, '{number}{'x' * 7_000}'")
        await end(database, SessionLimits(queue_share=0))
        assert other.execute("SELECT 1").fetchone() == (1,)  # it is in no transaction
    assert "terminating connection" in reason(login)


async def test_a_login_to_another_database_is_terminated(address: str, database_url: str, database: Any) -> None:
    elsewhere = urlsplit(address)._replace(path=urlsplit(database_url).path).geturl()
    with closing(psycopg.connect(elsewhere, autocommit=True)) as session:
        await end(database, SessionLimits())
        assert "terminating connection" in reason(session)


async def test_revoking_ends_the_sessions_at_once_and_for_good(service: Any, keyring: Keyring) -> None:
    first = await sql_logins.create(service.dsn, keyring, "b")
    with closing(psycopg.connect(first, autocommit=True)) as session:
        assert session.execute("SELECT event FROM app_events").fetchall() == [("canary_b",)]
        with pytest.raises(
            AccessError, match="b already has a direct login; revoke it first: workbench reader revoke --org b"
        ):
            await sql_logins.create(service.dsn, keyring, "b")
        session.execute("SET default_transaction_read_only = off")
        session.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {make_url(first).database} SET row_security = off")
        session.execute("BEGIN READ WRITE")
        session.execute("ALTER ROLE CURRENT_USER PASSWORD 'kept'")  # keeps the role locked
        assert await sql_logins.revoke(service.dsn, keyring, "b") >= 1
        assert "terminating connection" in reason(session)
    with pytest.raises(psycopg.OperationalError, match="failed: FATAL"):
        psycopg.connect(first)
    with pytest.raises(AccessError, match="b has no direct login"):
        await sql_logins.revoke(service.dsn, keyring, "b")
    second = await sql_logins.create(service.dsn, keyring, "b")  # earlier settings are gone
    with closing(psycopg.connect(second)) as session:
        assert session.execute("SELECT event FROM app_events").fetchall() == [("canary_b",)]
    sessions = await sql_logins.sessions(service.dsn, keyring, "b")
    assert sessions is not None
    assert sessions[0] == make_url(second).username != make_url(service.dsn).username
    await sql_logins.revoke(service.dsn, keyring, "b")
    assert await sql_logins.sessions(service.dsn, keyring, "b") is None


async def test_a_view_that_comes_with_a_migration_is_shown(login: Connection, service: Any) -> None:
    with psycopg.connect(service.dsn, autocommit=True) as owner:
        view = "analyst.known WITH (security_invoker = true, security_barrier = true)"
        owner.execute(f"CREATE VIEW {view} AS SELECT body AS said FROM workbench.messages")
        try:
            with pytest.raises(errors.InsufficientPrivilege):
                login.execute("SELECT said FROM known")
            await asyncio.to_thread(commands.migrate, commands.DatabaseUrls(service.dsn, None))
            assert login.execute("SELECT said FROM known").fetchall() == [("canary_a",)]
        finally:
            owner.execute("DROP VIEW analyst.known")


def test_other_tools_read_through_a_direct_login(address: str) -> None:
    url = make_url(address).set(drivername="postgresql+psycopg")
    engine = create_engine(url, use_native_hstore=False)
    frame = polars.read_database("SELECT event, payload FROM app_events", engine)
    assert frame["event"].to_list() == ["canary_a"]
    engine.dispose()
