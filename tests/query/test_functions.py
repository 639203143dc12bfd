"""On a server that refused the hardening script, a query may call only listed functions."""

import logging

import pytest

from api.clock import token
from api.query.formats import FORMATS, stream
from api.query.gateway import AnalystQuery, Gateway, InvalidQueryError
from api.query.limits import check_functions
from api.store.database import Database
from api.store.migrate import migrate
from tests.servers import create_database, database_dsn, drop_database


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*), coalesce(max(x), 0)::numeric(10, 2) FROM app_events"
        " WHERE event IN ('a') AND (true) OR NOT (false)",
        "WITH a (x) AS (SELECT 1) SELECT * FROM a, (VALUES (1)) AS v (y), LATERAL (SELECT 1) l WHERE EXISTS (SELECT 1)",
        "SELECT 'set_config(' || \"from\", $$ pg_roles $$ FROM contacts -- pg_sleep(1)",
        "SELECT extract(day FROM created_at), sum(x) FILTER (WHERE x > 1) OVER (PARTITION BY y ORDER BY z) FROM t",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x), pg_typeof(1), upper('a') FROM t",
    ],
)
def test_an_ordinary_query_passes(text):
    assert check_functions(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT set_config('a', 'b', false)", "the function set_config"),
        ("SELECT SET_CONFIG /* x */ ('a', 'b', false)", "the function set_config"),
        ("SELECT \"set_config\"('a', 'b', false)", "the function set_config"),
        ("SELECT pg_catalog . set_config('a', 'b', false)", "the function set_config"),
        ('SELECT U&"set\\005fconfig"(1)', "the function set\\005fconfig"),
        ("SELECT 1 AS set_config, set_config('a', 'b', false)", "the function set_config"),
        ("SELECT E'\\'' || set_config('a', 'b', false) || '''", "the function set_config"),
        ("SELECT 'a'\n'b' || lo_creat(1)", "the function lo_creat"),
        ("SELECT query_to_xml('select 1', true, true, '')", "the function query_to_xml"),
        ("SELECT pg_sleep(1)", "pg_sleep"),
        ("SELECT * FROM pg_roles", "pg_roles"),
        ('SELECT * FROM "pg_class"', "pg_class"),
        ("TABLE Information_Schema.tables", "information_schema"),
    ],
)
def test_functions_with_side_effects_or_views_of_others_are_refused(text, reason):
    assert str(check_functions(text)) == f"sql: {reason} is not available on this server"


async def test_a_server_without_the_script_says_so_once_and_uses_the_list(postgres, keyring, caplog):
    name = f"test_{token(8).hex()}"
    create_database(postgres, name)
    dsn = database_dsn(postgres.dsn, name)
    await migrate(dsn)
    database = Database(dsn)
    await database.open()
    gateway = Gateway(database, keyring)
    with caplog.at_level(logging.WARNING, "workbench.query"):
        for _ in range(2):
            async with gateway.run(
                AnalystQuery(1, "SELECT count(*) FROM contacts", None, clear_emails=False)
            ) as answer:
                assert [piece async for piece in stream(answer, FORMATS["text/csv"])] == [b"count\r\n0\r\n", b""]
            past = AnalystQuery(1, "SELECT count(*) FROM app_events", None, clear_emails=False, as_of=answer.watermark)
            async with gateway.run(past) as answer:
                assert [piece async for piece in stream(answer, FORMATS["text/csv"])] == [b"count\r\n0\r\n", b""]
            with pytest.raises(InvalidQueryError, match="the function set_config is not available on this server"):
                async with gateway.run(AnalystQuery(1, "SELECT set_config('a', 'b', true)", None, clear_emails=False)):
                    pass
    assert [record.name for record in caplog.records].count("workbench.query") == 1
    await database.close()
    drop_database(postgres, name)
