"""Work beside the requests, done again and again: put off while the database is away, and not given up for a bug."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from api.store.database import ConflictError, UnavailableError

AWAY_SECONDS = 5.0

_log = logging.getLogger("workbench.chores")

Item = TypeVar("Item")


async def every(seconds: float, name: str, chore: Callable[[], Awaitable[object]]) -> None:
    """Do a chore now and so often, until cancelled."""
    while True:
        try:
            await chore()
        except (UnavailableError, ConflictError) as error:
            _log.info("chore_delayed", extra={"chore": name, "reason": str(error)})
            await asyncio.sleep(min(seconds, AWAY_SECONDS))
            continue
        except Exception:  # noqa: BLE001  one chore that fails must not end the others
            _log.exception("chore_failed", extra={"chore": name})
        await asyncio.sleep(seconds)


async def one_by_one(name: str, items: Iterable[Item], work: Callable[[Item], Awaitable[object]]) -> None:
    """Do a part of a chore for each item; a bug that one wakes does not stop the others."""
    for item in items:
        try:
            await work(item)
        except (UnavailableError, ConflictError):
            raise
        except Exception:  # noqa: BLE001  the edge of one item
            _log.exception("chore_failed", extra={"chore": name, "item": repr(item)})
