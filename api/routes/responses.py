"""Responses as JSON, and the one shape of every refusal: `{"error", "field"?, "code"?, "errors"?, "requestId"}`."""

from typing import Any

from sanic import HTTPResponse, Request

from workbench.language.codec import encode
from workbench.language.problem import Problem, Problems

_JSON = "application/json"
HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}


class RequestRefusedError(Exception):
    """Raised by a route to answer with a refusal; `api.app` turns it into the response."""

    def __init__(self, status: int, problems: Problem | Problems | str, code: str | None = None) -> None:
        if isinstance(problems, str):
            problems = Problem("", problems)
        self.status = status
        self.problems = (problems,) if isinstance(problems, Problem) else problems
        self.code = code
        super().__init__(str(self.problems[0]))


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> HTTPResponse:
    return HTTPResponse(encode(value), status=status, content_type=_JSON, headers=headers)


def refusal(request: Request, status: int, problems: Problems, code: str | None = None) -> HTTPResponse:
    body = refusal_body(problems, code, str(request.id))
    return HTTPResponse(body, status=status, content_type=_JSON, headers=HEADERS.get(status))


def refusal_body(problems: Problems, code: str | None, request_id: str) -> bytes:
    """Return the JSON text of a refusal: the first problem, and the list of all if there are several."""
    first = problems[0]
    body: dict[str, Any] = {"error": str(first)}
    if first.field:
        body["field"] = first.field
    if code:
        body["code"] = code
    if len(problems) > 1:
        body["errors"] = [{"error": str(problem), "field": problem.field} for problem in problems]
    body["requestId"] = request_id
    return encode(body)
