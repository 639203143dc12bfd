"""Migrate a database, and check that a server and its schema are fit for this code.

`migrate` applies the missing migrations in order, each once, under one lock, during traffic. A migration never
waits long for a lock, because all later statements would queue behind it: it gives up, lets them through, and tries
again. The digest of every applied file is stored, and a file that was edited after it ran is an error.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import psycopg
from psycopg import errors, sql

from api.clock import monotonic_ns
from api.store.database import (
    APPLICATION_NAME,
    Database,
    DatabaseUnavailableError,
    Migration,
    MigrationStatus,
    Transaction,
    is_coordinator,
    is_distributed,
    libpq_dsn,
    migration_status,
    migrations,
    register_cluster,
    run_on_workers,
    seeing_all_organizations,
    sql_folder,
)
from api.store.query import query


class MigrationError(Exception):
    """The database's migrations do not fit this code, or one cannot be applied now."""


# --- Applying migrations

_LOCK = 7_300_451
_LOCK_PAUSE_S = 0.1
_MONTHS_AHEAD = 3


class LockWait(msgspec.Struct, frozen=True):
    """The times for which a migration waits for locks.

    `lock_ms` at a time, `pause_seconds` between attempts, `patience_seconds` in total. `report` is called once for each
    step that has to wait.
    """

    lock_ms: int = 200  # less than the 500 ms that ingest waits for a lock
    pause_seconds: float = 1.0
    patience_seconds: float = 120.0
    report: Callable[[str], None] = lambda _sentence: None


_DEFAULT_WAIT = LockWait()


async def migrate(
    dsn: str, *, admin_dsn: str | None = None, contract: bool = False, wait: LockWait = _DEFAULT_WAIT
) -> list[str]:
    """Bring the database up to date with this code and its cluster; return the names of the migrations applied now.

    `contract`: also remove what only older code uses; refused while such code is connected. A new database is always
    built completely. `admin_dsn`: a superuser's database URL, to harden SQL access. Raises MigrationError.
    """
    async with _locked(dsn) as connection:
        await connection.execute(f"SET lock_timeout = {wait.lock_ms}")
        applied = await _applied_migrations(connection)
        for migration in migrations():
            if migration.name in applied and applied[migration.name][0] != migration.digest:
                raise MigrationError(
                    f"{migration.name}.sql was changed after it had been applied; add a new migration instead"
                )
        missing = [
            migration
            for migration in migrations()
            if migration.name not in applied and (migration.needs is None or contract or not applied)
        ]
        if contract and applied:
            needed = max((migration.needs for migration in missing if migration.needs is not None), default="")
            old = await _value(
                connection,
                "SELECT count(DISTINCT application_name) FROM pg_stat_activity WHERE datname = current_database()"
                " AND starts_with(application_name, %s) AND substr(application_name, %s) < %s",
                *(APPLICATION_NAME, len(APPLICATION_NAME) + 1, needed),
            )
            if old:
                raise MigrationError(f"processes of a version before {needed} are still connected; stop them first")
        for migration in missing:
            await _retry_locked(connection, migration.name, wait, partial(_apply, connection, migration))
        if await is_coordinator(connection):
            distribute = partial(_run_file, connection, "citus.sql")
            await _retry_locked(connection, "distributing the tables", wait, distribute)
        await _retry_locked(connection, "row-level security", wait, partial(_run_file, connection, "row_security.sql"))
        await _retry_locked(connection, "triggers", wait, partial(_run_file, connection, "triggers.sql"))
        if not await is_distributed(connection):
            await _index_partitions(connection, wait)
        now = await _value(connection, "SELECT clock_timestamp()")
        assert isinstance(now, datetime)
        first, last = now - timedelta(days=35), now + timedelta(days=31 * _MONTHS_AHEAD)
        for table in MONTHLY:
            await _retry_locked(connection, "adding a month", wait, partial(add_months, connection, table, first, last))
        async with seeing_all_organizations(connection):
            await register_cluster(connection)
    if admin_dsn is not None:
        script = (sql_folder() / "hardening.sql").read_bytes()
        async with await Transaction.connect(libpq_dsn(admin_dsn), autocommit=True) as connection:
            await connection.execute(script)
            if await is_coordinator(connection):
                await run_on_workers(connection, script.decode())
    return [migration.name for migration in missing]


MONTHLY = ("events", "contact_changes")
"""The tables with a partition for each month."""


