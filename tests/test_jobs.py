"""A job waits while the database is unavailable and survives its bugs."""

import asyncio
import logging

import pytest

from api import jobs
from api.jobs import every, one_by_one
from api.store.database import DatabaseUnavailableError, TransactionConflictError


@pytest.mark.parametrize(
    "error", [DatabaseUnavailableError("away"), TransactionConflictError("lost"), ValueError("a bug")]
)
async def test_a_job_that_fails_is_done_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jobs, "UNAVAILABLE_PAUSE_S", 0.01)
    tries, done = [0], asyncio.Event()

    async def job() -> None:
        tries[0] += 1
        if tries[0] == 1:
            raise error
        done.set()

    with caplog.at_level(logging.INFO, "workbench.jobs"):
        task = asyncio.create_task(every(0.01, "sweep", job))
        async with asyncio.timeout(10):
            await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    (first, *_) = caplog.records
    assert (first.message, vars(first)["job"]) == (
        "job_failed" if isinstance(error, ValueError) else "job_delayed",
        "sweep",
    )


async def test_a_bug_that_one_item_wakes_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        if item == 2:
            raise ValueError("a bug")
        done.append(item)

    await one_by_one("sweep", [1, 2, 3], work)
    assert done == [1, 3]
    assert [each.message for each in caplog.records] == ["job_failed"]


async def test_a_database_that_is_away_stops_them_all() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        done.append(item)
        raise DatabaseUnavailableError("away")

    with pytest.raises(DatabaseUnavailableError):
        await one_by_one("sweep", [1, 2, 3], work)
    assert done == [1]
