"""The access log and the request counters of one API process.

Every response, also on the fast path, carries `X-Request-Id` and is counted by method, route and status. Refusals are
logged; with `WORKBENCH_LOG_REQUESTS=all` every response is. A line names the pattern of the route, never the URL,
because a query string may contain anything.
"""

import logging
from http import HTTPMethod

import msgspec
from sanic import HTTPResponse, Request

from api import process
from api.auth.verify import Principal
from api.clock import monotonic_ns
from api.process import OTHER, LogBudget, Tally
from api.settings import LoggedRequests
from api.store.query import act_for_none

MAX_LINES_PER_SECOND = 100  # a flood of refusals must not fill the disk; the next line says how many were left out
NO_ROUTE = "none"
_METHODS = frozenset(HTTPMethod)

_log = logging.getLogger("workbench.requests")


class ReceivedRequest(msgspec.Struct, frozen=True, gc=False):
    """The facts about a request for the access log. `route` is a pattern; `traceparent` is the caller's trace."""

    method: str
    route: str
    request_id: str
    since_ns: int | None = None
    principal: Principal | None = None
    traceparent: str | None = None


class AccessLog:
    def __init__(self, logged: LoggedRequests) -> None:
        self.answers = Tally("method", "route", "status")
        self._logs_all = logged == "all"
        self._budget = LogBudget(MAX_LINES_PER_SECOND)

    def record(self, request: ReceivedRequest, status: int) -> None:
        """Count a response, record its span, and log it if the settings say so."""
        # A client must not be able to create counters at will.
        method = request.method if request.method in _METHODS else OTHER
        self.answers.add(method, request.route, str(status))
        if request.since_ns is not None:
            attributes: dict[str, str | int | None] = {  # under OpenTelemetry's names, where it defines them
                "http.route": request.route,
                "http.response.status_code": status,
                "request_id": request.request_id,
            }
            process.record("request", request.since_ns, attributes, request.traceparent)
        if (status < 400 and not self._logs_all) or not self._budget.grant(monotonic_ns()):
            return
        line = {"request_id": request.request_id, "method": method, "route": request.route, "status": status}
        if request.since_ns is not None:
            line["ms"] = round((monotonic_ns() - request.since_ns) / 1e6, 1)
        if request.principal is not None:
            line |= {"org_id": request.principal.org_id, "key_id": request.principal.key_id}
        if left_out := self._budget.take_left_out():
            line["left_out"] = left_out
        _log.log(logging.WARNING if status >= 500 else logging.INFO, "request", extra=line)


async def begin(request: Request) -> None:
    """Middleware: start the timer, and forget the organization of the previous request on this connection."""
    act_for_none()
    request.ctx.since_ns = monotonic_ns()


def finish(access_log: AccessLog, request: Request, response: HTTPResponse) -> None:
    """Middleware: put the request id into the response, and write the access log."""
    request_id = str(request.id)
    response.headers["x-request-id"] = request_id
    received = ReceivedRequest(
        request.method,
        NO_ROUTE if request.route is None else f"/{request.route.path}",
        request_id,
        getattr(request.ctx, "since_ns", None),
        getattr(request.ctx, "principal", None),
        request.headers.get("traceparent"),
    )
    access_log.record(received, response.status)
