"""One line that changes while something is awaited: an output area in Jupyter, nothing elsewhere."""

import sys
from typing import Any

from workbench.display.page import html


class Progress:
    """A line of text with a coloured state. Outside a notebook it says nothing."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, state: str, look: str, share: float | None = None) -> None:
        """Show or replace the line; `share` is how much is done (0 to 1), shown as a bar."""
        ipython = sys.modules.get("IPython")
        if ipython is None or ipython.get_ipython() is None:
            return
        bundle = {
            "text/plain": f"{text} [{state}]",
            "text/html": html("line.html.j2", text=text, state=state, look=look, note="", block="", share=share),
        }
        if self._handle is None:
            self._handle = ipython.display.display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
