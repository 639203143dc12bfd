"""The reference in the documentation names everything that the language knows."""

import json
import re
from pathlib import Path

import pytest

from api.language.action import KINDS
from api.language.settings import Settings, read_settings

PAGE = (Path(__file__).parents[2] / "docs" / "automation-language.md").read_text()
LANGUAGE = Path(__file__).parents[2] / "api" / "language"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_node_is_in_the_table(kind: str) -> None:
    assert re.search(rf"^\| .*`{kind}`", PAGE, re.MULTILINE)


def test_every_word_for_what_happened_is_explained() -> None:
    source = (
        (LANGUAGE / "moves.py").read_text()
        + (LANGUAGE / "advance.py").read_text()
        + (LANGUAGE / "decision.py").read_text()
    )
    outcomes = set(re.findall(r'told\(here, "(\w+)"', source))
    causes = set(re.findall(r'(?:die\(here|Failure)\(?, ?"(\w+)"', source)) - {
        "attempts_exhausted",
        "loop",
        "node_invalid",
    }
    assert len(outcomes) > 14
    assert {word for word in outcomes | causes if f"`{word}`" not in PAGE} == set()


def test_the_example_of_settings_is_valid_and_whole() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    found = read_settings(json.loads(example), "settings")
    assert found.problems == ()
    assert all(
        getattr(found, name) != getattr(Settings(), name) for name in Settings.__struct_fields__ if name != "problems"
    )
