"""Which queries are refreshed by increments: the proof accepts the usual ones, and none that reads other contacts."""

import os
import random
import re
from typing import Any

import psycopg
import pytest

from api.query.sql_tree import UnsupportedSqlError
from api.segments.definition import SegmentQuery
from api.segments.increments import read_incremental_query
from api.segments.scopes import TABLES
from api.store.database import libpq_dsn, sql_folder
from tests.segments.conftest import Team

PROVED = {
    "SELECT contact_id FROM app_events WHERE event = 'deposit' AND occurred_at > now() - interval '90 days' "
    "GROUP BY contact_id HAVING sum((payload ->> 'amountUsd')::numeric) > :least;": ["now() - interval '90 days'"],
    "SELECT DISTINCT e.contact_id FROM app_events AS e -- all of them": [],
    "SELECT \"id\" AS contact_id, metadata ->> 'plan' FROM contacts ORDER BY created_at DESC": [],
    "SELECT id AS contact_id FROM contacts c WHERE NOT EXISTS (SELECT 1 FROM app_events e "
    "WHERE e.contact_id = c.id AND e.occurred_at::date >= current_date - :days)": ["current_date - :days"],
    "WITH last AS (SELECT contact_id, max(occurred_at) AS at FROM app_events GROUP BY 1) "
    "SELECT contact_id FROM last WHERE at < now() - interval '30 days'": ["now() - interval '30 days'"],
    "SELECT c.id AS contact_id FROM contacts c LEFT JOIN app_events e ON e.contact_id = c.id AND e.event = 'login' "
    "GROUP BY c.id HAVING count(e.id) = 0": [],
    "SELECT contact_id FROM app_events JOIN segment_members USING (contact_id) WHERE segment = 'whales'": [],
    "SELECT contact_id FROM segment_members WHERE segment = 'a' EXCEPT "
    "(SELECT contact_id FROM app_events UNION ALL SELECT id FROM contacts WHERE 'vip' = ANY (tags))": [],
    "SELECT e.contact_id FROM app_events e, jsonb_array_elements(e.payload -> 'items') AS item "
    "WHERE item ->> 'sku' IN ('a', 'b') AND value ->> 'n' = '1'": [],
    "SELECT e.contact_id FROM app_events e, jsonb_each_text(e.payload) WITH ORDINALITY AS f (name) "
    "WHERE name = 'a' AND value = 'b' AND ordinality = 1": [],
    "SELECT id AS contact_id FROM contacts WHERE id NOT IN (SELECT contact_id FROM app_events "
    "WHERE occurred_at BETWEEN now() - make_interval(days => 30) AND now())": [
        "now() - make_interval(days => 30)",
        "now()",
    ],
    "SELECT contact_id FROM app_events GROUP BY contact_id "
    "HAVING count(*) FILTER (WHERE date_trunc('day', now()) <= created_at) > 2": ["date_trunc('day', now())"],
    "SELECT id AS contact_id FROM contacts ORDER BY lower(email), created_at DESC": [],
    "SELECT contact_id FROM app_events GROUP BY 1 HAVING max(extract(epoch FROM occurred_at)) > 1e9": [],
    "SELECT e.contact_id FROM app_events e, LATERAL unnest(array[e.event]) x WHERE x = 'a'": [],
    "SELECT a.contact_id FROM app_events a LEFT JOIN app_events b ON b.contact_id = a.contact_id AND b.event = 'b', "
    "contacts c WHERE c.id = b.contact_id": [],
    "SELECT a.contact_id FROM app_events a LEFT JOIN contacts c ON c.id = a.contact_id AND c.email IS NULL "
    "LEFT JOIN segment_members d ON d.contact_id = c.id WHERE d.segment IS NULL": [],
    "SELECT d.contact_id FROM contacts a LEFT JOIN contacts b ON b.id = a.id AND 'vip' = ANY (b.tags) "
    "JOIN app_events d ON d.contact_id = b.id": [],
    "WITH contacts AS (SELECT contact_id AS id FROM app_events WHERE event = 'a') "
    "SELECT id AS contact_id FROM contacts": [],
    "SELECT contact_id FROM (SELECT contact_id, count(*) AS n FROM app_events GROUP BY contact_id UNION ALL "
    "SELECT contact_id, -2 FROM segment_members) q GROUP BY contact_id HAVING sum(n) > 0": [],
    "SELECT contact_id FROM app_events EXCEPT ALL SELECT id FROM contacts": [],
    "SELECT e.contact_id FROM app_events e, unnest(array[(SELECT count(*) FROM app_events x "
    "WHERE x.contact_id = e.contact_id)]) AS g (n) WHERE n > 2": [],
    "SELECT contact_id FROM app_events WHERE ('a' = event) IS NOT TRUE": [],
    "SELECT id AS contact_id FROM contacts WHERE created_at::timestamp > now() AT TIME ZONE 'Asia/Tokyo'": [
        "now() AT TIME ZONE 'Asia/Tokyo'"
    ],
    "SELECT contact_id FROM (SELECT contact_id, max(occurred_at) AS at FROM app_events GROUP BY contact_id UNION "
    "SELECT id, created_at FROM contacts) q WHERE at > now() - interval '1 day'": ["now() - interval '1 day'"],
    "SELECT contact_id FROM app_events WHERE event = 'snowboard' AND event <> 'yesteryear'": [],
    "SELECT id AS contact_id FROM contacts WHERE (SELECT max(e.occurred_at) FROM app_events e "
    "WHERE e.contact_id = contacts.id) < current_timestamp - interval '1 week'": [
        "current_timestamp - interval '1 week'"
    ],
}

