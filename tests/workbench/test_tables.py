"""Statements of SQLAlchemy Core over `wb.tables` run as text does."""

from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest
from sqlalchemy import Numeric, bindparam, func, select

from tests.running import Running
from workbench import InvalidArgumentError
from workbench.tables import column_type
from workbench.workbench import TABLES

_TYPES = """
    SELECT relname::text, attname::text, format_type(atttypid, NULL)
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    WHERE relnamespace = 'analyst'::regnamespace AND attnum > 0
"""
_SHORT = {"timestamp with time zone": "timestamptz", "integer": "bigint"}


def test_the_types_are_those_of_the_views(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        views = {(view, column): _SHORT.get(kind, kind) for view, column, kind in connection.execute(_TYPES)}
    assert views == {
        (view, column): column_type(view, column) for view, columns in TABLES.items() for column in columns
    }


def test_a_statement_of_sqlalchemy_is_a_query(running: Running) -> None:
    wb = running.workbench()
    wb.events.send("tables:paid", external_id="tables-1", payload={"usd": 12.5, "plan": "a:b%"}, idempotency_key="t1")
    events, contacts = wb.tables.app_events.c, wb.tables.contacts.c
    total = func.sum(events.payload["usd"].astext.cast(Numeric(12, 2)))
    statement = (
        select(events.event, total.label("usd"), func.max(events.payload["plan"].astext).label("plan"))
        .join_from(wb.tables.app_events, wb.tables.contacts, contacts.id == events.contact_id)
        .where(events.event.in_(["tables:paid", "it's"]), events.occurred_at > datetime(2020, 1, 1, tzinfo=UTC))
        .where(contacts.external_id == bindparam("who"), events.payload["plan"].astext.like("a:%"))
        .group_by(events.event)
    )
    result = wb.sql(statement, who="tables-1")
    assert result.to_dicts() == [{"event": "tables:paid", "usd": Decimal("12.5"), "plan": "a:b%"}]
    assert next(iter(wb.sql(statement, stream=True, who="tables-1"))).equals(result)
    with pytest.raises(InvalidArgumentError, match="value is required for bind parameter 'who'"):
        wb.sql(statement)
    by_tag = select(contacts.id).where(contacts.tags.contains(["none has it"]))
    assert wb.sql(by_tag).is_empty()
