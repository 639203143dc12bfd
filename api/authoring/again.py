"""Trying a unit of work again that lost against another transaction (a deadlock with an engine's batch, say)."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from api.store.database import ConflictError

_TRIES = 5

_P = ParamSpec("_P")
_T = TypeVar("_T")


def retried(unit: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T]]:
    """Run a whole unit of work up to five times; the last ConflictError is the caller's."""

    @wraps(unit)
    async def again(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for _ in range(_TRIES - 1):
            try:
                return await unit(*args, **kwargs)
            except ConflictError:
                continue
        return await unit(*args, **kwargs)

    return again
