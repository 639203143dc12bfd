"""The event loop of every process of ours: uvloop, which Sanic brings along where there is one for the platform."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None
try:
    from uvloop import new_event_loop as _new_loop
except ImportError:  # Windows, PyPy
    _new_loop = None


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the main coroutine of a process to its end, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)
