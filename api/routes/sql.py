"""`POST /api/v1/sql`: one SELECT over the analyst's views, returned as JSON, Arrow or CSV."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sanic import Blueprint, HTTPResponse, Request
from sanic.exceptions import ServerError
from sanic.response import BaseHTTPResponse

from api.query.formats import FORMATS, ResultWriter, stream, writer_for
from api.query.gateway import AnalystQuery, InvalidQueryError, Sql
from api.query.results import QueryResult
from api.routes.request import Access, Operation, cancel_when_key_ends, principal_of, services
from api.routes.responses import RequestRefusedError, answer, doc_link, refusal
from api.store.analyst import (
    QueryMemoryError,
    QueryTimeoutError,
    ResultTooLargeError,
    StatementError,
    TooManyQueriesError,
)
from api.store.sql_roles import ReaderError
from workbench.language.body import Body
from workbench.language.codec import Json
from workbench.language.problem import Problem

blueprint = Blueprint("sql", url_prefix="/api/v1")

SQL = Access(("workbench",), ("sql:read",))

MAX_LIMIT = 1_000_000_000  # more rows than fit into the five minutes of an answer

_REASON_TIMEOUT_S = 2.0

_log = logging.getLogger("workbench.sql")


class SqlBody(Body, frozen=True, rename="camel"):
    """One SELECT. `params`: a list for `$1` or an object for `:name`. `asOf`: the watermark of an earlier result.

    `spreadsheet`: in CSV, texts that a spreadsheet would run as a formula begin with an apostrophe. `limit`: the answer
    ends after so many rows.
    """

    sql: Annotated[Sql, Meta(examples=["SELECT event, count(*) FROM app_events GROUP BY 1"])]
    params: Json = None
    as_of: str | None = None
    spreadsheet: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] | None = None


class SqlColumn(msgspec.Struct, frozen=True):
    """A column and its Postgres type."""

    name: str
    type: str


class SqlResponse(msgspec.Struct, frozen=True):
    """The rows of a query. `Accept: text/csv` or `application/vnd.apache.arrow.stream` selects another form."""

    columns: list[SqlColumn]
    rows: list[list[Json]]


@blueprint.post("/sql")
@Operation(SQL, answer=SqlResponse)
async def run_query(request: Request, body: SqlBody) -> None:
    """Run one SELECT. `Accept` chooses JSON (the default), Arrow or CSV; the rows are streamed."""
    principal = principal_of(request)
    query = AnalystQuery(principal.org_id, body.sql, body.params, "pii:read" in principal.scopes, body.as_of)
    writer = accepted_writer(request, spreadsheet=body.spreadsheet)
    running = services(request).gateway.run(query, writer.binary)
    await send_result(request, query.hash, running, writer, limit=body.limit)


def accepted_writer(request: Request, *, spreadsheet: bool = False) -> type[ResultWriter]:
    """Return the writer of the format that the request accepts; refuse with 406 if it accepts none."""
    accepted = request.accept.match(*FORMATS)
    if not accepted:
        raise RequestRefusedError(406, f"Accept must allow one of {', '.join(FORMATS)}")
    return writer_for(accepted.mime, request.headers.get("accept-encoding", ""), spreadsheet=spreadsheet)


async def send_result(
    request: Request,
    query_hash: str,
    running: AbstractAsyncContextManager[QueryResult],
    writer: type[ResultWriter],
    more_headers: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
) -> None:
    """Stream the rows of a query that runs while `running` is entered."""
    # A query may run for long: a revoked key must not receive the rest of its rows.
    async with cancel_when_key_ends(request, SQL), running as result:
        headers = {"Query-Hash": query_hash, **(more_headers or {})}
        if result.watermark is not None:
            headers["Watermark"] = result.watermark
        pieces = stream(result, writer, limit)
        first = await anext(pieces)  # an error in the statement shows up here, while a 400 is still possible
        response = await request.respond(content_type=writer.media_type, headers=headers)
        try:
            await response.send(first)
            async for piece in pieces:
                await response.send(piece)
            await response.eof()
        except Exception as error:  # noqa: BLE001  only a closed connection shows that the response is incomplete
            _log.warning("sql_answer_broken", extra={"request_id": str(request.id), "reason": str(error)})
            transport: asyncio.Transport = request.transport  # type: ignore[assignment]
            if isinstance(error, SqlError):
                with contextlib.suppress(TimeoutError, ServerError):
                    reason = writer.failure(str(error))
                    await asyncio.wait_for(_send_reason(response, reason, transport), _REASON_TIMEOUT_S)
            transport.abort()


async def _send_reason(response: BaseHTTPResponse, reason: bytes, transport: asyncio.Transport) -> None:
    """Send why the result ends here, and wait until the client has taken it."""
    await response.send(reason)
    while transport.get_write_buffer_size():  # noqa: ASYNC110  no event says so
        await asyncio.sleep(0.01)


SqlError = (
    StatementError
    | InvalidQueryError
    | ResultTooLargeError
    | QueryMemoryError
    | QueryTimeoutError
    | TooManyQueriesError
    | ReaderError
)


async def answer_sql_error(request: Request, error: SqlError) -> HTTPResponse:
    """Answer an error of an analyst's statement, in a query or a segment: 400 (with the position), 408, 429 or 503."""
    match error:
        case StatementError():
            body: dict[str, Any] = {"error": f"sql: {error.reason}", "field": "sql", "sqlstate": error.sqlstate}
            if error.position is not None:
                body["position"] = error.position
            if error.hint is not None:
                body["hint"] = error.hint
            return answer({**body, "requestId": str(request.id), "doc": doc_link(request)}, 400)
        case InvalidQueryError():
            return refusal(request, 400, (error.problem,))
        case ResultTooLargeError() | QueryMemoryError():
            return refusal(request, 400, (Problem("sql", str(error)),))
        case QueryTimeoutError():
            return refusal(request, 408, (Problem("sql", str(error)),))
        case TooManyQueriesError():
            return refusal(request, 429, (Problem("", str(error)),), "RATE_LIMITED")
        case ReaderError():
            _log.error("sql_unavailable", extra={"reason": str(error)})
            return refusal(request, 503, (Problem("", str(error)),))
