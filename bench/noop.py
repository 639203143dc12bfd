"""The reference of ingest: a bare Sanic route that decodes the same body and answers."""

import sys
from typing import Any

import msgspec
from sanic import HTTPResponse, Request, Sanic
from sanic.response import raw


class _Contact(msgspec.Struct, rename="camel"):
    email: str | None = None
    wallet_address: str | None = None
    external_id: str | None = None


class _Event(msgspec.Struct, rename="camel"):
    event: str
    contact: _Contact
    attributes: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    idempotency_key: str | None = None
    occurred_at: str | None = None
    test: bool | None = None


_DECODER = msgspec.json.Decoder(_Event)

app: Sanic[Any, Any] = Sanic("noop", configure_logging=False)
app.config.AUTO_EXTEND = False


@app.post("/api/v1/events")
async def decode(request: Request) -> HTTPResponse:
    _DECODER.decode(request.body)
    return raw(b'{"accepted":true}', 202, content_type="application/json")


@app.get("/healthz")
async def healthz(request: Request) -> HTTPResponse:
    return raw(b"{}")


if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), single_process=True, motd=False, access_log=False, backlog=4096)
