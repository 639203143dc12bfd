"""Migrations expand the schema, so the previous version keeps working. Contracting ones are applied on request."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from api.crypto import Keyring
from api.embedded import Server
from api.query.gateway import AnalystQuery, Gateway
from api.store import database as all_migrations
from api.store import migrate as migrating
from api.store.database import (
    APPLICATION_NAME,
    Database,
    MigrationStatus,
    libpq_dsn,
    migrations,
    read_migration,
    sql_folder,
)
from api.store.migrate import (
    LockWait,
    MigrationError,
    migrate,
    read_migration_status,
    require_fit_server,
    require_known_schema,
)
from tests.conftest import clone
from tests.store.expanding import refused
from tests.store.test_schema import catalog

GROW = "ALTER TABLE workbench.events ADD COLUMN source text NOT NULL DEFAULT '';"
MORE = "CREATE TABLE workbench.notes (org_id bigint NOT NULL, id uuid NOT NULL, PRIMARY KEY (org_id, id));"
INDEX = """-- outside a transaction
DROP INDEX CONCURRENTLY IF EXISTS workbench.contacts_by_domain;
CREATE INDEX CONCURRENTLY contacts_by_domain ON workbench.contacts (org_id, email_domain);
"""
SHRINK = """-- contract: needs 0002_grow
ALTER TABLE workbench.chains DROP COLUMN problem;
"""
COLUMN_OF_VIEW = """
ALTER TABLE workbench.segment_members ADD COLUMN score integer;
CREATE OR REPLACE VIEW analyst.segment_members WITH (security_invoker = true, security_barrier = true) AS
    SELECT segment, contact_id, entered_at, score FROM workbench.segment_members;
"""
HASTY = LockWait(lock_ms=50, pause_seconds=0.05, patience_seconds=0.3)


class Code:
    """The code of a version, which includes certain migrations."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._first = migrations()

    def includes(self, **more: str) -> None:
        included = (*self._first, *(read_migration(f"0{name[1:]}", text) for name, text in more.items()))
        for module in (migrating, all_migrations):
            self._patch.setattr(module, "migrations", lambda: included)


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Code:
    return Code(monkeypatch)


def test_every_migration_keeps_the_previous_version_working() -> None:
    assert {migration.name: refused(migration) for migration in migrations()[1:] if refused(migration)} == {}


def test_a_contracting_migration_comes_after_the_one_it_needs() -> None:
    names = [migration.name for migration in migrations()]
    for migration in migrations():
        assert migration.needs is None or migration.needs in names[: names.index(migration.name)]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE workbench.events DROP COLUMN payload",
        "ALTER TABLE workbench.events RENAME COLUMN payload TO body",
        "ALTER TABLE workbench.events RENAME TO happenings",
        "ALTER TABLE workbench.events ALTER COLUMN event TYPE varchar(64)",
        "ALTER TABLE workbench.events ALTER COLUMN email SET NOT NULL",
        "ALTER TABLE workbench.events ADD COLUMN source text NOT NULL",
        "ALTER TABLE workbench.events ADD COLUMN source uuid DEFAULT gen_random_uuid()",
        "ALTER TABLE workbench.events ADD COLUMN source text, DROP COLUMN payload",
        "ALTER TABLE workbench.events ADD CONSTRAINT short CHECK (length(event) < 9)",
        "ALTER TABLE workbench.events ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY",
        "CREATE INDEX i ON workbench.events (org_id, email)",
        "CREATE INDEX CONCURRENTLY i ON workbench.events (org_id, email)",
        "DROP TABLE workbench.notes",
        "DROP VIEW analyst.contacts",
        "TRUNCATE workbench.notes",
        "UPDATE workbench.contacts SET email = NULL",
        "DELETE FROM workbench.contacts",
        "LOCK TABLE workbench.events",
        "CREATE TRIGGER t BEFORE INSERT ON workbench.events EXECUTE FUNCTION f()",
        "DO $$ BEGIN DROP TABLE workbench.events; END $$",
    ],
)
def test_statements_that_would_break_the_previous_version_are_refused(statement: str) -> None:
    assert refused(read_migration("0002_x", f"{MORE}\n{statement};")) != []
    assert refused(read_migration("0002_x", f"-- contract: needs 0001_initial\n{statement};")) == []


def test_statements_that_only_add_are_accepted() -> None:
    text = f"""{GROW} {MORE}
        CREATE INDEX notes_by_id ON workbench.notes (org_id, id);
        ALTER TABLE workbench.contacts ADD COLUMN score integer, ADD COLUMN labels text[] NOT NULL DEFAULT '{{}}';
        ALTER TABLE workbench.contacts ADD CONSTRAINT positive CHECK (score > 0) NOT VALID;
        ALTER TABLE workbench.contacts VALIDATE CONSTRAINT positive; -- reads, and lets others write
        CREATE VIEW analyst.notes AS SELECT id FROM workbench.notes;"""
    assert refused(read_migration("0002_x", text)) == refused(read_migration("0002_x", INDEX)) == []
    assert refused(
        read_migration("0002_x", INDEX.replace("DROP INDEX CONCURRENTLY IF EXISTS workbench.contacts_by_domain;", ""))
    )


@pytest.fixture
def empty(postgres: Server) -> Iterator[str]:
    with clone(postgres, "template0") as dsn:
        yield dsn


async def test_a_served_organization_reads_a_column_that_a_migration_adds_to_a_view(
    code: Code, database_url: str
) -> None:
    query = AnalystQuery(1, "SELECT * FROM segment_members", None, clear_emails=False)
    async with Database(database_url) as database:
        gateway = Gateway(database, Keyring(f"secret of {database_url}"))

        async def columns() -> list[str]:
            async with gateway.run(query) as result:
                return [column.name for column in result.columns]

        assert await columns() == ["segment", "contact_id", "entered_at"]
        code.includes(x002_view=COLUMN_OF_VIEW)
        await migrate(database_url)
        assert await columns() == ["segment", "contact_id", "entered_at", "score"]


