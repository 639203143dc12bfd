"""Where analysts' queries run: on the primary, or on a standby that has come as far as the primary was when they were asked.

So an answer is never older than its question, whoever wrote what it is about, and a login role that was just made is there. What
takes the standby too long is refused; nothing goes to the primary instead, which the standby is there to keep free.
"""

import asyncio

from api.clock import monotonic_ns
from api.store.database import Database, UnavailableError
from api.store.roles import ReaderError
from api.store.statements import load

_SQL = load("replica")
_PATIENCE_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1


class ReplicaError(ReaderError):
    """The standby is away, too far behind, or none of this primary's; the text is for whoever asks."""


class Source:
    """The database that queries are read from, for one process; `standby` None: the primary itself."""

    def __init__(self, primary: Database, standby: Database | None = None) -> None:
        self._primary = primary
        self._standby = standby

    async def current(self) -> Database:
        """Return the database to ask, once it has everything that was committed by now; raise ReplicaError or UnavailableError."""
        if self._standby is None:
            return self._primary
        async with self._primary.transaction() as tx:
            row = await (await tx.execute(_SQL["written_up_to"])).fetchone()
        assert row is not None
        try:
            await _catch_up(self._standby, *row)
        except UnavailableError as error:
            raise ReplicaError("the read replica cannot be reached; try again") from error
        return self._standby


async def _catch_up(standby: Database, lsn: str, system_identifier: int) -> None:
    since, pause = monotonic_ns(), _FIRST_PAUSE
    while True:
        async with standby.transaction() as tx:
            row = await (await tx.execute(_SQL["replayed_up_to"], {"lsn": lsn})).fetchone()
        assert row is not None
        reached, behind_seconds, cluster = row
        if (behind_seconds is None and reached is None) or cluster != system_identifier:
            raise ReplicaError("WORKBENCH_READ_URL is not a standby of the server in DATABASE_URL")
        if reached:
            return
        if monotonic_ns() - since > _PATIENCE_SECONDS * 1e9:
            behind = "" if behind_seconds is None else f"; its newest transaction is {behind_seconds:.0f} s old"
            raise ReplicaError(f"the read replica is more than {_PATIENCE_SECONDS:g} s behind{behind}; try again")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
