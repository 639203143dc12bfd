"""The shapes of answers: JSON by msgspec, and every refusal as `{"error", "field"?, "code"?, "errors"?, "requestId"}`."""

from typing import Any

from sanic import HTTPResponse, Request

from api.language.codec import encode
from api.language.problem import Problem, Problems

_JSON = "application/json"
HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}


class RefusedError(Exception):
    """A request that is answered with a refusal; raised by routes, shaped in one place (`refusal`)."""

    def __init__(self, status: int, problems: Problem | Problems | str, code: str | None = None) -> None:
        self.status = status
        self.problems = as_problems(problems)
        self.code = code
        super().__init__(str(self.problems[0]))


def as_problems(problems: Problem | Problems | str) -> Problems:
    """Return problems however they were given."""
    match problems:
        case str():
            return (Problem("", problems),)
        case Problem():
            return (problems,)
        case _:
            return problems


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> HTTPResponse:
    """Return a JSON response."""
    return HTTPResponse(encode(value), status=status, content_type=_JSON, headers=headers)


def refusal(request: Request, status: int, problems: Problems, code: str | None = None) -> HTTPResponse:
    """Return an error response."""
    body = refusal_body(problems, code, str(request.id))
    return HTTPResponse(body, status=status, content_type=_JSON, headers=HEADERS.get(status))


def refusal_body(problems: Problems, code: str | None, request_id: str) -> bytes:
    """Return the JSON text that names the first problem, and all of them when there are several."""
    first = problems[0]
    body: dict[str, Any] = {"error": str(first)}
    if first.field:
        body["field"] = first.field
    if code:
        body["code"] = code
    if len(problems) > 1:
        body["errors"] = [{"error": str(each), "field": each.field} for each in problems]
    body["requestId"] = request_id
    return encode(body)
