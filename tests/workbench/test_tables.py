"""Completion, the docstring of `wb.sql` and the database speak of the same tables."""

import inspect
import re

import psycopg

from workbench import Workbench
from workbench.magic import TABLES

_VIEWS = """
    SELECT relname::text, array_agg(attname::text ORDER BY attnum)
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    WHERE relnamespace = 'analyst'::regnamespace AND attnum > 0 GROUP BY relname
"""


def test_completion_knows_every_table_and_column(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        views = dict(connection.execute(_VIEWS).fetchall())
    assert {table: columns.split() for table, columns in TABLES.items()} == views


def test_the_help_of_sql_lists_every_table_and_column() -> None:
    _, _, listed = (inspect.getdoc(Workbench.sql) or "").partition("Tables and their columns:")
    described = dict(re.findall(r"^- (\w+): (.*?)(?=\n- |\Z)", listed.strip(), re.DOTALL | re.MULTILINE))
    assert {table: re.findall(r"\w+", columns) for table, columns in described.items()} == {
        table: columns.split() for table, columns in TABLES.items()
    }
