"""`/api/v1/chain`: how far each chain was read, the on-chain events of the organization, and samples of their logs."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta
from sanic import Blueprint, Request

from api.routes.request import READ_EVENTS, Operation, principal_of, services
from api.store import chain as store
from workbench.language.body import Body, LastId
from workbench.language.responses import ChainsResponse

COUNTED_LOGS = 100_000  # about a second of counting
UNKNOWN_WALLETS_WINDOW = timedelta(days=1)

blueprint = Blueprint("chain", url_prefix="/api/v1/chain")


class LogsQuery(Body, frozen=True):
    contract: str | None = None
    event: str | None = None
    before: LastId | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 20


@blueprint.get("")
@Operation(READ_EVENTS)
async def list_chains(request: Request) -> ChainsResponse:
    """List chains with their progress; count the newest 100,000 logs by event, and a day's logs of unknown wallets."""
    org_id, now = principal_of(request).org_id, services(request).clock.now()
    async with services(request).database.transaction() as tx:
        chains = await store.list_chains(tx, now)
        events = await store.count_logs(tx, org_id, COUNTED_LOGS)
        unknown_wallets = await store.list_unknown_wallets(tx, org_id, now - UNKNOWN_WALLETS_WINDOW)
    return ChainsResponse(tuple(chains), tuple(events), tuple(unknown_wallets))


@blueprint.get("/events")
@Operation(READ_EVENTS, field="events")
async def list_logs(request: Request, query: LogsQuery) -> list[store.LogRow]:
    """List logs, newest first, optionally of one `contract` or `event`."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        if query.contract is None:
            return await store.recent_logs(tx, org_id, query.event, query.before, query.limit)
        contract = query.contract.lower()  # as it is stored
        return await store.recent_logs_of_contract(tx, org_id, contract, query.event, query.before, query.limit)
