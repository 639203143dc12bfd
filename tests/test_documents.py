"""What pages and comments name exists: links, anchors, files, folders, tests and clauses of the contract."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "actions").rglob("*.md"),
    ROOT / "clients/node/README.md",
]
PLACE = re.compile(
    r"`((?:actions|api|bench|clients|docker|docs|notebooks|packaging|sql|tests|tools|workbench|\.ci)/[\w./-]*)`"
)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
TEST = re.compile(r"\b(tests/[\w/]+\.py)(?:::(\w+))?")
CLAUSE = re.compile(r"contract(?:\.md)?,? ((?:\d\.\d+(?:\.\d+)?(?:, | and | to )?)+)")
SOURCES = [
    path
    for folder in ("api", "bench", "sql", "tests", "tools", "workbench")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".sql"} and "node_modules" not in path.parts
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [place for place in PLACE.findall(text) if not (ROOT / place).exists()] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_of_a_page_exist(page: Path) -> None:
    links = [(file, anchor) for file, anchor in ANCHOR.findall(page.read_text()) if "://" not in file]
    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []


def test_the_image_builds_the_site_with_every_file_that_pages_link_to() -> None:
    stage = (ROOT / "Dockerfile").read_text().partition(" AS site\n")[2].partition("\nFROM ")[0]
    copied = {place for line in re.findall(r"^COPY (?!--)(.+) \S+$", stage, re.MULTILINE) for place in line.split()}
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert "tests" in ignored
    assert "tests/mutants/README.md" in copied
    missing = []
    for page in [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in LINK.findall(page.read_text()):
            if "://" in link or link.startswith("mailto:"):
                continue
            path = (page.parent / link).resolve().relative_to(ROOT)
            places = {str(place) for place in (path, *path.parents)}
            if not places & copied or (places & {*ignored} and f"!{path}" not in ignored):
                missing.append((page.name, str(path)))
    assert missing == []


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_decisions_are_listed_once_in_their_order() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| (\d+) \| \[.*\]\((.*)\)", (folder / "README.md").read_text(), re.MULTILINE)
    files = sorted(path.name for path in folder.glob("0*.md"))
    assert listed == [(str(int(name[:4])), name) for name in files]


def test_named_tests_exist() -> None:
    named = {test for path in [*PAGES, *SOURCES] for test in TEST.findall(path.read_text())}
    assert len(named) > 5
    missing = [(file, name) for file, name in sorted(named) if not (ROOT / file).exists()]
    assert missing + [(file, name) for file, name in sorted(named) if name and name not in functions(file)] == []


def test_cited_clauses_of_the_contract_exist() -> None:
    clauses, section = set[str](), ""
    for line in (ROOT / "docs" / "contract.md").read_text().splitlines():
        if heading := re.match(r"#+ (\d[\d.]*)", line):
            section = heading[1]
            clauses.add(section)
        elif item := re.match(r"(\d+)\. ", line):
            clauses.add(f"{section}.{item[1]}")
    cited = {
        (str(path.relative_to(ROOT)), clause)
        for path in [*PAGES, *SOURCES]
        for clauses_named in CLAUSE.findall(path.read_text())
        for clause in re.findall(r"\d[\d.]*\d", clauses_named)
    }
    assert len(cited) > 20
    assert {(path, clause) for path, clause in cited if clause not in clauses} == set()
