"""The templates in `sql/reports` are consistent."""

from pathlib import Path

import pytest
from jinja2 import Environment, meta

MACROS = sorted((Path(__file__).parents[2] / "sql" / "reports").glob("*macros.sql"))


@pytest.mark.parametrize("part", MACROS, ids=lambda part: part.stem)
def test_macros_use_only_their_arguments_and_other_macros(part: Path) -> None:
    assert meta.find_undeclared_variables(Environment().parse(part.read_text())) == set()
