"""`/api/v1/webhooks`: the secret that receivers verify deliveries with, its roll, and endpoints that closed themselves.

For live secret keys, whose holder runs the receiver, and for notebook keys with keys:admin; a notebook key with
automations:publish may see the secret: it can have anything signed anyway.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.access import webhooks
from api.access.verify import Principal
from api.language.problem import Problem
from api.routes.answers import RefusedError, answer
from api.routes.authors import body_fields
from api.routes.entrance import parts, require

blueprint = Blueprint("webhooks", url_prefix="/api/v1/webhooks")

_CHANGE = ("ingest", "keys:admin")
_SEE = (*_CHANGE, "automations:publish")
_PRIVATE = {"cache-control": "no-store"}


@blueprint.get("/secret")
async def see(request: Request) -> HTTPResponse:
    """Answer the secret; the first to ask has it made."""
    who, own = await _require(request, _SEE), parts(request)
    secret = await webhooks.secret(own.database, own.keyring, who.org_id, own.clock.unique_now_us())
    return answer({"secret": secret}, headers=_PRIVATE)


@blueprint.post("/secret/roll")
async def roll(request: Request) -> HTTPResponse:
    """Replace the secret; the one before signs, too, until `previousUntil`."""
    who, own = await _require(request, _CHANGE), parts(request)
    secret, rolled = await webhooks.roll(own.database, own.keyring, who, own.clock.unique_now_us())
    return answer({"secret": secret, "previousUntil": rolled.previous_until}, headers=_PRIVATE)


@blueprint.post("/endpoints/open")
async def open_endpoint(request: Request) -> HTTPResponse:
    """Send to a `url` again that answered 410; `opened`: whether it was closed."""
    who, own = await _require(request, _CHANGE), parts(request)
    url = body_fields(request).value("url")
    if not isinstance(url, str):
        raise RefusedError(400, Problem("url", "must be text"))
    now_us = own.clock.unique_now_us()
    return answer({"opened": await webhooks.open_endpoint(own.database, own.keyring, who, now_us, url)})


async def _require(request: Request, scopes: tuple[str, ...]) -> Principal:
    who = await require(request, *scopes)
    if who.test:
        raise RefusedError(403, "a test key sends nothing, so it cannot see what is signed with")
    return who
