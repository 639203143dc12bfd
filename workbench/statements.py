"""The queries that the workbench asks, in `sql/reports`: Jinja2 decides on their structure, values are bound by whoever asks."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def statement(name: str, **structure: Any) -> str:
    """Return the text of a query."""
    return _environment().get_template(f"{name}.sql").render(**structure).strip()


@cache
def _environment() -> Environment:
    return Environment(  # noqa: S701  SQL: what comes from outside is bound, never written into it
        loader=FileSystemLoader(_folder()), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _folder() -> Path:
    """Return `sql/reports`: inside the installed package, or at the top of the checkout."""
    package = Path(__file__).parent
    installed = package / "_reports"
    return installed if installed.is_dir() else package.parent / "sql" / "reports"
