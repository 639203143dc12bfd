"""Widgets as thin windows: the page asks, Python answers with what is to be shown, and nothing is kept in the notebook.

What is shown comes from strangers, so it travels as texts and numbers, and the page sets texts as texts, never as HTML. Questions are
answered in a thread of their own where the front end has one (JupyterLab does), also while a cell runs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import anywidget
import IPython.display
from traitlets import Unicode

from workbench.errors import WorkbenchError

Said: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[Said], Said]

_STATIC = Path(__file__).parent.parent / "static"


class _Window(anywidget.AnyWidget):
    """Answers what the page asks: each question has an id, which its answer carries; before it `heard`: the kernel is there."""

    own_id = Unicode("").tag(sync=True)  # by which the page finds the cell that shows it

    def __init__(self, answer: Answer, **traits: Any) -> None:
        self._answer = answer
        super().__init__(**traits)
        self.own_id = str(self.model_id)
        self.on_msg(self._asked)

    def _asked(self, _widget: Any, question: Said, _buffers: Any) -> None:
        self.send({"id": question.get("id"), "heard": True})
        try:
            said = self._answer(question)
        except WorkbenchError as error:
            said = {"error": str(error)}
        except Exception as error:
            self.send({"id": question.get("id"), "error": f"{type(error).__name__}: {error}"})
            raise
        self.send({"id": question.get("id"), **said})


class CatalogWindow(_Window):
    """Events to look for and into, or one of them. Asks `list` (`text`) and `look` (`event`)."""

    event = Unicode("").tag(sync=True)

    _esm = f"{(_STATIC / 'page.js').read_text()}\n{(_STATIC / 'catalog.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'catalog.css').read_text()}"


class TailWindow(_Window):
    """Events as they come. Asks `hello`, and `here` while it is there; is sent `rows`, and `state`."""

    _esm = f"{(_STATIC / 'page.js').read_text()}\n{(_STATIC / 'tail.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'tail.css').read_text()}"


class LiveWindow(_Window):
    """The figures of one automation. Asks `look`, and `replay` (`cause`)."""

    _esm = f"{(_STATIC / 'page.js').read_text()}\n{(_STATIC / 'live.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'live.css').read_text()}"


def show(window: _Window, static: str) -> None:
    """Show a widget, and below it what stands for it in a copy of the notebook, hidden while the widget lives."""
    display: Any = IPython.display  # it has no types
    bundle, metadata = window._repr_mimebundle_() or ({}, {})
    display.display({**bundle, "text/plain": _COPY}, raw=True, metadata=metadata)
    if static:
        display.display(display.HTML(f'<div class="ewb-static">{static}</div>'))


_COPY = "Run this cell for the live view."
