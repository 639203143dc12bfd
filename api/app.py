"""The Sanic application of an API process, and the lifecycle of that process: start, serve, drain, stop.

Several API processes each have a listening socket of their own on the same port (SO_REUSEPORT), and the kernel spreads
connections over them. Each process also checks the accept queues of the others: a connection that waits there was meant
for a process that died, hangs or is still starting.

SIGTERM and SIGINT start the drain. A draining process accepts nothing new, answers the requests that have begun, and
sends `Connection: close` in every response. An idle connection may send one more request, because closing it at once
could cut off a request that is on its way. The services stop after the last connection.
"""

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any, get_args

from sanic import HTTPResponse, Request, Sanic
from sanic.application.state import ApplicationServerInfo
from sanic.exceptions import RequestCancelled, SanicException
from sanic.http import Stage
from sanic.http.constants import HTTP

from api.auth import AccessError
from api.auth.sql_logins import keep_bounded
from api.auth.verify import Verifier
from api.automations.entries import run_entry_recovery
from api.automations.moves import MoveServices, keep_moving
from api.catalog.maintenance import run_maintenance
from api.catalog.tail import Followers
from api.channels.outgoing import open_transports
from api.clock import Clock
from api.contacts.erase import keep_erased
from api.contacts.merge import keep_settled
from api.crypto import Keyring
from api.inapp.feed import Feed
from api.inapp.sessions import Sessions
from api.ingest.clicks import Clicks
from api.ingest.pipeline import Pipeline
from api.ingest.queue import TokenBuckets
from api.ingest.rejected import Notices
from api.metrics.collect import Lag, ProcessMetrics, collect_api
from api.metrics.serve import publish
from api.openapi import document
from api.parts.lake import LakeSource
from api.parts.reports import ReportCounter
from api.process import install_tracing, run
from api.query.gateway import Gateway
from api.query.limits import ConcurrencyLimits, QuerySlots
from api.routes import (
    account,
    automations,
    bounces,
    broadcasts,
    catalog,
    chain,
    clicks,
    connections,
    contacts,
    documentation,
    entries,
    events,
    health,
    inapp,
    keys,
    lake,
    page_schedules,
    preferences,
    reports,
    segments,
    snippets,
    sql,
    topics,
    tracking,
    unsubscribe,
    webhooks,
)
from api.routes.access_log import AccessLog, begin, finish
from api.routes.fast_path import FastPathConnection
from api.routes.request import Services, identify
from api.routes.responses import RequestRefusedError, refusal
from api.segments.candidates import SegmentServices
from api.settings import Settings
from api.store.database import (
    CitusWorkers,
    Database,
    DatabaseUnavailableError,
    TransactionConflictError,
    with_application_name,
)
from api.store.query import TenantDatabase
from api.wire.connection import HttpConnection, LargeBodies, TransportError
from workbench.language.channel import RetryPolicy
from workbench.language.problem import Problem, nearest_name

MAX_BODY_BYTES = 262_144  # for routes that are not in BODY_LIMITS
BODY_LIMITS = {
    "/api/v1/events": 1_048_576,
    "/api/v1/events/batch": 8_388_608,
    "/v1/batch": 1_048_576,  # twice what Segment's libraries send at most
    "/api/v1/bounces": 1_048_576,  # a report may return the whole email
    "/api/v1/segments": 8_388_608,
    "/api/v1/segments/*/contacts": 8_388_608,
}
LARGE_BODIES_BYTES = 67_108_864  # limit for all large bodies that one process receives at a time
LOCK_TIMEOUT_MS = 500  # ingest waits this long for a lock; then only the organization of the lock gets 503
SEGMENT_QUERY_TIMEOUT_S = 35.0  # leaves room for the rest of the request, which has to end within a minute
SEGMENT_CONCURRENCY = ConcurrencyLimits(per_organization=2, total=6, wait_seconds=15.0)
ACCEPT_BACKLOG = 4096
_MAX_COMPARED_CHARACTERS = 64  # of a path without a route, with the paths of routes
RELIEF_INTERVAL_S = 0.1  # pause between two checks of the accept queues of other processes
IDLE_GRACE_S = 1.0  # an idle connection may send one more request within this time while the process drains
DRAIN_TIMEOUT_S = 15.0  # connections are aborted after this time
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left before its response; Sanic would count a 500

