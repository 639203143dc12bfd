"""Searches logs, metrics and every column of the database for secrets and private values."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from tests.canaries import PAYLOAD_COLUMNS
from tests.torture.leaks import EVERYWHERE, PRIVATE, private

_MOST = 3  # findings reported per text
_COLUMNS = """
    SELECT t.table_name, c.column_name, c.data_type FROM information_schema.columns c
    JOIN information_schema.tables t USING (table_schema, table_name)
    WHERE table_schema = 'workbench' AND table_type = 'BASE TABLE'
      AND table_name !~ '^(events|contact_changes)_([0-9]|other)'
      AND c.data_type IN ('text', 'jsonb', 'ARRAY', 'bytea')
    ORDER BY 1, 2"""
_FOUND = "SELECT left({text}, 200) FROM workbench.{table} WHERE {text} ~* {pattern} LIMIT {most}"


class SearchedPlace(msgspec.Struct, frozen=True):
    """A searched place and the secrets found in it."""

    place: str
    leaks: list[str]


def in_text(place: str, text: str, words: Collection[str] = ()) -> SearchedPlace:
    """Search a text for private values and for `words`."""
    return SearchedPlace(
        place, [*_first(private(text)), *(f"the token {word[:20]}…" for word in words if word in text)]
    )


def in_files(files: Collection[Path], words: Collection[str]) -> list[SearchedPlace]:
    """Search files; each is one place."""
    return [in_text(file.name, file.read_text(errors="replace"), words) for file in files]


async def in_database(connection: psycopg.AsyncConnection[Any]) -> list[SearchedPlace]:
    """Search every column for plain keys, secrets and addresses, and for event values in columns that must not hold
    them.
    """
    columns = await (await connection.execute(_COLUMNS)).fetchall()
    return [await _in_column(connection, *column) for column in columns]


async def _in_column(connection: psycopg.AsyncConnection[Any], table: str, column: str, kind: str) -> SearchedPlace:
    text = "encode({}, 'escape')" if kind == "bytea" else "{}::text"
    statement = sql.SQL(_FOUND).format(
        text=sql.SQL(text).format(sql.Identifier(column)),
        table=sql.Identifier(table),
        pattern=sql.Literal(EVERYWHERE if (table, column) in PAYLOAD_COLUMNS else PRIVATE),
        most=sql.Literal(_MOST),
    )
    rows = await (await connection.execute(statement)).fetchall()
    return SearchedPlace(f"{table}.{column}", [str(value) for (value,) in rows])


def _first(places: Iterator[str]) -> list[str]:
    return [place for place, _ in zip(places, range(_MOST), strict=False)]
