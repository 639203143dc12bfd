"""What becomes of a request that asks SQL, when the question cannot be answered."""

import logging
from collections.abc import Awaitable
from typing import Any

from sanic import HTTPResponse, Request

from api.language.problem import Problem
from api.query.formats import NoArrowError
from api.query.run import BusyError, ReaderError, StatementError, TooLargeError, TooLongError, UnfitError
from api.routes.answers import RefusedError, answer

_log = logging.getLogger("workbench.sql")


async def answered(request: Request, work: Awaitable[HTTPResponse | None]) -> HTTPResponse | None:
    """Return what the work answers; refuse with 400, pointing at the spot in the statement, 408, 429 or 503."""
    try:
        return await work
    except StatementError as error:
        return _refuse_statement(request, error)
    except UnfitError as error:
        raise RefusedError(400, error.problem) from None
    except (NoArrowError, TooLargeError) as error:
        raise RefusedError(400, Problem("sql", str(error))) from None
    except TooLongError as error:
        raise RefusedError(408, Problem("sql", str(error))) from None
    except BusyError as error:
        raise RefusedError(429, str(error), "RATE_LIMITED") from None
    except ReaderError as error:
        _log.error("sql_unavailable: %s", error)
        raise RefusedError(503, str(error)) from None


def _refuse_statement(request: Request, error: StatementError) -> HTTPResponse:
    body: dict[str, Any] = {"error": f"sql: {error.reason}", "field": "sql", "sqlstate": error.sqlstate}
    if error.position is not None:
        body["position"] = error.position
    if error.hint is not None:
        body["hint"] = error.hint
    return answer({**body, "requestId": str(request.id)}, 400)
