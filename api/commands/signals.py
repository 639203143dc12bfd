"""Ctrl-C and SIGTERM for `workbench up`: the first one breaks off whatever is going on, later ones change nothing.

Whatever must not be torn apart, like starting a child and noting it, runs inside `held()`.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """Somebody asked us to stop."""


class Signals:
    """Raises Interrupted once in the main thread; from then on, stopping goes on undisturbed."""

    def __init__(self) -> None:
        self._asked = False
        self._raised = False
        self._holding = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen for SIGINT, SIGTERM and SIGHUP within the block."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, self._hear) for number in numbers]
        try:
            yield
        finally:
            for number, old in zip(numbers, before, strict=True):
                signal.signal(number, old)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put an interruption off until the block is done."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        self._raise_if_asked()

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if not self._holding:
            self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._asked and not self._raised:
            self._raised = True
            raise Interrupted
