"""`POST /api/v1/sql`: one SELECT over the analyst's views, answered as JSON, Arrow or CSV."""

import logging
from typing import Any

from sanic import Blueprint, HTTPResponse, Request

from api.language.problem import Problem
from api.query.formats import FORMATS, Written, form_for, stream
from api.query.run import Answer, Question
from api.routes.answers import RefusedError
from api.routes.entrance import json_body, parts, require
from api.routes.questions import answered
from api.routes.watched import while_allowed

blueprint = Blueprint("sql", url_prefix="/api/v1")

_log = logging.getLogger("workbench.sql")


@blueprint.post("/sql")
async def ask(request: Request) -> HTTPResponse | None:
    """Answer one SELECT; the first rows are waited for, so whatever is wrong with the statement is a 400."""
    principal = await require(request, "sql:read")
    form = _form(request)
    text, params, as_of = _read(json_body(request))
    question = Question(principal.org_id, text, params, "pii:read" in principal.scopes, as_of)
    async with while_allowed(request, "sql:read"):
        return await answered(request, _answer(request, question, form))


async def _answer(request: Request, question: Question, form: type[Written]) -> None:
    async with parts(request).gateway.ask(question, form.binary) as found:
        mark = {} if found.watermark is None else {"Watermark": found.watermark}
        await _send(request, found, form, {"Query-Hash": question.hash} | mark)


def _form(request: Request) -> type[Written]:
    """Return the form the caller accepts, JSON when it does not care; refuse with 406."""
    accepted = request.accept.match(*FORMATS)
    if not accepted:
        raise RefusedError(406, f"Accept must allow one of {', '.join(FORMATS)}")
    return form_for(accepted.mime, request.headers.get("accept-encoding", ""))


def _read(body: Any) -> tuple[str, object, str | None]:
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be a JSON object")
    text = body.get("sql")
    if not isinstance(text, str):
        raise RefusedError(400, Problem("sql", "must be text"))
    as_of = body.get("asOf")
    if not isinstance(as_of, str | None):
        raise RefusedError(400, Problem("asOf", "must be text"))
    return text, body.get("params"), as_of


async def _send(request: Request, found: Answer, form: type[Written], headers: dict[str, str]) -> None:
    """Send the answer; once it has begun, a failure can only break the connection, so that no half looks whole."""
    pieces = stream(found, form)
    first = await anext(pieces)
    response = await request.respond(content_type=form.media_type, headers=headers)
    try:
        await response.send(first)
        async for piece in pieces:
            await response.send(piece)
        await response.eof()
    except Exception as error:  # noqa: BLE001 - the edge: nobody above can answer any more
        _log.warning("sql_answer_broken: %s", error, extra={"request_id": str(request.id)})
        request.transport.abort()  # type: ignore[attr-defined]
