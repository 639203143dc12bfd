"""What happened on chains: how far they were read, which events there are, and samples of their logs."""

from datetime import datetime

import msgspec
from sanic import Blueprint, HTTPResponse, Request

from api.language.onchain import TYPE
from api.routes.answers import answer
from api.routes.authors import text_argument
from api.routes.catalog import whole_number
from api.routes.entrance import parts, require
from api.store import logs as store

COUNTED = 100_000

blueprint = Blueprint("chain", url_prefix="/api/v1/chain")


class LogView(msgspec.Struct, frozen=True, rename="camel"):
    """A log, in the form in which a simulation takes it."""

    id: str
    type: str
    event: str
    args: msgspec.Raw
    chain_id: int
    contract: str
    signature: str
    tx_hash: str
    log_index: int
    block_number: int
    block_time: datetime
    removed: bool
    contact_id: str | None


@blueprint.get("")
async def chains(request: Request) -> HTTPResponse:
    """Answer how far each chain was read, and the events among the newest 100,000 logs, the most frequent first."""
    who = await require(request, "events:read")
    async with parts(request).database.transaction() as tx:
        found = await store.list_chains(tx, parts(request).clock.now())
        counts = await store.count_logs(tx, who.org_id, COUNTED)
    return answer({"chains": found, "events": counts})


@blueprint.get("/events")
async def recent(request: Request) -> HTTPResponse:
    """Answer the newest logs, of a `contract` and an `event` when they are named; `limit` up to 500."""
    who = await require(request, "events:read")
    contract, event = text_argument(request, "contract"), text_argument(request, "event")
    most = whole_number(request, "limit", 20, 500)
    async with parts(request).database.transaction() as tx:
        rows = await store.recent_logs(tx, who.org_id, contract and contract.lower(), event, most)
    return answer({"events": [_view(row) for row in rows]})


def _view(row: store.LogRow) -> LogView:
    known = msgspec.structs.asdict(row)
    return LogView(**known | {"type": TYPE, "args": msgspec.Raw(row.args)})