async def test_a_contracting_migration_is_applied_on_request(code: Code, database_url: str, empty: str) -> None:
    code.includes(x002_grow=GROW, x003_shrink=SHRINK, x004_index=INDEX, x005_more=MORE)
    assert await migrate(database_url) == ["0002_grow", "0004_index", "0005_more"]
    assert await read_migration_status(database_url) == MigrationStatus([], ["0003_shrink"], [])
    assert await migrate(database_url, contract=True) == ["0003_shrink"]
    assert await migrate(database_url, contract=True) == []
    await migrate(empty)  # no code runs there, so it is built completely
    assert catalog(empty) == catalog(database_url)


async def test_code_starts_only_on_a_schema_it_works_with(code: Code, database_url: str) -> None:
    code.includes(x002_grow=GROW, x003_shrink=SHRINK)
    with pytest.raises(MigrationError, match=r"older than this code \(it lacks 0002_grow\); run: workbench migrate"):
        await require_fit_server(database_url)
    await migrate(database_url)
    await require_fit_server(database_url)  # does not wait for contracting migrations
    code.includes()
    await require_fit_server(database_url)  # the previous version
    code.includes(x002_grow=GROW, x003_shrink=SHRINK)
    await migrate(database_url, contract=True)
    code.includes(x002_grow=GROW)
    await require_fit_server(database_url)  # includes what is needed
    code.includes()
    with pytest.raises(MigrationError, match=r"newer than this code \(0003_shrink removed what it uses\)"):
        await require_known_schema(database_url)


@pytest.mark.parametrize("fault", ["DISABLE ROW LEVEL SECURITY", "NO FORCE ROW LEVEL SECURITY"])
async def test_code_does_not_start_without_row_level_security(database_url: str, fault: LiteralString) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(f"ALTER TABLE workbench.contacts {fault}")
    with pytest.raises(MigrationError, match="row-level security does not hold for contacts; run: workbench migrate"):
        await require_fit_server(database_url)
    await migrate(database_url)
    await require_fit_server(database_url)


async def test_an_edited_migration_is_refused(code: Code, database_url: str) -> None:
    code.includes(x002_grow=GROW)
    await migrate(database_url)
    code.includes(x002_grow=GROW + MORE)
    with pytest.raises(MigrationError, match=r"0002_grow\.sql was changed"):
        await migrate(database_url)


async def test_a_migration_that_fails_changes_nothing(code: Code, database_url: str) -> None:
    before = catalog(database_url)
    code.includes(x002_grow=GROW + "SELECT 1/0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await migrate(database_url)
    assert catalog(database_url) == before


async def test_queries_do_not_wait_behind_a_migration_that_waits_for_a_long_query(
    code: Code, database_url: str
) -> None:
    code.includes(x002_grow=GROW)
    dsn = libpq_dsn(database_url)
    async with await psycopg.AsyncConnection.connect(dsn) as query, await psycopg.AsyncConnection.connect(dsn) as other:
        await query.execute("SELECT count(*) FROM workbench.events")  # its transaction stays open
        reports: list[str] = []
        migrating_now = asyncio.create_task(migrate(database_url, wait=LockWait(50, 0.05, 30.0, reports.append)))
        await other.execute("SET lock_timeout = '5s'")
        queries = 0
        while queries < 20:  # like ingest: each would fail after 5 s if the migration stayed in the lock queue
            await other.execute("SELECT count(*) FROM workbench.events")
            await other.rollback()
            queries += 1
            await asyncio.sleep(0.02)
        assert not migrating_now.done()
        await query.rollback()
        assert await migrating_now == ["0002_grow"]
        assert [report.split(": ")[0] for report in reports] == ["0002_grow has to wait"]


async def test_a_migration_gives_up_and_names_the_blocking_process(code: Code, database_url: str) -> None:
    code.includes(x002_grow=GROW)
    async with await psycopg.AsyncConnection.connect(libpq_dsn(database_url)) as query:
        await query.execute("SELECT count(*) FROM workbench.events")
        pid = query.info.backend_pid
        with pytest.raises(MigrationError, match=f"0002_grow: process {pid} of Postgres may be in the way"):
            await migrate(database_url, wait=HASTY)


async def test_processes_that_migrate_take_turns_also_while_an_index_is_built(code: Code, database_url: str) -> None:
    code.includes(x002_index=INDEX)
    assert sorted(await asyncio.gather(*(migrate(database_url) for _ in range(3)))) == [[], [], ["0002_index"]]


async def test_a_contracting_migration_waits_for_connected_older_code(code: Code, database_url: str) -> None:
    code.includes(x002_grow=GROW, x003_shrink=SHRINK)
    await migrate(database_url)
    old = psycopg.connect(libpq_dsn(database_url), application_name=f"{APPLICATION_NAME}0001_initial")
    with pytest.raises(MigrationError, match="of a version before 0002_grow are still connected"):
        await migrate(database_url, contract=True)
    old.close()
    deadline = time.monotonic() + 5
    while (await read_migration_status(database_url)).contracts:  # a closed connection is listed for a moment
        assert time.monotonic() < deadline
        try:
            await migrate(database_url, contract=True)
        except MigrationError:
            await asyncio.sleep(0.02)


def test_every_file_is_a_migration() -> None:
    files = {path.name for path in Path(sql_folder() / "migrations").iterdir()}
    assert files == {f"{migration.name}.sql" for migration in migrations()}
