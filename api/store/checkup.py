"""What a database says about itself: the statements of `sql/queries/checkup.sql`."""

import msgspec
import psycopg
from psycopg.rows import class_row

from api.store.database import Transaction, UnavailableError, libpq_dsn
from api.store.statements import load

_SQL = load("checkup")


class ServerFacts(msgspec.Struct, frozen=True):
    """Version number as Postgres counts (180006), durability settings, what is logged, and whether our role may create roles."""

    version: int
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    logs_errors: bool
    may_create_roles: bool


async def must_answer(dsn: str) -> None:
    """Connect once; raise UnavailableError with libpq's own words, which name the host and the reason as no pool does."""
    try:
        connection = await psycopg.AsyncConnection.connect(libpq_dsn(dsn), connect_timeout=5)
    except psycopg.OperationalError as error:
        raise UnavailableError(" ".join(str(error).split())) from error
    await connection.close()


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