_HTTP_ERRORS = {  # replaces Sanic's own texts
    400: "the request is not valid HTTP",
    408: "the request did not arrive in time",
}

BLUEPRINTS = (
    events.blueprint,
    catalog.blueprint,
    automations.blueprint,
    entries.blueprint,
    contacts.blueprint,
    segments.blueprint,
    broadcasts.blueprint,
    snippets.blueprint,
    connections.blueprint,
    topics.blueprint,
    sql.blueprint,
    reports.blueprint,
    lake.blueprint,
    page_schedules.blueprint,
    chain.blueprint,
    account.blueprint,
    keys.blueprint,
    webhooks.blueprint,
    unsubscribe.blueprint,
    preferences.blueprint,
    clicks.blueprint,
    bounces.blueprint,
    tracking.blueprint,
    inapp.blueprint,
    health.blueprint,
    documentation.blueprint,
    document.blueprint,
)

App = Sanic[Any, Any]

_log = logging.getLogger("workbench.api")


def create_app(settings: Settings, dsn: str, secret: str, name: str = "workbench", rates: int = -1) -> App:
    """Return the application. It connects when it starts, and answers 503 while the database is unavailable.

    `rates` is the descriptor of a file that the processes of one instance share to count the ingest rate.
    """
    app = Sanic(name, configure_logging=False)
    app.config.update(
        AUTO_EXTEND=False,
        REQUEST_MAX_SIZE=MAX_BODY_BYTES,
        BODY_LIMITS=BODY_LIMITS,
        REQUEST_TIMEOUT=10,
        RESPONSE_TIMEOUT=60,
        KEEP_ALIVE_TIMEOUT=75,
        REQUEST_ID_HEADER="",  # `api.wire` takes the caller's id if it is safe to log
        FALLBACK_ERROR_FORMAT="json",
        NOISY_EXCEPTIONS=False,
    )
    keyring, clock = Keyring(secret), Clock()
    dsn = with_application_name(dsn, keyring.tag())
    database, service = TenantDatabase(dsn), Database(dsn)
    buckets = TokenBuckets(settings.ingest_rate, settings.ingest_burst, rates)
    notices = Notices(service, clock)
    standby = None if settings.read_url is None else Database(settings.read_url, size=4)
    gateway = Gateway(service, keyring, standby=standby)
    sessions = Sessions(service, keyring, clock)
    pipeline = Pipeline(Database(dsn, size=2, lock_ms=LOCK_TIMEOUT_MS, hot=True), keyring, clock, buckets, notices)
    data_dir = settings.data_dir if settings.parts else None
    # Every segment query that runs holds a connection; two more serve short statements.
    segment_database = TenantDatabase(dsn, size=SEGMENT_CONCURRENCY.total + 2, statement_ms=60_000)
    app.ctx.services = Services(
        settings,
        database,
        service,
        CitusWorkers(service),
        keyring,
        clock,
        Verifier(service, keyring, clock),
        pipeline,
        Clicks(service, keyring, clock, pipeline),
        notices,
        Followers(),
        gateway,
        # A standby may not tell which transactions are open, so with one the SQL answers.
        ReportCounter(gateway, dsn, data_dir if standby is None else None),
        LakeSource(gateway, keyring, dsn, data_dir),
        sessions,
        Feed(dsn, sessions, clock),
        SegmentServices(segment_database, gateway, keyring, SEGMENT_QUERY_TIMEOUT_S, QuerySlots(SEGMENT_CONCURRENCY)),
        open_transports(settings),
        AccessLog(settings.log_requests),
    )
    app.ctx.large_bodies = LargeBodies(identify, LARGE_BODIES_BYTES)
    for blueprint in BLUEPRINTS:
        app.blueprint(blueprint)
    _register_start_and_stop(app, standby)
    app.register_middleware(begin, "request")
    app.register_middleware(health.refuse_unsupported_notebook, "request")
    app.register_middleware(functools.partial(finish, app.ctx.services.access_log), "response")
    app.error_handler.add(Exception, _answer_failure)
    app.error_handler.add(RequestCancelled, _answer_departed_client)
    for kind in get_args(sql.SqlError):
        app.error_handler.add(kind, sql.answer_sql_error)
    return app


