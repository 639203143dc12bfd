"""Entries left by an interrupted resume or deactivation are completed by the next process."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.automations import automations
from api.automations.entries import recover_entries
from api.store import automations as store_automations
from tests.engine.conftest import Bench
from tests.engine.pausing import TAG, WAIT, author, pause, resume, waiting


async def resting(bench: Bench, events: int) -> str:
    """Let so many entries rest in a paused automation."""
    automation_id = await waiting(bench, WAIT, TAG, events=events)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    assert await bench.drive() == events
    return automation_id


class _KilledError(Exception):
    """The process that resumed ends here."""


async def cut_short(bench: Bench, automation_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume in stretches of two, and be gone after the first."""
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation_id = await resting(bench, 3)
    await cut_short(bench, automation_id, monkeypatch)
    assert await bench.drive() == 2
    await resume(bench, automation_id)
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")] * 3


async def test_entries_left_by_an_interrupted_resume_continue_without_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation_id = await resting(bench, 5)
    await cut_short(bench, automation_id, monkeypatch)
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


async def test_entries_of_an_automation_that_is_still_paused_stay_paused(bench: Bench) -> None:
    await resting(bench, 1)
    assert await recover_entries(bench.database, bench.clock) == 0
    assert await bench.entries("state") == [("paused",)]


@pytest.mark.parametrize("stop", [automations.deactivate, automations.archive])
async def test_paused_entries_left_by_an_interrupted_deactivation_are_cancelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stop: Any
) -> None:
    automation_id = await resting(bench, 3)

    async def killed(*_: Any) -> str | None:
        raise _KilledError

    with monkeypatch.context() as patched:
        patched.setattr(automations, "_CANCEL_BATCH", 2)
        patched.setattr(automations, "_cancel_next", killed)
        with pytest.raises(_KilledError):
            await stop(bench.database, author(bench), automation_id)
    assert sorted(await bench.entries("state")) == [("cancelled",), ("cancelled",), ("paused",)]
    assert await recover_entries(bench.database, bench.clock) == 1
    assert len(set(await bench.entries())) == 1
