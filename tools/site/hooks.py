"""The hooks of MkDocs that `mkdocs.yml` names. They add generated pages, and translate links of the repository.

The sources in `docs` are also read on their own, so their links lead to files of the repository. A link to a page of
the site becomes a link between pages, a link to code whose reference is generated a link to that, and a link to any
other file plain text.
"""

import posixpath
import re
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site import notebooks, reference

ROOT = Path(__file__).parents[2]
_ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "actions/plan/README.md")
_REFERENCES = {
    "api/openapi/document.py": "reference/http.md",
    "workbench/__init__.py": "reference/python.md",
    "sql/schema.sql": "reference/sql.md",
    "api/cli/errors.py": "reference/errors.md",
    "api/__main__.py": "reference/cli.md",
}
_FOUND_LAST = ("CHANGELOG.md", "CONTRIBUTING.md", "extending.md", "trust.md")  # in a search, after the pages for users
_LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the notebooks into the navigation."""
    assert config.nav is not None
    config.nav = [{"Notebooks": notebooks.navigation()} if "Notebooks" in part else part for part in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the pages at the top of the repository."""
    generated: dict[str, str | bytes] = {name: (ROOT / name).read_text("utf-8") for name in _ROOT_PAGES}
    generated |= reference.files() | {name: page.markdown for name, page in _notebook_pages().items()}
    for name, content in generated.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate the links of the repository to links between pages."""
    uri = page.file.src_uri
    if uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}  # they would come before the pages for users
    elif uri in _FOUND_LAST:
        page.meta["search"] = {"boost": 0.3}
    is_elsewhere = uri in _ROOT_PAGES or uri.startswith("notebooks/")
    folder = posixpath.dirname(uri if is_elsewhere else f"docs/{uri}")

    def translate(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.groups(default="")
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        name = _site_name(path)
        if files.get_file_from_path(name) is None:
            return text if (ROOT / path).exists() else link[0]  # MkDocs reports a file that does not exist
        return f"{picture}[{text}]({posixpath.relpath(name, posixpath.dirname(uri) or '.')}{anchor})"

    parts = _CODE.split(markdown)  # at odd places: code
    return "".join(part if number % 2 else _LINK.sub(translate, part) for number, part in enumerate(parts))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the outputs of a notebook into its page."""
    notebook = _notebook_pages().get(page.file.src_uri)
    return html if notebook is None else notebook.with_outputs(html)


def _site_name(path: str) -> str:
    """Return the name within the site of a path within the repository."""
    if path == "README.md":
        return path  # the home page
    path = _REFERENCES.get(path, path)
    path = re.sub(r"^notebooks/(\w+)\.ipynb$", r"docs/notebooks/\1.md", path)
    return path.removeprefix("docs/")


@cache
def _notebook_pages() -> dict[str, notebooks.NotebookPage]:
    return notebooks.pages()
