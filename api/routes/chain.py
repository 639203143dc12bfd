"""`/api/v1/chain`: how far each chain was read, the on-chain events of the organization, and samples of their logs."""

from datetime import datetime, timedelta

import msgspec
from sanic import Blueprint, HTTPResponse, Request

from api.routes.parameters import query_id, query_number, query_text
from api.routes.request import require, services
from api.routes.responses import answer
from api.store import chain as store
from workbench.language.onchain import ONCHAIN_EVENT

COUNTED_LOGS = 100_000  # about a second of counting
UNKNOWN_WALLETS_WINDOW = timedelta(days=1)

blueprint = Blueprint("chain", url_prefix="/api/v1/chain")


class LogView(msgspec.Struct, frozen=True, rename="camel"):
    """A log, in the form that a simulation takes as its event."""

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
async def list_chains(request: Request) -> HTTPResponse:
    """List the chains with their progress, the events among the 100,000 newest logs, and the day's unknown wallets."""
    principal = await require(request, "events:read")
    now = services(request).clock.now()
    async with services(request).database.transaction() as tx:
        chains = await store.list_chains(tx, now)
        events = await store.count_logs(tx, principal.org_id, COUNTED_LOGS)
        unknown_wallets = await store.list_unknown_wallets(tx, principal.org_id, now - UNKNOWN_WALLETS_WINDOW)
    return answer({"chains": chains, "events": events, "unknownWallets": unknown_wallets})


@blueprint.get("/events")
async def list_logs(request: Request) -> HTTPResponse:
    """List the newest logs, optionally of one `contract` and `event`; `before` is the last id of the previous page."""
    principal = await require(request, "events:read")
    contract = query_text(request, "contract")
    contract = contract and contract.lower()  # stored in lower case
    selection = store.LogSelection(contract, query_text(request, "event"), query_id(request, "before"))
    limit = query_number(request, "limit", 20, 500)
    async with services(request).database.transaction() as tx:
        rows = await store.recent_logs(tx, principal.org_id, selection, limit)
    logs = [
        LogView(**msgspec.structs.asdict(row) | {"type": ONCHAIN_EVENT, "args": msgspec.Raw(row.args)}) for row in rows
    ]
    return answer({"events": logs})
