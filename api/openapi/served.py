"""`/openapi.json`, and `/docs`: the same for people, without a script and without anything from elsewhere."""

from functools import lru_cache
from typing import Any

from sanic import Blueprint, HTTPResponse, Request, Sanic

from api.language.codec import encode
from api.language.version import VERSION
from api.openapi.document import document as document_of
from api.openapi.page import page as page_of

blueprint = Blueprint("openapi")

_PUBLIC = {"cache-control": "public, max-age=300", "x-content-type-options": "nosniff"}
_SHUT = _PUBLIC | {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


@blueprint.get("/openapi.json")
async def document(request: Request) -> HTTPResponse:
    """Answer the description of this API, OpenAPI 3.1."""
    return HTTPResponse(_written(request.app)[0], content_type="application/json", headers=_PUBLIC)


@blueprint.get("/docs")
async def page(request: Request) -> HTTPResponse:
    """Answer the same as a page."""
    return HTTPResponse(_written(request.app)[1], content_type="text/html; charset=utf-8", headers=_SHUT)


@lru_cache(maxsize=1)
def _written(app: "Sanic[Any, Any]") -> tuple[bytes, str]:
    """Return both, made once."""
    found = document_of(app.router.routes, VERSION)
    return encode(found), page_of(found)