async def add_months(connection: Transaction, table: str, first: datetime, last: datetime) -> None:
    """Make sure that a table of `MONTHLY` has a partition for every month that `[first, last]` touches."""
    parent = sql.Identifier("workbench", table)
    month = datetime(first.year, first.month, 1, tzinfo=UTC)
    while month <= last:
        following = datetime(month.year + month.month // 12, month.month % 12 + 1, 1, tzinfo=UTC)
        name = f"{table}_{month:%Y_%m}"
        existing = await (await connection.execute("SELECT to_regclass(%s)", (f"workbench.{name}",))).fetchone()
        if existing is None or existing[0] is None:
            partition = sql.Identifier("workbench", name)
            # Unlike CREATE TABLE … PARTITION OF, attaching a table waits neither for ingest nor for long queries.
            async with connection.transaction():
                await connection.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(partition, parent))
                await connection.execute(
                    sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                        parent, partition, sql.Literal(month.isoformat()), sql.Literal(following.isoformat())
                    )
                )
        month = following


async def _index_partitions(connection: Transaction, wait: LockWait) -> None:
    """Make the indexes that partitions of the tables of `MONTHLY` lack, during traffic.

    A migration makes an index of a partitioned table `ON ONLY` that table. Partitions that are added later have it.
    """
    rows = await connection.execute(
        "SELECT i.indexrelid::regclass::text, p.inhrelid::regclass::text, pg_get_indexdef(i.indexrelid),"
        " (SELECT string_agg(a.attname, '_' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = i.indexrelid)"
        " FROM pg_index i JOIN pg_inherits p ON p.inhparent = i.indrelid"
        " WHERE i.indrelid = ANY (%s::text[]::regclass[]) AND NOT EXISTS ("
        "SELECT FROM pg_index c JOIN pg_inherits h ON h.inhrelid = c.indexrelid AND h.inhparent = i.indexrelid"
        " WHERE c.indrelid = p.inhrelid)",
        ([f"workbench.{table}" for table in MONTHLY],),
    )
    await connection.execute("SET lock_timeout = 0")  # these statements block no others, and may themselves wait long
    for parent, partition, definition, columns in await rows.fetchall():
        name = f"{partition.removeprefix('workbench.')}_{columns}_idx"  # as Postgres would name it
        _, _, method = definition.partition(" USING ")
        for statement in (
            f"DROP INDEX CONCURRENTLY IF EXISTS workbench.{name}",  # of an attempt that did not end
            f"CREATE INDEX CONCURRENTLY {name} ON {partition} USING {method}",
            f"ALTER INDEX {parent} ATTACH PARTITION workbench.{name}",
        ):
            await connection.execute(statement.encode())
    await connection.execute(f"SET lock_timeout = {wait.lock_ms}")


@asynccontextmanager
async def _locked(dsn: str) -> AsyncIterator[Transaction]:
    async with await Transaction.connect(libpq_dsn(dsn), autocommit=True) as connection:
        await connection.execute("SET client_min_messages = warning")
        # Polls instead of waiting in a statement: an index build of the process that holds the lock would wait for our
        # snapshot.
        while not await _value(connection, "SELECT pg_try_advisory_lock(%s)", _LOCK):  # noqa: ASYNC110  Postgres has no event for it
            await asyncio.sleep(_LOCK_PAUSE_S)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS public.workbench_migrations "
            "(name text PRIMARY KEY, digest text NOT NULL, needs text, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        yield connection


async def _applied_migrations(connection: Transaction) -> dict[str, tuple[str, str | None]]:
    rows = await connection.execute("SELECT name, digest, needs FROM public.workbench_migrations")
    return {name: (digest, needs) async for name, digest, needs in rows}


async def _retry_locked(
    connection: Transaction, what: str, wait: LockWait, attempt: Callable[[], Awaitable[None]]
) -> None:
    """Try until no lock is in the way, and let other transactions through in between."""
    started_ns, reported = monotonic_ns(), False
    while True:
        try:
            return await attempt()
        except (errors.LockNotAvailable, errors.DeadlockDetected):
            if not reported:
                wait.report(f"{what} has to wait: {await _blocker(connection)}")
            reported = True
            if monotonic_ns() - started_ns > wait.patience_seconds * 1e9:
                raise MigrationError(f"{what}: {await _blocker(connection)}; it changed nothing, try again") from None
        await asyncio.sleep(wait.pause_seconds)


async def _blocker(connection: Transaction) -> str:
    # Postgres does not say which transaction held the lock; the oldest one is the most likely.
    rows = await connection.execute(
        "SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::integer FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        " ORDER BY xact_start LIMIT 1"
    )
    row = await rows.fetchone()
    if row is None:
        return "another transaction held a lock"
    return f"process {row[0]} of Postgres may be in the way, with a transaction of {row[1]} s"


