"""What happened on chains: how far they were read, which events there are, and samples of their logs."""

from datetime import datetime, timedelta

import msgspec
from sanic import Blueprint, HTTPResponse, Request

from api.language.onchain import TYPE
from api.routes.answers import answer
from api.routes.authors import id_argument, text_argument
from api.routes.catalog import whole_number
from api.routes.entrance import parts, require
from api.store import logs as store
from api.store.strangers import list_strangers

COUNTED = 100_000
DAY = timedelta(days=1)

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
    """Answer how far each chain was read, the events among the 100,000 newest logs, and what became of unknown wallets within a day."""
    who = await require(request, "events:read")
    async with parts(request).database.transaction() as tx:
        found = await store.list_chains(tx, parts(request).clock.now())
        counts = await store.count_logs(tx, who.org_id, COUNTED)
        strangers = await list_strangers(tx, who.org_id, parts(request).clock.now() - DAY)
    return answer({"chains": found, "events": counts, "strangers": strangers})


@blueprint.get("/events")
async def recent(request: Request) -> HTTPResponse:
    """Answer the logs that were seen last, of a `contract` and an `event`, or after a page (`before`, its last id); `limit` up to 500."""
    who = await require(request, "events:read")
    contract = text_argument(request, "contract")
    which = store.Which(contract and contract.lower(), text_argument(request, "event"), id_argument(request, "before"))
    most = whole_number(request, "limit", 20, 500)
    async with parts(request).database.transaction() as tx:
        rows = await store.recent_logs(tx, who.org_id, which, most)
    return answer({"events": [_view(row) for row in rows]})


def _view(row: store.LogRow) -> LogView:
    known = msgspec.structs.asdict(row)
    return LogView(**known | {"type": TYPE, "args": msgspec.Raw(row.args)})
