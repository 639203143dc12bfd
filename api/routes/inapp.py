"""`/api/v1/inapp/*` and `/inapp/*`: wallet sign-in, the message socket, the browser SDK and its demo page.

Browsers call the API from other origins, so these routes speak CORS: a response names the calling origin only if the
organization allows it. The response to a preflight request names any origin, because such a request carries no key and
so no organization; it reveals nothing. Neither a cookie nor a token in a URL is ever read.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from sanic import Blueprint, HTTPResponse, Request

from api.auth.key_format import Kind
from api.auth.verify import Principal, Unauthorized
from api.inapp.sign_in import format_message, is_loopback, is_origin_allowed, parse_origin
from api.routes.request import KEY_REFUSED, Access, Operation, body_of, services
from api.routes.responses import RequestRefusedError
from api.wire.connection import WebSocket
from workbench.language.body import Body
from workbench.language.channel import EVM_WALLET

blueprint = Blueprint("inapp")

_PUBLISHABLE: tuple[Kind, ...] = ("publishable",)
_BROWSER = Access(_PUBLISHABLE)
_MAX_CHAIN_ID = 2**53 - 1  # the largest integer that JSON carries safely into JavaScript
_PREFLIGHT = {
    "access-control-allow-methods": "POST",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
    "vary": "origin",
}
_SDK = Path(__file__).parents[1] / "inapp" / "sdk"
_CLIENT = (_SDK / "client.js").read_bytes()
_CLIENT_HEADERS = {
    "access-control-allow-origin": "*",
    "cache-control": "public, max-age=300",
    "x-content-type-options": "nosniff",
}
_DEMO = (_SDK / "demo.html").read_bytes()
_DEMO_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class ChallengeBody(Body, frozen=True, rename="camel"):
    """The wallet that will sign."""

    wallet_address: Annotated[
        str,
        Meta(
            max_length=42,
            pattern=f"^{EVM_WALLET.pattern}$",
            extra={"reason": "must be an address of 0x and 40 hexadecimal digits"},
        ),
    ]
    chain_id: Annotated[int, Meta(ge=1, le=_MAX_CHAIN_ID)] = 1


class ChallengeResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The text to sign (EIP-4361)."""

    message: str
    nonce: str
    expires_at: datetime | None


class SessionBody(Body, frozen=True):
    """The signed text and its signature."""

    message: str
    signature: str


class SessionResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The token that opens the socket."""

    token: str
    wallet_address: str
    expires_at: datetime


# The origin is checked before the body is read, so that a page may read why its body was refused.


@blueprint.post("/api/v1/inapp/challenge")
@Operation(_BROWSER, body=ChallengeBody, private=True)
async def challenge(request: Request) -> ChallengeResponse:
    """Return the text that a wallet has to sign."""
    principal = await _require_publishable_key(request)
    origin = await _sign_in_origin(request, principal)
    body = await body_of(request, ChallengeBody)
    key = principal.org_id, principal.key_id
    message = await services(request).sessions.challenge(key, body.wallet_address, origin, body.chain_id)
    return ChallengeResponse(format_message(message), message.nonce, message.expires_at)


@blueprint.post("/api/v1/inapp/session")
@Operation(body=SessionBody, private=True)
async def session(request: Request) -> SessionResponse:
    """Return a session token for a signed challenge; each challenge can be used once."""
    origin = _origin(request)
    principal = await _require_publishable_key(request) if "authorization" in request.headers else None
    if principal is not None:
        await _sign_in_origin(request, principal)
    body = await body_of(request, SessionBody)
    org_id = None if principal is None else principal.org_id
    inapp_session = await services(request).sessions.create(body.message, body.signature, origin, org_id)
    if inapp_session is None:
        raise RequestRefusedError(401, "the message or its signature is not valid, or it has already been used")
    request.ctx.allowed_origin = origin
    token = services(request).sessions.seal(inapp_session)
    return SessionResponse(token, inapp_session.wallet, inapp_session.ends_at)


@blueprint.options("/api/v1/inapp/challenge", name="preflight_challenge")
@blueprint.options("/api/v1/inapp/session", name="preflight_session")
async def preflight(request: Request) -> HTTPResponse:
    """Answer a browser's CORS preflight."""
    # Any valid origin is named: a preflight has no key, so the organization that could refuse it is not known.
    request.ctx.allowed_origin = _origin(request)
    return HTTPResponse(status=204, headers=_PREFLIGHT)


