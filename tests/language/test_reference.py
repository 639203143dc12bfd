"""docs/automation-language.md names every node kind, outcome and setting of the language."""

import json
import re
from pathlib import Path

import pytest

from workbench.language.actions import NODE_KINDS
from workbench.language.graph import AutomationSettings, read_settings

PAGE = (Path(__file__).parents[2] / "docs" / "automation-language.md").read_text()
LANGUAGE = Path(__file__).parents[2] / "workbench" / "language"


@pytest.mark.parametrize("kind", NODE_KINDS)
def test_every_node_kind_is_documented(kind: str) -> None:
    assert re.search(rf"^\| .*`{kind}`", PAGE, re.MULTILINE)


def test_every_outcome_is_documented() -> None:
    source = "".join((LANGUAGE / name).read_text() for name in ("nodes.py", "advance.py", "decision.py"))
    outcomes = set(re.findall(r'record_step\(ctx, "(\w+)"', source))
    causes = set(re.findall(r'(?:fail_permanently\(ctx|Failure)\(?, ?"(\w+)"', source)) - {
        "attempts_exhausted",
        "loop",
        "node_invalid",
    }
    assert len(outcomes) > 14
    assert {word for word in outcomes | causes if f"`{word}`" not in PAGE} == set()


def test_the_example_settings_are_valid_and_complete() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    settings = read_settings(json.loads(example), "settings")
    assert settings.problems == ()
    assert all(
        getattr(settings, name) != getattr(AutomationSettings(), name)
        for name in AutomationSettings.__struct_fields__
        if name not in ("problems", "preview_locale", "organization_timezone")  # no settings
    )
