"""Runs the API as a separate process, without a database, with routes that record requests.

`python -m tests.wire.process [REQUEST_TIMEOUT RESPONSE_TIMEOUT]` prints its port when it serves.
"""

import asyncio
import sys
from typing import Any

from sanic import HTTPResponse, Request

from api import process
from api.app import App, create_app, serve
from api.routes.responses import answer
from api.settings import Settings
from api.wire.connection import LargeBodies
from tests.sockets import listening_socket

LARGE = 32 * 1_048_576


def main() -> None:
    process.install_logging()
    app = create_app(Settings(), "postgresql://nobody@127.0.0.1:1/nothing", "a secret of the tests of the wire")
    app.config.update(zip(("REQUEST_TIMEOUT", "RESPONSE_TIMEOUT"), map(float, sys.argv[1:]), strict=False))
    app.ctx.large_bodies = LargeBodies(_admit_all, LARGE)
    _add_probes(app)
    sock = listening_socket("127.0.0.1", 0)
    serve(app, [sock], lambda: print(sock.getsockname()[1], flush=True))  # noqa: T201 - the parent reads it


async def _admit_all(request: Request) -> None:
    """Admit every large body, because without a database no key can be checked."""


def _add_probes(app: App) -> None:
    requests: list[dict[str, Any]] = []
    cancelled: list[float] = []

    async def record(request: Request, probe: str) -> HTTPResponse:
        recorded = {"probe": probe, "body": request.body.decode("latin-1")}
        requests.append(recorded)
        return answer(recorded)

    async def report(request: Request) -> HTTPResponse:
        connections = len(request.protocol.connections)
        response = answer({"requests": list(requests), "cancelled": cancelled, "connections": connections})
        requests.clear()
        return response

    async def large(request: Request) -> None:
        response = await request.respond(headers={"content-length": str(LARGE)})
        for _ in range(LARGE // 65_536):
            await response.send(bytes(65_536))

    async def slow(request: Request, seconds: float) -> HTTPResponse:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(seconds)
            raise
        return answer({})

    app.add_route(record, "/probe/<probe:str>", methods=["GET", "POST"])
    app.add_route(report, "/recorded")
    app.add_route(large, "/large")
    app.add_route(slow, "/slow/<seconds:float>")


if __name__ == "__main__":
    main()
