"""What a database says about itself, and whether that is fit for us: the statements of `sql/queries/checkup.sql`."""

import msgspec
import psycopg
from psycopg.rows import class_row

from api.store.database import Database, Transaction, UnavailableError, libpq_dsn
from api.store.migrate import MigrationError, must_know
from api.store.statements import load

_SQL = load("checkup")
_OLDEST_POSTGRES = 15
_DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


class UnfitServerError(Exception):
    """The server could lose what it has committed, or is too old; the text says what to change."""


class ServerFacts(msgspec.Struct, frozen=True):
    """Version number as Postgres counts (180006), durability settings, what is logged, whether our role may create roles, and whether row-level security does not hold for it."""

    version: int
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    logs_errors: bool
    may_create_roles: bool
    passes_walls: bool

    @property
    def too_old(self) -> str | None:
        """What to use instead, where the server is too old for us."""
        return f"use Postgres {_OLDEST_POSTGRES} or newer" if self.version < _OLDEST_POSTGRES * 10_000 else None

    @property
    def switched_off(self) -> list[str]:
        """The settings that are off, without which an accepted event may be lost when the machine fails."""
        return [name for name in _DURABILITY if getattr(self, name) == "off"]


async def must_answer(dsn: str) -> None:
    """Connect once; raise UnavailableError with libpq's own words, which name the host and the reason as no pool does."""
    try:
        connection = await psycopg.AsyncConnection.connect(libpq_dsn(dsn), connect_timeout=5)
    except psycopg.OperationalError as error:
        raise UnavailableError(" ".join(str(error).split())) from error
    await connection.close()


async def must_be_fit(dsn: str) -> None:
    """Raise UnfitServerError unless the server keeps what it commits, MigrationError unless our code works on its schema, safely.

    One that is away is not judged.
    """
    database = Database(dsn, size=1)
    try:
        await must_answer(dsn)
        await database.open()
        async with database.transaction() as tx:
            facts = await read_server(tx)
        await must_know(dsn)
        async with database.transaction() as tx:
            unwalled = [name async for (name,) in await tx.execute(_SQL["tables_without_wall"])]
    except (UnavailableError, psycopg.OperationalError):
        return
    finally:
        await database.close()
    if unwalled:
        raise MigrationError(f"row-level security does not hold for {', '.join(unwalled)}; run: workbench migrate")
    if facts.too_old is not None:
        raise UnfitServerError(f"the database is Postgres {facts.version // 10_000}; {facts.too_old}")
    if facts.switched_off:
        what = ", ".join(facts.switched_off)
        raise UnfitServerError(f"the database may lose what it has committed: {what} off; switch on in postgresql.conf")


async def read_server(tx: Transaction) -> ServerFacts:
    """Return what the server is like."""
    async with tx.cursor(row_factory=class_row(ServerFacts)) as cursor:
        facts = await (await cursor.execute(_SQL["read_server"])).fetchone()
    assert facts is not None
    return facts


async def engine_seen(tx: Transaction) -> float | None:
    """Return the seconds since any engine last reported, or None."""
    row = await (await tx.execute(_SQL["engine_seen"])).fetchone()
    return None if row is None else row[0]


async def has_events(tx: Transaction, org_id: int) -> bool:
    """Tell whether an organization has any event."""
    row = await (await tx.execute(_SQL["has_events"], {"org_id": org_id})).fetchone()
    return row is not None and bool(row[0])
