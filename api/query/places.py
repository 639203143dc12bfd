"""Places for work that takes long: few of an organization at a time and few in all; who finds none waits briefly and is then refused."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from api.store.reading import BusyError


class Places(msgspec.Struct, frozen=True):
    """How many queries run at once in this process, and how long another waits for one to end."""

    of_organization: int = 3
    in_all: int = 24
    wait_seconds: float = 5.0


class Turns:
    """Who has a place, and who waits for one."""

    def __init__(self, places: Places | None = None) -> None:
        self._places = places or Places()
        self._all = asyncio.Semaphore(self._places.in_all)
        self._of_organization = defaultdict[int, asyncio.Semaphore](
            lambda: asyncio.Semaphore(self._places.of_organization)
        )

    @asynccontextmanager
    async def of(self, org_id: int) -> AsyncIterator[None]:
        """Hold a place of an organization until the block ends; raise BusyError."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._places.wait_seconds):
                    await held.enter_async_context(self._of_organization[org_id])
                    await held.enter_async_context(self._all)
            except TimeoutError:
                raise BusyError("other queries are still running; try again") from None
            yield
