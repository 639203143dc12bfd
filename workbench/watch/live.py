"""The figures of an automation in a widget: the page asks for them every few seconds, and can have failures tried again."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from workbench import surroundings
from workbench.display.table import Column
from workbench.errors import DraftError
from workbench.watch.figures import Stats


class Live:
    """The live view of one automation. At the end of a cell it shows itself; outside a notebook it prints the figures of now."""

    def __init__(self, read: Callable[[], Stats]) -> None:
        self._read = read

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer the page: `look` wants the figures, `replay` (`cause`) has dead entries tried again first."""
        stats = self._read()
        said = ""
        match question:
            case {"ask": "replay", "cause": str() as cause}:
                said = repr(stats.dead.replay(cause))
                stats = self._read()
            case {"ask": "look"}:
                pass
            case _:
                raise DraftError("the page asks for something else: reload it")
        return {**_shown(stats), "said": said}

    def _ipython_display_(self) -> None:
        stats = self._read()
        if not surroundings.in_kernel():
            sys.stdout.write(f"{stats!r}\n")
            return
        from workbench.display.window import LiveWindow, show

        show(LiveWindow(self.answer), stats._repr_html_())

    def __repr__(self) -> str:
        return repr(self._read())


def _shown(stats: Stats) -> dict[str, Any]:
    """Return what a page shows: texts and numbers."""
    return {
        "title": stats.name,
        "pills": [list(each) for each in stats.pills()],
        "lines": [stats.headline(), *stats.goal.lines()],
        "steps": _table(*stats.table()),
        "dead": _table(*stats.dead.table()),
        "days": _table(*stats.goal.table()),
        "percents": stats.goal.percents(),
        "dates": [each.day.isoformat() for each in stats.goal.by_day if each.treated.contacts],
    }


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a table as a page takes it; `numbers`: the places of the columns that stand right."""
    return {
        "heads": [each.title for each in columns],
        "numbers": [place for place, each in enumerate(columns) if each.number],
        "rows": [[str(cell) for cell in row] for row in rows],
    }
