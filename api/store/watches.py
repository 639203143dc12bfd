"""What organizations keep of chains without an automation: statements of `sql/queries/chain.sql`."""

from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("chain")


class Watch(msgspec.Struct, frozen=True):
    """An event of a contract; `signature` with all it says, `wallet_arg`: the parameter by whose wallet a contact is found."""

    chain_id: int
    contract: str
    signature: str
    wallet_arg: str | None = None


async def add_watch(tx: Transaction, org_id: int, watch: Watch, at: datetime) -> None:
    """Keep it from now on."""
    await tx.execute(_SQL["add_watch"], {**msgspec.structs.asdict(watch), "org_id": org_id, "created_at": at})


async def remove_watch(tx: Transaction, org_id: int, watch: Watch) -> bool:
    """Keep it no longer; return whether it was kept."""
    values = {"org_id": org_id, "chain_id": watch.chain_id, "contract": watch.contract, "signature": watch.signature}
    return await (await tx.execute(_SQL["remove_watch"], values)).fetchone() is not None


async def watches_of(tx: Transaction, org_id: int) -> list[Watch]:
    """Return what is kept."""
    return [Watch(*row) async for row in await tx.execute(_SQL["watches_of"], {"org_id": org_id})]
