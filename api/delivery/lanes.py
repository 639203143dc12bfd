"""A bound on how many deliveries are under way to one endpoint, so that one that hangs holds only its own lane."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class FullError(Exception):
    """The lane of this endpoint did not move within the patience."""


class _Lane:
    def __init__(self, width: int) -> None:
        self.places = asyncio.Semaphore(width)
        self.present = 0  # in a place or waiting for one


class Lanes:
    """One lane per endpoint, for as long as somebody is in it: `width` at a time, others wait `patience` seconds."""

    def __init__(self, width: int, patience: float) -> None:
        self._width, self._patience = width, patience
        self._lanes: dict[str, _Lane] = {}

    @contextlib.asynccontextmanager
    async def enter(self, endpoint: str) -> AsyncIterator[None]:
        """Take a place until the block ends; raise FullError when none becomes free in time."""
        lane = self._lanes.setdefault(endpoint, _Lane(self._width))
        lane.present += 1
        try:
            await self._wait(lane)
            try:
                yield
            finally:
                lane.places.release()
        finally:
            lane.present -= 1
            if not lane.present:
                del self._lanes[endpoint]

    async def _wait(self, lane: _Lane) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await lane.places.acquire()
        except TimeoutError:
            raise FullError from None
