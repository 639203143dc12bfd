"""The committed notebooks are executed, and can be read without a kernel."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.execution import NOTEBOOKS, is_stale, without_outputs

MAX_OUTPUT_BYTES = 100_000
MAX_NOTEBOOK_BYTES = 400_000
OF_ONE_MACHINE = re.compile(
    r"/tmp/tmp|/root/|\.venv/|127\.0\.0\.1:(?!8000\b)|[sp]k_(?:live|test)_\w{20}|wb_\w{20}|widget-view"
)
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_the_outputs_of_its_code(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert not is_stale(notebook), "run: make notebooks"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [(cell.id, output) for cell in cells for output in cell.outputs]
    assert [name for name, output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert [name for name, output in outputs if len(str(output)) > MAX_OUTPUT_BYTES] == []
    assert [name for name, output in outputs if OF_ONE_MACHINE.search(str(output))] == []
    assert "widgets" not in notebook.metadata
    assert path.stat().st_size < MAX_NOTEBOOK_BYTES


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_first_paragraph_of_a_notebook_which_the_gallery_shows_says_how_long_it_takes(path: Path) -> None:
    title, paragraph, *_ = nbformat.read(path, 4).cells[0].source.split("\n\n")
    assert title.startswith("# ")
    assert re.search(r"\b(five|ten)\s+minutes", paragraph, re.IGNORECASE)


def test_other_code_makes_outputs_stale() -> None:
    notebook = nbformat.read(PATHS[0], 4)
    notebook.cells[0].source += " Another text."
    assert not is_stale(notebook)
    next(cell for cell in notebook.cells if cell.cell_type == "code").source += "\n1"
    assert is_stale(notebook)
    assert is_stale(nbformat.v4.new_notebook())


def test_a_notebook_without_outputs_has_the_same_cells() -> None:
    before = nbformat.read(PATHS[0], 4)
    after = nbformat.reads(without_outputs(PATHS[0].read_text()), 4)
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    assert [cell.id for cell in after.cells if cell.get("outputs") or cell.get("execution_count")] == []