REFUSED = {
    "SELECT contact_id FROM app_events LIMIT 3": "LIMIT",
    "SELECT contact_id FROM messages": "the table messages",
    "SELECT contact_id FROM analyst.app_events": "a table with its schema",
    "SELECT contact_id FROM app_events WHERE random() < 0.5": "random()",
    "SELECT contact_id FROM app_events WHERE now() > '2026-12-01'": "the clock compared with",
    "SELECT contact_id FROM app_events WHERE now() - occurred_at < interval '1 day'": "now, which is not alone",
    "SELECT contact_id FROM app_events WHERE extract(dow FROM now()) = 1": "the clock compared with",
    "SELECT contact_id FROM app_events WHERE occurred_at > 'today'": "the text 'today'",
    "SELECT contact_id FROM app_events WHERE (payload ->> 'at')::date > '2026-01-01'": "a text as date",
    "SELECT contact_id FROM app_events WHERE occurred_at > (SELECT max(occurred_at) FROM app_events)": "an aggregate",
    "SELECT a.contact_id FROM app_events a JOIN app_events b ON a.event = b.event": "a join of rows of different",
    "SELECT a.contact_id FROM app_events a LEFT JOIN contacts c ON c.email = a.event": "a LEFT JOIN that is not by",
    "SELECT a.contact_id FROM app_events a FULL JOIN contacts c ON c.id = a.contact_id": "FULL",
    "SELECT contact_id FROM (SELECT contact_id, row_number() OVER () AS n FROM app_events) q": "a window function",
    "SELECT DISTINCT ON (event) contact_id FROM app_events": "DISTINCT ON",
    "SELECT contact_id FROM app_events GROUP BY 1 HAVING sum((payload ->> 'a')::float) > 1": "a sum of floating",
    "SELECT id AS contact_id FROM contacts WHERE updated_at > '2026-01-01'": "updated_at of contacts",
    "SELECT id AS contact_id FROM contacts c WHERE EXISTS (SELECT 1 FROM app_events)": "a subquery that is not",
    "SELECT id AS contact_id FROM contacts c WHERE c.id IN (SELECT c.id FROM app_events e)": "a subquery that is not",
    "SELECT max(contact_id::text)::uuid AS contact_id FROM app_events": "an aggregate",
    "SELECT gen_random_uuid() AS contact_id FROM app_events": "gen_random_uuid()",
    "SELECT id AS contact_id FROM app_events": "a contact_id that is not",
    "SELECT 1": "a contact_id that is not",
    "not SQL": "NOT",
    "SELECT contact_id FROM app_events WHERE event = E'a\\'b' COLLATE \"C\"": "COLLATE",
    "SELECT contact_id FROM app_events WHERE " + "(" * 2000 + "true" + ")" * 2000: "a statement that is nested",
    "SELECT contact_id FROM app_events WHERE true" + " OR true" * 1000: "a statement that is nested",
    "SELECT contact_id FROM app_events WHERE event = 'a'" + " " * 10_000: "a statement of more than 10,000 characters",
    "SELECT c.id AS contact_id FROM contacts c ORDER BY generate_series(1, 2)": "generate_series() in ORDER BY",
    "SELECT c.id AS contact_id FROM contacts c ORDER BY (SELECT count(*) FROM app_events)": "a subquery in ORDER BY",
    "SELECT id AS contact_id FROM contacts c WHERE EXISTS (SELECT 1 FROM app_events e WHERE e.contact_id = c.id "
    "ORDER BY count(*))": "count() in ORDER BY",
    "SELECT contact_id FROM app_events WHERE occurred_at > (array['to' || 'day']::timestamptz[])[1]": "a text as",
    "SELECT contact_id FROM app_events WHERE occurred_at > E'to\\x64ay'": "the text E'to\\x64ay', which",
    "SELECT contact_id FROM app_events WHERE occurred_at > 'yesterday08:00'": "the text 'yesterday08:00'",
    "SELECT contact_id FROM app_events WHERE occurred_at > 'now_'": "the text 'now_'",
    "SELECT contact_id FROM app_events WHERE occurred_at = ANY ('{today08:00}')": "the text '{today08:00}'",
    "SELECT contact_id FROM app_events WHERE occurred_at::timestamptz(0) > now()": "a time with a precision",
    "SELECT contact_id FROM app_events WHERE cast(occurred_at AS timestamp(0)) > now()": "a time with a precision",
    "SELECT c.id AS contact_id FROM contacts c JOIN (SELECT contact_id, occurred_at AS updated_at FROM app_events) e "
    "USING (updated_at) WHERE e.contact_id = c.id": "updated_at of contacts",
    "SELECT q.id AS contact_id FROM (SELECT * FROM contacts EXCEPT SELECT * FROM contacts) q": "updated_at of contacts",
    "SELECT contact_id FROM app_events GROUP BY 1 HAVING sum((array[payload ->> 'a']::float8[])[1]) > 1": "a sum of",
    "SELECT contact_id FROM app_events, unnest(array[1.5]::float8[]) AS x GROUP BY 1 HAVING sum(x) > 1": "a sum of",
    "SELECT contact_id FROM app_events WHERE occurred_at = ANY ('{to\\day}')": "the text '{to\\day}'",
    "SELECT contact_id FROM app_events WHERE occurred_at > E'to'\n'day'": "the text E'to'\n'day'",
    "SELECT id AS contact_id FROM contacts WHERE 'a' IN ((SELECT event FROM app_events))": "a subquery in two pairs",
    "SELECT c.id AS contact_id FROM (SELECT id, id AS É FROM contacts) c "
    "WHERE EXISTS (SELECT 1 FROM (SELECT contact_id AS é FROM app_events) e WHERE É = c.id)": "a subquery that is not",
    f"SELECT contact_id FROM (SELECT contact_id, id AS {'a' * 64} FROM app_events) q": "a name of more than 63 bytes",
    "SELECT c.id AS contact_id FROM (SELECT id, id AS uuid FROM contacts) c WHERE EXISTS (SELECT 1 FROM app_events e, "
    "(SELECT '00000000-0000-0000-0000-000000000000'::uuid) q WHERE e.contact_id = uuid)": "a column without a name",
    "SELECT q.contact_id FROM (SELECT contact_id, merged_from AS key FROM app_events) q WHERE EXISTS (SELECT 1 FROM "
    "(SELECT contact_id AS key FROM app_events) a, contacts b JOIN contacts c ON c.id = key "
    "WHERE a.key = b.id AND b.id = q.contact_id)": "a JOIN after a comma",
    "SELECT c.id AS contact_id FROM (SELECT * FROM contacts) c (id, b, d, e, f, g, h, value) "
    "WHERE EXISTS (SELECT 1 FROM unnest(array[1]) u WHERE value > '2026-11-27')": "value of contacts",
    "SELECT c.id AS contact_id FROM contacts c, jsonb_array_elements(c.metadata) AS t "
    "WHERE EXISTS (SELECT 1 FROM contacts t WHERE t.id = c.id AND t::text LIKE '%2026%')": "the name t",
    "": "an incomplete statement",
}


