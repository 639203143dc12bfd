"""The API process: its long-lived parts, the routes, and the one place where failures become answers."""

import asyncio
import contextlib
import gc
import logging
from typing import Any

from sanic import HTTPResponse, Request, Sanic
from sanic.exceptions import SanicException
from sanic.server.protocols.websocket_protocol import WebSocketProtocol

from api import logs
from api.access.verify import Verifier
from api.clock import Clock
from api.ingest.pipeline import Pipeline
from api.ingest.rate import Buckets
from api.ingest.upkeep import keep_up
from api.keyring import Keyring
from api.language.problem import Problem
from api.query.run import Gateway
from api.routes import automations, catalog, entries, events, health, sql
from api.routes.answers import RefusedError, refusal
from api.routes.entrance import Parts
from api.settings import Settings
from api.store.database import ConflictError, Database, UnavailableError

MAX_BODY = 8 * 1024 * 1024
MAX_HEADERS = 8_192

_TRANSPORT = {
    400: "the request is not valid HTTP",
    404: "there is nothing at this address",
    405: "this address does not take that method",
    408: "the request did not arrive in time",
    413: f"the request is too large: at most {MAX_BODY} bytes, and {MAX_HEADERS} of headers",
    417: "Expect can only be 100-continue",
}

App = Sanic[Any, Any]

_log = logging.getLogger("workbench.api")


def create_app(settings: Settings, dsn: str, secret: str, name: str = "workbench") -> App:
    """Return the application; it connects when it starts, and answers 503 while the database is away."""
    app = Sanic(name, configure_logging=False)
    app.config.update(
        AUTO_EXTEND=False,
        REQUEST_MAX_SIZE=MAX_BODY,
        REQUEST_MAX_HEADER_SIZE=MAX_HEADERS,
        REQUEST_TIMEOUT=10,
        RESPONSE_TIMEOUT=60,
        KEEP_ALIVE_TIMEOUT=75,
        GRACEFUL_SHUTDOWN_TIMEOUT=15.0,
        REQUEST_ID_HEADER="",  # ids are ours: a caller's would end in logs as it came
        FALLBACK_ERROR_FORMAT="json",
        NOISY_EXCEPTIONS=False,
    )
    app.ctx.connections = set()
    database, keyring, clock = Database(dsn), Keyring(secret), Clock()
    pipeline = Pipeline(
        Database(dsn, size=2, hot=True), keyring, clock, Buckets(settings.ingest_rate, settings.ingest_burst)
    )
    app.ctx.parts = Parts(
        settings, database, keyring, clock, Verifier(database, keyring, clock), pipeline, Gateway(database, keyring)
    )
    for module in (events, catalog, automations, entries, sql, health):
        app.blueprint(module.blueprint)
    _start_and_stop(app)
    app.error_handler.add(Exception, _answer_failure)
    return app


def serve(settings: Settings, dsn: str, secret: str, host: str, port: int) -> None:
    """Serve until told to stop; requests in flight are answered first."""
    logs.install()
    app = create_app(settings, dsn, secret)
    gc.freeze()  # what is loaded by now stays; collections need not walk it,
    gc.set_threshold(20_000, 20, 50)  # and a request leaves no cycles to hurry after
    app.run(host=host, port=port, single_process=True, protocol=Connection, motd=False, access_log=False, backlog=4096)


class Connection(WebSocketProtocol):
    """A client's connection. Sanic knows which there are; a stopping application has to, so that it waits for no idle one."""

    def connection_made(self, transport: Any) -> None:
        """Begin, as one of the connections of the application."""
        super().connection_made(transport)  # type: ignore[no-untyped-call]
        self.app.ctx.connections = self.connections


def _end_connections(app: App) -> None:
    """Close the idle connections, and let the others be closed as soon as their request is answered."""
    app.config.KEEP_ALIVE = False
    for connection in tuple(app.ctx.connections):
        busy = connection.recv_buffer or not connection.close_if_idle()  # a request may just have arrived
        if busy and connection.http is not None:
            connection.http.keep_alive = False


def _start_and_stop(app: App) -> None:
    parts: Parts = app.ctx.parts

    @app.before_server_start
    async def start(app: App) -> None:
        await parts.database.open()
        await parts.pipeline.start()
        with contextlib.suppress(UnavailableError):
            await parts.database.calibrate(parts.clock)
        app.ctx.chores = asyncio.create_task(keep_up(parts.database, parts.clock))

    @app.before_server_stop
    async def stop(app: App) -> None:
        _end_connections(app)
        app.ctx.chores.cancel()
        await parts.pipeline.stop()
        await parts.verifier.close()
        await parts.database.close()


async def _answer_failure(request: Request, error: Exception) -> HTTPResponse:
    match error:
        case RefusedError(status=status, problems=problems, code=code):
            return refusal(request, status, problems, code)
        case SanicException(status_code=status) if 400 <= status < 500:
            refused = refusal(request, status, (Problem("", _TRANSPORT.get(status) or str(error)),))
            refused.headers.update(error.headers)  # 405: what is allowed
            return refused
        case UnavailableError() | ConflictError():
            sentence = "temporarily unavailable, try again"
        case _:
            _log.exception("request_failed", exc_info=error, extra={"request_id": str(request.id)})
            sentence = "something went wrong here; the request id finds it in the server's log"
    code = "INGEST_UNAVAILABLE" if request.path.rstrip("/") in events.PATHS else None
    return refusal(request, 503, (Problem("", sentence),), code)
