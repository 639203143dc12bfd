"""`POST /api/v1/sql`: one SELECT over the analyst's views, answered as JSON, Arrow or CSV."""

import logging
from collections.abc import Awaitable
from typing import Any

from sanic import Blueprint, HTTPResponse, Request

from api.query.arrow import NoArrowError
from api.query.formats import FORMATS, stream, writer_for
from api.query.gateway import AnalystQuery, InvalidQueryError
from api.routes.request import cancel_when_key_ends, json_body, require, services
from api.routes.responses import RequestRefusedError, answer
from api.store.analyst import QueryTimeoutError, ResultTooLargeError, StatementError, TooManyQueriesError
from api.store.sql_roles import ReaderError
from workbench.language.problem import Problem

blueprint = Blueprint("sql", url_prefix="/api/v1")

_log = logging.getLogger("workbench.sql")


@blueprint.post("/sql")
async def run_query(request: Request) -> HTTPResponse | None:
    """Run one SELECT. `Accept` chooses JSON (the default), Arrow or CSV; the rows are streamed."""
    principal = await require(request, "sql:read")
    accepted = request.accept.match(*FORMATS)
    if not accepted:
        raise RequestRefusedError(406, f"Accept must allow one of {', '.join(FORMATS)}")
    writer = writer_for(accepted.mime, request.headers.get("accept-encoding", ""))
    body = json_body(request)
    sql, as_of = body.get("sql"), body.get("asOf")
    if not isinstance(sql, str):
        raise RequestRefusedError(400, Problem("sql", "must be text"))
    if not isinstance(as_of, str | None):
        raise RequestRefusedError(400, Problem("asOf", "must be text"))
    query = AnalystQuery(principal.org_id, sql, body.get("params"), "pii:read" in principal.scopes, as_of)

    async def run() -> None:
        async with services(request).gateway.run(query, writer.binary) as result:
            headers = {"Query-Hash": query.hash}
            if result.watermark is not None:
                headers["Watermark"] = result.watermark
            pieces = stream(result, writer)
            first = await anext(pieces)  # an error in the statement shows up here, while a 400 is still possible
            response = await request.respond(content_type=writer.media_type, headers=headers)
            try:
                await response.send(first)
                async for piece in pieces:
                    await response.send(piece)
                await response.eof()
            except Exception as error:  # noqa: BLE001  only a closed connection shows that the answer is incomplete
                _log.warning("sql_answer_broken: %s", error, extra={"request_id": str(request.id)})
                request.transport.abort()  # type: ignore[attr-defined]

    # A query may run for long: a revoked key must not receive the rest of its rows.
    async with cancel_when_key_ends(request, "sql:read"):
        return await refuse_sql_errors(request, run())


async def refuse_sql_errors(request: Request, work: Awaitable[HTTPResponse | None]) -> HTTPResponse | None:
    """Return the response of `work`; turn its SQL errors into 400 (with the position), 408, 429 or 503."""
    try:
        return await work
    except StatementError as error:
        body: dict[str, Any] = {"error": f"sql: {error.reason}", "field": "sql", "sqlstate": error.sqlstate}
        if error.position is not None:
            body["position"] = error.position
        if error.hint is not None:
            body["hint"] = error.hint
        return answer({**body, "requestId": str(request.id)}, 400)
    except InvalidQueryError as error:
        raise RequestRefusedError(400, error.problem) from None
    except (NoArrowError, ResultTooLargeError) as error:
        raise RequestRefusedError(400, Problem("sql", str(error))) from None
    except QueryTimeoutError as error:
        raise RequestRefusedError(408, Problem("sql", str(error))) from None
    except TooManyQueriesError as error:
        raise RequestRefusedError(429, str(error), "RATE_LIMITED") from None
    except ReaderError as error:
        _log.error("sql_unavailable: %s", error)
        raise RequestRefusedError(503, str(error)) from None
