"""Named SQL: `sql/queries/<file>.sql` holds statements under `-- name --` lines, with `:name` parameters.

The name is the verb everywhere: in SQL, as the Python function of the store, and in the log.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import asyncpg, psycopg

_HEADER = re.compile(r"^-- (\w+) --$", re.MULTILINE)


@cache
def sql_folder() -> Path:
    """Return the folder `sql/`: inside the installed package, or at the top of the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "_sql"
    return installed if installed.is_dir() else package.parent / "sql"


@cache
def load(file: str) -> dict[str, str]:
    """Return the statements of `sql/queries/<file>.sql` by name, with psycopg's `%(name)s` parameters."""
    dialect = psycopg.dialect()  # type: ignore[no-untyped-call]
    return {name: str(text(body).compile(dialect=dialect)) for name, body in _named(file)}


@cache
def load_numbered(file: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the same with the `$1` parameters of the protocol, and the names of the parameters in their order."""
    dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]
    compiled = {name: text(body).compile(dialect=dialect) for name, body in _named(file)}
    return {name: (str(each), tuple(each.positiontup or ())) for name, each in compiled.items()}


def _named(file: str) -> Iterator[tuple[str, str]]:
    source = (sql_folder() / "queries" / f"{file}.sql").read_text("utf-8")
    parts = _HEADER.split(source)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
        yield name, "\n".join(lines).strip().removesuffix(";")
