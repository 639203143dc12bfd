"""The gallery of notebooks: each committed notebook as a page, with its outputs.

The outputs are put into the page after Markdown has been rendered, because HTML in Markdown would be interpreted.
"""

import html
import re
from pathlib import Path
from typing import Any

import msgspec
import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_STYLE = re.compile(r"<style>.*?</style>\s*", re.DOTALL)
_PLACE = '<div class="notebook-output" id="output-{}"></div>'
_PICTURE = re.compile(r'<img src="[^"]*" width="(\d+)" height="(\d+)"[^>]*>')
_MIN_HEIGHT = 60  # pixels; smaller pictures are bars in a table
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class NotebookPage(msgspec.Struct, frozen=True):
    """A notebook as Markdown, with a place for the HTML of each output."""

    title: str
    summary: str
    markdown: str
    outputs: list[str]

    @property
    def picture(self) -> str:
        """The largest picture among the outputs; without one, the first table."""
        pictures = [match for output in self.outputs for match in _PICTURE.finditer(output)]
        largest = max(pictures, key=lambda match: int(match[1]) * int(match[2]), default=None)
        if largest is not None and int(largest[2]) >= _MIN_HEIGHT:
            return largest[0]
        return next((output for output in self.outputs if "<table" in output), "")

    def with_outputs(self, page: str) -> str:
        """Return the HTML of the page with the outputs in their places."""
        for number, output in enumerate(self.outputs):
            place = _PLACE.format(number)
            page = page.replace(place, f"{place.removesuffix('</div>')}{output}</div>")
        return page


def navigation() -> list[str]:
    """Return the gallery and its pages, in order."""
    return ["notebooks/index.md", *(f"notebooks/{path.stem}.md" for path in sorted(NOTEBOOKS.glob("*.ipynb")))]


def pages() -> dict[str, NotebookPage]:
    """Return the gallery and the pages of all notebooks, by their names in the site."""
    notebooks = {path: _page(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    cards = [
        _CARD.format(place=_PLACE.format(number), title=page.title, name=f"{path.stem}.md", summary=page.summary)
        for number, (path, page) in enumerate(notebooks.items())
    ]
    gallery = NotebookPage(
        "Notebooks", "", _GALLERY.format("".join(cards)), [page.picture for page in notebooks.values()]
    )
    return {"notebooks/index.md": gallery} | {f"notebooks/{path.stem}.md": page for path, page in notebooks.items()}


_GALLERY = """\
# Notebooks

Each notebook takes ten minutes or less. The pages show them as they look after a run. To run them, start everything
with `make up` and open the address of JupyterLab. They can be run as often as you like.

<div class="grid notebooks" markdown>
{}
</div>
"""
_CARD = """
<div class="card" markdown>
{place}

**[{title}]({name})**

{summary}

</div>
"""


def _page(path: Path) -> NotebookPage:
    notebook = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    parts, outputs, styles = [], list[str](), set[str]()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        language = "sql" if cell.source.startswith(("%%events", "%%sql")) else "python"
        parts.append(f"```{language}\n{cell.source}\n```")
        for output in cell.outputs:
            shown = _output(output)
            if shown:
                for style in set(_STYLE.findall(shown)) & styles:
                    shown = shown.replace(style, "")
                styles |= set(_STYLE.findall(shown))
                parts.append(_PLACE.format(len(outputs)))
                outputs.append(shown)
    title, _, intro = notebook.cells[0].source.removeprefix("# ").partition("\n")
    return NotebookPage(title, " ".join(intro.strip().split("\n\n")[0].split()), "\n\n".join(parts) + "\n", outputs)


def _output(output: Any) -> str:
    """Return one output as HTML: as HTML or a picture if it has such a form, otherwise as text."""
    data = output.get("data", {})
    if "text/html" in data:
        return str(data["text/html"])
    for media in ("image/png", "image/jpeg"):
        if media in data:
            return f'<img src="data:{media};base64,{data[media].strip()}" alt="">'
    text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", ()))
    return f"<pre>{html.escape(_COLOURS.sub('', text))}</pre>" if text.strip() else ""
