"""How far an import is: a bar in a terminal, a line every few seconds elsewhere; both on stderr.

The bar's line is as long as the terminal is wide, and has no colours: a cell of a notebook puts a new line over the old one, and leaves
what of that is longer, escape codes counted.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from api.clock import monotonic_ns
from api.commands.terminal import note

if TYPE_CHECKING:
    from rich.progress import Progress

    from api.ingest.history import Status

_EVERY = 5.0  # seconds between lines
_LATELY = 10.0  # seconds over which a speed is taken


class Shown(Protocol):
    """Shows how far an import is; `begun`: whether it has said anything."""

    begun: bool

    def __call__(self, status: "Status") -> None:
        """Show a new status."""

    def stop(self) -> None:
        """Leave the terminal as it was."""


@contextmanager
def shown() -> Iterator[Shown]:
    """Give what shows the progress here."""
    progress: Shown = _Bar() if sys.stderr.isatty() else _Lines()
    try:
        yield progress
    finally:
        progress.stop()


class _Speed:
    """Rows per second, and the seconds that are left, by the last ten seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, float]] = [(monotonic_ns() / 1e9, 0, 0.0)]

    def of(self, status: "Status") -> tuple[float, float | None]:
        now, rows = monotonic_ns() / 1e9, status.report.read
        self._seen.append((now, rows, status.share))
        while len(self._seen) > 2 and self._seen[1][0] < now - _LATELY:
            self._seen.pop(0)
        then, rows_then, share_then = self._seen[0]
        seconds, share = max(now - then, 1e-9), status.share - share_then
        return (rows - rows_then) / seconds, (1 - status.share) * seconds / share if share > 0 else None


class _Lines:
    """Plain lines, for logs."""

    def __init__(self) -> None:
        self.begun = False
        self._speed, self._last = _Speed(), monotonic_ns() / 1e9

    def __call__(self, status: "Status") -> None:
        self.begun = True
        speed, left = self._speed.of(status)
        if monotonic_ns() / 1e9 - self._last >= _EVERY:
            self._last = monotonic_ns() / 1e9
            note(f"{status.share:4.0%}  {_counts(status, speed)}" + ("" if left is None else f", {left:,.0f} s left"))

    def stop(self) -> None:
        """Nothing is to be done."""


class _Bar:
    """A bar of rich's."""

    def __init__(self) -> None:
        self.begun = False
        self._speed = _Speed()
        self._bar: Progress | None = None

    def __call__(self, status: "Status") -> None:
        self.begun = True
        if self._bar is None:
            self._bar = _made_bar()
            self._bar.start()
            self._bar.add_task("", total=1.0, counts="", left="")
        speed, left = self._speed.of(status)
        self._bar.update(
            self._bar.task_ids[0],
            completed=status.share,
            description=status.file,
            counts=_counts(status, speed),
            left="" if left is None or status.share >= 1 else f"{left:,.0f} s left",
        )

    def stop(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()


def _made_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[counts]}"),
        TextColumn("{task.fields[left]}", table_column=Column(ratio=1, no_wrap=True, overflow="crop")),
        console=Console(stderr=True, color_system=None),
        expand=True,
    )


def _counts(status: "Status", speed: float) -> str:
    report = status.report
    others = [
        f"{count:,} {word}"
        for count, word in ((report.duplicates, "duplicates"), (report.rejected, "rejected"))
        if count
    ]
    return ", ".join([f"{report.stored:,} stored", *others, f"{speed:,.0f} rows/s"])
