"""The engine process, which drives entries, refreshes segments, sends broadcasts, mails pages and has parts built."""

import asyncio
import contextlib
import signal

from api.channels.outgoing import open_transports
from api.clock import Clock
from api.crypto import Keyring
from api.engine.drive import Driver
from api.engine.loop import Engine
from api.metrics.collect import ProcessMetrics, collect_engine
from api.metrics.serve import publish
from api.page_schedules.runs import PageServices, keep_mailing
from api.parts.builders import keep_built, keep_dropped
from api.process import install_tracing, run
from api.query.gateway import Gateway
from api.query.limits import ConcurrencyLimits, QuerySlots
from api.segments.broadcasts import keep_sending
from api.segments.candidates import SegmentServices
from api.segments.refresh import QUERY_TIMEOUT_S, WORKERS, keep_fresh
from api.settings import Settings
from api.store.analyst import QueryLimits
from api.store.database import Database, DatabaseUnavailableError, with_application_name
from api.store.engines import Listener
from workbench.language.channel import RetryPolicy

# These limits for queries that refresh segments are generous, because no request waits for them.
_SEGMENT_QUERY_LIMITS = QueryLimits(step_seconds=30.0, watch_seconds=31.0, answer_seconds=QUERY_TIMEOUT_S)


def work(settings: Settings, dsn: str, secret: str) -> None:
    """Do the work of an engine until SIGTERM or SIGINT; claimed batches are finished first."""
    if settings.tracing:
        install_tracing("engine")
    run(run_engine(settings, dsn, secret))


def segment_services(database: Database, keyring: Keyring) -> SegmentServices:
    """Return what an engine refreshes segments with."""
    gateway = Gateway(database, keyring, _SEGMENT_QUERY_LIMITS)
    slots = QuerySlots(ConcurrencyLimits(total=WORKERS))
    return SegmentServices(database, gateway, keyring, QUERY_TIMEOUT_S, slots)


async def run_engine(settings: Settings, dsn: str, secret: str) -> None:
    keyring, clock = Keyring(secret), Clock()
    dsn = with_application_name(dsn, keyring.tag())
    database = Database(dsn, size=6, hot=True)
    segment_database = Database(dsn, size=2 * WORKERS + 1, statement_ms=120_000)
    await database.open()
    await segment_database.open()
    with contextlib.suppress(DatabaseUnavailableError):
        await database.calibrate(clock)
    retries = RetryPolicy(settings.retry_delays)
    channels = open_transports(settings)
    engine = Engine(database, Driver(database, keyring, clock, retries, channels), clock, Listener(dsn))
    segments = segment_services(segment_database, keyring)
    # Pages have the limits of requests.
    pages = PageServices(segment_database, Gateway(segment_database, keyring), keyring, channels, retries, clock)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, engine.stop)
    jobs = [
        asyncio.create_task(keep_fresh(segments, clock)),
        asyncio.create_task(keep_sending(segment_database, clock)),
        asyncio.create_task(keep_mailing(pages)),
    ]
    if settings.parts:
        jobs.append(asyncio.create_task(keep_built(segment_database, settings, dsn, clock)))
    else:
        jobs.append(asyncio.create_task(keep_dropped(segment_database, settings.data_dir, clock)))
    databases = {"engine": database, "segments": segment_database}
    async with publish(ProcessMetrics("engine", lambda: collect_engine(engine, databases)), settings):
        await engine.run()
    for job in jobs:
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job
    await channels.close()
    await segment_database.close()
    await database.close()