@blueprint.websocket("/api/v1/inapp/socket")  # type: ignore[untyped-decorator]
@Operation(status=101)
async def socket(request: Request, websocket: WebSocket) -> None:
    """Open the WebSocket of in-app messages; its first message must be the token, within five seconds."""
    await services(request).feed.serve(websocket, request.ctx.origin)


@blueprint.get("/inapp/client.js")
@Operation(media="text/javascript")
async def client(request: Request) -> HTTPResponse:
    """Return the browser SDK, an ES module that any page may import."""
    return HTTPResponse(_CLIENT, content_type="text/javascript; charset=utf-8", headers=_CLIENT_HEADERS)


@blueprint.get("/inapp/demo")
@Operation(media="text/html")
async def demo(request: Request) -> HTTPResponse:
    """Return the demo page."""
    return HTTPResponse(_DEMO, content_type="text/html; charset=utf-8", headers=_DEMO_HEADERS)


@blueprint.on_request
async def check_socket(request: Request) -> None:
    """Refuse a socket before the WebSocket handshake: for an invalid origin, or too many open sockets."""
    request.ctx.allowed_origin = None
    if request.path.endswith("/socket"):
        request.ctx.origin = _origin(request)
        if services(request).feed.sockets.is_full:
            raise RequestRefusedError(503, "too many open sockets, try again")


@blueprint.on_response  # type: ignore[untyped-decorator]
async def allow_origin(request: Request, response: HTTPResponse | None) -> None:
    """Let the calling page read the response, if its origin is allowed."""
    if response is not None and (origin := getattr(request.ctx, "allowed_origin", None)) is not None:
        response.headers["access-control-allow-origin"] = origin
        response.headers["vary"] = "origin"


async def _require_publishable_key(request: Request) -> Principal:
    verifier = services(request).verifier
    principal = await verifier.principal(request.headers.getall("authorization", []), frozenset(_PUBLISHABLE))
    if isinstance(principal, Unauthorized):
        raise RequestRefusedError(401, f"the publishable key is {KEY_REFUSED}")
    return principal


async def _sign_in_origin(request: Request, principal: Principal) -> str:
    """Return the origin that a wallet signs in to: the calling page's; 403 if the organization does not allow it.

    A client outside a browser sends no origin: it signs in to this server if the server is local, otherwise to the
    first allowed origin.
    """
    allowed = await services(request).sessions.origins(principal.org_id)
    origin = _origin(request)
    if origin is not None:
        if not is_origin_allowed(origin, allowed):
            raise RequestRefusedError(403, f"the origin {origin} is not allowed; add it with: workbench origins add")
        request.ctx.allowed_origin = origin
        return origin
    # Only a loopback `Host` counts as an origin: any other can be made up by the client.
    own = parse_origin(f"http://{request.host}")
    if own is not None and is_loopback(own):
        return own
    if not allowed:
        raise RequestRefusedError(403, "the organization has no allowed origins; add one with: workbench origins add")
    return allowed[0]


def _origin(request: Request) -> str | None:
    """Return the origin of the calling page, or None for a client outside a browser; 403 for an invalid one."""
    headers = request.headers.getall("origin", [])
    if not headers:
        return None
    origin = parse_origin(headers[0]) if len(headers) == 1 else None
    if origin is None:
        raise RequestRefusedError(403, "the Origin header is not a valid origin")
    return origin
