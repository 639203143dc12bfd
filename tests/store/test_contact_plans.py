"""Suppressions and the pages of an erasure are found by index, so their cost does not grow with the tables."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from api.auth import keys
from api.clock import uuid7
from api.store.contacts import ERASURE_PAGE, FIRST_CURSOR
from api.store.database import Database, load

pytestmark = pytest.mark.plain

NOW = datetime(2026, 6, 1, tzinfo=UTC)
CONTACT = uuid7(1)


@pytest.fixture
async def dsn(database_url: str) -> str:
    assert await keys.create_org(database_url, "care") == 1
    return database_url


async def opened(dsn: str, *, hot: bool) -> AsyncIterator[Database]:
    database = Database(dsn, size=1, hot=hot)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def hot(dsn: str) -> AsyncIterator[Database]:
    """Connections as the engine uses them."""
    async for database in opened(dsn, hot=True):
        yield database


@pytest.fixture
async def usual(dsn: str) -> AsyncIterator[Database]:
    async for database in opened(dsn, hot=False):
        yield database


async def plan(database: Database, file: str, name: str, **values: Any) -> str:
    async with database.transaction() as tx:
        rows = await (await tx.execute("EXPLAIN " + load(file)[name], values)).fetchall()
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize(
    ("name", "column", "more"),
    [("find_suppressed", "address_digest", {"channel": "email"}), ("find_closed_endpoints", "url_digest", {})],
)
async def test_addresses_are_looked_up_by_index(hot: Database, name: str, column: str, more: dict[str, str]) -> None:
    explained = await plan(hot, "messages", name, org_ids=[1], **{f"{column}s": [CONTACT]}, **more)
    (condition,) = [line for line in explained.splitlines() if "Index Cond" in line]
    assert f"{column} = k.{column}" in condition


async def test_unsubscribed_contacts_are_looked_up_by_index(hot: Database) -> None:
    explained = await plan(hot, "entries", "find_unsubscribed", org_id=1, ids=[CONTACT])
    conditions = [line for line in explained.splitlines() if "Index Cond" in line]
    assert ["contact_id = k.id" in conditions[0], "address_digest = i.value_digest" in conditions[1]] == [True, True]


async def test_a_page_of_a_contact_is_read_by_its_index(usual: Database) -> None:
    await fill(usual)
    after = {"after_at": FIRST_CURSOR[0], "after_id": FIRST_CURSOR[1], "limit": ERASURE_PAGE}
    for name in ("erase_events", "erase_messages", "erase_entries"):
        explained = await plan(usual, "contacts", name, org_id=1, contact_id=CONTACT, **after)
        assert "_contact" in explained, name
        assert scanned_tables(explained) == [], name
    cancelling = await plan(usual, "contacts", "cancel_entries", org_id=1, contact_id=CONTACT, at=NOW)
    assert scanned_tables(cancelling) == []


def scanned_tables(explained: str) -> list[str]:
    """Return the tables that are scanned, without partitions that have no events."""
    return re.findall(r"Seq Scan on (?!events_2)(\w+)", explained)


async def fill(database: Database) -> None:
    """Give each of 20,000 other contacts an event, an entry with a step and a transition, a message and a notice."""
    ids = "md5('contact ' || n)::uuid"
    rows = "FROM generate_series(1, 20000) AS n"
    async with database.transaction() as tx:
        for statement in (
            "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key)"
            f" SELECT 1, {ids}, {ids}, 'e', %(now)s, %(now)s, n::text {rows}",
            "INSERT INTO entries (org_id, id, automation_id, event_id, event_created_at, contact_id, state,"
            " due_at, created_at, updated_at)"
            f" SELECT 1, {ids}, {ids}, {ids}, %(now)s, {ids}, 'completed', %(now)s, %(now)s, %(now)s {rows}",
            f"INSERT INTO entry_steps SELECT 1, {ids}, 1, 0, 1, 'n', 'k', 'sent', NULL, '{{}}', %(now)s {rows}",
            "INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at)"
            f" SELECT 1, {ids}, 'pending', 'running', %(now)s {rows}",
            "INSERT INTO messages"
            " (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, created_at)"
            f" SELECT 1, {ids}, {ids}, {ids}, {ids}, 'n', 1, 'inapp', 'sent', %(now)s {rows}",
            "INSERT INTO event_notices (org_id, id, outcome, idempotency_key, received_at)"
            f" SELECT 1, {ids}, 'rejected', n::text, %(now)s {rows}",
        ):
            await tx.execute(statement, {"now": NOW})
        await tx.execute("ANALYZE")