@pytest.mark.parametrize("sql", PROVED)
def test_usual_queries_are_proved_with_their_cutoffs(sql: str) -> None:
    assert [cutoff.sql for cutoff in read_incremental_query(SegmentQuery(sql)).cutoffs] == PROVED[sql]


@pytest.mark.parametrize("sql", REFUSED)
def test_other_queries_are_refused_with_the_part_that_prevents_it(sql: str) -> None:
    with pytest.raises(UnsupportedSqlError) as refusal:
        read_incremental_query(SegmentQuery(sql))
    assert refusal.value.reason.startswith(REFUSED[sql])
    assert 1 <= refusal.value.position <= len(sql) + 1


def test_a_value_can_be_a_moment() -> None:
    sql = "SELECT contact_id FROM app_events WHERE occurred_at > :since"
    assert read_incremental_query(SegmentQuery(sql, {"since": "2026-01-01"})).cutoffs == ()
    with pytest.raises(UnsupportedSqlError, match="'yesterday'"):
        read_incremental_query(SegmentQuery(sql, {"since": "yesterday"}))


@pytest.mark.parametrize(
    ("condition", "params", "events"),
    [
        ("event IN ('b', 'a')", None, ("a", "b")),
        ("event = ANY (:names)", {"names": ["b", "a"]}, ("a", "b")),
        ("event = ANY ($1)", ["{a,b}"], None),
        ("event = ANY ('{a,b}')", None, None),
        ("event = :name", {"name": "{a,b}"}, ("{a,b}",)),
        ("event = :name", {"name": "ann@example.com"}, None),
        ("event = 'a' OR event = 'b'", None, None),
    ],
)
def test_the_names_of_events_are_read_from_literals_and_parameters(
    condition: str, params: Any, events: tuple[str, ...] | None
) -> None:
    sql = f"SELECT contact_id FROM app_events WHERE {condition}"
    assert read_incremental_query(SegmentQuery(sql, params)).events == events


