"""`/api/v1/webhooks`: the secret that receivers verify deliveries with, its roll, and endpoints that answered 410 Gone.

These routes require a live secret key (the backend runs the receiver) or a workbench key with keys:admin. A workbench
key with automations:publish may read the secret: it can have any webhook signed anyway.
"""

from datetime import datetime

import msgspec
from sanic import Blueprint, Request

from api.auth import keys
from api.routes.request import Access, Operation, principal_of, services
from workbench.language.body import Body

blueprint = Blueprint("webhooks", url_prefix="/api/v1/webhooks")

_CHANGE = Access(("live", "workbench"), ("ingest", "keys:admin"))
_READ = Access(("live", "workbench"), (*_CHANGE.scopes, "automations:publish"))


class WebhookSecret(msgspec.Struct, frozen=True):
    """The secret that webhooks are signed with (Standard Webhooks 1.0)."""

    secret: str


class RolledWebhookSecret(WebhookSecret, frozen=True, rename="camel"):
    """The new secret. Until `previousUntil` webhooks are signed with the previous one, too."""

    previous_until: datetime


class EndpointBody(Body, frozen=True):
    """The URL of the endpoint."""

    url: str


@blueprint.get("/secret")
@Operation(_READ, private=True)
async def read_secret(request: Request) -> WebhookSecret:
    """Return the signing secret; the first request creates it."""
    principal, context = principal_of(request), services(request)
    now_us = context.clock.unique_now_us()
    return WebhookSecret(await keys.webhook_secret(context.database, context.keyring, principal.org_id, now_us))


@blueprint.post("/secret/roll")
@Operation(_CHANGE, private=True)
async def roll_secret(request: Request) -> RolledWebhookSecret:
    """Replace the signing secret; until `previousUntil` deliveries are signed with the previous one, too."""
    principal, context = principal_of(request), services(request)
    now_us = context.clock.unique_now_us()
    secret, previous_until = await keys.roll_webhook_secret(context.database, context.keyring, principal, now_us)
    return RolledWebhookSecret(secret, previous_until)


@blueprint.post("/endpoints/open")
@Operation(_CHANGE, field="opened")
async def open_endpoint(request: Request, body: EndpointBody) -> bool:
    """Reopen a `url` that was closed because it returned 410; `opened` tells whether it was closed."""
    context = services(request)
    now_us = context.clock.unique_now_us()
    return await keys.open_endpoint(context.database, context.keyring, principal_of(request), now_us, body.url)
