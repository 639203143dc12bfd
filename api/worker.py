"""The engine process."""

import asyncio
import contextlib
import signal

from api import logs
from api.clock import Clock
from api.engine.drive import Driver
from api.engine.loop import Engine
from api.engine.outside import transports
from api.keyring import Keyring
from api.language.retry import DEFAULT_POLICY, uniform
from api.settings import Settings
from api.store.database import Database, UnavailableError
from api.store.wake import Listener


def work(settings: Settings, dsn: str, secret: str) -> None:
    """Drive entries until told to stop (SIGTERM, SIGINT); batches in hand are finished first."""
    logs.install()
    asyncio.run(_work(settings, dsn, secret))


async def _work(settings: Settings, dsn: str, secret: str) -> None:
    database, clock = Database(dsn, size=6, hot=True), Clock()
    retries = DEFAULT_POLICY if settings.retry_delays is None else uniform(settings.retry_delays)
    await database.open()
    with contextlib.suppress(UnavailableError):
        await database.calibrate(clock)
    ways = transports(settings)
    engine = Engine(database, Driver(database, Keyring(secret), clock, retries, ways), clock, Listener(dsn))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, engine.stop)
    await engine.run()
    await ways.close()
    await database.close()
