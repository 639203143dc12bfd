"""Entries left by an interrupted resume or deactivation are completed by the next process."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.automations import automations
from api.automations.entries import recover_entries
from api.store import automations as store_automations
from tests.engine.conftest import EngineBench
from tests.engine.pausing import TAG, WAIT, author, pause, resume, start_waiting


async def pause_entries(bench: EngineBench, events: int) -> str:
    """Publish an automation with this number of paused entries."""
    automation_id = await start_waiting(bench, WAIT, TAG, events=events)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    assert await bench.drive() == events
    return automation_id


class _KilledError(Exception):
    """Ends the process that resumes."""


async def interrupt_resume(bench: EngineBench, automation_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume two entries at a time, and interrupt it after the first two."""
    stretches: list[Any] = []
    resume_entries = store_automations.resume_entries

    async def resume_two(*values: Any) -> tuple[int, str | None]:
        if stretches:
            raise _KilledError
        stretches.append(values)
        return await resume_entries(*values[:-1], 2)

    with monkeypatch.context() as patched:
        patched.setattr(store_automations, "resume_entries", resume_two)
        with pytest.raises(_KilledError):
            await resume(bench, automation_id)


async def test_entries_left_by_an_interrupted_resume_continue_with_the_next_resume(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation_id = await pause_entries(bench, 3)
    await interrupt_resume(bench, automation_id, monkeypatch)
    assert await bench.drive() == 2
    await resume(bench, automation_id)
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")] * 3


async def test_entries_left_by_an_interrupted_resume_continue_without_another(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation_id = await pause_entries(bench, 5)
    await interrupt_resume(bench, automation_id, monkeypatch)
    monkeypatch.setattr(automations, "_RESUME_BATCH", 2)
    results = await asyncio.gather(
        *(recover_entries(bench.database, bench.clock) for _ in range(3)),
        resume(bench, automation_id),
        return_exceptions=True,
    )
    assert results[0] == 1
    assert not [result for result in results if isinstance(result, BaseException)]
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")] * 5
    assert await bench.fetch("SELECT count(*) FROM entry_transitions WHERE from_state = 'paused'") == [(5,)]
    assert await recover_entries(bench.database, bench.clock) == 0


async def test_entries_of_an_automation_that_is_still_paused_stay_paused(bench: EngineBench) -> None:
    await pause_entries(bench, 1)
    assert await recover_entries(bench.database, bench.clock) == 0
    assert await bench.entries("state") == [("paused",)]


@pytest.mark.parametrize("stop", [automations.deactivate, automations.archive])
async def test_paused_entries_left_by_an_interrupted_deactivation_are_cancelled(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch, stop: Any
) -> None:
    automation_id = await pause_entries(bench, 3)
    batches: list[Any] = []
    cancel_entries = store_automations.cancel_entries

    async def cancel_one_batch(*values: Any) -> tuple[int, str | None]:
        if batches:
            raise _KilledError
        batches.append(values)
        return await cancel_entries(*values[:6], 2)

    with monkeypatch.context() as patched:
        patched.setattr(store_automations, "cancel_entries", cancel_one_batch)
        with pytest.raises(_KilledError):
            await stop(bench.database, author(bench), automation_id)
    assert sorted(await bench.entries("state")) == [("cancelled",), ("cancelled",), ("paused",)]
    assert await recover_entries(bench.database, bench.clock) == 1
    assert len(set(await bench.entries())) == 1
