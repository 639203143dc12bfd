"""Analysts' queries are not slow because new rows have no statistics yet, and their plans are not shown."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from api.store.analyst import QueryLimits, open_cursor
from api.store.sql_roles import Readers
from workbench import sql
from workbench.backtest.source import ContactSample, EventSelection
from workbench.canvas import suggestions

_HISTORY = """
    INSERT INTO workbench.contacts (org_id, id, external_id, created_at, updated_at)
    SELECT 1, md5('of_history ' || n)::uuid, 'of_history ' || n, now(), now() FROM generate_series(1, 5000) n;
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)
    SELECT 1, gen_random_uuid(), md5('of_history ' || n % 5000 + 1)::uuid, 'deposit', at, at, '{}', 'of_history ' || n
    FROM generate_series(1, 20000) n, LATERAL (SELECT now() - (2 + n % 300) * interval '1 day' AS at);
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)
    SELECT 1, gen_random_uuid(), md5('of_history ' || n)::uuid, 'login', now(), now(), '{}', 'login' || n
    FROM generate_series(1, 20) n;
    ANALYZE workbench.contacts, workbench.events;
"""
_BOUND = {"every": "'day'", "since": "now() - interval '1 day'", "previous": "now() - interval '1 day'"}
_BOUND |= {
    "names": "ARRAY['login']",
    "moments": "ARRAY[now() - interval '1 day']",
    "newest": "1000",
    "patterns": "'[]'",
}
_BOUND["locale_attribute"] = "'locale'"
_BOUND["needs"] = """'[{"number": 0, "path": ["email"], "segments": []}]'"""


def _rows_read(plan: dict[str, Any]) -> int:
    """Return how many rows the scans of tables in a plan returned or filtered out."""
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) if "Relation Name" in plan else 0
    return int(own * plan["Actual Loops"]) + sum(map(_rows_read, plan.get("Plans", ())))


@pytest.mark.plain
async def test_reports_on_few_contacts_read_few_rows(database, keyring, org_ids):
    """Not those of all contacts, or of all earlier events."""
    with psycopg.connect(database.dsn, autocommit=True, options="-c workbench.org=*") as connection:
        connection.execute(_HISTORY)
    reader = await Readers(database, keyring).of(1)
    active_users = sql.statement(
        "active_users", period={"until": False, "past": False, "logs": False, "segment": ""}, event=False, counted=""
    )
    for text in (active_users, sql.statement("missing_values"), suggestions.NEWEST_EVENTS):
        query = text
        for name, value in _BOUND.items():
            query = query.replace(f":{name}", value)
        async with open_cursor(database, reader, QueryLimits(), None) as cursor:
            explained = await cursor._connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}")
            (row,) = await explained.fetchall()
        assert 20 <= _rows_read(row[0][0]["Plan"]) <= 2_000


# A segment, as reports and backtests join it with events and contacts. Nothing tells the planner how selective the
# condition on the payload is.
_OF_MEMBERS = """
    SELECT c.id, ARRAY(SELECT m.segment FROM segment_members m WHERE m.contact_id = c.id) AS segments
    FROM contacts c
    WHERE c.id IN (SELECT contact_id FROM app_events
                   WHERE payload @> '{"first": true}'
                       AND contact_id IN (SELECT contact_id FROM segment_members WHERE segment = 'new'))
"""
_OF_ENTRIES = """
    SELECT DISTINCT c.external_id FROM automation_entries e JOIN automations a ON a.id = e.automation_id
    JOIN contacts c ON c.id = e.contact_id JOIN segment_members m ON m.contact_id = c.id AND m.segment = 'new'