async def test_the_check_says_what_prevents_increments(acme: Team) -> None:
    latest = {"sql": "SELECT contact_id FROM app_events ORDER BY occurred_at DESC LIMIT 3"}
    preview = await acme.expect_success("POST", "/preview", latest)
    assert preview["fullRefreshReason"] == "LIMIT is not supported (character 61)"
    made = await acme.expect_success("POST", "", {"name": "all", "sql": "SELECT id AS contact_id FROM contacts"})
    assert made["fullRefreshReason"] is None
    assert (await acme.expect_success("POST", "", {"name": "few", "contactIds": []}))["fullRefreshReason"] is None


async def test_the_tables_are_the_views_of_changed_contacts(acme: Team) -> None:
    rows = await acme.rows(
        "SELECT table_schema::text, table_name::text, array_agg(column_name::text ORDER BY ordinal_position) "
        "FROM information_schema.columns WHERE table_schema IN ('analyst', 'analyst_changed') GROUP BY 1, 2"
    )
    views = {(schema, name): columns for schema, name, columns in rows}
    known = {name: [column for column, _ in columns] for name, columns in TABLES.items()}
    assert {name: columns for (schema, name), columns in views.items() if schema == "analyst_changed"} == known
    assert {name: views["analyst", name] for name in known} == known


