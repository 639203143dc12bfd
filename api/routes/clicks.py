"""`/api/v1/click`: the tracked links in emails. Public: the token in the URL has the target and is its only credential.

The redirect is answered from the token alone, so it is as fast without the database.
"""

from typing import Annotated

from msgspec import Meta
from sanic import Blueprint, HTTPResponse, Request
from sanic.response import redirect

from api.channels.tracked_links import Link, read_click_token
from api.routes.request import Operation, services
from api.routes.responses import RequestRefusedError
from workbench.language.body import Body
from workbench.language.problem import Problem

blueprint = Blueprint("clicks", url_prefix="/api/v1")

_HEADERS = {
    "cache-control": "no-store",  # every click is counted
    "referrer-policy": "no-referrer",  # the URL shows which email the reader got
}


class ClickQuery(Body, frozen=True):
    token: Annotated[str, Meta(description="The token in a link of an email.")]


@blueprint.get("/click")
@Operation(media="text/html", status=302)
async def follow(request: Request, query: ClickQuery) -> HTTPResponse:
    """Redirect to the target of a link in an email. The click becomes an event `link.clicked` of its contact."""
    link = _read_link(request, query)
    services(request).clicks.note(link)
    return redirect(link.url, headers=dict(_HEADERS))


@blueprint.head("/click")
@Operation(media="text/html", status=302)
async def head(request: Request, query: ClickQuery) -> HTTPResponse:
    """Answer like GET without counting a click, because previews and scanners send HEAD."""
    return redirect(_read_link(request, query).url, headers=dict(_HEADERS))


def _read_link(request: Request, query: ClickQuery) -> Link:
    link = read_click_token(services(request).keyring, query.token)
    if link is None:
        raise RequestRefusedError(404, Problem("token", "is not a valid token of a link"))
    return link
