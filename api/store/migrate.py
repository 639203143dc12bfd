"""Apply `sql/migrations/NNNN_name.sql` in order, each in one transaction, under one lock, once.

A migration that was edited after it ran is an error: the digest of every applied file is kept.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from psycopg import sql

from api.store.clusters import note_cluster
from api.store.database import Transaction, libpq_dsn
from api.store.statements import sql_folder

_LOCK = 7_300_451
_MONTHS_AHEAD = 3


class MigrationError(Exception):
    """The database's migrations and ours do not fit together."""


async def migrate(dsn: str, *, admin_dsn: str | None = None) -> list[str]:
    """Bring the database up to date with this code and its cluster; return the names applied now. `admin_dsn`: a superuser's, to harden SQL access."""
    applied: list[str] = []
    async with await Transaction.connect(libpq_dsn(dsn), autocommit=True) as connection:
        await connection.execute("SET client_min_messages = warning")
        await connection.execute("SET workbench.org = '*'")
        await connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS public.workbench_migrations "
            "(name text PRIMARY KEY, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        known = await _applied(connection)
        for path in migration_files():
            if _is_new(path, known):
                await _apply(connection, path)
                applied.append(path.stem)
        await connection.execute(_read(sql_folder() / "wall.sql"))
        await _add_months(connection)
        await note_cluster(connection)
    if admin_dsn is not None:
        await _harden(admin_dsn)
    return applied


def migration_files() -> list[Path]:
    """Return the migration files in the order in which they apply."""
    return sorted((sql_folder() / "migrations").glob("[0-9]*.sql"))


async def pending(dsn: str) -> list[str]:
    """Return the names of migrations this code has and the database has not."""
    async with await Transaction.connect(libpq_dsn(dsn), autocommit=True) as connection:
        row = await (await connection.execute("SELECT to_regclass('public.workbench_migrations')")).fetchone()
        known = await _applied(connection) if row is not None and row[0] is not None else {}
    return [path.stem for path in migration_files() if path.stem not in known]


async def _applied(connection: Transaction) -> dict[str, str]:
    rows = await connection.execute("SELECT name, digest FROM public.workbench_migrations")
    return {name: digest async for name, digest in rows}


def _is_new(path: Path, known: dict[str, str]) -> bool:
    digest = known.get(path.stem)
    if digest is not None and digest != _digest(path):
        raise MigrationError(f"{path.name} was changed after it had been applied; add a new migration instead")
    return digest is None


async def _apply(connection: Transaction, path: Path) -> None:
    statements = _read(path)
    async with connection.transaction():
        await connection.execute(statements)
        await connection.execute(
            "INSERT INTO public.workbench_migrations (name, digest) VALUES (%s, %s)", (path.stem, _digest(path))
        )


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _digest(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


async def _add_months(connection: Transaction) -> None:
    row = await (await connection.execute("SELECT clock_timestamp()")).fetchone()
    assert row is not None
    await add_months(connection, row[0] - timedelta(days=35), row[0] + timedelta(days=31 * _MONTHS_AHEAD))


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
    script = _read(sql_folder() / "hardening.sql")
    async with await Transaction.connect(libpq_dsn(admin_dsn), autocommit=True) as connection:
        await connection.execute(script)
