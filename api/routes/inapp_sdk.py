"""`/inapp/client.js` and the demo page `/inapp/demo`: the browser's side, as it is in `api/inapp/sdk`."""

from pathlib import Path

from sanic import Blueprint, HTTPResponse, Request

blueprint = Blueprint("inapp_sdk", url_prefix="/inapp")

_FOLDER = Path(__file__).parents[1] / "inapp" / "sdk"
_SCRIPT = (_FOLDER / "client.js").read_bytes()
_PAGE = (_FOLDER / "demo.html").read_bytes()
_ANYWHERE = {
    "access-control-allow-origin": "*",
    "cache-control": "public, max-age=300",
    "x-content-type-options": "nosniff",
}
_SHUT = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@blueprint.get("/client.js")
async def client(request: Request) -> HTTPResponse:
    """Answer the SDK, an ES module that any page may import."""
    return HTTPResponse(_SCRIPT, content_type="text/javascript; charset=utf-8", headers=_ANYWHERE)


@blueprint.get("/demo")
async def demo(request: Request) -> HTTPResponse:
    """Answer the demo page."""
    return HTTPResponse(_PAGE, content_type="text/html; charset=utf-8", headers=_SHUT)