async def test_the_planner_knows_the_changed_contacts(acme: Team) -> None:
    some = "{11111111-1111-4111-8111-111111111111,22222222-2222-4222-8222-222222222222}"
    async with await psycopg.AsyncConnection.connect(libpq_dsn(acme.org.service.dsn)) as connection:
        await connection.execute("SELECT set_config('workbench.changed_contacts', %s, false)", (some,))
        for table in TABLES:
            plan = await (await connection.execute(f"EXPLAIN SELECT * FROM analyst_changed.{table}")).fetchall()
            assert any(f"ANY ('{some}'::uuid[])" in line for (line,) in plan), plan


def test_every_statement_that_changes_what_segments_read_leaves_a_trace() -> None:
    """A new statement needs a trace that `find_changed` sees, or must set `segments.watermark` to null."""
    named = re.compile(r"^-- (\w+) --$(.*?)(?=^-- \w+ --$|\Z)", re.MULTILINE | re.DOTALL)
    writing = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM) (?:workbench\.)?(contacts|events|segment_members)\b")
    statements = {
        f"{path.stem}.{name}"
        for path in (sql_folder() / "queries").glob("*.sql")
        for name, body in named.findall(path.read_text("utf-8"))
        if writing.search(body)
    }
    of_events = {
        "add_events",
        "add_changing_events",
        "add_contacts",
        "remove_emails",
        "add_contact_identifiers",
        "merge_attributes",
    }
    noted = {"entries.change_tags", "contacts.set_opted_out", "merges.write_contact"}
    of_merges = {f"merges.{name}" for name in ("mark_merged", "unmark_merged", "join_segments", "leave_segments")}
    moved = {"merges.move_events"}  # while `due_at` of the merge is set
    of_erasures = {"contacts.clear_contact", "contacts.leave_all_segments", "contacts.erase_events"}
    of_refreshes = {"enter_members", "enter_wanted", "drop_members", "repair_members", "clear_members"}
    of_rotations = {"access.change_contacts", "access.change_events"}  # `forget_watermarks`
    unread = {"contacts.delete_merge_changes", "parts.number_contacts"}  # columns that no view shows
    expected = (
        {f"events.{name}" for name in of_events} | noted | of_merges | moved | of_erasures | of_rotations | unread
    )
    assert statements == expected | {f"segments.{name}" for name in of_refreshes}


