"""Test sends in Postgres: the statements of `sql/queries/test_sends.sql`."""

from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.statements import load

KEPT = timedelta(days=1)

_SQL = load("test_sends")


class PushRow(msgspec.Struct, frozen=True):
    """An in-app message for a wallet; `extra` is JSON text, `contact_id` of whom the texts may speak."""

    org_id: int
    id: str
    contact_id: str | None
    wallet: str
    title: str
    body: str
    extra: str
    created_at: datetime


async def published_urls(tx: Transaction, org_id: int) -> list[str]:
    """Return the addresses of webhooks in published automations, as templates."""
    return [row[0] async for row in await tx.execute(_SQL["published_urls"], {"org_id": org_id})]


async def count_test_sends(tx: Transaction, org_id: int, since_id: str) -> int:
    """Return how many times somebody sent a test since a moment, by an id of it."""
    row = await (await tx.execute(_SQL["count_test_sends"], {"org_id": org_id, "since_id": since_id})).fetchone()
    assert row is not None
    return int(row[0])


async def add_test_push(tx: Transaction, push: PushRow) -> None:
    """Store an in-app message for a wallet, apart from those that are counted."""
    await tx.execute(_SQL["add_test_push"], msgspec.structs.asdict(push))


async def with_old_test_pushes(tx: Transaction, now: datetime) -> list[int]:
    """Return the organizations that have in-app messages which no wallet took for a day."""
    return [row[0] async for row in await tx.execute(_SQL["with_old_test_pushes"], {"before": now - KEPT})]


async def forget_test_pushes(tx: Transaction, org_id: int, now: datetime, most: int) -> int:
    """Delete up to `most` in-app messages that no wallet took for a day; return how many that were."""
    values = {"org_id": org_id, "before": now - KEPT, "most": most}
    return (await tx.execute(_SQL["forget_test_pushes"], values)).rowcount