def _register_start_and_stop(app: App, standby: Database | None) -> None:
    services: Services = app.ctx.services
    databases = [services.database, services.system_database, services.segments.database]
    if standby is not None:
        databases.append(standby)

    @app.before_server_start
    async def start(app: App) -> None:
        for database in databases:
            await database.open()
        await services.pipeline.start()
        await services.notices.start()
        await services.feed.start()
        await services.reports.start()
        with contextlib.suppress(DatabaseUnavailableError):
            await services.system_database.calibrate(services.clock)
        retries = RetryPolicy(services.settings.retry_delays)
        jobs = (
            run_maintenance(services.system_database, services.clock),
            keep_erased(services.system_database, services.clock),
            keep_settled(services.system_database, services.clock),
            run_entry_recovery(services.system_database, services.clock),
            keep_moving(MoveServices(services.system_database, services.keyring, services.clock, retries)),
            keep_bounded(services.system_database),
        )
        app.ctx.jobs = [asyncio.create_task(job) for job in jobs]

    @app.before_server_stop
    async def end_streams(app: App) -> None:
        services.followers.ended = True
        services.feed.sockets.drain()

    @app.after_server_stop
    async def stop(app: App) -> None:
        for job in app.ctx.jobs:
            job.cancel()
        await services.clicks.stop()
        await services.pipeline.stop()
        await services.notices.stop()
        await services.feed.stop()
        await services.verifier.close()
        await services.reports.close()
        await services.transports.close()
        for database in reversed(databases):
            await database.close()


async def _answer_departed_client(_: Request, __: RequestCancelled) -> HTTPResponse:
    return HTTPResponse(status=CLIENT_CLOSED_REQUEST)  # never sent; the access log counts it


async def _answer_failure(request: Request, error: Exception) -> HTTPResponse:
    match error:
        case RequestRefusedError(status=status, problems=problems, code=code):
            return refusal(request, status, problems, code)
        case TransportError(status_code=status) | AccessError(status_code=status):
            return refusal(request, status, (Problem("", str(error)),))
        case SanicException(status_code=status) if 400 <= status < 500:
            headers = {**error.headers}  # a copy, because many errors share the headers of their class
            match status:
                case 404:
                    # The answer leaves out the path that was sent, which may contain a secret.
                    paths = sorted({f"/{route.path}" for route in request.app.router.routes if "<" not in route.path})
                    nearest = nearest_name(request.path[:_MAX_COMPARED_CHARACTERS], paths, similarity=0.8)
                    advice = "" if nearest is None else f" Did you mean {nearest}?"
                    reason = f"No route has this path.{advice} All routes are listed at /docs"
                case 405:
                    headers["Allow"] = _allowed_methods(request)
                    reason = f"Method not allowed: use {headers['Allow']}"
                case _:
                    reason = _HTTP_ERRORS.get(status) or str(error)
            refused = refusal(request, status, (Problem("", reason),))
            refused.headers.update(headers)
            return refused
        case DatabaseUnavailableError() | TransactionConflictError():
            reason = "temporarily unavailable, try again"
        case _:
            _log.exception("request_failed", exc_info=error, extra={"request_id": str(request.id)})
            reason = "internal error; the request id finds the cause in the server's log"
    # 503 also for a bug (docs/contract.md): clients retry it, with the same idempotency key.
    code = "INGEST_UNAVAILABLE" if request.path.rstrip("/") in events.INGEST_PATHS else None
    return refusal(request, 503, (Problem("", reason),), code)


