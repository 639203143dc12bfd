"""`/api/v1/unsubscribe`: the link in every email. Public: the token in the URL is the only credential.

A POST unsubscribes whatever its body is, as one-click unsubscribe (RFC 8058) requires. A GET only asks for
confirmation, because mail scanners follow every link.
"""

from typing import Annotated

from msgspec import Meta
from sanic import Blueprint, HTTPResponse, Request
from sanic.response import html

from api.channels.signing import Unsubscription, read_unsubscribe_token
from api.routes.request import Operation, services
from api.routes.responses import RequestRefusedError
from api.store import messages as store
from api.store.contacts import opt_out_of_emails
from api.store.query import act_for
from workbench.language.body import Body
from workbench.language.problem import Problem

blueprint = Blueprint("unsubscribe", url_prefix="/api/v1")

_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",  # the URL is the credential
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    ),
}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Unsubscribe</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 20vh auto; max-width: 24rem; text-align: center }}</style>
<main>{}</main>
</html>
"""
_QUESTION = _PAGE.format('<p>Stop these emails?</p><form method="post"><button>Unsubscribe</button></form>')
_DONE = _PAGE.format("<p>You are unsubscribed.</p>")


class TokenQuery(Body, frozen=True):
    token: Annotated[str, Meta(description="The token in the link of an email.")]


@blueprint.get("/unsubscribe")
@Operation(media="text/html")
async def confirm(request: Request, query: TokenQuery) -> HTTPResponse:
    """Return a page with a button to unsubscribe."""
    _read_token(request, query)
    return html(_QUESTION, headers=_HEADERS)


@blueprint.post("/unsubscribe")
@Operation(media="text/html")
async def unsubscribe(request: Request, query: TokenQuery) -> HTTPResponse:
    """Stop emails of the organization to this address and to the contact that has it."""
    token = _read_token(request, query)
    act_for(token.org_id)
    now = services(request).clock.now()
    async with services(request).database.transaction() as tx:
        await opt_out_of_emails(tx, token.org_id, token.address_digest, now)
        await store.suppress(tx, token.org_id, "email", token.address_digest, now)
    return html(_DONE, headers=_HEADERS)


def _read_token(request: Request, query: TokenQuery) -> Unsubscription:
    token = read_unsubscribe_token(services(request).keyring, query.token)
    if token is None:
        raise RequestRefusedError(400, Problem("token", "is not a valid unsubscribe token"))
    return token
