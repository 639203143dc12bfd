"""The process `workbench chain`: a follower for every node."""

import asyncio
import contextlib
import signal
from collections.abc import Sequence

from api.chain.follower import Follower
from api.chain.rpc import Node
from api.chain.storing import Keeper
from api.chores import every
from api.clock import Clock
from api.keyring import Keyring
from api.loop import run
from api.store.database import Database, marked

CALIBRATE_EVERY = 5.0
_STATEMENT_MS = 60_000  # all logs of a block are stored in one transaction


def follow(urls: Sequence[str], dsn: str, secret: str, most_strangers: int) -> None:
    """Follow until told to stop (SIGTERM, SIGINT); what is half stored is rolled back and read again."""
    keyring = Keyring(secret)
    run(_follow(urls, marked(dsn, keyring.mark()), Keeper(keyring, most_strangers)))


async def _follow(urls: Sequence[str], dsn: str, keeper: Keeper) -> None:
    database, clock = Database(dsn, 2 * len(urls) + 1, _STATEMENT_MS, hot=True), Clock()
    nodes = [Node(url) for url in urls]
    await database.open()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    tasks = [asyncio.create_task(every(CALIBRATE_EVERY, "calibrate", lambda: database.calibrate(clock)))]
    tasks += [asyncio.create_task(Follower(database, keeper, clock, node).run()) for node in nodes]
    ended = asyncio.create_task(stopping.wait())
    done, _ = await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, ended):
        task.cancel()
    await asyncio.gather(*tasks, ended, return_exceptions=True)
    for node in nodes:
        await node.close()
    await database.close()
    for task in done:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()  # a bug ends the process loudly: whoever started it starts it again
