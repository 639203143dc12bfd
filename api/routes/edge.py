"""What becomes of every request at the edge: its answer names it, is counted, and is told in the log where it refuses.

Lines are bounded (LINES a second), so that a flood of refusals fills no disk; how many were left out is said. A line names the
pattern of an address, never the address, whose query may hold anything.
"""

import logging
from http import HTTPMethod

from sanic import HTTPResponse, Request

from api import tracing
from api.clock import monotonic_ns
from api.logs import Budget
from api.meters import OTHER, Tally
from api.settings import LoggedRequests
from api.store.tenancy import act_for_nobody

LINES = 100
NO_ROUTE = "none"
_METHODS = frozenset(HTTPMethod)

_log = logging.getLogger("workbench.requests")


class Edge:
    """The edge of one process."""

    def __init__(self, logged: LoggedRequests) -> None:
        self.answers = Tally("method", "route", "status")
        self._logs_all = logged == "all"
        self._budget = Budget(LINES)

    def note(self, method: str, route: str, status: int, request_id: str, **known: object) -> None:
        """Take note of an answer; `known` goes into the log's line."""
        method = method if method in _METHODS else OTHER
        self.answers.add(method, route, str(status))
        if (status < 400 and not self._logs_all) or not self._budget.grant(monotonic_ns()):
            return
        line = {"request_id": request_id, "method": method, "route": route, "status": status, **known}
        if left_out := self._budget.take_left_out():
            line["left_out"] = left_out
        _log.log(logging.WARNING if status >= 500 else logging.INFO, "request", extra=line)


async def begin(request: Request) -> None:
    """Look at the clock before a request is handled; whoever asked before on this connection has no say in it."""
    act_for_nobody()
    request.ctx.since_ns = monotonic_ns()


def finish(edge: Edge, request: Request, response: HTTPResponse) -> None:
    """Name the request in its answer, and take note of it."""
    request_id = str(request.id)
    response.headers["x-request-id"] = request_id
    route = NO_ROUTE if request.route is None else f"/{request.route.path}"
    known: dict[str, object] = {}
    if (since_ns := getattr(request.ctx, "since_ns", None)) is not None:
        known["ms"] = round((monotonic_ns() - since_ns) / 1e6, 1)
        tracing.record(
            "request", since_ns, traced(route, response.status, request_id), request.headers.get("traceparent")
        )
    if (principal := getattr(request.ctx, "principal", None)) is not None:
        known |= {"org_id": principal.org_id, "key_id": principal.key_id}
    edge.note(request.method, route, response.status, request_id, **known)


def traced(route: str, status: int, request_id: str) -> dict[str, str | int | None]:
    """Return what a span says of a request, in OpenTelemetry's words where it has some."""
    return {"http.route": route, "http.response.status_code": status, "request_id": request_id}
