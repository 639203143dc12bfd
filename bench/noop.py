"""The reference for ingest: a bare Sanic route that decodes the same body and answers."""

import sys
from typing import Any

from sanic import HTTPResponse, Request, Sanic
from sanic.response import raw

from api.language.event import _BODY

app: Sanic[Any, Any] = Sanic("noop", configure_logging=False)
app.config.AUTO_EXTEND = False


@app.post("/noop")
async def noop(request: Request) -> HTTPResponse:
    _BODY.decode(request.body)
    return raw(b'{"accepted":true}', 202, content_type="application/json")


@app.get("/healthz")
async def healthz(request: Request) -> HTTPResponse:
    return raw(b"{}")


if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), single_process=True, motd=False, access_log=False, backlog=4096)
