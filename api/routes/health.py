"""`/healthz`, `/readyz` and `/api/v1/version`: liveness, readiness, and the clients that the server supports.

An API without an engine still accepts events and loses none, so a stopped engine does not make the API unready.
"""

import asyncio
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType
from sanic import Blueprint, HTTPResponse, Request

from api.routes.events import INGEST_PATHS
from api.routes.request import Operation, Services, services
from api.routes.responses import RequestRefusedError, answer
from api.store.chain import list_chains
from api.store.database import DatabaseUnavailableError, TooSlowError
from api.store.engines import Heartbeat, last_heartbeat
from workbench.language.problem import Problem
from workbench.language.version import VERSION, VERSION_HEADER, incompatibility, supported_range

if TYPE_CHECKING:
    from workbench.language.responses import ChainView

blueprint = Blueprint("health")

_DATABASE_TIMEOUT_S = 1.0  # so that /readyz takes less than two seconds


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(msgspec.Struct, frozen=True, rename="camel"):
    """Whether events can be accepted; `engine`, `engineLagSeconds` and `chains` have no influence on `status`."""

    status: Literal["ready", "unavailable"]
    database: str
    writer: str
    engine: str
    engine_lag_seconds: float | UnsetType | None = UNSET
    chains: dict[str, str] | UnsetType = UNSET


class NotebookVersions(msgspec.Struct, frozen=True):
    """Versions of the notebook package, like `0.1`."""

    oldest: str
    newest: str


class VersionResponse(msgspec.Struct, frozen=True):
    """The version of the server, and of the notebook packages that it serves."""

    version: str
    notebooks: NotebookVersions


@blueprint.get("/healthz")
@Operation()
async def healthz(request: Request) -> Health:
    """Return 200 if the process is alive."""
    return Health("ok")


@blueprint.get("/readyz")
@Operation(answer=Readiness, other_answers={503: Readiness})
async def readyz(request: Request) -> HTTPResponse:
    """Return 200 if events can be accepted: the database answers and the writer runs; 503 otherwise.

    On Citus, `database` lists the node ids of workers that are away; 503 if all are.
    """
    try:
        (beat, chains), (database, has_workers) = await asyncio.gather(
            _read_engine_and_chains(services(request)), _read_workers(services(request))
        )
    except DatabaseUnavailableError:  # the reason names hosts, so it is only logged (and shown by `workbench doctor`)
        return answer(Readiness("unavailable", "away", "waiting", "unknown"), 503)
    now = services(request).clock.now()
    is_writing = services(request).pipeline.alive
    is_ready = is_writing and has_workers
    engine = "not running"
    if beat is not None:
        engine = f"last seen {beat.seen_at.isoformat()}" if beat.is_silent(now) else "ok"
    chain_statuses = {}
    for chain in chains:
        status = chain.problem or "ok"
        if chain.problem is not None and chain.read_at is not None:
            status = f"{chain.problem}; nothing new read since {chain.read_at.isoformat()}"
        chain_statuses[str(chain.chain_id)] = status
    readiness = Readiness(
        "ready" if is_ready else "unavailable",
        database,
        "ok" if is_writing else "stopped",
        engine,
        None if beat is None else round(beat.lag_seconds(now), 3),
        chain_statuses,
    )
    return answer(readiness, 200 if is_ready else 503)


async def _read_engine_and_chains(context: Services) -> "tuple[Heartbeat | None, list[ChainView]]":
    async with context.database.transaction(answer_s=_DATABASE_TIMEOUT_S) as tx:
        return await last_heartbeat(tx), await list_chains(tx, context.clock.now())


async def _read_workers(context: Services) -> tuple[str, bool]:
    """Return the status of the Citus workers in words, and False if all of them are away."""
    try:
        workers = await context.citus_workers.statuses()
    except TooSlowError:  # several are frozen, but perhaps not all, and the coordinator answered
        return "Citus workers do not answer in time", True
    away = [node for node, answers in workers if not answers]
    if not away:
        return "ok", True
    return f"Citus workers away: {', '.join(map(str, away))}", len(away) < len(workers)


@blueprint.get("/api/v1/version")
@Operation()
async def version(request: Request) -> VersionResponse:
    """Return the version of the server, and the oldest and newest notebook package that it serves."""
    return VersionResponse(VERSION, NotebookVersions(*supported_range()))


async def refuse_unsupported_notebook(request: Request) -> None:
    """Middleware: refuse a notebook package of an unsupported version, except to send events."""
    # Only the notebook package sends this header. The ingest API is a contract of its own, and serves every version.
    notebook = request.headers.get(VERSION_HEADER)
    if notebook is not None and request.path not in INGEST_PATHS and (reason := incompatibility(notebook)) is not None:
        raise RequestRefusedError(400, Problem(VERSION_HEADER, reason))
