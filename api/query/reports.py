"""The queries of the built-in reports, whose templates are in `sql/reports`."""

from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from api.store.database import sql_folder


def statement(name: str, **structure: Any) -> str:
    """Return the text of a query in `sql/reports`, the same as in a notebook."""
    return _templates().get_template(f"{name}.sql").render(**structure).strip()


@cache
def _templates() -> Environment:
    return Environment(  # noqa: S701  SQL: values are bound, never written into it
        loader=FileSystemLoader(sql_folder() / "reports"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
