"""`/api/v1/webhooks`: the secret that receivers verify deliveries with, its roll, and endpoints that answered 410 Gone.

Live secret keys (the backend runs the receiver) and workbench keys with keys:admin. A workbench key with
automations:publish may read the secret: it can have any webhook signed anyway.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.auth import keys
from api.auth.verify import Principal
from api.routes.parameters import body_fields
from api.routes.request import PRIVATE, require, services
from api.routes.responses import RequestRefusedError, answer
from workbench.language.problem import Problem

blueprint = Blueprint("webhooks", url_prefix="/api/v1/webhooks")

_CHANGE = ("ingest", "keys:admin")
_READ = (*_CHANGE, "automations:publish")


@blueprint.get("/secret")
async def read_secret(request: Request) -> HTTPResponse:
    """Return the signing secret; the first request creates it."""
    principal, context = await _require(request, _READ), services(request)
    now_us = context.clock.unique_now_us()
    secret = await keys.webhook_secret(context.database, context.keyring, principal.org_id, now_us)
    return answer({"secret": secret}, headers=PRIVATE)


@blueprint.post("/secret/roll")
async def roll_secret(request: Request) -> HTTPResponse:
    """Replace the signing secret; until `previousUntil` deliveries are signed with the previous one, too."""
    principal, context = await _require(request, _CHANGE), services(request)
    now_us = context.clock.unique_now_us()
    secret, roll = await keys.roll_webhook_secret(context.database, context.keyring, principal, now_us)
    return answer({"secret": secret, "previousUntil": roll.previous_until}, headers=PRIVATE)


@blueprint.post("/endpoints/open")
async def open_endpoint(request: Request) -> HTTPResponse:
    """Send webhooks to a `url` again that was closed because it answered 410; `opened` tells whether it was closed."""
    principal, context = await _require(request, _CHANGE), services(request)
    url = body_fields(request).value("url")
    if not isinstance(url, str):
        raise RequestRefusedError(400, Problem("url", "must be text"))
    now_us = context.clock.unique_now_us()
    opened = await keys.open_endpoint(context.database, context.keyring, principal, now_us, url)
    return answer({"opened": opened})


async def _require(request: Request, scopes: tuple[str, ...]) -> Principal:
    principal = await require(request, *scopes)
    if principal.test:
        raise RequestRefusedError(403, "test keys send nothing and cannot read or change the webhook secret")
    return principal
