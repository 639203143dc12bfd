"""How late engines and followers of chains are, as an API process knows it: from the last signs of life that they gave."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from api.chores import every
from api.clock import Clock
from api.store.database import Database
from api.store.health import Beat, last_beat
from api.store.logs import ChainRow, count_dead_logs, list_chains

EVERY_SECONDS = 5.0
BLIND_SECONDS = 15.0


class Lag:
    """The last signs of life. They grow older by themselves, so that what stopped shows."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._beat: Beat | None = None
        self._looked_at: datetime | None = None
        self.chains: Sequence[ChainRow] = ()
        self.dead_logs: Mapping[int, int] = {}

    async def keep(self) -> None:
        """Look every few seconds, until cancelled."""
        await every(EVERY_SECONDS, "lag", self._look)

    def silent_seconds(self) -> float:
        """Return for how long no engine has been heard of; NaN when none ever was."""
        return math.nan if self._beat is None else (self._clock.now() - self._beat.seen_at).total_seconds()

    def seconds(self) -> float:
        """Return how late the oldest due entry is that is known of; 0 when none is."""
        return 0.0 if self._beat is None else self._beat.lag_seconds(self._clock.now())

    def since(self, moment: datetime) -> float:
        """Return how many seconds ago that was."""
        return max((self._clock.now() - moment).total_seconds(), 0.0)

    def is_blind(self) -> bool:
        """Return whether nobody looked for so long that all this may be wrong."""
        return self._looked_at is None or self.since(self._looked_at) > BLIND_SECONDS

    async def _look(self) -> None:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            self._beat = await last_beat(tx)
            self.chains, self.dead_logs = await list_chains(tx, now), await count_dead_logs(tx)
        self._looked_at = now
