"""Finding the logs of a page that the database refuses, so that they hold up nobody: by halves, each tried and undone."""

from collections.abc import Awaitable, Callable, Sequence, Set

from api.chain.sightings import Place
from api.store.database import RefusedDataError

Trial = Callable[[Set[Place]], Awaitable[None]]
"""Stores some logs and undoes it; raises RefusedDataError."""


async def refused_among(places: Sequence[Place], trial: Trial) -> dict[Place, str]:
    """Return those that are refused, each with what it breaks; raise RefusedDataError when the page is refused without any of them."""
    await trial(frozenset())
    return await _refused(places, trial)


async def _refused(places: Sequence[Place], trial: Trial) -> dict[Place, str]:
    try:
        await trial(frozenset(places))
    except RefusedDataError as error:
        if len(places) == 1:
            return {places[0]: str(error)}
        middle = len(places) // 2
        return await _refused(places[:middle], trial) | await _refused(places[middle:], trial)
    return {}
