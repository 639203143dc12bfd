"""Named SQL: `sql/queries/<file>.sql` holds statements under `-- name --` lines, with `:name` parameters.

The name is the verb everywhere: in SQL, as the Python function of the store, and in the log.
"""

import re
from functools import cache
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import psycopg as dialect

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
    source = (sql_folder() / "queries" / f"{file}.sql").read_text("utf-8")
    parts = _HEADER.split(source)
    return {name: _compile(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _compile(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
    statement = "\n".join(lines).strip().removesuffix(";")
    psycopg_style = dialect.dialect()  # type: ignore[no-untyped-call]
    return str(text(statement).compile(dialect=psycopg_style))
