"""`GET /healthz`: the process answers. `GET /readyz`: it can accept events; the engine's state is told beside it, and how chains are read.

An API without an engine still accepts events and loses none, so a stopped engine does not take the API out of service.
"""

from datetime import datetime

from sanic import Blueprint, HTTPResponse, Request

from api.routes.answers import answer
from api.routes.entrance import parts
from api.store.database import UnavailableError
from api.store.health import Beat, last_beat
from api.store.logs import ChainRow, list_chains

blueprint = Blueprint("health")


@blueprint.get("/healthz")
async def healthz(request: Request) -> HTTPResponse:
    """Answer that the process is alive."""
    return answer({"status": "ok"})


@blueprint.get("/readyz")
async def readyz(request: Request) -> HTTPResponse:
    """Answer 200 when database and writer work."""
    try:
        async with parts(request).database.transaction() as tx:
            beat = await last_beat(tx)
            chains = await list_chains(tx, parts(request).clock.now())
    except UnavailableError:  # why is for logs and `doctor`: it names hosts
        return answer({"status": "unavailable", "database": "away", "writer": "waiting", "engine": "unknown"}, 503)
    now = parts(request).clock.now()
    writer = parts(request).pipeline.alive
    body = {
        "status": "ready" if writer else "unavailable",
        "database": "ok",
        "writer": "ok" if writer else "stopped",
        "engine": _engine(beat, now),
        "engineLagSeconds": None if beat is None else round(beat.lag_seconds(now), 3),
        "chains": {str(each.chain_id): _chain(each) for each in chains},
    }
    return answer(body, 200 if writer else 503)


def _chain(chain: ChainRow) -> str:
    if chain.trouble is None:
        return "ok"
    return (
        chain.trouble
        if chain.read_at is None
        else f"{chain.trouble}; nothing new read since {chain.read_at.isoformat()}"
    )


def _engine(beat: Beat | None, now: datetime) -> str:
    if beat is None:
        return "not running"
    return "ok" if not beat.is_silent(now) else f"last seen {beat.seen_at.isoformat()}"
