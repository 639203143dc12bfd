"""The chore that keeps direct logins within bounds which they cannot lift themselves."""

import logging

from api.chores import every
from api.store.database import Database
from api.store.direct import Bounds, end_excesses

EVERY_SECONDS = 1.0

_log = logging.getLogger("workbench.direct")


async def keep_bounded(database: Database, bounds: Bounds | None = None) -> None:
    """End sessions of direct logins that go too far, until cancelled."""
    chosen = bounds or Bounds()
    await every(EVERY_SECONDS, "direct", lambda: end(database, chosen))


async def end(database: Database, bounds: Bounds) -> None:
    """End the sessions that go too far now."""
    async with database.transaction() as tx:
        ended = await end_excesses(tx, bounds)
    for each in ended:
        _log.warning("direct_session_ended", extra={"role": each.role, "pid": each.pid, "reason": each.reason})
