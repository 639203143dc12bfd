"""Responses as JSON, and the shape of every refusal: `{"error", "field"?, "code"?, "errors"?, "requestId", "doc"}`."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from sanic import HTTPResponse, Request
from sanic_routing.route import Route

from workbench.language.codec import encode
from workbench.language.problem import Problem, Problems

_JSON = "application/json"
HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}


class FieldError(msgspec.Struct, frozen=True):
    """One of several problems with a request."""

    error: str
    field: str


Code = Literal["RATE_LIMITED", "INGEST_UNAVAILABLE"]


class Error(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A refused request. `error` says what is wrong, `field` where; `errors` lists all problems if there are several.

    `requestId` finds the request in the server's log. `doc`: the description of the route.
    """

    error: str
    field: str | UnsetType = UNSET
    code: Code | UnsetType = UNSET
    errors: tuple[FieldError, ...] | UnsetType = UNSET
    request_id: str
    doc: str


class RequestRefusedError(Exception):
    """Raised by a route to answer with a refusal; `api.app` turns it into the response."""

    def __init__(self, status: int, problems: Problem | Problems | str, code: Code | None = None) -> None:
        if isinstance(problems, str):
            problems = Problem("", problems)
        self.status = status
        self.problems = (problems,) if isinstance(problems, Problem) else problems
        self.code = code
        super().__init__(str(self.problems[0]))


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> HTTPResponse:
    return HTTPResponse(encode(value), status=status, content_type=_JSON, headers=headers)


def refusal(request: Request, status: int, problems: Problems, code: Code | None = None) -> HTTPResponse:
    body = refusal_body(problems, code, str(request.id), doc_link(request))
    return HTTPResponse(body, status=status, content_type=_JSON, headers=HEADERS.get(status))


def route_name(route: Route) -> str:
    """Return the name under which a route is described: `<blueprint>.<handler>`."""
    return str(route.name.partition(".")[2])


def doc_link(request: Request) -> str:
    """Return the URL of the description of the request's route, or of all routes."""
    route: Route | None = request.route
    return "/docs" if route is None else f"/docs#{route_name(route)}"


def refusal_body(problems: Problems, code: Code | None, request_id: str, doc: str) -> bytes:
    """Return the JSON text of a refusal: the first problem, and the list of all if there are several."""
    first, errors = problems[0], tuple(FieldError(str(problem), problem.field) for problem in problems)
    return encode(
        Error(
            error=str(first),
            field=first.field or UNSET,
            code=code or UNSET,
            errors=errors if len(problems) > 1 else UNSET,
            request_id=request_id,
            doc=doc,
        )
    )
