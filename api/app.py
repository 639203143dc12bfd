"""The application of an API process: its long-lived parts, the routes, and the one place where failures become answers."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Sequence
from typing import Any

from sanic import HTTPResponse, Request, Sanic
from sanic.exceptions import RequestCancelled, SanicException

from api.access.verify import Verifier
from api.access.watch import keep_bounded
from api.authoring.resting import keep_moving
from api.clock import Clock
from api.contacts.erasure import keep_erased
from api.contacts.settling import keep_settled
from api.engine.outside import transports
from api.inapp.feed import Feed
from api.inapp.sessions import Sessions
from api.ingest.notices import Notices
from api.ingest.pipeline import Pipeline
from api.ingest.rate import Buckets
from api.ingest.recent import Followers
from api.ingest.upkeep import keep_up
from api.keyring import Keyring
from api.language.problem import Problem
from api.openapi import served
from api.query.run import Gateway, Places, Turns
from api.routes import (
    audit,
    automations,
    catalog,
    chain,
    contacts,
    entries,
    events,
    explain,
    health,
    inapp,
    inapp_sdk,
    keys,
    merges,
    recent,
    segments,
    sql,
    test_sends,
    timeline,
    unsubscribe,
    usage,
    version,
    webhooks,
)
from api.routes.answers import RefusedError, refusal
from api.routes.edge import Edge, begin, finish
from api.routes.entrance import Parts, identify
from api.segments.finding import Desk
from api.settings import Settings
from api.store.database import ConflictError, Database, UnavailableError, marked
from api.store.tenancy import TenantDatabase
from api.wire.http1 import Reception, TransportError

MAX_BODY = 262_144  # bytes, where nothing else is said
LOCK_MS = 500  # after that only the organization whose lock it is goes without
ROOM = 67_108_864  # bytes of large bodies on their way to this process
BODY_LIMITS = {
    "/api/v1/events": 1_048_576,
    "/api/v1/events/batch": 8_388_608,
    "/api/v1/segments": 8_388_608,
    "/api/v1/segments/*/contacts": 8_388_608,
}
SEGMENT_SECONDS = 35.0  # a query that defines one; the answer must be there within a minute
SEGMENT_PLACES = Places(of_organization=2, in_all=6, wait_seconds=15.0)

LEFT = 499  # what nginx notes where the client was gone before its answer; nobody gets it

_SANIC = {
    400: "the request is not valid HTTP",
    404: "there is nothing at this address",
    405: "this address does not take that method",
    408: "the request did not arrive in time",
}

_ROUTES = (
    *(events, recent, catalog, automations, entries, contacts, explain, merges, timeline, usage, audit, test_sends),
    *(chain, sql, segments, health, unsubscribe, version, webhooks, keys, inapp, inapp_sdk, served),
)

App = Sanic[Any, Any]

_log = logging.getLogger("workbench.api")


def create_app(settings: Settings, dsn: str, secret: str, name: str = "workbench", rates: int = -1) -> App:
    """Return the application; it connects when it starts, and answers 503 while the database is away.

    `rates`: a file in which other processes count the ingest rate, too.
    """
    app = Sanic(name, configure_logging=False)
    app.config.update(
        AUTO_EXTEND=False,
        REQUEST_MAX_SIZE=MAX_BODY,
        BODY_LIMITS=BODY_LIMITS,
        REQUEST_TIMEOUT=10,
        RESPONSE_TIMEOUT=60,
        KEEP_ALIVE_TIMEOUT=75,
        REQUEST_ID_HEADER="",  # a caller's is taken by `api.wire`, where it is sane
        FALLBACK_ERROR_FORMAT="json",
        NOISY_EXCEPTIONS=False,
    )
    keyring, clock = Keyring(secret), Clock()
    dsn = marked(dsn, keyring.mark())
    database, service = TenantDatabase(dsn), Database(dsn)
    buckets = Buckets(settings.ingest_rate, settings.ingest_burst, rates)
    notices = Notices(service, clock)
    standby = None if settings.read_url is None else Database(settings.read_url, size=4)
    gateway = Gateway(service, keyring, standby=standby)
    sessions = Sessions(service, keyring, clock)
    pipeline = Pipeline(Database(dsn, size=2, lock_ms=LOCK_MS, hot=True), keyring, clock, buckets, notices)
    app.ctx.parts = Parts(
        settings,
        database,
        service,
        keyring,
        clock,
        Verifier(service, keyring, clock),
        pipeline,
        notices,
        Followers(),
        gateway,
        sessions,
        Feed(dsn, sessions, clock),
        _desk(dsn, gateway, keyring),
        transports(settings),
        Edge(settings.log_requests),
    )
    app.ctx.reception = Reception(identify, ROOM)
    for module in _ROUTES:
        app.blueprint(module.blueprint)
    _start_and_stop(app, [] if standby is None else [standby])
    app.register_middleware(begin, "request")
    app.register_middleware(version.must_fit, "request")
    app.register_middleware(functools.partial(finish, app.ctx.parts.edge), "response")
    app.error_handler.add(Exception, _answer_failure)
    app.error_handler.add(RequestCancelled, _note_departure)
    return app


def _desk(dsn: str, gateway: Gateway, keyring: Keyring) -> Desk:
    """Return a desk with two connections more than places, for what is short."""
    database = TenantDatabase(dsn, size=SEGMENT_PLACES.in_all + 2, statement_ms=60_000)
    return Desk(database, gateway, keyring, SEGMENT_SECONDS, Turns(SEGMENT_PLACES))


def _start_and_stop(app: App, others: Sequence[Database]) -> None:
    parts: Parts = app.ctx.parts

    @app.before_server_start
    async def start(app: App) -> None:
        await parts.database.open()
        await parts.service.open()
        await parts.segments.database.open()
        for each in others:
            await each.open()
        await parts.pipeline.start()
        await parts.notices.start()
        await parts.feed.start()
        with contextlib.suppress(UnavailableError):
            await parts.service.calibrate(parts.clock)
        chores = (
            keep_up(parts.service, parts.clock),
            keep_erased(parts.service, parts.clock),
            keep_settled(parts.service, parts.clock),
            keep_moving(parts.service, parts.clock),
            keep_bounded(parts.service),
        )
        app.ctx.chores = [asyncio.create_task(chore) for chore in chores]

    @app.before_server_stop
    async def part(app: App) -> None:
        parts.followers.ended = True
        parts.feed.send_away()

    @app.after_server_stop
    async def stop(app: App) -> None:
        for chore in app.ctx.chores:
            chore.cancel()
        await parts.pipeline.stop()
        await parts.notices.stop()
        await parts.feed.stop()
        await parts.verifier.close()
        await parts.ways.close()
        for each in others:
            await each.close()
        await parts.segments.database.close()
        await parts.service.close()
        await parts.database.close()


async def _note_departure(_: Request, __: RequestCancelled) -> HTTPResponse:
    """Let the edge count a request whose client did not wait: no failure of ours."""
    return HTTPResponse(status=LEFT)


async def _answer_failure(request: Request, error: Exception) -> HTTPResponse:
    match error:
        case RefusedError(status=status, problems=problems, code=code):
            return refusal(request, status, problems, code)
        case TransportError(status_code=status):
            return refusal(request, status, (Problem("", str(error)),))
        case SanicException(status_code=status) if 400 <= status < 500:
            refused = refusal(request, status, (Problem("", _SANIC.get(status) or str(error)),))
            refused.headers.update(error.headers)  # 405: what is allowed
            return refused
        case UnavailableError() | ConflictError():
            sentence = "temporarily unavailable, try again"
        case _:
            _log.exception("request_failed", exc_info=error, extra={"request_id": str(request.id)})
            sentence = "something went wrong here; the request id finds it in the server's log"
    code = "INGEST_UNAVAILABLE" if request.path.rstrip("/") in events.PATHS else None
    return refusal(request, 503, (Problem("", sentence),), code)
