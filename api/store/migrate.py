"""Bring a database up to date: apply what it lacks of the migrations, in order, each once, under one lock, beside the traffic.

A migration never waits long for a lock, since everybody else would wait behind it: it gives up, lets the others go on, and tries again.
One that was edited after it ran is an error: the digest of every applied file is kept.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from psycopg import errors, sql

from api.clock import monotonic_ns
from api.store.clusters import is_coordinator, note_cluster, run_on_workers
from api.store.database import NAME, Transaction, libpq_dsn, seeing_everybody
from api.store.migrations import Migration, Standing, migrations, standing
from api.store.statements import sql_folder

_LOCK = 7_300_451
_LOCK_PAUSE_SECONDS = 0.1
_MONTHS_AHEAD = 3


class MigrationError(Exception):
    """The database's migrations and ours do not fit together, or one cannot be applied now."""


class Manners(msgspec.Struct, frozen=True):
    """How a migration waits for a lock: so long at a time (less than ingest waits, 500 ms), so long until the next try, so long in all.

    `report` hears, once for each, of one that has to wait.
    """

    lock_ms: int = 200
    pause_seconds: float = 1.0
    patience_seconds: float = 120.0
    report: Callable[[str], None] = lambda _sentence: None


_MANNERS = Manners()


async def migrate(
    dsn: str, *, admin_dsn: str | None = None, contract: bool = False, manners: Manners = _MANNERS
) -> list[str]:
    """Bring the database up to date with this code and its cluster; return the names applied now.

    `contract`: take away, too, what only older code uses; refused while such code is connected. A new database is built whole.
    `admin_dsn`: a superuser's, to harden SQL access. Raises MigrationError.
    """
    async with _alone(dsn) as connection:
        await connection.execute(f"SET lock_timeout = {manners.lock_ms}")
        known = await _known(connection)
        _must_be_unchanged({name: digest for name, (digest, _) in known.items()})
        wanted = [
            each for each in migrations() if each.name not in known and (each.needs is None or contract or not known)
        ]
        if contract and known:
            await _must_be_unused(connection, wanted)
        for migration in wanted:
            await _patiently(connection, migration.name, manners, partial(_apply, connection, migration))
        if await is_coordinator(connection):
            await _patiently(connection, "spreading the tables", manners, partial(_spread, connection))
        await _patiently(connection, "row-level security", manners, partial(_wall_off, connection))
        await _patiently(connection, "adding a month", manners, partial(_add_months, connection))
        async with seeing_everybody(connection):
            await note_cluster(connection)
    if admin_dsn is not None:
        await _harden(admin_dsn)
    return [migration.name for migration in wanted]


async def stand(dsn: str) -> Standing:
    """Return how this code and a database stand to each other."""
    async with await Transaction.connect(libpq_dsn(dsn), autocommit=True) as connection:
        row = await (await connection.execute("SELECT to_regclass('public.workbench_migrations')")).fetchone()
        known = await _known(connection) if row is not None and row[0] is not None else {}
    return standing({name: needs for name, (_, needs) in known.items()})


async def must_know(dsn: str) -> None:
    """Raise MigrationError unless this code works on the schema of a database."""
    found = await stand(dsn)
    if found.missing:
        raise MigrationError(
            f"the database is older than this code (it lacks {', '.join(found.missing)}); run: workbench migrate"
        )
    if found.beyond:
        raise MigrationError(
            f"the database is newer than this code ({', '.join(found.beyond)} took away what it uses); "
            "start the version that applied it, or a newer one"
        )


@asynccontextmanager
async def _alone(dsn: str) -> AsyncIterator[Transaction]:
    """Give a connection while nobody else migrates. Waits without a snapshot: an index that is being built would wait for its end."""
    async with await Transaction.connect(libpq_dsn(dsn), autocommit=True) as connection:
        await connection.execute("SET client_min_messages = warning")
        while not await _value(connection, "SELECT pg_try_advisory_lock(%s)", _LOCK):  # noqa: ASYNC110  Postgres has no event for it
            await asyncio.sleep(_LOCK_PAUSE_SECONDS)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS public.workbench_migrations "
            "(name text PRIMARY KEY, digest text NOT NULL, needs text, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        yield connection


async def _known(connection: Transaction) -> dict[str, tuple[str, str | None]]:
    rows = await connection.execute("SELECT name, digest, needs FROM public.workbench_migrations")
    return {name: (digest, needs) async for name, digest, needs in rows}


def _must_be_unchanged(digests: dict[str, str]) -> None:
    for migration in migrations():
        if digests.get(migration.name, migration.digest) != migration.digest:
            raise MigrationError(
                f"{migration.name}.sql was changed after it had been applied; add a new migration instead"
            )


