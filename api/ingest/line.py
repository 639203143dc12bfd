"""Pieces of an import in line: some are begun while those before are on their way, but what others can notice is done in order.

Keys are claimed in order, so that a piece never waits for a key while a piece behind holds one; everything that concerns contacts is
done once the piece before has been stored.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

PATIENCE = 3.0  # seconds for the piece before; Postgres ends a transaction that does nothing for five


class PutOffError(Exception):
    """The piece before was not stored as it was given, or takes long: this one has to be begun again."""


class Place:
    """A piece's place in line, behind that of another piece, if there is one.

    `task`: stores the piece; `claimed`: set once the piece has claimed its keys, or will not.
    """

    def __init__(self, before: "Place | None", store: Callable[["Place"], Coroutine[Any, Any, None]]) -> None:
        self.claimed = asyncio.Event()
        self._before = before
        self.task = asyncio.create_task(store(self))
        self.task.add_done_callback(lambda _: self.claimed.set())

    async def wait_to_claim(self) -> None:
        """Wait until the piece before has claimed its keys."""
        if self._before is not None:
            await self._before.claimed.wait()

    async def wait_to_store(self) -> None:
        """Wait until the piece before has been stored; raise PutOffError."""
        before, self._before = self._before, None  # else all that ever were are kept
        if before is not None:
            await asyncio.wait([before.task], timeout=PATIENCE)
            if not before.task.done() or before.task.cancelled() or before.task.exception() is not None:
                raise PutOffError


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, however they do."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
