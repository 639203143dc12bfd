"""A task that waits for a notification can be cancelled while it is woken."""

import asyncio

import pytest

from api.store.engines import Listener


@pytest.mark.parametrize("turns", range(4))
async def test_a_task_that_is_woken_and_cancelled_together_is_cancelled(turns: int) -> None:
    listener = Listener("")
    waiting = asyncio.create_task(listener.wait(60))
    for _ in range(3):
        await asyncio.sleep(0)
    listener.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    in_time = waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() == in_time
