"""The queries of `sql/reports`: structure by Jinja2, every value bound."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


@cache
def template(name: str) -> Template:
    """Return the query of that name, to be rendered with its structure."""
    environment = Environment(  # noqa: S701  SQL: what comes from outside is bound, never written into it
        loader=FileSystemLoader(_folder()), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(f"{name}.sql")


def _folder() -> Path:
    """Return `sql/reports`: inside the installed package, or at the top of the checkout."""
    package = Path(__file__).parent
    installed = package / "_reports"
    return installed if installed.is_dir() else package.parent / "sql" / "reports"
