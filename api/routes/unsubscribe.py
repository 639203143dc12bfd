"""`/api/v1/unsubscribe`: the way out of an organization's emails. Public; the token in the address is all it takes.

A POST is the one click of RFC 8058, whatever its body. A GET only asks: programs that look at links follow every one of them.
"""

from sanic import Blueprint, HTTPResponse, Request
from sanic.response import html

from api.delivery.unsubscribe import Unsubscribed, read_token
from api.language.problem import Problem
from api.routes.answers import RefusedError
from api.routes.entrance import parts
from api.store import delivery as store
from api.store.care import opt_out_of_emails
from api.store.tenancy import act_for

blueprint = Blueprint("unsubscribe", url_prefix="/api/v1")

_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",  # the address is the right to use it
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
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


@blueprint.get("/unsubscribe")
async def ask(request: Request) -> HTTPResponse:
    """Answer a page with one button."""
    _who(request)
    return html(_QUESTION, headers=_HEADERS)


@blueprint.post("/unsubscribe")
async def unsubscribe(request: Request) -> HTTPResponse:
    """Send this address no more emails of the organization, nor the contact that it belongs to."""
    who, own = _who(request), parts(request)
    act_for(who.org_id)
    async with own.database.transaction() as tx:
        await opt_out_of_emails(tx, who.org_id, who.address_digest, own.clock.now())
        await store.suppress(tx, who.org_id, "email", who.address_digest, own.clock.now())
    return html(_DONE, headers=_HEADERS)


def _who(request: Request) -> Unsubscribed:
    who = read_token(parts(request).keyring, request.args.get("token") or "")
    if who is None:
        raise RefusedError(400, Problem("token", "is not one of an email from here"))
    return who