"""
_ROWS = """
    INSERT INTO workbench.contacts (org_id, id, external_id, created_at, updated_at)
    SELECT 1, md5(n::text)::uuid, n, now(), now() FROM generate_series(1, 500) n;
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)
    SELECT 1, gen_random_uuid(), md5((n % 500 + 1)::text)::uuid, 'deposit', now(), now(), '{"first": true}', n
    FROM generate_series(1, 5000) n;
    INSERT INTO workbench.segment_members (org_id, segment, contact_id, entered_at)
    SELECT 1, 'old', md5(n::text)::uuid, now() FROM generate_series(1, 500) n;
    ANALYZE workbench.contacts, workbench.events, workbench.segment_members;
    INSERT INTO workbench.segment_members (org_id, segment, contact_id, entered_at)
    SELECT 1, 'new', md5(n::text)::uuid, now() FROM generate_series(1, 270) n;
"""


def _repeated(plan: dict[str, Any]) -> int:
    """Return how many rows the joins of a plan compared in vain."""
    return plan.get("Rows Removed by Join Filter", 0) + sum(map(_repeated, plan.get("Plans", ())))


@pytest.mark.plain
async def test_a_new_segment_is_not_compared_with_every_event_row_by_row(database, keyring, org_ids):
    with psycopg.connect(database.dsn, autocommit=True, options="-c workbench.org=*") as connection:
        connection.execute(_ROWS)
    reader = await Readers(database, keyring).of(1)
    for statement in (_OF_MEMBERS, _OF_ENTRIES):
        async with open_cursor(database, reader, QueryLimits(), None) as cursor:
            explained = await cursor._connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
            (row,) = await explained.fetchall()
            assert _repeated(row[0][0]["Plan"]) == 0


_SCATTERED = """
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)
    SELECT 1, gen_random_uuid(), '00000000-0000-0000-0000-000000000001',
        (ARRAY['signup', 'deposit', 'trade', 'view'])[n % 4 + 1], m, m, jsonb_build_object('note', repeat('x', 200)), n
    FROM generate_series(1, 20000) n, LATERAL (SELECT now() - n * 7919 % 20000 * interval '1 millisecond' AS m) moments;
    ANALYZE workbench.events;
"""


@pytest.mark.plain
@pytest.mark.parametrize("names", ["'deposit'", "'signup', 'deposit', 'view'"])
async def test_events_of_imported_files_are_read_in_the_order_of_the_table(database, keyring, org_ids, names):
    with psycopg.connect(database.dsn, autocommit=True, options="-c workbench.org=*") as connection:
        connection.execute(_SCATTERED)
    reader = await Readers(database, keyring).of(1)
    async with open_cursor(database, reader, QueryLimits(), None) as cursor:
        rows = f"app_events WHERE event IN ({names}) AND created_at > now() - interval '1 year'"
        explained = await cursor._connection.execute(f"EXPLAIN (COSTS OFF) SELECT FROM {rows}")
        plan = "\n".join([line for (line,) in await explained.fetchall()])
    month = f"events_{datetime.now(UTC):%Y_%m}"
    assert f"Index Scan using {month}" not in plan
    assert f"Heap Scan on {month}" in plan or f"Seq Scan on {month}" in plan


_OF_B = """
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)
    SELECT 2, gen_random_uuid(), '00000000-0000-0000-0000-000000000002', 'of_b', now(), now(), '{}', 'of_b ' || n
    FROM generate_series(1, 20000) n;
    ANALYZE workbench.events;
