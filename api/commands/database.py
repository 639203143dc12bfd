"""The database of a command: `DATABASE_URL`, or the embedded server, joined when it runs and started when it does not.

An embedded server that a command started itself is migrated (nobody else can have) and lives as long as the command.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import msgspec

from api.commands.terminal import note
from api.settings import Settings


class Addresses(msgspec.Struct, frozen=True):
    """URLs of the database: the application's, and a superuser's when the server is embedded."""

    dsn: str
    admin_dsn: str | None


@contextmanager
def database(settings: Settings) -> Iterator[Addresses]:
    """Give the addresses of a database that accepts connections; raise EmbeddedError."""
    if settings.database_url is not None:
        yield Addresses(settings.database_url, None)
        return
    from api.embedded import EmbeddedPostgres

    postgres = EmbeddedPostgres(settings.data_dir, bin_dir=settings.postgres_bin, report=note)
    before = signal.signal(signal.SIGTERM, _leave)  # a stopped command must stop its server too
    try:
        with postgres as server:
            if server.owned:
                migrate(Addresses(server.dsn, server.admin_dsn))
            yield Addresses(server.dsn, server.admin_dsn)
    finally:
        signal.signal(signal.SIGTERM, before)


def must_be_fit(addresses: Addresses) -> None:
    """Raise UnfitServerError or MigrationError unless our code may work there; a server that is away is not judged."""
    from api.store.checkup import must_be_fit as judge

    asyncio.run(judge(addresses.dsn))


def migrate(addresses: Addresses, *, contract: bool = False) -> list[str]:
    """Bring the database and its direct logins up to date; return the names of the migrations applied now.

    `contract`: take away, too, what only older code uses.
    """
    return asyncio.run(_migrate(addresses, contract))


async def _migrate(addresses: Addresses, contract: bool) -> list[str]:
    from api.access import direct
    from api.store.migrate import Manners
    from api.store.migrate import migrate as apply

    manners = Manners(report=note)
    applied = await apply(addresses.dsn, admin_dsn=addresses.admin_dsn, contract=contract, manners=manners)
    await direct.complete(addresses.dsn)
    return applied


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
