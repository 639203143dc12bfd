"""Beginning to tell, and ending it: the same for every process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.observe.listener import keep_listening
from api.observe.process import Process
from api.observe.published import folder_in, keep_published
from api.settings import Settings


@asynccontextmanager
async def told(process: Process, settings: Settings) -> AsyncIterator[None]:
    """Publish the numbers of a process until the block ends."""
    folder = folder_in(settings.data_dir)
    tasks = [asyncio.create_task(keep_published(process, folder))]
    if settings.metrics is not None:
        tasks.append(asyncio.create_task(keep_listening(settings.metrics, folder)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
