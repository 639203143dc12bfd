"""A job waits while the database is unavailable and survives its bugs."""

import asyncio
import logging

import pytest

from api import jobs
from api.jobs import every, one_by_one
from api.store.database import DatabaseUnavailableError, TooSlowError, TransactionConflictError


@pytest.mark.parametrize(
    "error", [DatabaseUnavailableError("away"), TransactionConflictError("lost"), ValueError("a bug")]
)
async def test_a_failed_job_runs_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jobs, "UNAVAILABLE_PAUSE_S", 0.01)
    tries, finished = [0], asyncio.Event()

    async def job() -> None:
        tries[0] += 1
        if tries[0] == 1:
            raise error
        finished.set()

    with caplog.at_level(logging.INFO, "workbench.jobs"):
        task = asyncio.create_task(every(0.01, "sweep", job))
        async with asyncio.timeout(10):
            await finished.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    (first, *_) = caplog.records
    assert (first.message, vars(first)["job"]) == (
        "job_failed" if isinstance(error, ValueError) else "job_delayed",
        "sweep",
    )


@pytest.mark.parametrize("error", [ValueError("a bug"), TooSlowError("canceling statement due to statement timeout")])
async def test_an_item_that_fails_does_not_stop_the_others(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    finished: list[int] = []

    async def work(item: int) -> None:
        if item == 2:
            raise error
        finished.append(item)

    await one_by_one("sweep", [1, 2, 3], work)
    assert finished == [1, 3]
    assert [record.message for record in caplog.records] == ["job_failed"]


async def test_an_unavailable_database_stops_all_items() -> None:
    finished: list[int] = []

    async def work(item: int) -> None:
        finished.append(item)
        raise DatabaseUnavailableError("away")

    with pytest.raises(DatabaseUnavailableError):
        await one_by_one("sweep", [1, 2, 3], work)
    assert finished == [1]
