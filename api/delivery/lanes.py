"""Bounds on how many deliveries are under way, so that an endpoint that hangs holds up no other.

Every organization has a road, on which each of its endpoints has a lane. A delivery takes a place in both. Who finds none
waits for as long as others come and go; where nobody has for the patience, or too many wait, it is told so at once.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec


class FullError(Exception):
    """There was no place, and none became free in time."""


class Bounds(msgspec.Struct, frozen=True):
    """Deliveries at a time to one endpoint and of one organization, and how many may wait for an endpoint as well."""

    lane: int
    road: int
    waiting: int


class _Places:
    def __init__(self, number: int, most: int) -> None:
        self.free = asyncio.Semaphore(number)
        self.most = most
        self.present = 0  # in a place or waiting for one
        self.moved_at = asyncio.get_running_loop().time()  # somebody came in or left


class Lanes:
    """The roads there are, for as long as somebody is on them; `patience` in seconds."""

    def __init__(self, bounds: Bounds, patience: float) -> None:
        self._bounds, self._patience = bounds, patience
        self._taken: dict[tuple[int, str], _Places] = {}

    @contextlib.asynccontextmanager
    async def enter(self, org_id: int, endpoint: str) -> AsyncIterator[None]:
        """Take a place until the block ends; raise FullError."""
        lane, road, waiting = self._bounds.lane, self._bounds.road, self._bounds.waiting
        async with (
            self._place((org_id, endpoint), lane, lane + waiting),
            self._place((org_id, ""), road, road + waiting),
        ):
            yield

    @contextlib.asynccontextmanager
    async def _place(self, name: tuple[int, str], number: int, most: int) -> AsyncIterator[None]:
        places = self._taken.setdefault(name, _Places(number, most))
        places.present += 1
        try:
            await self._wait(places)
            _move(places)
            try:
                yield
            finally:
                _move(places)
                places.free.release()
        finally:
            places.present -= 1
            if not places.present:
                del self._taken[name]

    async def _wait(self, places: _Places) -> None:
        if places.present > places.most:
            raise FullError
        while True:
            since = places.moved_at
            try:
                async with asyncio.timeout_at(since + self._patience):
                    await places.free.acquire()
                    return
            except TimeoutError:
                if places.moved_at == since:
                    raise FullError from None


def _move(places: _Places) -> None:
    places.moved_at = asyncio.get_running_loop().time()