def _allowed_methods(request: Request) -> str:
    """Return the methods of the routes with this path. Sanic does not know them if the path has a parameter."""
    router, allowed = request.app.router, []
    for method in sorted({method for route in router.routes for method in route.methods}):
        with contextlib.suppress(SanicException):
            router.get(request.path, method, None)
            allowed.append(method)
    return ", ".join(allowed)


Connect = Callable[[], HttpConnection]


def connection_class(app: App) -> type[HttpConnection]:
    return FastPathConnection if app.ctx.services.settings.fast_path else HttpConnection


def serve(app: App, sockets: list[socket.socket], ready: Callable[[], None] = lambda: None) -> None:
    """Serve on the first of the bound sockets and relieve the others; `ready` is called when requests are answered."""
    if app.ctx.services.settings.tracing:
        install_tracing("api")
    # Every connection is an open file; the usual limit of 1,024 is raised as far as the system allows.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports a limit that it does not accept
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    run(_serve(app, sockets, ready))


async def _serve(app: App, sockets: list[socket.socket], ready: Callable[[], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    own, *others = sockets
    server = await _start_server(app, own)
    # Makes a connection for an accepted socket, as the server does for its own.
    connect = functools.partial(
        connection_class(app),
        loop=loop,
        app=app,
        connections=server.connections,
        websocket_max_size=app.config.WEBSOCKET_MAX_SIZE,
        websocket_ping_interval=app.config.WEBSOCKET_PING_INTERVAL,
        websocket_ping_timeout=app.config.WEBSOCKET_PING_TIMEOUT,
    )
    ready()
    services: Services = app.ctx.services
    lag = Lag(services.system_database, services.clock)
    measuring_lag = asyncio.create_task(lag.run())
    async with publish(ProcessMetrics("api", lambda: collect_api(services, lag)), services.settings):
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELIEF_INTERVAL_S if others else None):
                    await stopping.wait()
            await _connect(_accept(others), connect)
    measuring_lag.cancel()
    last = _accept(sockets)  # connections that the kernel queued before the sockets close
    server.close()
    for listening in others:
        listening.close()
    await _connect(last, connect)
    await server.before_stop()
    await _drain(app, server.connections)
    await server.after_stop()


async def _start_server(app: App, listening: socket.socket) -> Any:  # Sanic's server, which has no types
    # Sanic reads its HTTP versions from here; without one it sends an empty Alt-Svc header.
    app.state.server_info.append(ApplicationServerInfo({"version": HTTP.VERSION_1}))
    server: Any = await app.create_server(
        sock=listening,
        protocol=connection_class(app),
        backlog=ACCEPT_BACKLOG,
        access_log=False,
        asyncio_server_kwargs={"start_serving": False},
    )
    await server.startup()
    await server.before_start()
    await server.start_serving()
    await server.after_start()
    return server


def _accept(sockets: list[socket.socket]) -> list[socket.socket]:
    """Return the connections that wait in the accept queues, usually none."""
    accepted: list[socket.socket] = []
    for listening in sockets:
        listening.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listening.accept()[0])
    return accepted


async def _connect(accepted: list[socket.socket], connect: Connect) -> None:
    for connection in accepted:
        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(connect, connection)


async def _drain(app: App, connections: set[HttpConnection]) -> None:
    """Wait until every connection has ended; abort those that are left after DRAIN_TIMEOUT_S."""
    app.config.KEEP_ALIVE = False  # for requests that begin now
    for connection in connections:
        if connection.http is not None and connection.http.stage in (Stage.REQUEST, Stage.HANDLER):
            connection.http.keep_alive = False  # for requests that have no response yet
    loop = asyncio.get_running_loop()
    since = loop.time()
    while (passed := loop.time() - since) < DRAIN_TIMEOUT_S:
        await asyncio.sleep(0.02)  # the connections that were accepted last start meanwhile
        if not connections:
            return
        if passed > IDLE_GRACE_S:
            for connection in tuple(connections):
                if not connection.recv_buffer:  # otherwise a request has just arrived
                    connection.close_if_idle()
    for connection in tuple(connections):
        connection.abort()  # type: ignore[no-untyped-call]
