"""Every notebook that we ship runs from top to bottom, twice, and shows what its text promises."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.running import Running

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
pytestmark = pytest.mark.filterwarnings(
    "default::ResourceWarning", "default::DeprecationWarning"
)  # of the Jupyter client


def execute(path: Path, running: Running, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Run a notebook and return what each cell showed, as text and HTML, by the cell's id."""
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(path, 4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(running.folder)}}
    ).execute()
    return {cell.id: "\n".join(map(shown, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"}


def shown(output: nbformat.NotebookNode) -> str:
    pictures = output.get("data", {})
    return output.get("text", "") + pictures.get("text/plain", "") + pictures.get("text/html", "")


def test_the_first_automation_runs_twice_and_shows_what_it_says(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = NOTEBOOKS / "01_first_automation.ipynb"
    first, again = (execute(path, running, monkeypatch) for _ in range(2))
    for cells in (first, again):
        assert "connected" in cells["connect"]
        assert "deposit" in cells["catalog"]
        assert "amountUsd" in cells["deposit"]
        assert "first_deposits" in cells["sql"]
        assert "data:image/svg+xml;base64," in cells["write"]
        assert "Your USDC are here" in cells["sample"]
        assert "Welcome aboard!" in cells["simulate-other"]
        assert "a text, and true is a yes/no value" in cells["simulate-miss"]
        assert "published, version 1" in cells["publish"]
        assert "Accepted." in cells["send"]
        assert "Completed." in cells["watch"]
        assert "250 USD have arrived. With pro you trade without fees" in cells["watch"]
        assert "$WORKBENCH_EVENTS_KEY" in cells["curl"]
        assert "accepted" in cells["curl-run"].lower()
        assert "Welcome aboard!" in cells["curl-watch"]
        assert "0xc0ffee" in cells["messages"]
        assert "completed" in cells["entries"]
    assert "published, version 1, active" in again["write"]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []
