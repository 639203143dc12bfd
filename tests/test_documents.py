"""Links, files and folders in the documentation exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PLACE = re.compile(r"`((?:api|bench|docker|docs|notebooks|packaging|sql|tests|tools|workbench|\.ci)/[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [place for place in PLACE.findall(text) if not (ROOT / place).exists()] == []
