"""What was asked a moment ago is not asked again: one look shows itself in several formats, and completion asks with every key."""

from collections.abc import Callable
from typing import Generic, TypeVar

from workbench import surroundings

_SECONDS = 2.0

T = TypeVar("T")


class Fresh(Generic[T]):
    """An answer that is kept for two seconds, and then asked for anew."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        """Return the answer; raise what asking raises."""
        if self._kept is not None and surroundings.seconds() - self._kept[0] <= _SECONDS:
            return self._kept[1]
        return self.anew()

    def anew(self) -> T:
        """Ask, whatever is kept."""
        answer = self._ask()
        self._kept = surroundings.seconds(), answer
        return answer
