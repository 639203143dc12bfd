"""One word per idea: a public class name is used once, and the words in the glossary's column "not" are not used."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.notebooks.execution import without_outputs

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \|([^|]*)\|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
UNWANTED = {word: term.strip() for term, words in ROWS for word in re.findall(r"`([^`]+)`", words)}
FOLDERS = (
    ".ci",
    "actions",
    "api",
    "bench",
    "clients",
    "docker",
    "docs",
    "notebooks",
    "packaging",
    "sql",
    "tests",
    "tools",
    "workbench",
)
SUFFIXES = {".css", ".html", ".ipynb", ".j2", ".js", ".md", ".py", ".sh", ".sql", ".toml", ".ts", ".tsx", ".yml"}
# The glossary and the tool that looks for these words name them; `canvas.js` is built, and holds words of libraries.
EXEMPT = {"glossary.md", "test_glossary.py", "readability.py", "canvas.js"}
PAGES = [
    path
    for path in [
        *(path for path in ROOT.iterdir() if path.name != "CHANGELOG.md"),  # it names what was renamed
        *(path for name in FOLDERS for path in (ROOT / name).rglob("*")),
    ]
    if path.suffix in SUFFIXES and path.name not in EXEMPT and not {"node_modules", "dist"} & set(path.parts)
]


def text_of(path: Path) -> str:
    """Return the text of a file; of a notebook without outputs, which contain encoded pictures and data."""
    text = path.read_text("utf-8")
    return without_outputs(text) if path.suffix == ".ipynb" else text


@cache
def lines() -> list[tuple[str, str]]:
    """Return all lines with their places. Not at import: every worker of xdist imports this file."""
    placed = []
    for path in sorted(PAGES):
        name = path.relative_to(ROOT)
        placed += [(f"{name}:{number}", line) for number, line in enumerate(text_of(path).splitlines(), 1)]
    return placed


def test_a_public_class_name_is_used_in_one_module() -> None:
    modules = defaultdict(set)
    for package in ("api", "workbench"):
        for path in (ROOT / package).rglob("*.py"):
            if "node_modules" in path.parts:
                continue
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules[node.name].add(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_the_glossary_lists_unwanted_words() -> None:
    assert len(ROWS) >= 30
    assert UNWANTED["stint"] == "activation"


def pattern(word: str) -> re.Pattern[str]:
    """Match a lower-case word alone and as a part of an identifier, and a capitalized one as a class or a constant.

    A capitalized word is the name of an old class. It may begin a sentence.
    """
    if word[0].isupper():
        return re.compile(rf"\bclass _?{word}\b|\b_?{word}\(|\b_?{word.upper()}\b")
    return re.compile(rf"(?<![a-z]){word}(?![a-z])|(?<![A-Za-z]){word}(?=[A-Z])|{word.capitalize()}(?![a-z])")


@pytest.mark.parametrize("word", sorted(UNWANTED))
def test_an_unwanted_word_is_not_used(word: str) -> None:
    unwanted = pattern(word)
    assert [f"{place}: use “{UNWANTED[word]}”" for place, line in lines() if unwanted.search(line)] == []


@pytest.mark.parametrize("line", ["a stint", "stint_id", "lastStint", "class Stint:", "`stints.stint`"])
def test_a_word_is_recognized_in_identifiers(line: str) -> None:
    assert pattern("stint").search(line)


@pytest.mark.parametrize("line", ["Why did it not start?", "The why of it", "stinting", "constraint"])
def test_a_similar_word_is_not(line: str) -> None:
    assert not pattern("stint").search(line)
    assert not pattern("Why").search(line)
