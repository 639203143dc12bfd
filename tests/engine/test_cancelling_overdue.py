"""After a resume that cancels overdue entries, entries that are already claimed take no further step."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.engine import drive
from api.engine.claims import LEASE
from api.engine.progress import advance_slice
from tests.channels.conftest import Endpoint, endpoint, status
from tests.engine.conftest import EngineBench
from tests.engine.pausing import TAG, WAIT, pause, resume, start_waiting
from tests.inapp.wallet import evm_wallet


def hooks(server: Endpoint, *ids: str) -> list[dict[str, Any]]:
    return [{"id": id_, "type": "send_webhook", "data": {"url": server.url(path=f"/{id_}")}} for id_ in ids]


@pytest.mark.parametrize(
    ("answer", "nodes", "entry", "message"),
    [
        (status(200), ("a", "b"), ("cancelled", "overdue"), "sent"),
        (status(500), ("a", "b"), ("cancelled", "overdue"), "skipped"),
        (status(200), ("a",), ("completed", "completed"), "sent"),
        (status(410), ("a",), ("dead", "gone"), "failed"),
    ],
    ids=["it goes no further", "it is not tried again", "it was the last step", "it failed for good"],
)
async def test_an_unfinished_delivery_ends_before_its_next_step_when_overdue_entries_are_cancelled(
    bench: EngineBench, answer: bytes, nodes: tuple[str, ...], entry: tuple[str, str], message: str
) -> None:
    arrived, resumed = asyncio.Event(), asyncio.Event()

    async def after_resume(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await resumed.wait()
        writer.write(answer)

    async with endpoint(after_resume) as server:
        automation_id = await start_waiting(bench, *hooks(server, *nodes), events=0)
        await bench.send("k")
        driving = asyncio.create_task(bench.drive())
        await arrived.wait()
        await pause(bench, automation_id)
        await resume(bench, automation_id, cancel_overdue=True)
        resumed.set()
        await driving
        bench.clock.ahead += timedelta(minutes=1)
        await bench.drive()
        assert len(server.requests) == 1
    assert await bench.entries() == [entry]
    assert await bench.fetch("SELECT status FROM messages") == [(message,)]


async def test_a_claimed_entry_stops_when_overdue_entries_are_cancelled(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    decided, resumed = asyncio.Event(), asyncio.Event()
    loop, advance = asyncio.get_running_loop(), advance_slice

    def after_resume(*values: Any) -> Any:
        batch = advance(*values)
        if not resumed.is_set():
            loop.call_soon_threadsafe(decided.set)
            asyncio.run_coroutine_threadsafe(resumed.wait(), loop).result()
        return batch

    monkeypatch.setattr(drive, "advance_slice", after_resume)
    driving = asyncio.create_task(bench.drive())
    await decided.wait()
    await resume(bench, automation_id, cancel_overdue=True)
    assert await bench.entries("state") == [("running",)]
    resumed.set()
    await driving
    assert await bench.entries() == [("cancelled", "overdue")]
    assert await bench.steps() == ["entered", "waiting"]
    assert await bench.fetch("SELECT tags FROM contacts") == [([],)]


async def test_an_entry_claimed_by_a_killed_worker_is_cancelled_too(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    bench.clock.ahead += timedelta(minutes=2)
    assert len(await bench.driver._claims.take(bench.org_id, "ready", 10)) == 1
    await resume(bench, automation_id, cancel_overdue=True)
    bench.clock.ahead += LEASE
    assert await bench.driver.rescue(bench.org_id, 10) == 1
    await bench.drive()
    assert await bench.entries() == [("cancelled", "overdue")]
    assert await bench.steps() == ["entered", "waiting"]


async def test_entries_after_a_resume_that_cancels_run(bench: EngineBench) -> None:
    automation_id = await start_waiting(bench, WAIT, TAG)
    await pause(bench, automation_id)
    await resume(bench, automation_id, cancel_overdue=True)
    await bench.send("later", {"walletAddress": evm_wallet("9")})
    await bench.drive()
    bench.clock.ahead += timedelta(minutes=2)
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")] * 2
