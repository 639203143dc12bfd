"""How late the engines are, as an API process knows it: from the sign of life that the last of them gave."""

import math

from api.chores import every
from api.clock import Clock
from api.store.database import Database
from api.store.health import Beat, last_beat

EVERY_SECONDS = 5.0


class Lag:
    """The last sign of life. It grows older by itself, so that an engine that stopped shows."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._beat: Beat | None = None

    async def keep(self) -> None:
        """Look every few seconds, until cancelled."""
        await every(EVERY_SECONDS, "lag", self._look)

    def silent_seconds(self) -> float:
        """Return for how long no engine has been heard of; NaN when none ever was."""
        return math.nan if self._beat is None else (self._clock.now() - self._beat.seen_at).total_seconds()

    def seconds(self) -> float:
        """Return how late the oldest due entry is that is known of; 0 when none is."""
        return 0.0 if self._beat is None else self._beat.lag_seconds(self._clock.now())

    async def _look(self) -> None:
        async with self._database.transaction() as tx:
            self._beat = await last_beat(tx)
