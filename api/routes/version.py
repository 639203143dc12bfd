"""Which version the server has, and which notebooks it serves. Those say their own with every request, and are told when it does not fit.

Sending events is for every client and every version.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.language.problem import Problem
from api.language.version import HEADER, VERSION, misfit, served
from api.routes import events
from api.routes.answers import RefusedError, answer

blueprint = Blueprint("version")


@blueprint.get("/api/v1/version")
async def version(request: Request) -> HTTPResponse:
    """Answer the version of the server, and the oldest and newest notebook package that it serves."""
    oldest, newest = served()
    return answer({"version": VERSION, "notebooks": {"oldest": oldest, "newest": newest}})


async def must_fit(request: Request) -> None:
    """Refuse a notebook whose version the server does not serve, before anything else is looked at."""
    notebook = request.headers.get(HEADER)
    if notebook is not None and request.path not in events.PATHS and (why := misfit(notebook)) is not None:
        raise RefusedError(400, Problem(HEADER, why))
