"""`/healthz`, `/readyz` and `/api/v1/version`: is the process alive, can it accept events, which clients does it serve.

An API without an engine still accepts events and loses none, so a stopped engine does not make the API unready.
"""

from datetime import datetime

from sanic import Blueprint, HTTPResponse, Request

from api.routes.events import INGEST_PATHS
from api.routes.request import services
from api.routes.responses import RequestRefusedError, answer
from api.store.chain import ChainRow, list_chains
from api.store.database import DatabaseUnavailableError
from api.store.engines import Heartbeat, last_heartbeat
from workbench.language.problem import Problem
from workbench.language.version import VERSION, VERSION_HEADER, incompatibility, supported_range

blueprint = Blueprint("health")


@blueprint.get("/healthz")
async def healthz(request: Request) -> HTTPResponse:
    """Return 200 if the process is alive."""
    return answer({"status": "ok"})


@blueprint.get("/readyz")
async def readyz(request: Request) -> HTTPResponse:
    """Return 200 if events can be accepted: the database answers and the writer runs; 503 otherwise."""
    try:
        async with services(request).database.transaction() as tx:
            beat = await last_heartbeat(tx)
            chains = await list_chains(tx, services(request).clock.now())
    except DatabaseUnavailableError:  # the reason names hosts, so it is only logged (and shown by `workbench doctor`)
        return answer({"status": "unavailable", "database": "away", "writer": "waiting", "engine": "unknown"}, 503)
    now = services(request).clock.now()
    is_writing = services(request).pipeline.alive
    body = {
        "status": "ready" if is_writing else "unavailable",
        "database": "ok",
        "writer": "ok" if is_writing else "stopped",
        "engine": _engine_status(beat, now),
        "engineLagSeconds": None if beat is None else round(beat.lag_seconds(now), 3),
        "chains": {str(chain.chain_id): _chain_status(chain) for chain in chains},
    }
    return answer(body, 200 if is_writing else 503)


@blueprint.get("/api/v1/version")
async def version(request: Request) -> HTTPResponse:
    """Return the version of the server, and the oldest and newest notebook package that it serves."""
    oldest, newest = supported_range()
    return answer({"version": VERSION, "notebooks": {"oldest": oldest, "newest": newest}})


async def refuse_unsupported_notebook(request: Request) -> None:
    """Middleware: refuse a notebook package of an unsupported version, except to send events."""
    notebook = request.headers.get(VERSION_HEADER)
    if notebook is not None and request.path not in INGEST_PATHS and (reason := incompatibility(notebook)) is not None:
        raise RequestRefusedError(400, Problem(VERSION_HEADER, reason))


def _engine_status(beat: Heartbeat | None, now: datetime) -> str:
    if beat is None:
        return "not running"
    return "ok" if not beat.is_silent(now) else f"last seen {beat.seen_at.isoformat()}"


def _chain_status(chain: ChainRow) -> str:
    if chain.trouble is None:
        return "ok"
    if chain.read_at is None:
        return chain.trouble
    return f"{chain.trouble}; nothing new read since {chain.read_at.isoformat()}"
