"""The engine process."""

import asyncio
import contextlib
import signal

from api import tracing
from api.clock import Clock
from api.engine.drive import Driver
from api.engine.loop import Engine
from api.engine.outside import transports
from api.keyring import Keyring
from api.language.retry import DEFAULT_POLICY, uniform
from api.loop import run
from api.observe.engine_process import collect
from api.observe.process import Process
from api.observe.tasks import told
from api.query.run import Gateway, Limits, Places, Turns
from api.segments.finding import Desk
from api.segments.freshness import PATIENCE_SECONDS, WORKERS, keep_fresh
from api.settings import Settings
from api.store.database import Database, UnavailableError, marked
from api.store.wake import Listener

_LIMITS = Limits(step_seconds=30.0, watch_seconds=31.0, answer_seconds=PATIENCE_SECONDS)  # of queries of segments


def work(settings: Settings, dsn: str, secret: str) -> None:
    """Drive entries until told to stop (SIGTERM, SIGINT); batches in hand are finished first."""
    if settings.tracing:
        tracing.install("engine")
    run(_work(settings, dsn, secret))


async def _work(settings: Settings, dsn: str, secret: str) -> None:
    keyring, clock = Keyring(secret), Clock()
    dsn = marked(dsn, keyring.mark())
    database = Database(dsn, size=6, hot=True)
    retries = DEFAULT_POLICY if settings.retry_delays is None else uniform(settings.retry_delays)
    lasting = Database(dsn, size=2 * WORKERS, statement_ms=120_000)
    await database.open()
    await lasting.open()
    with contextlib.suppress(UnavailableError):
        await database.calibrate(clock)
    ways = transports(settings)
    engine = Engine(database, Driver(database, keyring, clock, retries, ways), clock, Listener(dsn))
    desk = Desk(lasting, Gateway(lasting, keyring, _LIMITS), keyring, PATIENCE_SECONDS, Turns(Places(in_all=WORKERS)))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, engine.stop)
    refreshing = asyncio.create_task(keep_fresh(desk, clock))
    databases = {"engine": database, "segments": lasting}
    async with told(Process("engine", lambda: collect(engine, databases)), settings):
        await engine.run()
    refreshing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await refreshing
    await ways.close()
    await lasting.close()
    await database.close()
