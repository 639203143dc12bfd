"""`/healthz`, `/readyz` and `/api/v1/version`: liveness, readiness, and the clients that the server supports.

An API without an engine still accepts events and loses none, so a stopped engine does not make the API unready.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.routes.events import INGEST_PATHS
from api.routes.request import services
from api.routes.responses import RequestRefusedError, answer
from api.store.chain import list_chains
from api.store.database import DatabaseUnavailableError
from api.store.engines import last_heartbeat
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
    engine = "not running"
    if beat is not None:
        engine = f"last seen {beat.seen_at.isoformat()}" if beat.is_silent(now) else "ok"
    chain_statuses = {}
    for chain in chains:
        status = chain.trouble or "ok"
        if chain.trouble is not None and chain.read_at is not None:
            status = f"{chain.trouble}; nothing new read since {chain.read_at.isoformat()}"
        chain_statuses[str(chain.chain_id)] = status
    body = {
        "status": "ready" if is_writing else "unavailable",
        "database": "ok",
        "writer": "ok" if is_writing else "stopped",
        "engine": engine,
        "engineLagSeconds": None if beat is None else round(beat.lag_seconds(now), 3),
        "chains": chain_statuses,
    }
    return answer(body, 200 if is_writing else 503)


@blueprint.get("/api/v1/version")
async def version(request: Request) -> HTTPResponse:
    """Return the version of the server, and the oldest and newest notebook package that it serves."""
    oldest, newest = supported_range()
    return answer({"version": VERSION, "notebooks": {"oldest": oldest, "newest": newest}})


async def refuse_unsupported_notebook(request: Request) -> None:
    """Middleware: refuse a notebook package of an unsupported version, except to send events."""
    # Only the notebook package sends this header. The ingest API is a contract of its own, and serves every version.
    notebook = request.headers.get(VERSION_HEADER)
    if notebook is not None and request.path not in INGEST_PATHS and (reason := incompatibility(notebook)) is not None:
        raise RequestRefusedError(400, Problem(VERSION_HEADER, reason))
