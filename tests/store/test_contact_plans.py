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
async def hot_database(dsn: str) -> AsyncIterator[Database]:
    """Connections as the engine uses them."""
    async for database in opened(dsn, hot=True):
        yield database


@pytest.fixture
async def ordinary_database(dsn: str) -> AsyncIterator[Database]:
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
async def test_addresses_are_looked_up_by_index(
    hot_database: Database, name: str, column: str, more: dict[str, str]
) -> None:
    await fill(hot_database)
    explained = await plan(hot_database, "messages", name, org_id=1, **{f"{column}s": [CONTACT]}, **more)
    (condition,) = [line for line in explained.splitlines() if "Index Cond" in line]
    assert f"{column} = ANY" in condition


async def test_unsubscribed_contacts_are_looked_up_by_index(hot_database: Database) -> None:
    explained = await plan(hot_database, "entries", "find_unsubscribed", org_id=1, ids=[CONTACT])
    conditions = [line for line in explained.splitlines() if "Index Cond" in line]
    assert ["contact_id = k.id" in conditions[0], "address_digest = i.value_digest" in conditions[1]] == [True, True]


async def test_a_page_of_a_contact_is_read_by_its_index(ordinary_database: Database) -> None:
    await fill(ordinary_database)
    after = {"at": FIRST_CURSOR.at, "id": FIRST_CURSOR.id, "limit": ERASURE_PAGE}
    for name in ("erase_events", "erase_messages", "erase_entries"):
        explained = await plan(ordinary_database, "contacts", name, org_id=1, contact_id=CONTACT, **after)
        assert "_contact" in explained, name
        assert scanned_tables(explained) == [], name
    cancelling = await plan(
        ordinary_database, "contacts", "cancel_entries_of_contact", org_id=1, contact_id=CONTACT, at=NOW
    )
    assert scanned_tables(cancelling) == []


def scanned_tables(explained: str) -> list[str]:
    """Return the tables that are scanned, without partitions that have no events."""
    return re.findall(r"Seq Scan on (?!events_2)(\w+)", explained)


async def fill(database: Database) -> None:
    """Store 20,000 contacts with what refers to them, and 20,000 blocked addresses."""
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
            f"INSERT INTO suppressions SELECT 1, 'email', {ids}, 'unsubscribed', %(now)s {rows}",
            f"INSERT INTO closed_endpoints SELECT 1, {ids}, 'shop.example', %(now)s {rows}",
        ):
            await tx.execute(statement, {"now": NOW})
        await tx.execute("ANALYZE")
