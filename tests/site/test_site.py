"""The site builds without a warning, its links lead to something, and its generated pages have everything.

`make docs` builds it; tests/routes/test_documentation.py and tests/browser/test_site.py look at it through the API.
"""

import json
import re
import resource
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import workbench
from api.__main__ import COMMANDS
from tests.openapi.conftest import OPERATIONS
from workbench.magic import TABLES

ROOT = Path(__file__).parents[2]
MAX_CPU_S = 60


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; building it is a test of its own sources."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < MAX_CPU_S
    return folder


class Parsed(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.links += [values[name] for name in ("href", "src") if name in values and tag != "link"]
        if tag == "link" and values.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(values["href"])
        elif "src" in values and not values["src"].startswith("data:"):
            self.loaded.append(values["src"])


parsed = cache(Parsed)


def test_every_link_leads_to_a_file_and_an_anchor_of_the_site(site: Path) -> None:
    dead = []
    for page in sorted(site.rglob("*.html")):
        for link in parsed(page).links:
            target = urlsplit(link)
            if target.scheme or target.path.startswith("/") or page.name == "404.html":
                continue
            file = (page.parent / unquote(target.path)).resolve() if target.path else page
            file = file / "index.html" if file.is_dir() else file
            is_page = file.suffix == ".html" and file.is_file()
            if not file.is_file() or (
                is_page and target.fragment and unquote(target.fragment) not in parsed(file).anchors
            ):
                dead.append((str(page.relative_to(site)), link))
    assert dead == []


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = {link for page in site.rglob("*.html") for link in parsed(page).loaded}
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert len(loaded) > 5
    assert [link for link in loaded if urlsplit(link).netloc] == []
    assert re.findall(r"url\([\"']?https?:[^)]*\)|@import", styles) == []


def test_generated_pages_have_everything(site: Path) -> None:
    http, sql = ((site / "reference" / f"{page}.html").read_text("utf-8") for page in ("http", "sql"))
    commands = parsed(site / "reference" / "cli.html").anchors
    document = json.loads((site / "reference" / "openapi.js").read_text("utf-8").partition(" = ")[2].rstrip(";\n"))
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert sorted(operation["operationId"] for operation in operations) == sorted(OPERATIONS)
    assert [path for path in document["paths"] if f"<code>{path}</code>" not in http] == []
    python = {anchor.rpartition(".")[2] for anchor in parsed(site / "reference" / "python.html").anchors}
    assert set(workbench.__all__) - {"__version__"} <= python
    assert {"simulate", "send_email", "sql", "track"} <= python
    headings = re.sub(r'<a class="headerlink.*?</a>', "", sql)
    assert [view for view in TABLES if f"<code>{view}</code></h2>" not in headings] == []
    assert {f"workbench-{name}" for name in COMMANDS} | {
        "workbench-key-create",
        "workbench-automations-plan",
    } <= commands


def test_every_page_of_the_navigation_is_listed_under_its_name(site: Path) -> None:
    names = re.findall(r"^ {6,}- ([^:\n]+): \S+\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    listed = re.findall(
        r'class="md-nav__link[^>]*>\s*<span class="md-ellipsis">\s*(.+?)\s*<', (site / "index.html").read_text("utf-8")
    )
    assert (len(names) > 40, set(names) - set(listed)) == (True, set())


def test_pages_lead_to_the_references_that_are_generated_from_the_code(site: Path) -> None:
    names = ("api", "sql", "notebooks", "operations")
    articles = [(site / f"{name}.html").read_text("utf-8").partition("<article")[2] for name in names]
    targets = re.findall(r'<a href="reference/(\w+)\.html', "".join(articles))
    assert set(targets) == {"http", "python", "sql", "errors", "cli"}


@pytest.mark.parametrize(
    "message",
    [
        "Content-Type must be application/json",
        "the package jupyterlab is missing",
        "could not connect",
        "Write it like this",
    ],
)
def test_an_error_is_found_by_its_words(site: Path, message: str) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    assert any(message in entry["title"] for entry in index["docs"] if entry["location"].startswith("reference/errors"))


def test_every_notebook_is_shown_with_its_outputs(site: Path) -> None:
    first = (site / "notebooks" / "01_first_automation.html").read_text("utf-8")
    assert "data:image/svg+xml;base64," in first
    assert 'class="notebook-output" id="output-0"></div>' not in first
    gallery = parsed(site / "notebooks" / "index.html").links
    assert {f"{path.stem}.html" for path in (ROOT / "notebooks").glob("*.ipynb")} <= set(gallery)