class JoinQueries:
    """Draws queries that tie tables rightly and wrongly."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def table(self) -> tuple[str, str]:
        """Return a table, or a query like one, and the column of its contact."""
        return self.draw.choice(
            (
                ("app_events", "contact_id"),
                ("app_events", "contact_id"),
                ("contacts", "id"),
                ("segment_members", "contact_id"),
                ("(SELECT contact_id, count(*) AS n FROM app_events GROUP BY contact_id)", "contact_id"),
                ("(SELECT event AS contact_event, contact_id FROM app_events)", "contact_id"),
                ("(SELECT DISTINCT contact_id FROM app_events UNION SELECT id FROM contacts)", "contact_id"),
            )
        )

    def tie(self, first: str, second: str) -> str:
        return self.draw.choice(
            (
                *(f"{first} = {second}",) * 6,
                f"({second} = {first})",
                f"{first} = {first}",
                f"{first} <> {second}",
                f"NOT {first} = {second}",
                f"{first} = {second} OR {first} IS NULL",
                f"({first} = {second}) IS NOT NULL",
                f"{first}::text = {second}::text",
                f"{first} = {second} AND true",
                f"{first} IS NOT DISTINCT FROM {second}",
                "true",
            )
        )

    def subquery(self, outer: str) -> str:
        table, key = self.table()
        value = self.draw.choice((f"s.{key}", f"s.{key}", outer))
        inner = self.draw.choice(
            (
                f"SELECT {value} FROM {table} s",
                f"SELECT {value} FROM {table} s WHERE {self.tie(f's.{key}', outer)}",
                f"SELECT {value} FROM {table} s GROUP BY {value} HAVING count(*) > 1",
                f"SELECT s.{key} FROM {table} s LEFT JOIN contacts t ON {self.tie('t.id', f's.{key}')}",
                f"SELECT t.id FROM {table} s LEFT JOIN contacts t ON {self.tie('t.id', f's.{key}')} AND t.id > s.{key}",
            )
        )
        sign = self.draw.choice(("", "NOT "))
        count = f"(SELECT count(*) FROM {table} s WHERE {self.tie(f's.{key}', outer)}) > 2"
        return self.draw.choice((f"{sign}EXISTS ({inner})", f"{outer} {sign}IN ({inner})", count))

    def query(self) -> str:
        names = ["a", "b", "c"][: self.draw.randrange(1, 4)]
        sources, keys = "", []
        conditions = []
        for name in names:
            table, key = self.table()
            keys.append(f"{name}.{key}")
            if not sources:
                sources = f"{table} {name}"
                continue
            tie = self.tie(keys[-1], self.draw.choice(keys[:-1]))
            match self.draw.choice(("where", "join", "left", "left")):
                case "where":
                    sources += f" CROSS JOIN {table} {name}"
                    conditions.append(tie)
                case "join":
                    sources += f" JOIN {table} {name} ON {tie}"
                case _:
                    extra = self.draw.choice(("", f" AND {self.tie(keys[-1], keys[0])}", " AND false"))
                    sources += f" LEFT JOIN {table} {name} ON {tie}{extra}"
        if self.draw.random() < 0.5:
            conditions.append(self.subquery(self.draw.choice(keys)))
        key = self.draw.choice(keys)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        group = self.draw.choice(
            ("", "", f" GROUP BY {key} HAVING count(*) > 1", f" GROUP BY {key}, {keys[0]} HAVING count({keys[-1]}) = 1")
        )
        body = f"SELECT {key} AS contact_id FROM {sources}{where}{group}"
        if self.draw.random() < 0.2:
            table, other = self.table()
            body += f" {self.draw.choice(('UNION', 'EXCEPT', 'INTERSECT'))} SELECT s.{other} FROM {table} s"
        if self.draw.random() < 0.2:
            body = f"SELECT contact_id FROM ({body}) q WHERE {self.subquery('q.contact_id')}"
        return body


async def test_what_is_proved_returns_for_some_contacts_what_it_returns_for_all(acme: Team) -> None:
    """Runs each query of `PROVED`, and each of `ODD_QUERIES` drawn ones that is proved, on all rows and on some."""
    count = int(os.environ.get("ODD_QUERIES", "800"))
    queries = JoinQueries(20)
    for number in range(7):
        events = [
            {"event": queries.draw.choice(("a", "b")), "contact": {"externalId": f"f{number}"}}
            for _ in range(queries.draw.randrange(1, 5))
        ]
        await acme.org.post_batch(*events)
    contacts = [
        str(contact_id) for (contact_id,) in await acme.rows("SELECT id FROM contacts WHERE org_id = %s", acme.id)
    ]
    for contact_id in contacts[:3]:
        await acme.org.call("POST", f"/contacts/{contact_id}/tags", {"add": ["vip"]})
    await acme.expect_success("POST", "", {"name": "some", "contactIds": contacts[2:5]})
    proved = 0
    async with await psycopg.AsyncConnection.connect(libpq_dsn(acme.org.service.dsn)) as connection:
        await connection.execute("SELECT set_config('workbench.org', %s, false)", (str(acme.id),))
        known = [sql.replace(":least", "1").replace(":days", "3") for sql in PROVED]
        for sql in (*known, *(queries.query() for _ in range(count))):
            try:
                read_incremental_query(SegmentQuery(sql))
            except UnsupportedSqlError:
                continue
            proved += 1
            some = queries.draw.sample(contacts, queries.draw.randrange(len(contacts)))
            results = []
            for schema in ("analyst", "analyst_changed"):
                await connection.execute(
                    "SELECT set_config('search_path', %s, false), set_config('workbench.changed_contacts', %s, false)",
                    (schema, f"{{{','.join(some)}}}"),
                )
                rows = await (await connection.execute(sql)).fetchall()
                results.append({str(row[0]) for row in rows} - {"None"})
            assert results[0] & set(some) == results[1], sql
    assert proved > count // 5