async def _must_be_unused(connection: Transaction, wanted: list[Migration]) -> None:
    """Refuse to take away what code still uses that is connected now."""
    needed = max((migration.needs for migration in wanted if migration.needs is not None), default="")
    old = await _value(
        connection,
        "SELECT count(DISTINCT application_name) FROM pg_stat_activity WHERE datname = current_database()"
        " AND starts_with(application_name, %s) AND substr(application_name, %s) < %s",
        *(NAME, len(NAME) + 1, needed),
    )
    if old:
        raise MigrationError(f"processes of a version before {needed} are still connected; end them first")


async def _patiently(
    connection: Transaction, what: str, manners: Manners, attempt: Callable[[], Awaitable[None]]
) -> None:
    """Try until no lock is in the way, and let the others go on in between."""
    since, told = monotonic_ns(), False
    while True:
        try:
            return await attempt()
        except (errors.LockNotAvailable, errors.DeadlockDetected):
            if not told:
                manners.report(f"{what} has to wait: {await _in_the_way(connection)}")
            told = True
            if monotonic_ns() - since > manners.patience_seconds * 1e9:
                raise MigrationError(
                    f"{what}: {await _in_the_way(connection)}; it changed nothing, try again"
                ) from None
        await asyncio.sleep(manners.pause_seconds)


async def _in_the_way(connection: Transaction) -> str:
    """Name the oldest transaction of others."""
    rows = await connection.execute(
        "SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::integer FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 1"
    )
    row = await rows.fetchone()
    if row is None:
        return "somebody held a lock"
    return f"process {row[0]} of Postgres may be in the way, with a transaction of {row[1]} s"


async def _apply(connection: Transaction, migration: Migration) -> None:
    if not migration.in_transaction:
        await _run_outside(connection, migration)
    async with seeing_everybody(connection):
        if migration.in_transaction:
            await connection.execute(migration.text.encode())
        await connection.execute(
            "INSERT INTO public.workbench_migrations (name, digest, needs) VALUES (%s, %s, %s)",
            (migration.name, migration.digest, migration.needs),
        )


async def _run_outside(connection: Transaction, migration: Migration) -> None:
    """Run statements that lock nobody out, and may themselves wait long."""
    waits = await _value(connection, "SHOW lock_timeout")
    await connection.execute("SET lock_timeout = 0")
    for statement in migration.statements:
        await connection.execute(statement.encode())
    await connection.execute("SELECT set_config('lock_timeout', %s, false)", (waits,))


async def _value(connection: Transaction, statement: str, *values: object) -> object:
    row = await (await connection.execute(statement, values)).fetchone()
    assert row is not None
    return row[0]


async def _spread(connection: Transaction) -> None:
    """Distribute over the workers of a Citus cluster what is not yet, one lock after the other, together."""
    async with connection.transaction():
        await connection.execute((sql_folder() / "citus.sql").read_bytes())


async def _wall_off(connection: Transaction) -> None:
    """Put the tables that are not yet behind row-level security."""
    async with connection.transaction():
        await connection.execute((sql_folder() / "wall.sql").read_bytes())


async def _add_months(connection: Transaction) -> None:
    now = await _value(connection, "SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    await add_months(connection, now - timedelta(days=35), now + timedelta(days=31 * _MONTHS_AHEAD))


async def add_months(connection: Transaction, first: datetime, last: datetime) -> None:
    """Make sure that `events` has a partition for every month that `[first, last]` touches.

    Each is made beside `events` and then attached: neither ingest nor a long query has to end for that, as they would for
    `CREATE TABLE … PARTITION OF`.
    """
    month = datetime(first.year, first.month, 1, tzinfo=UTC)
    while month <= last:
        following = datetime(month.year + month.month // 12, month.month % 12 + 1, 1, tzinfo=UTC)
        name = f"events_{month:%Y_%m}"
        known = await (await connection.execute("SELECT to_regclass(%s)", (f"workbench.{name}",))).fetchone()
        if known is None or known[0] is None:
            await _add_month(connection, sql.Identifier("workbench", name), month, following)
        month = following


async def _add_month(connection: Transaction, name: sql.Identifier, month: datetime, following: datetime) -> None:
    async with connection.transaction():
        await connection.execute(sql.SQL("CREATE TABLE {} (LIKE workbench.events INCLUDING ALL)").format(name))
        await connection.execute(
            sql.SQL("ALTER TABLE workbench.events ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                name, sql.Literal(month.isoformat()), sql.Literal(following.isoformat())
            )
        )


async def _harden(admin_dsn: str) -> None:
    script = (sql_folder() / "hardening.sql").read_bytes()
    async with await Transaction.connect(libpq_dsn(admin_dsn), autocommit=True) as connection:
        await connection.execute(script)
        if await is_coordinator(connection):
            await run_on_workers(connection, script.decode())
