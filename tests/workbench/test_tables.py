"""Completion, the help of `wb.sql`, docs/sql.md and the database list the same tables."""

import inspect
import re
from pathlib import Path

import psycopg

from workbench import Workbench
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
    assert {table: columns.split() for table, columns in TABLES.items()} == views


def test_the_help_of_sql_lists_every_table_and_column() -> None:
    _, _, listed = (inspect.getdoc(Workbench.sql) or "").partition("Tables and their columns:")
    described = dict(re.findall(r"^- (\w+): (.*?)(?=\n- |\Z)", listed.strip(), re.DOTALL | re.MULTILINE))
    assert {table: re.findall(r"\w+", columns) for table, columns in described.items()} == {
        table: columns.split() for table, columns in TABLES.items()
    }


def test_the_page_about_sql_lists_every_table_and_column() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`\w+`, .*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {table: re.findall(r"\w+", columns) for table, columns in rows} == {
        table: columns.split() for table, columns in TABLES.items()
    }