async def _apply(connection: Transaction, migration: Migration) -> None:
    if not migration.in_transaction:
        # These statements block no others, and may themselves wait long.
        lock_timeout = await _value(connection, "SHOW lock_timeout")
        await connection.execute("SET lock_timeout = 0")
        for statement in migration.statements:
            await connection.execute(statement.encode())
        await connection.execute("SELECT set_config('lock_timeout', %s, false)", (lock_timeout,))
    async with seeing_all_organizations(connection):
        if migration.in_transaction:
            await connection.execute(migration.text.encode())
        await connection.execute(
            "INSERT INTO public.workbench_migrations (name, digest, needs) VALUES (%s, %s, %s)",
            (migration.name, migration.digest, migration.needs),
        )


async def _run_file(connection: Transaction, name: str) -> None:
    async with connection.transaction():
        await connection.execute((sql_folder() / name).read_bytes())


async def _value(connection: Transaction, statement: str, *values: object) -> object:
    row = await (await connection.execute(statement, values)).fetchone()
    assert row is not None
    return row[0]


# --- Checks before a start

_OLDEST_POSTGRES = 15
_DURABILITY_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")


async def read_migration_status(dsn: str) -> MigrationStatus:
    async with await Transaction.connect(libpq_dsn(dsn), autocommit=True) as connection:
        row = await (await connection.execute("SELECT to_regclass('public.workbench_migrations')")).fetchone()
        applied = await _applied_migrations(connection) if row is not None and row[0] is not None else {}
    return migration_status({name: needs for name, (_, needs) in applied.items()})


async def require_known_schema(dsn: str) -> None:
    """Raise MigrationError unless this code works with the schema of a database."""
    status = await read_migration_status(dsn)
    if status.missing:
        raise MigrationError(
            f"the database is older than this code (it lacks {', '.join(status.missing)}); run: workbench migrate"
        )
    if status.beyond:
        raise MigrationError(
            f"the database is newer than this code ({', '.join(status.beyond)} removed what it uses); "
            "start the version that applied it, or a newer one"
        )


class UnfitServerError(Exception):
    """The server could lose committed data, or is too old; the message says what to change."""


class ServerFacts(msgspec.Struct, frozen=True):
    """Postgres's version number (180006), its durability settings, whether it logs errors, and what our role may do."""

    version: int
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    logs_errors: bool
    may_create_roles: bool
    bypasses_rls: bool

    @property
    def too_old(self) -> str | None:
        """Advice to upgrade, if the server is too old."""
        return f"use Postgres {_OLDEST_POSTGRES} or newer" if self.version < _OLDEST_POSTGRES * 10_000 else None

    @property
    def switched_off(self) -> list[str]:
        """Durability settings that are off: with any of them off, a crash may lose accepted events."""
        return [name for name in _DURABILITY_SETTINGS if getattr(self, name) == "off"]


async def require_connection(dsn: str) -> None:
    """Connect once.

    Raises DatabaseUnavailableError with libpq's message, which names host and reason; the message of a pool does not.
    """
    try:
        connection = await psycopg.AsyncConnection.connect(libpq_dsn(dsn), connect_timeout=5)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(" ".join(str(error).split())) from error
    await connection.close()


async def require_fit_server(dsn: str) -> None:
    """Check a server and its schema.

    Raises UnfitServerError unless the server keeps what it commits, and MigrationError unless this code can safely use
    its schema.

    A server that cannot be reached passes.
    """
    try:
        await require_connection(dsn)
        async with Database(dsn, size=1) as database:
            async with database.transaction() as tx:
                facts = await read_server(tx)
            await require_known_schema(dsn)
            async with database.transaction() as tx:
                unprotected = await find_unprotected_tables(tx)
    except (DatabaseUnavailableError, psycopg.OperationalError):
        return
    if unprotected:
        raise MigrationError(f"row-level security does not hold for {', '.join(unprotected)}; run: workbench migrate")
    if facts.too_old is not None:
        raise UnfitServerError(f"the database is Postgres {facts.version // 10_000}; {facts.too_old}")
    if facts.switched_off:
        settings = ", ".join(facts.switched_off)
        raise UnfitServerError(f"the database may lose committed data: {settings} off; set to on in postgresql.conf")


@query
async def read_server(tx: Transaction) -> ServerFacts: ...


@query
async def find_unprotected_tables(tx: Transaction) -> list[str]: ...


@query
async def seconds_since_engine(tx: Transaction) -> float | None:
    """Return the seconds since any engine last reported; None if none ever did."""


@query
async def has_events(tx: Transaction, org_id: int) -> bool: ...
