"""Completion, which reads the help of `wb.sql`, docs/sql.md and the database list the same tables."""

import re
from pathlib import Path

import psycopg

from workbench.magic import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"

_VIEWS = """
    SELECT relname::text, array_agg(attname::text ORDER BY attnum)
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    WHERE relnamespace = 'analyst'::regnamespace AND attnum > 0 GROUP BY relname
"""


def test_completion_offers_every_table_and_column(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        views = dict(connection.execute(_VIEWS).fetchall())
    assert views == TABLES


def test_the_page_about_sql_lists_every_table_and_column() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`\w+`, .*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {table: re.findall(r"\w+", columns) for table, columns in rows} == TABLES
