"""`POST /api/v1/reports/<name>`: a built-in report, returned as JSON, Arrow or CSV like the result of a query."""

from typing import Any

from sanic import Blueprint, Request

from api.query.gateway import AnalystQuery
from api.query.reports import statement
from api.routes.request import Operation, body_of, cancel_when_key_ends, principal_of, services
from api.routes.sql import SQL, SqlResponse, accepted_writer, send_result
from workbench.language.reports import REPORTS, ReportBody, ReportProgress, report_query

blueprint = Blueprint("reports", url_prefix="/api/v1/reports")


@blueprint.get("/progress")
@Operation(SQL)
async def read_progress(request: Request) -> ReportProgress:
    """Return how far the report is that is being counted over parts for your organization: one at a time is."""
    return services(request).reports.progress(principal_of(request).org_id)


def _add_route(report: type[ReportBody]) -> None:
    async def run_report(request: Request) -> None:
        body = await body_of(request, report)
        principal, writer = principal_of(request), accepted_writer(request)
        clear = "pii:read" in principal.scopes
        sql = report_query(body, statement)
        query = AnalystQuery(principal.org_id, sql.text, sql.params, clear, body.as_of)
        async with cancel_when_key_ends(request, SQL):
            counts = await services(request).reports.count(principal.org_id, body)
        if counts is None or counts.snapshot is None:
            running = services(request).gateway.run(query, writer.binary)
        else:
            shown = report_query(body, statement, counts.counted, counts.snapshot.at)
            shown_query = AnalystQuery(principal.org_id, shown.text, shown.params, clear, body.as_of)
            running = services(request).gateway.run(shown_query, writer.binary, counts.snapshot)
        answered_from = "sql" if counts is None else "parts"
        await send_result(request, query.hash, running, writer, {"Answered-From": answered_from})

    run_report.__doc__ = report.__doc__
    handler: Any = Operation(SQL, body=report, answer=SqlResponse)(run_report)
    blueprint.add_route(handler, f"/{report.name}", methods=["POST"], name=report.name)


for _report in REPORTS:
    _add_route(_report)
