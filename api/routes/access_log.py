"""The access log and the request counters of one API process.

Every answer carries `X-Request-Id`, is counted by method, route and status, and is logged when it is a refusal (or
always, with `WORKBENCH_LOG_REQUESTS=all`). A line names the pattern of the route, never the URL: a query string may
hold anything.
"""

import logging
from http import HTTPMethod

from sanic import HTTPResponse, Request

from api import process
from api.clock import monotonic_ns
from api.process import OTHER, LogBudget, Tally
from api.settings import LoggedRequests
from api.store.query import act_for_none

MAX_LINES_PER_SECOND = 100  # a flood of refusals must not fill the disk; the next line says how many were left out
NO_ROUTE = "none"
_METHODS = frozenset(HTTPMethod)

_log = logging.getLogger("workbench.requests")


class AccessLog:
    def __init__(self, logged: LoggedRequests) -> None:
        self.answers = Tally("method", "route", "status")
        self._logs_all = logged == "all"
        self._budget = LogBudget(MAX_LINES_PER_SECOND)

    def record(self, method: str, route: str, status: int, request_id: str, **fields: object) -> None:
        """Count an answer and log it if it is to be logged; `fields` are added to the log line."""
        method = method if method in _METHODS else OTHER  # a client must not be able to create counters at will
        self.answers.add(method, route, str(status))
        if (status < 400 and not self._logs_all) or not self._budget.grant(monotonic_ns()):
            return
        line = {"request_id": request_id, "method": method, "route": route, "status": status, **fields}
        if left_out := self._budget.take_left_out():
            line["left_out"] = left_out
        _log.log(logging.WARNING if status >= 500 else logging.INFO, "request", extra=line)


async def begin(request: Request) -> None:
    """Middleware: start the timer, and forget the organization of the previous request on this connection."""
    act_for_none()
    request.ctx.since_ns = monotonic_ns()


def finish(access_log: AccessLog, request: Request, response: HTTPResponse) -> None:
    """Middleware: put the request id into the answer, record a span, and write the access log."""
    request_id = str(request.id)
    response.headers["x-request-id"] = request_id
    route = NO_ROUTE if request.route is None else f"/{request.route.path}"
    fields: dict[str, object] = {}
    if (since_ns := getattr(request.ctx, "since_ns", None)) is not None:
        fields["ms"] = round((monotonic_ns() - since_ns) / 1e6, 1)
        attributes = span_attributes(route, response.status, request_id)
        process.record("request", since_ns, attributes, request.headers.get("traceparent"))
    if (principal := getattr(request.ctx, "principal", None)) is not None:
        fields |= {"org_id": principal.org_id, "key_id": principal.key_id}
    access_log.record(request.method, route, response.status, request_id, **fields)


def span_attributes(route: str, status: int, request_id: str) -> dict[str, str | int | None]:
    """Return the attributes of a request's span, by OpenTelemetry's semantic conventions where they have a name."""
    return {"http.route": route, "http.response.status_code": status, "request_id": request_id}