"""


@pytest.mark.plain
async def test_a_plan_discloses_how_often_other_organizations_have_an_event(database, keyring, org_ids, service):
    """Why EXPLAIN is refused, also without estimates: they decide how a join is made (docs/sql.md)."""
    with psycopg.connect(database.dsn, autocommit=True, options="-c workbench.org=*") as connection:
        connection.execute(_OF_B)
    reader, plans = await Readers(database, keyring).of(1), []
    async with open_cursor(database, reader, QueryLimits(), None) as cursor:
        for event in ("of_b", "unknown"):
            joined = f"app_events e JOIN generate_series(1, 500) n ON n = length(e.event) AND e.event = '{event}'"
            explained = await cursor._connection.execute(f"EXPLAIN (COSTS OFF) SELECT FROM {joined}")
            plans.append([line for (line,) in await explained.fetchall()])
    assert plans[0][0] == "Merge Join"
    assert plans[1][0] == "Hash Join"
    assert (await service.ann.rows("SELECT count(*) FROM app_events WHERE event = 'of_b'")) == [[0]]
    assert (await service.ann.post("EXPLAIN SELECT 1")).status_code == 400


_CLOSED_ADDRESSES = """
    INSERT INTO workbench.contacts (org_id, id, external_id, created_at, updated_at)
    SELECT 1, md5('closed ' || n)::uuid, 'closed ' || n, at, at
    FROM generate_series(1, 20) n, LATERAL (SELECT timestamptz '2026-01-01' AS at);
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)
    SELECT 1, id, id, 'closed', created_at, created_at, '{}', external_id FROM workbench.contacts
    WHERE external_id LIKE 'closed %';
    INSERT INTO workbench.entries (org_id, id, automation_id, event_id, event_created_at, contact_id, state, due_at,
        created_at, updated_at)
    SELECT 1, md5('closed ' || n)::uuid, gen_random_uuid(), gen_random_uuid(), at, md5('closed ' || n % 20 + 1)::uuid,
        'completed', at, at, at
    FROM generate_series(1, 2000) n, LATERAL (SELECT timestamptz '2026-01-02' + n * interval '1 minute' AS at);
    INSERT INTO workbench.entry_steps (org_id, entry_id, claim, step, attempt, node_id, kind, outcome, at)
    SELECT 1, id, 1, 1, 1, 'mail', 'send_email', 'done', created_at FROM workbench.entries WHERE id <> contact_id;
    INSERT INTO workbench.messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status,
        created_at)
    SELECT 1, id, contact_id, automation_id, id, 'mail', 1, 'email', 'failed', created_at
    FROM workbench.entries WHERE id <> contact_id;
    INSERT INTO workbench.message_outcomes (org_id, at, message_id, outcome, channel, reason)
    SELECT 1, created_at, id, 'failed', 'email', 'gone' FROM workbench.messages WHERE node_id = 'mail';
    INSERT INTO workbench.identities (org_id, kind, value_digest, contact_id, created_at)
    SELECT 1, 2, id, id, created_at FROM workbench.contacts WHERE external_id LIKE 'closed %';
    INSERT INTO workbench.suppressions (org_id, channel, address_digest, reason, cause, created_at)
    SELECT 1, 'email', contact_id, 'opted_out', 'bounced', max(created_at) FROM workbench.messages
    WHERE node_id = 'mail' GROUP BY contact_id;
    ANALYZE;
"""


@pytest.mark.plain
async def test_a_backtest_looks_up_the_delivery_that_closed_an_address(database, keyring, org_ids):
    """It does not read all entries and their steps again for each address."""
    with psycopg.connect(database.dsn, autocommit=True, options="-c workbench.org=*") as connection:
        connection.execute(_CLOSED_ADDRESSES)
    query = sql.statement(
        "backtest_changes", selection=EventSelection(), sample=ContactSample(), own=False, live=False, merged=True
    )
    for name, value in {"since": "'2026-01-01'::timestamptz", "until": "'2026-03-01'::timestamptz"}.items():
        query = query.replace(f":{name}", value)
    reader = await Readers(database, keyring).of(1)
    async with open_cursor(database, reader, QueryLimits(), None) as cursor:
        explained = await cursor._connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}")
        (row,) = await explained.fetchall()
    reads = [plan for plan in _scans(row[0][0]["Plan"]) if plan["Relation Name"] == "entry_steps"]
    assert sum(map(_rows_read, reads)) == 20


def _scans(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the scans of tables in a plan."""
    inner = [scan for child in plan.get("Plans", ()) for scan in _scans(child)]
    return [plan, *inner] if "Relation Name" in plan else inner
