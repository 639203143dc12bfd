"""`/api/v1/inapp/*`: a wallet signs in and opens a socket. Browsers call these from other origins, so CORS is spoken here.

Answers name the asking page only when it may ask; a preflight names any, as nobody knows yet for which organization it asks,
and gives nothing away. No cookie and no token in an address is ever read.
"""

from typing import Any

from sanic import Blueprint, HTTPResponse, Request

from api.access.format import Kind
from api.access.verify import Principal, Unauthorized
from api.inapp.eip4361 import write
from api.inapp.origins import is_loopback, may_ask, read_origin
from api.inapp.sessions import ends_at, is_wallet
from api.language.problem import Problem
from api.routes.answers import RefusedError, answer
from api.routes.entrance import json_body, parts
from api.wire.websocket import WebSocket

blueprint = Blueprint("inapp", url_prefix="/api/v1/inapp")

_PUBLISHABLE: frozenset[Kind] = frozenset({"publishable"})
_MOST_CHAIN = 2**53
_PRIVATE = {"cache-control": "no-store"}
_PREFLIGHT = {
    "access-control-allow-methods": "POST",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
    "vary": "origin",
}


@blueprint.post("/challenge")
async def challenge(request: Request) -> HTTPResponse:
    """Answer the text that a wallet has to sign."""
    principal = await _asking(request)
    site = await _site(request, principal)
    body = _object(request)
    address, chain_id = body.get("walletAddress"), body.get("chainId", 1)
    if not isinstance(address, str) or not is_wallet(address):
        raise RefusedError(400, Problem("walletAddress", "must be an address of 0x and 40 hexadecimal digits"))
    if type(chain_id) is not int or not 0 < chain_id < _MOST_CHAIN:
        raise RefusedError(400, Problem("chainId", "must be a positive whole number"))
    key = principal.org_id, principal.key_id
    message = await parts(request).sessions.challenge(key, address, site, chain_id)
    said = {"message": write(message), "nonce": message.nonce, "expiresAt": message.expires_at}
    return answer(said, headers=_PRIVATE)


@blueprint.post("/session")
async def session(request: Request) -> HTTPResponse:
    """Answer the token that a signed text is worth; every text once."""
    origin = _origin(request)
    principal = await _asking(request) if "authorization" in request.headers else None
    if principal is not None:
        await _site(request, principal)
    body = _object(request)
    for field in ("message", "signature"):
        if not isinstance(body.get(field), str):
            raise RefusedError(400, Problem(field, "must be a string"))
    org_id = None if principal is None else principal.org_id
    begun = await parts(request).sessions.begin(body["message"], body["signature"], origin, org_id)
    if begun is None:
        raise RefusedError(401, "the message or its signature is not valid, or it was used already")
    request.ctx.allowed = origin
    token = parts(request).sessions.seal(begun)
    return answer({"token": token, "walletAddress": begun.wallet, "expiresAt": ends_at(begun)}, headers=_PRIVATE)


@blueprint.options("/challenge", name="preflight_challenge")
@blueprint.options("/session", name="preflight_session")
async def preflight(request: Request) -> HTTPResponse:
    """Tell a browser that it may ask."""
    request.ctx.allowed = _origin(request)
    return HTTPResponse(status=204, headers=_PREFLIGHT)


@blueprint.websocket("/socket")  # type: ignore[untyped-decorator]
async def socket(request: Request, websocket: WebSocket) -> None:
    """Serve a socket; its first message has to be the token, within five seconds."""
    await parts(request).feed.serve(websocket, request.ctx.origin)


@blueprint.on_request
async def receive(request: Request) -> None:
    """Refuse a socket before it is one: where the page's origin is none, or there are too many."""
    request.ctx.allowed = None
    if request.path.endswith("/socket"):
        request.ctx.origin = _origin(request)
        if parts(request).feed.sockets.full:
            raise RefusedError(503, "there are too many sockets here, try again")


@blueprint.on_response  # type: ignore[untyped-decorator]
async def name_origin(request: Request, response: HTTPResponse | None) -> None:
    """Let the page that may ask read the answer."""
    if response is not None and (origin := getattr(request.ctx, "allowed", None)) is not None:
        response.headers["access-control-allow-origin"] = origin
        response.headers["vary"] = "origin"


async def _asking(request: Request) -> Principal:
    found = await parts(request).verifier.principal(request.headers.getall("authorization", []), _PUBLISHABLE)
    if isinstance(found, Unauthorized):
        raise RefusedError(401, "the publishable key is missing, invalid or revoked")
    return found


async def _site(request: Request, principal: Principal) -> str:
    """Return the origin for which a wallet signs in: the asking page's; refuse with 403 a page that may not ask.

    A program that is no browser sends no origin. It signs in for the organization's first one, or on this machine.
    """
    allowed = await parts(request).sessions.origins(principal.org_id)
    origin = _origin(request)
    if origin is not None:
        if not may_ask(origin, allowed):
            raise RefusedError(403, "pages of this origin may not ask; see: workbench origins add")
        request.ctx.allowed = origin
        return origin
    own = read_origin(f"http://{request.host}")
    if own is not None and is_loopback(own):
        return own
    if not allowed:
        raise RefusedError(403, "the organization has no origins yet; see: workbench origins add")
    return allowed[0]


def _origin(request: Request) -> str | None:
    """Return the origin of the asking page, None where there is no browser; refuse with 403 what is none."""
    given = request.headers.getall("origin", [])
    if not given:
        return None
    origin = read_origin(given[0]) if len(given) == 1 else None
    if origin is None:
        raise RefusedError(403, "pages of this origin may not ask")
    return origin


def _object(request: Request) -> dict[str, Any]:
    body = json_body(request)
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be a JSON object")
    return body
