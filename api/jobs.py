"""Jobs: background work that a process repeats. A run that fails does not end its job: the next run follows."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from api.store.database import DatabaseUnavailableError, TooSlowError, TransactionConflictError

UNAVAILABLE_PAUSE_S = 5.0

_log = logging.getLogger("workbench.jobs")

Item = TypeVar("Item")


async def every(seconds: float, name: str, job: Callable[[], Awaitable[object]]) -> None:
    """Run a job now and every `seconds` seconds, until cancelled."""
    while True:
        try:
            await job()
        except (DatabaseUnavailableError, TransactionConflictError) as error:
            _log.info("job_delayed", extra={"job": name, "reason": str(error)})
            await asyncio.sleep(min(seconds, UNAVAILABLE_PAUSE_S))  # soon, even if the job is hourly
            continue
        except Exception:  # noqa: BLE001  one job that fails must not end the others
            _log.exception("job_failed", extra={"job": name})
        await asyncio.sleep(seconds)


async def one_by_one(name: str, items: Iterable[Item], work: Callable[[Item], Awaitable[object]]) -> None:
    """Run one part of a job for each item; an exception in one part does not stop the others."""
    for item in items:
        try:
            await work(item)
        except Exception as error:
            concerns_all = isinstance(error, DatabaseUnavailableError | TransactionConflictError)
            if concerns_all and not isinstance(error, TooSlowError):
                raise
            _log.exception("job_failed", extra={"job": name, "item": repr(item)})
