"""`GET /api/v1/usage?month=2026-11`: how many messages were sent, by channel. Events that come in are never metered."""

import re
from datetime import UTC, datetime

from sanic import Blueprint, HTTPResponse, Request

from api.language.problem import Problem
from api.language.retry import CHANNELS
from api.routes.answers import RefusedError, answer
from api.routes.authors import text_argument
from api.routes.entrance import parts, require
from api.store.usage import count_sent

blueprint = Blueprint("usage", url_prefix="/api/v1")

_MONTH = re.compile(r"2[0-9]{3}-(0[1-9]|1[0-2])", re.ASCII)


@blueprint.get("/usage")
async def usage(request: Request) -> HTTPResponse:
    """Answer the messages sent in a month of UTC, this one unless another is named."""
    who = await require(request, "events:read")
    own = parts(request)
    month = text_argument(request, "month") or f"{own.clock.now():%Y-%m}"
    since, until = _span(month)
    async with own.database.transaction() as tx:
        sent = await count_sent(tx, who.org_id, since, until)
    channels = {channel: sent.get(channel, 0) for channel in CHANNELS}
    return answer({"month": month, "messages": channels, "total": sum(channels.values())})


def _span(month: str) -> tuple[datetime, datetime]:
    """Return the first moments of a month and of the next; refuse with 400 what names none."""
    if not _MONTH.fullmatch(month):
        raise RefusedError(400, Problem("month", "must be a month, like 2026-11"))
    year, number = map(int, month.split("-"))
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    return datetime(year, number, 1, tzinfo=UTC), datetime(*following, 1, tzinfo=UTC)
