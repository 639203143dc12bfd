"""The queries in `sql/reports` hang together."""

from pathlib import Path

import pytest
from jinja2 import Environment, meta

PARTS = sorted((Path(__file__).parents[2] / "sql" / "reports").glob("*parts.sql"))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_what_a_macro_names_is_its_own_or_another_macro(part: Path) -> None:
    assert meta.find_undeclared_variables(Environment().parse(part.read_text())) == set()
