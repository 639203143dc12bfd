"""One word per idea: a public class name is used once, and the words in the glossary's column "not" are not used."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \|([^|]*)\|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
UNWANTED = {word: term.strip() for term, words in ROWS for word in re.findall(r"`([^`]+)`", words)}
FOLDERS = ("api", "bench", "docs", "notebooks", "sql", "tests", "workbench")
SUFFIXES = {".py", ".sql", ".md", ".ts", ".tsx", ".html", ".ipynb"}
PAGES = [
    path
    for path in [ROOT / "README.md", *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))]
    if path.suffix in SUFFIXES
    and "node_modules" not in path.parts
    and path.name not in ("glossary.md", "test_glossary.py")
]


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


@pytest.mark.parametrize("word", sorted(UNWANTED))
def test_an_unwanted_word_is_not_used(word: str) -> None:
    # A capitalized word is an old class name, and may begin a sentence of a page.
    pattern = re.compile(rf"\bclass {word}\b" if word[0].isupper() else rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    places = [
        f"{path.relative_to(ROOT)}:{number}: use “{UNWANTED[word]}”"
        for path in PAGES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert places == []
