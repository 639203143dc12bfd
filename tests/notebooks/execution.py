"""Notebooks as they are committed: executed, with outputs that need no kernel and are the same on every machine."""

import hashlib
import re
from pathlib import Path
from typing import Any

import nbformat

from tests.running import Running

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
DEFAULT_URL = "http://127.0.0.1:8000"
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours, and movements of the cursor
_DURATION = re.compile(r"(?<=found in )\d+\.\d s\b")
_TEMPORARY = re.compile(r"\btmp/tmp\w{8}\b|(?<=\.\./)tmp\w{8}\b")


def sources_digest(notebook: nbformat.NotebookNode) -> str:
    """Return a hash of the code of a notebook. Its outputs are stale if they come from other code."""
    sources = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def is_stale(notebook: nbformat.NotebookNode) -> bool:
    return bool(notebook.metadata.get("workbench", {}).get("executed") != sources_digest(notebook))


def without_outputs(text: str) -> str:
    """Return the text of a notebook as a user has it before the first run."""
    notebook = nbformat.reads(text, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return str(nbformat.writes(notebook))


def prepare(notebook: nbformat.NotebookNode, running: Running) -> None:
    """Remove what needs the kernel that is gone, how progress was shown, and the address and folders of this run."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["workbench"] = {"executed": sources_digest(notebook)}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            outputs = [output for output in _with_whole_streams(cell.outputs) if _can_be_shown(output)]
            cell.outputs = [_stable(output, running) for output in outputs]


def _with_whole_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join what was printed in parts, as a terminal shows it in the end, without colours."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if joined and "name" in output and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    for output in joined:
        if "name" in output:
            lines = (line.removesuffix("\r").rpartition("\r")[2] for line in output.text.split("\n"))
            output.text = "\n".join(_TERMINAL.sub("", line).rstrip() for line in lines)
    return joined


def _can_be_shown(output: nbformat.NotebookNode) -> bool:
    """Remove the widget of an output; return False if the output has no other form."""
    return output.get("data", {}).pop(_WIDGET_VIEW, None) is None or "text/html" in output.data


def _stable(value: Any, running: Running) -> Any:
    if isinstance(value, str):
        text = value.replace(running.url, DEFAULT_URL).replace(str(running.folder), "/home/you")
        return _TEMPORARY.sub("tmp/notebook", _DURATION.sub("0.1 s", text))
    if isinstance(value, list):
        return [_stable(item, running) for item in value]
    if isinstance(value, dict):
        return nbformat.from_dict({key: _stable(item, running) for key, item in value.items()})
    return value
