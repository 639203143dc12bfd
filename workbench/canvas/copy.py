"""The still picture beside a canvas: what is left of it in a saved notebook, without a kernel, in nbconvert and on the web.

The canvas hides it with its style sheet wherever it is drawn itself.
"""

from contextlib import suppress

from IPython.display import HTML, DisplayHandle, display

from workbench.author import Draft
from workbench.canvas.drawn import Drawn
from workbench.errors import WorkbenchError


class Copy:
    """The picture of one automation in one output; shows the draft, and where it stands, as of the last `refresh`."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._shown: object = None

    def show(self, automation: Drawn) -> None:
        """Put the picture into the output of the cell that runs."""
        self._shown = _state(automation)
        self._handle = display(_picture(automation), display_id=True)  # type: ignore[no-untyped-call]  # IPython has no types

    def refresh(self, automation: Drawn) -> None:
        """Put what is there now into the picture; a draft that cannot be read yet waits for the next time."""
        state = _state(automation)
        if self._handle is None or state == self._shown:
            return
        with suppress(WorkbenchError):
            self._handle.update(_picture(automation))  # type: ignore[no-untyped-call]
            self._shown = state


def _state(automation: Drawn) -> tuple[Draft, list[tuple[str, str]]]:
    return automation._draft, automation._pills()


def _picture(automation: Drawn) -> HTML:
    return HTML(f'<div class="ewb-canvas-copy">{automation._repr_html_()}</div>')  # type: ignore[no-untyped-call]
